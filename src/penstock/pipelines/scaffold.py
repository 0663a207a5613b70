"""Makes a new project from a sample of the history, or from a worked example."""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.pipelines.inference import SAMPLE_EVENTS, Inferred, Sample, infer, sample
from penstock.pipelines.projects import CONF, FILE, SPECS, read_declared, read_project, table_name, table_names

TYPES_MAX: Final = 100
"""Tables of a new project; each has a flow."""
BATCH_EVENTS: Final = 1_000_000
"""Events of a batch, which an interrupted run may have to repeat."""
PRIVATE: Final = 0o600
"""The URL in the file may have a password in it."""
FILES: Final = {
    SPECS[0]: "spark-pipeline.yml",
    CONF: "spark.conf",
    "transformations/bronze.py": "bronze.py.txt",
    "transformations/silver.py": "silver.py.txt",
    "transformations/gold.py": "gold.py.txt",
    "README.md": "README.md",
    ".gitignore": "gitignore",
}
EXAMPLES: Final = {
    "shop": {
        "transformations/gold.py": "shop/gold.py.txt",
        "transformations/fraud.py": "shop/fraud.py.txt",
        "projection.py": "shop/projection.py.txt",
        "README.md": "shop/README.md",
    }
}
"""Worked examples: their files, which replace or extend the usual ones."""
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/.-]*")
_WORDS: Final = frozenset(["true", "false", "yes", "no", "on", "off", "null", "y", "n"])


class Made(NamedTuple):
    """A new project: the table of each type, and notes for its user."""

    folder: Path
    tables: dict[str, str]
    ignored: list[str]
    notes: list[str]


def make_project(
    folder: Path,
    url: str,
    context: str | None = None,
    types: Sequence[str] | None = None,
    name: str | None = None,
    events: int = SAMPLE_EVENTS,
) -> Made:
    """Write a project into a new or empty folder. Writes nothing if there is an error."""
    folder = folder.resolve()
    _check_folder(folder)
    found = sample(url, context, types, events)
    if len(found.texts) > TYPES_MAX:
        raise InvalidRequest("the history", f"has {len(found.texts)} types of events: name up to {TYPES_MAX} of them")
    inferred = {type: infer(texts) for type, texts in sorted(found.texts.items())}
    typed = {type: each for type, each in inferred.items() if each.objects}
    names, ignored = table_names(typed), [type for type in inferred if type not in typed]
    declared = _declared(url, context, types, typed, names, ignored)
    _write(folder, name or folder.name, declared)
    return Made(folder, names, ignored, _notes(found, inferred, names, ignored))


def make_example(folder: Path, url: str, example: str, name: str | None = None) -> Made:
    """Write a worked example into a new or empty folder, without reading the history."""
    if example not in EXAMPLES:
        raise InvalidRequest("example", f"{example} is unknown; what there is: {', '.join(EXAMPLES)}")
    folder = folder.resolve()
    _check_folder(folder)
    declared = Template(_template(f"{example}/{FILE}")).substitute(url=_scalar(url))
    _write(folder, name or folder.name, declared, {**FILES, **EXAMPLES[example]})
    tables = read_declared(folder / FILE).tables
    return Made(folder, {each.type: each.name for each in tables}, [], [])


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(str(folder), "is no folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidRequest(str(folder), "is not empty; name a new folder")


def _notes(found: Sample, inferred: dict[str, Inferred], names: dict[str, str], ignored: list[str]) -> list[str]:
    notes = []
    if not found.texts:
        notes.append(f"there are no such events yet: name their types and columns in {FILE} when they come")
    if found.unseen:
        notes.append(f"{found.unseen:,} positions in the middle of the history were not looked at")
    notes += [f"no body of type {type} is a JSON object: such events are in bronze alone" for type in ignored]
    notes += [
        f"type {type} has the table {name}, as {table_name(type)} is taken"
        for type, name in names.items()
        if name != table_name(type)
    ]
    notes += [
        f"events of type {type} disagree about {field}: those that are not of the type most have go to quarantine"
        for type, each in inferred.items()
        for field in each.disputed
    ]
    notes += [
        f"events of type {type} have a field {field!a}, which no column can be named after: it is left out"
        for type, each in inferred.items()
        for field in each.unnamed
    ]
    return notes


# -- files


def _template(name: str) -> str:
    return (files("penstock.pipelines") / "templates" / name).read_text(encoding="utf-8")


def _write(folder: Path, name: str, declared: str, templates: Mapping[str, str] = FILES) -> None:
    """Write a project, if it is readable."""
    values = {
        "name": _scalar(name),
        "title": name,
        "storage": _scalar((folder / "storage").as_uri()),
        "tables": (folder / "tables").as_uri(),
        "metastore": str(folder / "metastore"),
    }
    texts = {path: Template(_template(template)).substitute(values) for path, template in templates.items()}
    with TemporaryDirectory() as aside:
        try:
            _put(Path(aside), texts, declared)
        except UnicodeEncodeError as error:
            raise InvalidRequest(str(folder), f"cannot be written: {error.object[:100]!a} is no text") from None
        read_project(Path(aside))
    _put(folder, texts, declared)


def _put(folder: Path, texts: Mapping[str, str], declared: str) -> None:
    (folder / "transformations").mkdir(parents=True)
    for path, text in texts.items():
        (folder / path).write_text(text, encoding="utf-8")
    (folder / FILE).touch(PRIVATE)
    (folder / FILE).write_text(declared, encoding="utf-8")


def _declared(
    url: str,
    context: str | None,
    types: Sequence[str] | None,
    typed: dict[str, Inferred],
    names: dict[str, str],
    ignored: list[str],
) -> str:
    head = _template(FILE)
    lines = ["source:", f"  url: {_scalar(url)}"]
    lines += [f"  context: {_scalar(context)}"] if context is not None else []
    lines += [f"  type: {_scalar(','.join(types))}"] if types else []
    lines += [f"  maxEventsPerTrigger: {BATCH_EVENTS}"]
    lines += ["", "types:"] if typed else ["", "types: {}"]
    for type, each in typed.items():
        columns = [f"      {line}" for line in each.columns.split("\n") if each.columns]
        # An object may have no fields.
        body = ["    columns: |", *columns] if columns else ['    columns: ""']
        lines += [f"  {_scalar(type)}:", f"    table: {names[type]}", *body]
    lines += ["", f"ignored: [{', '.join(_scalar(type) for type in ignored)}]"]
    return "\n".join([head.rstrip(), "", *lines, ""])


def _scalar(text: str) -> str:
    """A text in YAML: plain if it is unambiguous, otherwise in quotes."""
    if (_PLAIN.fullmatch(text) and text.lower() not in _WORDS) or re.fullmatch(
        r"[a-z+]+:/[A-Za-z0-9_/.:-]*[\w/]", text
    ):
        return text
    # As in JSON, except for what YAML would read as two characters.
    letters = (each if each.isprintable() and each not in '"\\' else f"\\U{ord(each):08x}" for each in text)
    return f'"{"".join(letters)}"'
