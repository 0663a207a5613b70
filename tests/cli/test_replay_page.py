"""docs/replay.md does what it says."""

import re
from pathlib import Path

from penstock.engine.queues import REPLAY_BATCH_EVENTS_MAX, WAITING_ALLOCATIONS_MAX
from penstock.interchange.sender import BATCH_EVENTS_MAX
from penstock.testing import Server
from tests.cli.support import shell

PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text("utf-8")


def test_the_example_prints_what_the_page_says(served: Server, tmp_path: Path) -> None:
    found = re.search(r"```sh\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    done = shell(f"export XDG_STATE_HOME={tmp_path}; set -e\n{found[1]}", served.url)
    assert (done.code, done.out, done.err) == (0, found[2], "")


def test_the_page_has_the_limits_that_there_are() -> None:
    assert f"transactions of up to {BATCH_EVENTS_MAX:,} events" in PAGE
    assert f"batches of up to {REPLAY_BATCH_EVENTS_MAX};" in PAGE
    assert f"While {WAITING_ALLOCATIONS_MAX} batches wait" in PAGE
