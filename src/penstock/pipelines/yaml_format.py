"""YAML without duplicate names, of which the last would silently win.

A few lines with aliases can stand for more values than fit into memory. So this counts values before it makes them.
"""

from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from penstock.errors import InvalidRequest
from penstock.files import read_file

BYTES_MAX: Final = 8 << 20
NODES_MAX: Final = 1_000_000
"""Values in a file. Those behind an alias count as often as the alias occurs."""


class _Refused(yaml.YAMLError):  # type: ignore[misc]
    """A duplicate name, or aliases that stand for too much."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    def compose_mapping_node(self, anchor: Any) -> Any:
        """Check names as they are written. Later, merged names are among them."""
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line, name = key.start_mark.line + 1, (key.tag, key.value)
                if name in seen:
                    raise _Refused(f"has {key.value!r} twice, in line {seen[name]} and in line {line}")
                seen[name] = line
        return node


def load(path: Path) -> Any:
    """The contents of a file. Raises InvalidRequest, which names the file and the line."""
    try:
        return loaded(read_file(path, BYTES_MAX).decode())
    except _Refused as error:
        raise InvalidRequest(str(path), str(error)) from None
    except OSError as error:
        raise InvalidRequest(str(path), f"cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InvalidRequest(str(path), "is nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # Values with a wrong type tag raise Python's errors.
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        reason = f"is no YAML: {getattr(error, 'problem', None) or error}{where}"
        raise InvalidRequest(str(path), reason) from None


def loaded(text: str) -> Any:
    """The value of a text. Raises whatever PyYAML raises."""
    loader = _Loader(text)
    node = loader.get_single_node()
    if _size(node, {}) > NODES_MAX:
        raise _Refused(f"has aliases that make more than {NODES_MAX} values of it")
    return None if node is None else loader.construct_document(node)


def _size(node: Any, known: dict[int, int]) -> int:
    """How many values a node stands for. A node that contains itself has too many."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = NODES_MAX + 1
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
