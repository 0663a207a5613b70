"""docs/security.md says what the code does: grants, rights, limits, the audit, and the file of principals."""

import os
import re
import shlex
import subprocess
import tomllib
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import generate_latest

import penstock
from penstock import testing
from penstock.console.audit import WORDS
from penstock.engine.access import Usage
from penstock.engine.access_file import parsed
from penstock.engine.metrics import Metrics
from penstock.errors import InvalidRequest
from penstock.model import CredentialKind, Grant, Limits
from penstock.model.access import GRANTS_MAX, RIGHTS, check_credential
from penstock.store.tables.access import CREDENTIALS_MAX, PRINCIPALS_MAX
from scripts.security_page import page_with_table, rights_table
from tests.test_server import ONE_WORKER, PENSTOCK, Served, environment

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
GRANTS = {
    "read,append:shop": [("shop", "order-1", True), ("other", "order-1", False), ("$audit", "access", False)],
    "read:shop/order-*": [("shop", "order-1", True), ("shop", "basket-1", False)],
    "append:shop/order-1": [("shop", "order-1", True), ("shop", "order-12", False)],
    "read,append:log:visits": [("remits", "visits", True), ("remits", "visits-2", False)],
    "log:v*": [("remits", "visits", True), ("remits", "orders", False)],
    "log:*": [("remits", "orders", True), ("shop", "orders", False)],
    "consume:*": [("shop", "order-1", True), ("$audit", "access", False)],
    "consume": [("shop", "order-1", True), ("$audit", "access", False)],
    "all": [("shop", "order-1", True), ("remits", "visits", True)],
}
"""The grants of the page, and streams that they have or do not have."""


def section(title: str) -> str:
    found = re.search(rf"^##+ {title}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def names_in(table: str) -> list[str]:
    """The code in the first column of a table."""
    return [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]


def test_the_table_of_rights_is_that_of_the_requests() -> None:
    assert page_with_table(PAGE) == PAGE, "run make docs"
    assert rights_table() in PAGE


def test_the_pages_own_authority_issues_a_certificate_that_clients_trust(tmp_path: Path) -> None:
    (commands,) = [block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "-keyout ca.key" in block]
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    with testing.server(tls_cert=str(tmp_path / "server.pem"), tls_key=str(tmp_path / "server.key")) as server:
        port = server.url.partition("?")[0].rpartition(":")[2]
        with penstock.connect(f"penstock://localhost:{port}?tls&tls_ca={tmp_path / 'ca.pem'}") as client:
            assert client.whoami().principal == "anonymous"
    (fingerprint,) = re.findall(r'"\$\((openssl x509 .*?)\)"', PAGE)
    done = subprocess.run(
        ["sh", "-ec", fingerprint.replace("shop.pem", "server.pem")],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert check_credential(CredentialKind.CERTIFICATE, done.stdout.strip()) is None
    assert done.stdout.startswith("sha256:")


@pytest.mark.parametrize("text", GRANTS)
def test_a_grant_of_the_page_means_what_the_page_says(text: str) -> None:
    assert f"`{text}`" in section("How a grant is written")
    grant = Grant.of(text if text.partition(":")[0] != "log" else f"read:{text}")
    for context, stream, has in GRANTS[text]:
        assert grant.scope.has_stream(context, stream) is has


def test_the_page_has_examples_of_every_grant_that_it_explains() -> None:
    assert set(names_in(section("How a grant is written"))) <= set(GRANTS)


def test_a_grant_that_the_page_calls_wrong_is_refused_and_its_advice_is_not() -> None:
    with pytest.raises(InvalidRequest, match="write audit alone"):
        Grant.of("all:shop")
    assert "`all:shop` is refused; write `read,append,consume,admin:shop`" in PAGE
    Grant.of("read,append,consume,admin:shop")
    assert Grant.of("read:remits") == Grant.of("read:log:*")
    assert not Grant.of("read:*").scope.has_stream("$audit", "access")


def test_every_right_is_explained() -> None:
    before_commands = section("What each right allows").partition("<!--")[0]
    assert set(names_in(before_commands)) == set(RIGHTS) - {"all"}


def test_every_limit_of_a_principal_is_in_the_table() -> None:
    assert names_in(section("Limits of a principal")) == [field.name for field in fields(Limits)]


def test_the_metrics_of_the_page_are_there() -> None:
    metrics = Metrics()
    metrics.usage = {"shop": Usage()}
    shown = generate_latest(metrics.registry).decode()
    named = re.findall(r"penstock_principal_\w+", PAGE)
    assert [name for name in named if f'{name}{{principal="shop"}}' not in shown] == []
    assert len(named) == shown.count('{principal="shop"}')


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    text = " ".join(section("Principals and grants").split())
    assert f"at most {PRINCIPALS_MAX:,} principals and {CREDENTIALS_MAX:,} credentials" in text
    assert f"a principal has at most {GRANTS_MAX} grants" in text


def test_every_entry_of_the_audit_is_in_the_table() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    entries = set(re.findall(r'(?:entry|record)\(\s*\w+\.principal, "(\w+)", "([\w-]+)"', source))
    entries |= {("access", what) for what in re.findall(r'_write\(\s*caller, "([\w-]+)"', source)}
    entries |= {("queues", what) for what in re.findall(r'"(queue-[a-z-]+)"', source)}
    entries |= {("store", f"store-{what}") for what in re.findall(r'Arrival\("(\w+)"', source)}
    assert {what for _, what in entries} == set(WORDS)
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", section("The audit"), re.MULTILINE)
    assert {(stream, what) for stream, names in rows for what in re.findall(r"`([\w-]+)`", names)} == entries
    assert len(entries) > 8


def test_the_file_of_principals_is_understood() -> None:
    (text,) = re.findall(r"^```toml access\.toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    found = parsed(tomllib.loads(text))
    (shop,) = found.principals
    assert (shop.name, shop.grants) == ("shop", ("read,append:shop", "consume:shop/order-*"))
    assert shop.limits == Limits(requests_per_s_max=1000)
    assert {credential.kind for credential in found.credentials} == set(CredentialKind.ALL)


# --- the session of the page ------------------------------------------------------------------------------------


class Shell:
    """One bash that a test types into, and the server that it starts."""

    END: Final = "-- end of a command --"

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self._folder, self._undo = folder, undo
        (folder / "bin").mkdir()
        program = folder / "bin" / "penstock"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(PENSTOCK)} "$@"\n', encoding="utf-8")
        program.chmod(0o700)
        places = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "200"}
        self._bash = undo.enter_context(
            subprocess.Popen(
                ["bash", "--norc"],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**environment(), **places},
            )
        )

    def type(self, command: str) -> str:
        """Run a command; what it prints."""
        if command == "penstock serve --data shop-data &":
            self._served = self._undo.enter_context(Served(self._folder / "shop-data", *ONE_WORKER))
            mq = re.search(r"mq=(\S+)", self._served.ready)
            assert mq, self._served.said()
            self.type(f"export PENSTOCK_URL=penstock://{mq[1]}")
            return self._served.ready
        if command == "kill %1 && wait %1":
            assert self._served.stop() == 0
            return ""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho '{self.END}'\n")
        self._bash.stdin.flush()
        return "".join(iter(self._bash.stdout.readline, f"{self.END}\n"))


def lines(text: str) -> list[str]:
    """Lines without the spaces that only make tables pretty."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_session_of_the_page_prints_what_the_page_shows(tmp_path: Path) -> None:
    with ExitStack() as undo:
        shell = Shell(tmp_path, undo)
        for block in re.findall(r"^```console\n\$ (.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
            for step in re.split(r"^\$ ", block, flags=re.MULTILINE):
                command, _, answer = step.partition("\n")
                printed = shell.type(command)
                pattern = "\n".join(re.escape(line).replace("…", "(?s:.+)") for line in lines(answer))
                assert re.fullmatch(pattern, "\n".join(lines(printed))), f"$ {command}\n{printed}"
