"""docs/http.md: its examples, line by line on a new server, and its tables."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from penstock import testing
from penstock.gates.api import problems, webhooks
from penstock.gates.api.followers import KEEP_ALIVE_S, TICK_S
from penstock.gates.api.media import EVENT_STREAM_TYPE, PAGES
from penstock.settings import TABLE
from scripts.http_page import page_with_tables, route_tables
from tests.test_server import PATIENCE_S, environment

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
BLOCKS: Final = re.compile(r"^```(console|python)\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
ADDRESS: Final = "http://127.0.0.1:8470"


def steps() -> Iterator[tuple[list[str], str]]:
    """Commands of the page, and what each prints."""
    for language, text, printed in BLOCKS.findall(PAGE):
        if language == "python":
            yield [sys.executable, "-W", "error", "-c", text], printed
            continue
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            yield ["bash", "-c", command], shown


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    done = 0
    with testing.server() as server:
        for command, shown in steps():
            here = [part.replace(ADDRESS, server.http) for part in command]
            result = subprocess.run(
                here, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, env=environment()
            )
            assert (result.returncode, result.stderr) == (0, ""), shlex.join(command)
            wanted = ".*?".join(map(re.escape, shown.strip().split("…")))
            assert re.fullmatch(wanted, result.stdout.strip(), re.DOTALL), result.stdout
            done += 1
    assert done >= 10


def test_the_tables_of_routes_are_those_of_the_server() -> None:
    assert page_with_tables(PAGE) == PAGE, "run make docs"
    assert route_tables() in PAGE


def test_the_file_of_webhooks_is_understood(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml webhooks\.toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    text = text.replace("whsec_…", "whsec_" + "A" * 24)
    path = tmp_path / "webhooks.toml"
    path.touch(0o600)
    path.write_text(text, encoding="utf-8")
    found = webhooks._read(path)
    assert set(found) == set(tomllib.loads(text)["webhooks"]) == {"payments", "clouds"}
    assert f'by default "{webhooks.DEFAULT_TYPE}"' in text
    assert set(re.findall(r"^(\w+) =", text, re.MULTILINE)) == webhooks.PARTS


def test_the_page_names_each_form_each_status_and_each_limit() -> None:
    forms = set(re.findall(r"^\| `(\w+/[\w.+-]+)` \|", PAGE, re.MULTILINE))
    assert forms == {*PAGES, EVENT_STREAM_TYPE}
    rows = re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE)
    statuses = {int(status) for row in rows for status in row.split(",")}
    assert statuses >= set(problems.STATUSES.values()) - {500}
    assert set(re.findall(r"`(\w+_max)`", PAGE)) <= set(TABLE)


@pytest.mark.parametrize(
    "sentence",
    [
        f"After {KEEP_ALIVE_S:.0f} seconds without events the server sends a comment",
        f"followers get them every {1000 * TICK_S:.0f} ms",
        f"differ from the server's by {webhooks.AGE_S_MAX // 60} minutes",
        f"at most {webhooks.BODY_BYTES_MAX >> 20} MiB",
    ],
)
def test_the_numbers_of_the_page_are_those_of_the_code(sentence: str) -> None:
    assert sentence in " ".join(PAGE.split())
