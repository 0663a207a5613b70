"""`penstock access curve-keygen`: key pairs for CURVE."""

import json
import stat
from pathlib import Path
from urllib.parse import unquote

from penstock.wire.curve import key_of, key_text, public_key
from tests.cli.support import run


def test_a_key_pair_is_made_in_a_private_file_and_the_public_key_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "curve.key"
    done = run("access", "curve-keygen", "--out", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().strip()
    assert done.out == f"{key_text(public_key(key_of(secret)))}\n"
    assert secret not in done.out + done.err
    assert f"--curve-secret-key {file}" in done.err


def test_programs_get_the_public_key_as_it_is_in_a_url_too(tmp_path: Path) -> None:
    for number in range(5):
        found = json.loads(run("access", "curve-keygen", "--json", "--out", str(tmp_path / str(number))).out)
        assert unquote(found["in_url"]) == found["public_key"]
        assert not set("&#=?+") & set(found["in_url"])


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "curve.key"
    file.write_text("precious")
    done = run("access", "curve-keygen", "--out", str(file))
    assert done.code == 1
    assert "exists already; name another file with --out" in done.err
    assert file.read_text() == "precious"
