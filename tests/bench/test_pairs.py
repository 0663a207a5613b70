"""The same work at two servers in turns."""

import os

import pytest

from bench import pairs
from bench.report import Report


def test_the_side_that_begins_alternates_and_a_part_is_of_windows_that_follow_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns: list[str] = []
    rates = {"open": [100.0, 200.0, 400.0], "token": [90.0, 190.0, 200.0]}

    def work(side: str) -> float:
        turns.append(side)
        return rates[side][turns.count(side) - 1]

    report = Report()
    sides = {"open": (os.getpid(), "open"), "token": (os.getpid(), "token")}
    pairs.compare(report, sides, {"appends": work}, 3, goal=95)
    assert turns == ["open", "token", "token", "open", "open", "token"]
    assert report.figures["appends, open"] == 200
    assert report.figures["appends, token"] == 190
    assert report.figures["appends, token of open"] == 90
    assert "% (50 to 95)   goal 95.00: MISSED" in capsys.readouterr().out
