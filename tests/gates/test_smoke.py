"""The table of what is asked over every gate has every command that the tests of one gate ask."""

import re
from pathlib import Path

from tests.gates.conftest import SMOKE
from tests.gates.test_res_bad_input import MALFORMED


def test_every_command_is_asked_over_every_gate() -> None:
    assert set(MALFORMED) <= set(SMOKE)


def test_every_test_of_the_table_exists() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    assert set(SMOKE.values()) <= set(re.findall(r"(?m)^def (test_\w+)", "".join(sources)))
