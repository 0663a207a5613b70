"""Parsers of setting values: a raw value in, a checked value out.

A raw value is a string from a flag or the environment, or whatever TOML made of it. A parser raises
ValueError with the reason alone; the loader adds the key, the value and the source.
"""

import re
from collections.abc import Callable
from pathlib import Path

UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
STORE_SCHEMES = ("sqlite:///", "postgresql://")
HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
ORIGIN = re.compile(rf"https?://({HOST_NAME.pattern}|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?")


def text(raw: object) -> str:
    """A non-empty string."""
    if not isinstance(raw, str):
        raise ValueError("must be a string")
    if not raw:
        raise ValueError("must not be empty")
    return raw


def directory(raw: object) -> Path:
    """A path; `~` is the home directory."""
    path = raw if isinstance(raw, Path) else Path(text(raw))
    if "\0" in str(path):
        raise ValueError("must not have a zero in it")
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("names a home directory that nobody has") from None


def switch(raw: object) -> bool:
    """A boolean, in TOML's words or the environment's."""
    if isinstance(raw, bool):
        return raw
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    if not isinstance(raw, str) or raw.lower() not in words:
        raise ValueError("must be true or false")
    return words[raw.lower()]


def count(minimum: int) -> Callable[[object], int]:
    """A whole number, underscores allowed, not below `minimum`."""
    return lambda raw: at_least(minimum, whole_number(raw))


def size(minimum: int) -> Callable[[object], int]:
    """A number of bytes not below `minimum`, plain or with a suffix: `64MiB`."""

    def parse(raw: object) -> int:
        number, unit = split_unit(raw)
        return at_least(minimum, whole_number(number, "a number of bytes such as 1048576 or 64MiB") * unit)

    return parse


def choice(*words: str) -> Callable[[object], str]:
    """One of the given words, in any case."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or raw.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return raw.lower()

    return parse


def address(raw: object) -> str:
    """An address to listen on; see `host_and_port`."""
    host_and_port(text(raw))
    return text(raw)


def endpoint(raw: object) -> str:
    """A ZeroMQ endpoint to listen on: `tcp://HOST:PORT` or `ipc://PATH`."""
    scheme, separator, rest = text(raw).partition("://")
    if not separator or scheme not in ("tcp", "ipc") or not rest:
        raise ValueError("must be tcp://HOST:PORT or ipc://PATH")
    if scheme == "tcp":
        host_and_port(rest)
    return text(raw)


def store_url(raw: object) -> str:
    """The address of a store."""
    if not text(raw).startswith(STORE_SCHEMES):
        raise ValueError(f"must begin with {' or '.join(STORE_SCHEMES)}")
    return text(raw)


def host_names(raw: object) -> tuple[str, ...]:
    """Host names, separated by commas or in a list, as they are compared: in lower case."""
    found = tuple(name.lower().removesuffix(".") for name in several(raw))
    if not all(HOST_NAME.fullmatch(name) for name in found):
        raise ValueError(
            "must be host names without scheme and port, such as penstock.example.com, with commas between"
        )
    return found


def origins(raw: object) -> tuple[str, ...]:
    """Origins as browsers write them, separated by commas or in a list."""
    found = tuple(origin.lower() for origin in several(raw))
    if not all(ORIGIN.fullmatch(origin) for origin in found):
        raise ValueError("must be origins such as https://console.example.com:8443, with commas between")
    return found


def several(raw: object) -> list[str]:
    """A list from TOML, or the parts of a string between commas. Nothing is an empty list."""
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("must be a list of strings")
    return [part.strip() for part in parts if part.strip()]


def host_and_port(address: str) -> tuple[str, int]:
    """Split `127.0.0.1:8470` or `[::1]:8470`; port 0 means any free port."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ValueError("must be HOST:PORT, an IPv6 host in brackets")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError("must end in a port from 0 to 65535")
    return host[1:-1] if bracketed else host, int(port)


def whole_number(raw: object, wanted: str = "a whole number") -> int:
    """An int, or a string of ASCII digits that may be grouped by underscores."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if not isinstance(raw, str) or not re.fullmatch(r"-?[0-9]+(_[0-9]+)*", raw.strip()):
        raise ValueError(f"must be {wanted}")
    return int(raw)


def at_least(minimum: int, value: int) -> int:
    """The value, if it is not below the minimum."""
    if value < minimum:
        raise ValueError(f"must be at least {minimum}")
    return value


def split_unit(raw: object) -> tuple[object, int]:
    """Split `64MiB` into `64` and 1048576; anything else is in bytes."""
    if isinstance(raw, str):
        for suffix, unit in UNITS.items():
            if raw.endswith(suffix):
                return raw.removesuffix(suffix).rstrip(), unit
    return raw, 1
