"""Commands as people run them: processes of their own, against a real server."""

import json
import os
import subprocess
from typing import Any, NamedTuple

from tests.test_server import PATIENCE_S, PENSTOCK, environment


class Done(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """What it printed, as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def variables(url: str | None = None, **more: str) -> dict[str, str]:
    """An environment without settings, in which commands find a server."""
    named = {} if url is None else {"PENSTOCK_URL": url}
    return {**environment(), "TERM": "xterm-256color", **named, **more}


def run(
    *arguments: object, url: str | None = None, stdin: str | bytes = b"", env: dict[str, str] | None = None
) -> Done:
    """Run a command to its end."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    command = [*PENSTOCK, *(os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments)]
    done = subprocess.run(command, input=given, capture_output=True, env=env or variables(url), timeout=PATIENCE_S)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def shell(line: str, url: str | None = None) -> Done:
    """Run a line in a shell, with `penstock` as its command."""
    script = f'penstock() {{ {" ".join(PENSTOCK)} "$@"; }}; set -o pipefail; {line}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, env=variables(url), timeout=PATIENCE_S)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
