"""docs/import-export.md does what it says."""

import re
from pathlib import Path

from penstock.interchange.formats import CSV_COLUMNS
from penstock.interchange.sender import BATCH_EVENTS_MAX
from penstock.testing import Server
from tests.cli.support import shell

PAGE = (Path(__file__).parents[2] / "docs" / "import-export.md").read_text("utf-8")


def test_the_example_prints_what_the_page_says(served: Server, tmp_path: Path) -> None:
    found = re.search(r"```sh\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    done = shell(f"cd {tmp_path} && set -e\n{found[1]}", served.url)
    assert (done.code, done.out, done.err) == (0, found[2], "")


def test_the_page_names_every_column_and_the_size_of_a_batch() -> None:
    assert [name for name in CSV_COLUMNS if f"`{name}`" not in PAGE] == []
    assert f"batches of up to {BATCH_EVENTS_MAX:,}" in PAGE
