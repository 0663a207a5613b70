"""Answers in files and pipes: CSV, JSON with an object on each line, Parquet.

A file is written aside and renamed when it is whole: one of that name is an answer, never a part of one. Links are
followed. Pipes and devices are written into as they are.
"""

import errno
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.errors import InvalidRequest
from penstock.files import atomic_write, is_replaceable
from penstock.sql.sessions import Answer
from penstock.sql.values import cell_schema, cells, json_lines, names_of

GROUP_ROWS_MAX: Final = 122_880
GROUP_BYTES_MAX: Final = 64 << 20
"""What of an answer is held in memory for one row group of Parquet."""

Escape = Callable[[str], str]


def write_csv(answer: Answer, file: IO[bytes], escape: Escape | None = None) -> int:
    """Write CSV with a line of names; how many rows it was. Texts are quoted, and what is null is empty."""
    rows = 0
    with pyarrow.csv.CSVWriter(file, cell_schema(answer.schema, escape)) as writer:
        for batch in answer.batches():
            writer.write_batch(cells(batch, escape))
            rows += batch.num_rows
    return rows


def write_json(answer: Answer, file: IO[bytes]) -> int:
    """Write an object on each line; how many it were."""
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in answer.batches():
            rows += batch.num_rows
            yield batch

    for lines in json_lines(counted(), names_of(answer.schema)):
        file.write(lines.encode())
    return rows


def write_parquet(answer: Answer, file: IO[bytes]) -> int:
    """Write Parquet; how many rows it was."""
    rows = 0
    names = names_of(answer.schema)
    schema = pa.schema([field.with_name(name) for field, name in zip(answer.schema, names, strict=True)])
    try:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in _groups(answer.batches()):
                writer.write_table(pa.Table.from_batches(group).rename_columns(names))
                rows += sum(batch.num_rows for batch in group)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidRequest("answer", f"has a column that Parquet cannot have: {error}; cast it") from None
    return rows


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS_MAX or size >= GROUP_BYTES_MAX:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Where an answer goes: a file that is there when it is whole, or what cannot be replaced by one."""
    with _whole_file(path) if is_replaceable(path) else path.open("wb") as file:
        yield file


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is there when all of it is written and safe, and not before."""
    # A link is followed: to put a file in its place would be a surprise.
    path = Path(os.path.realpath(path))
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    with atomic_write(path, aside=aside, public=True) as file:
        yield file
