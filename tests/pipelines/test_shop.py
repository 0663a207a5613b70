"""The shop, the worked example of pipelines: what it makes is what plain Python makes of the same events.

Each test has a shop and a Spark of its own.
"""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from typer.testing import CliRunner

from penstock.cli.root import app
from penstock.errors import InvalidRequest
from penstock.pipelines.scaffold import make_example
from tests.pipelines.shop import BAD, Session, Shop, body, revenue, sessions, suspected, table, told
from tests.pipelines.support import Rounds, positions, rounds

PAGE: Final = Path(__file__).parents[2] / "docs" / "pipelines-shop.md"
ORDERS: Final = 60
AHEAD: Final = datetime(2200, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.timeout(600)


class Running(NamedTuple):
    """A shop, its project, and a process that runs it in rounds."""

    shop: Shop
    project: Path
    rounds: Rounds

    def round(self, *full_refresh: str) -> None:
        assert self.rounds.do(full_refresh=full_refresh)["failures"] == []


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A shop in which something was sold, and in which there are bodies that are no orders."""
    shop = Shop(tmp_path / "data")
    make_example(tmp_path / "project", shop.url, "shop")
    shop.sell(ORDERS)
    shop.add(*BAD)
    shop.add(*BAD, type="PaymentFailed")
    with rounds(tmp_path / "project") as started:
        yield Running(shop, tmp_path / "project", started)


def check(running: Running) -> None:
    """All tables are what they should be, and so is what the pipeline has written."""
    events, project = running.shop.events(), running.project
    read = [each for each in events if each.context != "fraud"]
    assert positions(project, "bronze") == [each.position for each in read]
    misfits = [each.position for each in read if not body(each)]
    assert positions(project, "quarantine") == misfits
    found = {row["hour"]: (row["payments"], row["revenue"]) for row in table(project, "revenue_per_hour")}
    assert found == revenue(events)
    over = sorted(Session(**row) for row in table(project, "sessions"))
    assert over == sessions(events)
    assert told(events) == suspected(events)


@pytest.mark.long
def test_every_table_is_what_plain_python_computes(running: Running) -> None:
    running.round()
    check(running)
    events = running.shop.events()
    assert (len(told(events)) > 5, len(table(running.project, "sessions")) > 15) == (True, True)
    state = running.project / "storage/_checkpoints/spark_catalog/default/sessions/sessions/0/state/0"
    assert [path.name for path in state.iterdir() if path.name.isdecimal()] == ["0"], (
        "the partitions that were asked for"
    )


@pytest.mark.long
def test_whatever_happens_between_rounds_no_event_is_lost_and_none_comes_twice(running: Running) -> None:
    running.shop.sell(200)
    running.round()
    check(running)

    # As if the run had been killed between the sink's publication and Spark's note that the batch is done.
    commits = running.project / "storage" / "_checkpoints" / "history" / "fraud" / "0" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    before = {each.id for each in running.shop.events()}
    running.shop.sell(100)
    running.round()
    check(running)
    assert len(told(each for each in running.shop.events() if each.id not in before)) > 2

    # A lost checkpoint of the fraud rule. And a clock that is years ahead ends no session but those that are over now.
    running.shop.sell(20)
    running.shop.add(b'{"customer": "Ada", "amount": 1}', time=AHEAD)
    shutil.rmtree(running.project / "storage" / "_checkpoints" / "history")
    running.round()
    check(running)

    # That clock has made all events late; those are in sessions that are made anew. Sinks are left to the next round.
    running.shop.sell(20)
    running.round("sessions")
    running.round()
    check(running)


def test_the_command_line_says_what_the_page_says_and_knows_no_other_example(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'data'}"
    made = CliRunner().invoke(app, ["pipeline", "init", str(tmp_path / "p"), "--example", "shop", "--url", url])
    assert made.exit_code == 0
    assert made.stdout.replace(str(tmp_path / "p"), "/srv/shop") in PAGE.read_text(encoding="utf-8")
    assert (tmp_path / "p" / "projection.py").is_file()
    with pytest.raises(InvalidRequest, match="what there is: shop"):
        make_example(tmp_path / "q", url, "bakery")
    command = ["pipeline", "init", str(tmp_path / "q"), "--example", "shop", "--url", url, "--context", "shop"]
    assert CliRunner().invoke(app, command).exit_code == 2
    assert not (tmp_path / "q").exists()
