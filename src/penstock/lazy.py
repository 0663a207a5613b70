"""Names of a package that are loaded when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package, with the names that each of these modules gives it.

    A package has them where no type checker looks, with the imports themselves for type checkers: so a checker refuses
    all other names.
    """
    found_in = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = found_in.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(home)
            # A name may be that of its module.
            found = module if home == f"{package}.{name}" else getattr(module, name)
        except AttributeError as error:
            # `from … import …` would say only that there is no such name.
            raise ImportError(f"{home} cannot be imported: {error}") from error
        return vars(sys.modules[package]).setdefault(name, found)

    def names() -> list[str]:
        return sorted(vars(sys.modules[package]).keys() | found_in.keys())

    return load, names
