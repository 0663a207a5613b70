"""YAML in which no name stands twice: the last one would count, and what the first one says would be gone unnoticed."""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from penstock.errors import InvalidRequest


class _Twice(yaml.YAMLError):  # type: ignore[misc]
    """A name that stands twice in one place."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    def compose_mapping_node(self, anchor: Any) -> Any:
        """Look at names as they are written: later on, those that are merged in are among them."""
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line, name = key.start_mark.line + 1, (key.tag, key.value)
                if name in seen:
                    raise _Twice(f"has {key.value!r} twice, in line {seen[name]} and in line {line}")
                seen[name] = line
        return node


def load(path: Path) -> Any:
    """What is in a file. Raises InvalidRequest, which names the file and the line."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - it is a safe one
    except _Twice as error:
        raise InvalidRequest(str(path), str(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(str(path), f"is no YAML: {_told(error)}") from None


def _told(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or error}{where}"
