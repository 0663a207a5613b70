"""Options of commands that run on Spark, and the session they start."""

import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Final

from penstock.cli.options import option
from penstock.cli.output import refuse

if TYPE_CHECKING:
    from penstock.spark.sessions import Start

AGAIN: Final = "interrupted: run the same command again to continue"

Master = Annotated[str | None, option("--master", "Spark's master (default: this machine)", "M")]
Conf = Annotated[list[str] | None, option("--conf", "an option for Spark; can be repeated", "KEY=VALUE")]


def session(name: str, master: str | None, conf: list[str] | None) -> AbstractContextManager["Start"]:
    """A Spark session with this application name. Spark starts when there is something to do."""
    from penstock.spark.sessions import MASTER, late_session  # noqa: PLC0415

    hide_py4j_log()
    return late_session(name, MASTER, options_of(conf, master))


def hide_py4j_log() -> None:
    """Hide what Py4J logs about a JVM that an interrupt has ended: it raises the same as an error."""
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def options_of(conf: list[str] | None, master: str | None = None) -> dict[str, str]:
    """The options that `--conf` and `--master` give; they win over Spark's configuration files."""
    options: dict[str, str] = {}
    for text in conf or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            refuse(f"--conf is {text!r}: it must be KEY=VALUE")
        options[key] = value
    return options | ({"spark.master": master} if master is not None else {})
