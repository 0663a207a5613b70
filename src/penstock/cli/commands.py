"""What all commands have in common as typer makes them: names that are names, and help without noise.

Which values are names is told by their metavars: whoever takes a CONTEXT takes no empty one, and needs not say so.
"""

from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from penstock.cli.output import refuse

__all__ = ["Command", "Group"]

NAMES: Final = frozenset(("CONTEXT", "STREAM", "TYPE", "QUEUE", "NAME", "ID", "CONTEXT/STREAM"))
"""Values that must not be empty."""
TEXTS: Final = NAMES | frozenset(("PREFIX", "TEXT", "JSON", "STATEMENT"))
"""Values that are kept or sent as text. Paths and bodies may be any bytes."""


class Command(TyperCommand):
    """A command whose names are looked at before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was given; what cannot be ends the command."""
        rest = super().parse_args(ctx, args)
        for parameter in () if ctx.resilient_parsing else self.params:
            check(parameter, ctx)
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        """All options and arguments, as help shows them."""
        return list(map(without_noise, super().get_params(ctx)))


class Group(TyperGroup):
    """Commands below a command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All options, as help shows them."""
        return list(map(without_noise, super().get_params(ctx)))


def without_noise(parameter: Any) -> Any:
    """A parameter as it is; a flag without the name of its type, as it takes no value."""
    if getattr(parameter, "is_flag", False) and parameter.metavar is None:
        parameter.metavar = ""
    return parameter


def check(parameter: Any, ctx: Any) -> None:
    """End the command if a value that must be a text, or a name, is none."""
    if parameter.metavar not in TEXTS:
        return
    given = ctx.params.get(parameter.name)
    for value in given if isinstance(given, list | tuple) else [given]:
        if isinstance(value, str) and (reason := flaw(value, parameter.metavar in NAMES)):
            name = parameter.metavar if parameter.param_type_name == "argument" else max(parameter.opts, key=len)
            refuse(f"{name} {reason} (see {ctx.command_path} --help)")


def flaw(text: str, is_name: bool) -> str | None:
    """Why a text cannot be what was asked for, or None if it can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return "is empty" if is_name and not text else None
