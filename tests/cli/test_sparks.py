"""What commands on Spark have in common: what is said to Spark, and how Ctrl-C ends them. No Spark is started."""

import signal
import sys

import pytest
import typer

from penstock.cli.options import AGAIN, options_of
from penstock.cli.pipeline import _say
from penstock.cli.signals import interruptible


def hang_on_two_signals() -> None:
    with interruptible(AGAIN, interrupt_at=2) as stop:
        assert stop.wait(0)
        signal.raise_signal(signal.SIGINT)
        assert not stop.wait(600)
        signal.raise_signal(signal.SIGTERM)


def test_the_first_signal_is_waited_for_and_the_second_interrupts_what_hangs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(typer.Exit) as ended:
            hang_on_two_signals()
        assert ended.value.exit_code == 128 + signal.SIGTERM
        # Whoever is impatient disturbs nothing.
        signal.raise_signal(signal.SIGINT)
        for number, handler in kept.items():
            signal.signal(number, handler)
        with pytest.raises(typer.Exit) as ended, interruptible("interrupted"):
            signal.raise_signal(signal.SIGINT)
        assert ended.value.exit_code == 130
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    said = "penstock: interrupted: run the same command again to continue\npenstock: interrupted\n"
    assert capsys.readouterr().err == said


def test_whoever_looks_on_is_told_what_is_under_way_and_a_pipe_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        for state in ("QUEUED", "RUNNING", "COMPLETED"):
            _say("bronze", state)
    assert capsys.readouterr().err == "bronze: running\nbronze: completed\n"


def test_a_master_that_is_named_goes_before_one_among_the_options() -> None:
    assert options_of(["spark.master=local", "spark.x=a=b"]) == {"spark.master": "local", "spark.x": "a=b"}
    assert options_of(["spark.master=local"], "yarn") == {"spark.master": "yarn"}
