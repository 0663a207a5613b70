"""From flags, environment and file to `Settings`, remembering where each value came from."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.settings.table import TABLE, Settings

DEFAULT = "default"
"""The source of a value that is not set."""
CONFIG_ENVIRONMENT = "PENSTOCK_CONFIG"
"""The environment variable that names the TOML file, as `--config` does."""
Raw = dict[str, tuple[object, str]]
"""Raw values by setting name, each with its source."""
CONFIG_BYTES_MAX: Final = 1 << 20


class BadSetting(ValueError):
    """A setting that cannot be used: which one, its value, where that came from, and why not."""

    def __init__(self, key: str, value: object, source: str, reason: str) -> None:
        self.key = key
        self.value = without_password(value)
        self.source = source
        self.reason = reason
        # A missing setting has no value to show.
        super().__init__(reason if value is None else f"{key} = {self.value!r} (from {source}): {reason}")

    def __reduce__(self) -> tuple[type["BadSetting"], tuple[object, ...]]:
        return type(self), (self.key, self.value, self.source, self.reason)


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings, and for each name where its value came from."""

    settings: Settings
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    name: str
    value: object
    source: str
    default: object
    flag: str
    environment: str
    help: str


def load(flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None = None) -> Settings:
    return resolve(flags, environ, toml_path).settings


def resolve(flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None = None) -> ResolvedSettings:
    """Parse all settings and remember their sources.

    `flags` is keyed by setting name; a flag that was not given is absent or None. An empty environment
    variable counts as not set. Without `toml_path` the file is the one `PENSTOCK_CONFIG` names, if any.
    """
    raw = read_file(toml_path, environ)
    # Unknown variables are no error: container platforms invent some with our prefix.
    for row in TABLE.values():
        if given := environ.get(row.environment):
            raw[row.name] = (given, row.environment)
    for name, value in flags.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            refuse_unknown(name, value, flag)
            raw[name] = (value, flag)
    values: dict[str, Any] = {}
    for name, (value, source) in raw.items():
        try:
            values[name] = TABLE[name].parse(value)
        except ValueError as error:
            raise BadSetting(name, value, source, str(error)) from None
    sources = {name: raw[name][1] if name in raw else DEFAULT for name in TABLE}
    return ResolvedSettings(Settings(**values), sources)


def explain(resolved: ResolvedSettings) -> Iterator[ExplainedSetting]:
    """Each setting with its value, its source and all its names. Passwords are starred out."""
    for row in TABLE.values():
        value = without_password(getattr(resolved.settings, row.name))
        source = resolved.sources[row.name]
        yield ExplainedSetting(row.name, value, source, row.default, row.flag, row.environment, row.help)


def read_file(path: Path | None, environ: Mapping[str, str]) -> Raw:
    """The values in the TOML file, if there is one; an unknown key is an error."""
    source = "--config"
    if path is None and (named := environ.get(CONFIG_ENVIRONMENT)):
        path, source = Path(named), CONFIG_ENVIRONMENT
    if path is None:
        return {}
    try:
        # Not only files: a shell may hand over a pipe.
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
        if len(data) > CONFIG_BYTES_MAX:
            raise BadSetting("config", str(path), source, f"is longer than {CONFIG_BYTES_MAX} bytes")
        document = tomllib.loads(data.decode())
    except BadSetting:
        raise
    except OSError as error:
        raise BadSetting("config", str(path), source, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # Numbers of very many digits, and very deep brackets, are TOML that Python does not read.
        raise BadSetting("config", str(path), source, f"is not TOML: {error}") from error
    for key, value in document.items():
        refuse_unknown(key, value, str(path))
    return {key: (value, str(path)) for key, value in document.items()}


def refuse_unknown(key: str, value: object, source: str) -> None:
    if key not in TABLE:
        near = difflib.get_close_matches(key.replace("-", "_").lower(), TABLE, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BadSetting(key, value, source, f"is not a setting{hint}")


def without_password(value: object) -> object:
    """The value, with the password of an address starred out."""
    if not isinstance(value, str):
        return value
    value = re.sub(r"(://[^/@:]*:).*(?=@)", r"\1***", value)
    return re.sub(r"([?&\s](?:ssl)?password=)[^&\s]*", r"\1***", value)


def store_address(settings: Settings) -> str:
    """The URL of the store that settings name."""
    if settings.store is not None and settings.data is not None:
        raise BadSetting("store", settings.store, "--store", "only one of --data and --store can be given")
    if settings.data is not None:
        return f"sqlite:///{settings.data}"
    if settings.store is None:
        raise BadSetting("data", None, "default", "say where the store is: --data DIR or --store URL")
    return settings.store
