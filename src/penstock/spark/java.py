"""The Java that Spark would start, and its version. This needs no PySpark."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

JAVA_MIN: Final = 17
VERSION_S_MAX: Final = 20.0
GET_JAVA: Final = f"install it (Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME"

_VERSION: Final = re.compile(r'version "((\d+)[^"]*)"')


class Java(NamedTuple):
    path: str
    version: str
    major: int


def found_java(environ: Mapping[str, str]) -> Java | None:
    """The Java in JAVA_HOME, or else on the path."""
    home = environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home) / "bin" / "java") if home else "java", path=environ.get("PATH", ""))
    if path is None or (output := output_of([path, "-version"])) is None:
        return None
    found = _VERSION.search(output)
    # Versions up to 8 begin with "1.".
    return Java(path, found[1], 8 if found[2] == "1" else int(found[2])) if found else None


def output_of(command: list[str]) -> str | None:
    """Standard output and error of a command; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_S_MAX, check=False)  # noqa: S603
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None
