"""`penstock iterator build`: the results of an iterator, computed on Spark and installed in one step."""

import os
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.bars import rate_bar
from penstock.cli.connecting import Data, Url, address_of, telling
from penstock.cli.output import AsJson, complain, counted, fail, print_document, print_line
from penstock.cli.sparks import Conf, Master, interruptible, session
from penstock.settings import load

if TYPE_CHECKING:
    from penstock.errors import FunctionFailed
    from penstock.spark.builds import Outcome

__all__ = ["build_command"]

NAME: Final = "penstock iterator build"
"""What Spark shows of it."""
INTERRUPTED: Final = "interrupted: what was not installed is dropped; run the same command again"


def build_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the iterator's name", show_default=False)],
    url: Url = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Build the results of an indexed iterator on Spark, up to the messages that there are now.

    They are installed in one step, and are those that the server would have built, which goes on from there. It may
    serve, and take messages, meanwhile.
    """
    from penstock.engine.iterators import lua_limits  # noqa: PLC0415
    from penstock.spark.builds import begin_build  # noqa: PLC0415

    with telling(), interruptible(INTERRUPTED):
        address, lua = address_of(url, data), lua_limits(load({}, os.environ))
        started, began = session(NAME, master, conf), time.monotonic()
        with begin_build(address, name, lua) as building, started as spark, rate_bar("messages") as bar:

            def progressed(done: int, total: int) -> None:
                failed = f"messages, {building.failed:,} failed" if building.failed else "messages"
                bar(done, total, failed)

            outcome = building.run(spark, progressed)
    _tell(outcome, time.monotonic() - began, as_json)


def _tell(outcome: "Outcome", seconds: float, as_json: bool) -> None:
    if as_json:
        print_document(_document(outcome, seconds))
    else:
        print_line(_line(outcome, seconds))
    if outcome.error is not None:
        fail(_failure(outcome, outcome.error))
    if outcome.failure is not None:
        many = f"{counted(outcome.failed, 'message')} of {outcome.start.log} failed"
        complain(f"{many}; the first is {_where(outcome, outcome.failure)}", 0)


def _line(outcome: "Outcome", seconds: float) -> str:
    name, installed = outcome.start.iterator, outcome.installed
    if not outcome.messages and outcome.error is None:
        return f"iterator {name} has read all messages of {outcome.start.log}"
    rate = f"{seconds:.1f} s, {outcome.messages / max(seconds, 1e-9):,.0f} messages/s"
    built = f"{counted(outcome.messages, 'message')} read, {counted(installed.added, 'item')} added ({rate})"
    return f"{built}; iterator {name} has {counted(installed.items, 'item')}"


def _failure(outcome: "Outcome", error: "FunctionFailed") -> str:
    start = outcome.start
    return f"iterator {start.iterator} over {start.log} failed at {_where(outcome, error)}"


def _where(outcome: "Outcome", error: "FunctionFailed") -> str:
    at = "" if outcome.position is None else f", position {outcome.position}"
    return f"message {error.message}{at}: {error.reason}"


def _document(outcome: "Outcome", seconds: float) -> dict[str, Any]:
    start, installed = outcome.start, outcome.installed
    return {
        "iterator": start.iterator,
        "log": start.log,
        "kind": start.kind,
        "messages": outcome.messages,
        "added": installed.added,
        "items": installed.items,
        "seconds": round(seconds, 3),
        "failed": outcome.failed,
        "first_failed": _said(outcome, outcome.failure),
        "error": _said(outcome, outcome.error),
    }


def _said(outcome: "Outcome", error: "FunctionFailed | None") -> dict[str, Any] | None:
    if error is None:
        return None
    return {"message": error.message, "position": outcome.position, "reason": error.reason}
