"""Files with settings that are damaged or made up: the command shows every setting, or one line says what is wrong."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.settings.table import TABLE
from tests.hostile.mutations import CHANGES, LINES, Change, Insert, Lines, changed
from tests.hostile.support import Tally, ended, some, untouched

VALUES = (
    *(
        "1",
        "-1",
        "0",
        "9" * 5000,
        "1e400",
        "nan",
        "inf",
        '""',
        '"\\u0000"',
        '"\\u001b[31m"',
        '"~nobody-of-this-name/x"',
    ),
    *("[]", "[" * 5000 + "]" * 5000, "{a = 1}", "{" + "a = {" * 2000, "true", "2026-11-16", "07:00:00", '"x"', "'''"),
    *(
        '"tcp://[:0"',
        '"127.0.0.1:99999"',
        '"[::1"',
        '"64MiB"',
        f'"{"9" * 5000}GiB"',
        '"sqlite:///"',
        '"postgresql://["',
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


def whole() -> bytes:
    lines = [
        f"{row.name} = {str(row.default).lower() if isinstance(row.default, bool) else repr(row.default)}"
        for row in TABLE.values()
        if isinstance(row.default, bool | int | str) and row.default != ""
    ]
    return "\n".join([*lines, ""]).encode()


def read(folder: Path, data: bytes) -> int:
    """Show the settings that a file says; the exit code, which is 2 if there is something wrong with it."""
    path = folder / "penstock.toml"
    path.write_bytes(data)
    with untouched(folder):
        done = ended("settings", "--config", path)
    assert done.code in (0, 2)
    assert not done.code or str(path) in done.err
    return done.code


def test_a_damaged_file_of_settings_is_refused_or_has_settings(folder: Path) -> None:
    seen = Tally()

    @some(4)
    @given(CHANGES | st.lists(LINES, min_size=1, max_size=2))
    @example([Insert(0, b"\0")])
    def check(changes: list[Change | Lines]) -> None:
        seen.add(read(folder, changed(whole(), changes)) != 0)  # type: ignore[arg-type]

    assert read(folder, whole()) == 0
    check()
    seen.check(1 / 5)


def test_any_value_of_any_setting_is_refused_or_is_one(folder: Path) -> None:
    seen = Tally()

    @some(4)
    @given(st.sampled_from(sorted(TABLE)), st.sampled_from(VALUES))
    @example("data", '"~nobody-of-this-name/x"')
    def check(name: str, value: str) -> None:
        seen.add(read(folder, f"{name} = {value}\n".encode()) != 0)

    check()
    seen.check(1 / 2)
