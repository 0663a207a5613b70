"""Commands on damaged files: how they may end, and what they may touch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import settings

from tests.cli.support import Done, run

PRECIOUS = b"precious"
EXAMPLES_MIN = 6


def some(part: int) -> settings:
    """This part of the examples that others take: each runs a command."""
    return settings(max_examples=max(EXAMPLES_MIN, settings().max_examples // part))


class Tally:
    """How many of the files that were tried a command has refused: a test in which none is tests nothing."""

    FEW = 40

    def __init__(self) -> None:
        self.all = self.refused = 0

    def add(self, is_refused: bool) -> None:
        """Count one."""
        self.all += 1
        self.refused += is_refused

    def check(self, share: float) -> None:
        """Of many files, this share at least; of few, one, as chance may have it."""
        assert self.refused > (0 if self.all < self.FEW else share * self.all), (self.refused, self.all)


def ended(*arguments: object, **given: object) -> Done:
    """Run a command, which ends well whatever it reads: it is done, or says in a line why it cannot be done.

    An exception that it does not foresee is raised here.
    """
    done = run(*arguments, **given)  # type: ignore[arg-type]
    assert done.code in (0, 1, 2), done
    lines = done.err.splitlines()
    # A doctor's findings are its answer.
    assert not done.code or arguments[0] == "doctor" or lines[-1].startswith("penstock: "), done
    for line in (*lines, *done.out.splitlines()):
        assert line.isprintable(), repr(line)
        assert len(line) < 1 << 17, line[:200]
    for line in lines:
        # An error of the system's without the name of its file says nothing to anybody.
        assert "standard output" not in line, line
        assert not line.endswith((": None", ": ")), line
    return done


def contents(root: Path, *passed_over: Path) -> dict[str, bytes]:
    """All files below a folder, or it itself, with what is in them, but for those in some others."""
    found = {}
    for path in [root] if root.is_file() else sorted(root.rglob("*")):
        if path.is_file() and not any(path.is_relative_to(each) for each in passed_over):
            found[str(path.relative_to(root))] = path.read_bytes()
    return found


@contextmanager
def untouched(root: Path, *passed_over: Path) -> Iterator[None]:
    """Nothing below a folder changes in here, but for what is in some others."""
    (root / "precious").write_bytes(PRECIOUS)
    before = contents(root, *passed_over)
    yield
    assert contents(root, *passed_over) == before
