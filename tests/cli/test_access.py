"""`penstock access`: what each command does, and what it says to people and programs."""

import json
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.engine.access_file import parsed
from penstock.errors import NotAuthenticated
from penstock.model.times import datetime_of
from penstock.testing import Server, server
from tests.cli.support import Done, run, variables
from tests.test_server import until

FINGERPRINT = f"sha256:{'0f' * 32}"
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with the principals `admin` and `shop`."""
    found = tmp_path / "data"
    with penstock.connect(f"sqlite:///{found}") as client:
        client.access.put("admin", ["all"])
        client.access.put("shop", ["read,append:shop", "consume:shop/order-*", "read:log:visits"])
    return found


def on(data: Path, *words: object) -> Done:
    return run("access", *words, "--data", data)


def credentials(data: Path, principal: str) -> list[Any]:
    with penstock.connect(f"sqlite:///{data}") as client:
        return client.access.credentials(principal)


def one_line(done: Done) -> str:
    assert done.code == 0, done.err
    (line,) = done.out.splitlines()
    return line


# ---------------------------------------------------------------- init


def test_init_makes_a_store_with_an_administrator_and_prints_only_its_token(tmp_path: Path) -> None:
    done = run("access", "init", "--data", tmp_path / "new")
    token = one_line(done)
    assert done.err == "admin is an administrator from now on. Its token, shown only this once:\n"
    with server(tmp_path / "new") as served, penstock.connect(served.url, token=token) as client:
        assert client.whoami().grants == ("all:*",)


def test_init_makes_another_token_for_an_administrator_and_changes_nothing_else(data: Path) -> None:
    first = on(data, "init")
    again = json.loads(on(data, "init", "--json", "--expires", "1h").out)
    assert one_line(first) != again["token"]
    assert (again["principal"], again["made"]) == ("admin", False)
    assert datetime.fromisoformat(again["expires"]) - datetime.now(UTC) <= timedelta(hours=1)
    assert [one.label for one in credentials(data, "admin")] == ["penstock access init"] * 2
    assert "another token of admin" in first.err


def test_init_with_another_name_makes_another_administrator(data: Path) -> None:
    assert json.loads(on(data, "init", "--name", "ann", "--json").out)["made"] is True
    assert "ann         all:*" in on(data, "list").out


def test_init_does_not_make_an_administrator_of_another_principal(data: Path) -> None:
    done = on(data, "init", "--name", "shop")
    assert done.code == 1
    assert "shop exists and is no administrator" in done.err
    assert "--name" in done.err


def test_init_does_not_close_a_store_if_it_cannot_make_the_token(tmp_path: Path) -> None:
    done = on(tmp_path / "open", "init", "--label", "a\x1bb")
    assert (done.code, done.out) == (2, "")
    assert "--label is 'a\\x1bb'; it may have no control characters" in done.err
    assert not (tmp_path / "open").exists()


def test_init_says_what_to_do_when_a_server_has_the_store(data: Path) -> None:
    with penstock.connect(f"sqlite:///{data}"):
        done = on(data, "init")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "is in use by" in done.err
    assert "stop it and run this again, or connect to it with --url and the token of an administrator" in done.err


def test_init_over_a_url_closes_a_server_that_is_open() -> None:
    with server() as served:
        assert "every client may do everything" in run("access", "list", url=served.url).err
        token = one_line(run("access", "init", url=served.url))
        with penstock.connect(served.url, token=token) as client:
            assert client.whoami().principal == "admin"
        refused = run("access", "init", "--name", "eve", url=served.url)
        assert refused.code == 1
        assert "has not authenticated" in refused.err


# ---------------------------------------------------------------- add and set


def test_add_makes_a_principal_with_a_token_limits_and_other_credentials(data: Path) -> None:
    words = ("--label", "ci", "--expires", "30d", "--limit", "polls_max=3", "--limit", "requests_per_s_max=1000")
    more = (
        "--certificate",
        "a.example.com",
        "--certificate",
        FINGERPRINT,
        "--curve-key",
        KEY,
    )
    done = on(data, "add", "ann", "read:shop/a b*", "append:log:visits", *words, *more)
    one_line(done)
    assert done.err.startswith(
        "ann may read on streams of the context shop that begin with a b; append on the log visits. Its token,"
    )
    found = {one.id: one for one in credentials(data, "ann")}
    (token,) = [one for one in found.values() if one.kind == "token"]
    assert token.label == "ci"
    assert token.expires is not None
    assert timedelta(days=29) < datetime_of(token.expires) - datetime.now(UTC) <= timedelta(days=30)
    assert {"certificate:a.example.com", f"certificate:{FINGERPRINT}"} < set(found)
    assert len(found) == 4
    shown = json.loads(on(data, "show", "ann", "--json").out)
    assert shown["limits"] == {"requests_per_s_max": 1000, "polls_max": 3}
    assert shown["grants"] == ["read:shop/a%20b*", "append:log:visits"]
    assert "proof" not in json.dumps(shown)


def test_add_makes_no_token_if_none_is_wanted(data: Path) -> None:
    done = on(data, "add", "ann", "read", "--no-token")
    assert (done.code, done.out, done.err) == (0, "ann may read everywhere\n", "")
    assert credentials(data, "ann") == []


def test_add_does_not_change_a_principal(data: Path) -> None:
    done = on(data, "add", "shop", "all")
    assert done.code == 1
    assert "shop exists already: change it with penstock access set shop GRANT" in done.err
    assert credentials(data, "shop") == []


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--certificate", "sha256:zz", "a fingerprint is sha256: and 64 hexadecimal digits"),
        ("--curve-key", "short", "a public key of CURVE has 40 characters"),
        ("--label", "a\x1bb", "it may have no control characters"),
        ("--certificate", "a.example.com", "is one of shop already; revoke it there first"),
    ],
)
def test_add_leaves_no_principal_behind_if_it_cannot_do_all_of_it(
    option: str, value: str, why: str, data: Path
) -> None:
    assert on(data, "set", "shop", "--certificate", "a.example.com").code == 0
    failed = on(data, "add", "ann", "read:shop", option, value)
    assert (failed.code, failed.out) == (1, "")
    assert why in failed.err
    assert "ann" not in on(data, "list").out
    one_line(on(data, "add", "ann", "read:shop"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add", "ann", "write:shop"), "has the right 'write'; there are read, append, consume, admin, audit, all"),
        (("add", "ann", "read:a*b/c"), "names no place; write CONTEXT, CONTEXT/PREFIX*, CONTEXT/STREAM, log:NAME or *"),
        (("add", "ann", "audit:shop"), "write audit alone"),
        (("add", "a b", "read"), "a name has 1 to 100 letters"),
        (("add", "nobody", "read"), "stands for clients without a principal"),
        (("add", "files", "read"), "stands for the owner of the store's files in the audit"),
        (("add", "ann", "read", "--expires", "2020-01-01"), "'2020-01-01' is in the past"),
        (("add", "ann", "read", "--expires", "soon"), "'soon' is no time; write 30d, 2027-01-01 or never"),
        (("add", "ann", "read", "--limit", "speed=1"), "it must be LIMIT=N, and there are connections_max,"),
        (("add", "ann", "read", "--limit", "polls_max=0"), "must be a whole number from 1 on, or none"),
        (("set", "shop"), "say what to change"),
        (("set", "ann", "read"), "no principal ann; penstock access list shows them"),
        (("show", "ann"), "no principal ann"),
        (("rotate", "ann"), "no principal ann"),
        (("rotate", "shop", "--grace", "long"), "'long' is no duration"),
        (("rotate", "shop", "--grace", "8d"), "must be from 0 to 604800"),
        (("revoke",), "say what to revoke"),
        (("revoke", "shop", "--credential", "x"), "say what to revoke"),
        (("revoke", "ann"), "no principal ann"),
        (("revoke", "--credential", "x"), "'x' is not known; penstock access show NAME lists them"),
        (("check", "shop", "write", "shop"), "write is no right and no command"),
        (("check", "shop", "QS", "shop"), "QS is about one stream: `context` and `stream`: name it"),
        (("check", "shop", "GL", "shop/s"), "name it, as in check shop GL log:visits"),
    ],
)
def test_wrong_use_is_refused_in_one_line(words: tuple[str, ...], why: str, data: Path) -> None:
    done = on(data, *words)
    assert done.code in (1, 2)
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert why in done.err


def test_set_replaces_grants_and_keeps_what_it_does_not_name(data: Path) -> None:
    token = one_line(on(data, "rotate", "shop"))
    on(data, "set", "shop", "--limit", "polls_max=3", "--limit", "bytes_per_s_max=5")
    done = on(data, "set", "shop", "read:other", "--limit", "bytes_per_s_max=none", "--certificate", "c", "--json")
    assert json.loads(done.out) == {"principal": "shop", "grants": ["read:other"], "limits": {"polls_max": 3}}
    assert {one.id for one in credentials(data, "shop")} == {token.partition(".")[0], "certificate:c"}


# ---------------------------------------------------------------- list and show


def test_list_shows_grants_and_counts_credentials(data: Path) -> None:
    on(data, "rotate", "shop")
    found = {line["principal"]: line for line in on(data, "list", "--json").lines}
    assert found["admin"]["grants"] == ["all:*"]
    assert [found[name]["credentials"] for name in ("admin", "shop")] == [0, 1]


def test_show_explains_grants_and_lists_credentials(data: Path) -> None:
    token = one_line(on(data, "rotate", "shop", "--label", "ci"))
    shown = on(data, "show", "shop").out
    assert "read,append:shop: read and append in the context shop\n" in shown
    assert "consume:shop/order-*: consume on streams of the context shop that begin with order-\n" in shown
    assert "read:log:visits: read on the log visits\n" in shown
    number, _, secret = token.partition(".")
    assert number in shown
    assert secret not in shown
    assert "never" in shown


# ---------------------------------------------------------------- revoke and rotate


def test_the_last_administrator_is_revoked_or_changed_by_force_only(data: Path) -> None:
    for words in (("revoke", "admin"), ("set", "admin", "read")):
        done = on(data, *words)
        assert done.code == 1
        assert "admin is the last principal with the right admin everywhere" in done.err
        assert "allow it with --force" in done.err
    assert on(data, "revoke", "admin", "--force").out == "principal admin revoked\n"
    # The owner of the files gets in again.
    assert "is an administrator from now on" in on(data, "init").err


def test_a_credential_is_revoked_by_its_id_or_by_the_whole_token(data: Path) -> None:
    for part in (0, 2):
        token = one_line(on(data, "rotate", "shop"))
        words = (token.partition(".")[0], "", token)
        done = on(data, "revoke", "--credential", words[part])
        assert done.out == f"credential {words[0]} revoked\n"
    assert credentials(data, "shop") == []
    on(data, "set", "shop", "--certificate", "a.b.c")
    assert on(data, "revoke", "--credential", "certificate:a.b.c").out == "credential certificate:a.b.c revoked\n"


def test_rotating_lets_other_tokens_end_after_the_grace(data: Path) -> None:
    on(data, "set", "shop", "--certificate", "c")
    old = one_line(on(data, "rotate", "shop", "--expires", "never")).partition(".")[0]
    kept = on(data, "rotate", "shop", "--keep")
    assert "its other tokens stay" in kept.err
    assert [one.expires for one in credentials(data, "shop")] == [None] * 3
    new = one_line(on(data, "rotate", "shop", "--grace", "30m")).partition(".")[0]
    found = {one.id: one.expires for one in credentials(data, "shop")}
    assert found[new] is found["certificate:c"] is None
    assert found[old] is not None
    assert timedelta(minutes=29) < datetime_of(found[old]) - datetime.now(UTC) <= timedelta(minutes=30)


# ---------------------------------------------------------------- check and whoami


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (
            ("append", "shop/order-1"),
            0,
            "yes: shop may append on the stream order-1 of the context shop, by read,append:shop",
        ),
        (("read", "log:visits"), 0, "yes: shop may read on the log visits, by read:log:visits"),
        (
            ("QS", "shop/order-1"),
            0,
            "yes: shop may use QS on the stream order-1 of the context shop, by read,append:shop",
        ),
        (
            ("ra",),
            0,
            "yes: shop may use ra everywhere, by read,append:shop, read:log:visits; it sees only what its grants show",
        ),
        (("whoami",), 2, ""),
        (("WI",), 0, "yes: shop may use WI"),
        (
            ("consume", "shop"),
            1,
            "no: shop may not consume in the context shop: it needs the right consume on shop/*; "
            "consume:shop/order-* allows only a part of it",
        ),
        (
            ("read,append", "log:visits"),
            1,
            "no: shop may not read and append on the log visits: it needs the right append on remits/visits",
        ),
        (("XP",), 1, "no: shop may not use XP: it needs the right admin everywhere"),
        (("admin",), 1, "no: shop may not administer everywhere: it needs the right admin everywhere"),
        (("admin", "shop"), 1, "no: shop may not administer in the context shop: it needs the right admin on shop/*"),
        (
            ("ES", "shop/order-1"),
            1,
            "no: shop may not use ES on the stream order-1 of the context shop: "
            "it needs the right admin on shop/order-1",
        ),
    ],
)
def test_check_says_which_grant_decides(words: tuple[str, ...], code: int, line: str, data: Path) -> None:
    done = on(data, "check", "shop", *words)
    assert done.code == code
    assert done.out.removesuffix("\n").startswith(line)
    if code < 2:
        assert json.loads(on(data, "check", "shop", *words, "--json").out)["allowed"] is (code == 0)


def test_what_check_says_is_what_a_server_does(data: Path) -> None:
    token = one_line(on(data, "rotate", "shop"))
    with server(data) as served, penstock.connect(served.url, token=token) as client:
        client.append("shop", "order-1", [penstock.event("T")])
        with pytest.raises(penstock.errors.NotAllowed) as refused:
            client.queue("shop", "work").take()
        assert (refused.value.right, refused.value.place) == ("consume", "shop/*")
    missing = json.loads(on(data, "check", "shop", "SQ", "shop", "--json").out)["missing"]
    assert missing == {"right": "consume", "place": "shop/*"}


def test_whoami_shows_the_tokens_principal(data: Path) -> None:
    token = one_line(on(data, "rotate", "shop", "--expires", "2100-01-01"))
    with server(data) as served:
        done = run("access", "whoami", env=variables(served.url, PENSTOCK_TOKEN=token))
        assert done.code == 0
        assert done.out.splitlines()[0] == "principal  shop"
        assert "2100-01-01T00:00:00+00:00" in done.out
        shown = json.loads(run("access", "whoami", "--json", env=variables(served.url, PENSTOCK_TOKEN=token)).out)
        assert (shown["principal"], shown["has_principals"]) == ("shop", True)
        refused = run("access", "list", env=variables(served.url, PENSTOCK_TOKEN=token))
        assert refused.code == 1
        assert "shop may not do this: it needs the right admin" in refused.err


# ---------------------------------------------------------------- a file of principals


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "access.toml"


def written(file: Path, *lines: str, grants: str = "read,append:shop") -> None:
    """The file, as an editor leaves it: another file in its place."""
    new = file.with_suffix(".new")
    tokens = "".join(line + ",\n" for line in lines)
    new.write_text(f'[principals.shop]\ngrants = ["{grants}"]\ntokens = [\n{tokens}]\n')
    new.replace(file)


def new_token(*words: str) -> tuple[str, str]:
    made = json.loads(run("access", "new-token", "--json", *words).out)
    return made["token"], made["line"]


def test_a_new_token_comes_with_its_line_for_the_file(file: Path) -> None:
    label = 'ci "1" \\ \N{PILE OF POO} \x1b\U000e0041'
    done = run("access", "new-token", "--label", label, "--expires", "2100-01-01T12:00+01:00")
    (_, token), (_, line) = (text.split(maxsplit=1) for text in done.out.splitlines())
    written(file, line)
    (found,) = parsed(tomllib.loads(file.read_text())).credentials
    assert (found.id, found.label) == (token.partition(".")[0], label)
    assert found.expires is not None
    assert datetime_of(found.expires) == datetime(2100, 1, 1, 11, tzinfo=UTC)


@pytest.fixture
def from_file(file: Path) -> Iterator[tuple[Server, str, str]]:
    """A server whose principals are in a file, a token of it, and its line."""
    token, line = new_token()
    written(file, line)
    with server(access_file=str(file)) as served:
        yield served, token, line


def lets_in(served: Server, token: str) -> bool:
    try:
        penstock.connect(served.url, token=token).close()
    except NotAuthenticated:
        return False
    return True


def test_a_server_takes_principals_from_a_file_and_follows_its_changes(
    from_file: tuple[Server, str, str], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, token, line = from_file
    with penstock.connect(served.url, token=token) as client:
        client.append("shop", "s", [penstock.event("T")])
        # A change that breaks the file changes nothing, and is logged once.
        file.write_text("[principals.shop]\ngrants = ['fly:shop']")
        until(lambda: "those of before hold" in caplog.text)
        assert "has the right 'fly'; there are read," in caplog.text
        client.append("shop", "s", [penstock.event("T")])
        assert caplog.text.count("those of before hold") == 1
        # A token more, and one less.
        more, second = new_token()
        written(file, line, second)
        until(lambda: lets_in(served, more))
        client.append("shop", "s", [penstock.event("T")])
        written(file, second)
        until(lambda: not lets_in(served, token))
        with pytest.raises(NotAuthenticated):
            client.append("shop", "s", [penstock.event("T")])
    # Another secret under the same id ends those who showed the first.
    with penstock.connect(served.url, token=more) as client:
        client.append("shop", "s", [penstock.event("T")])
        written(file, re.sub("sha256 = .{66}", f'sha256 = "{"0" * 64}"', second))
        until(lambda: not lets_in(served, more))
        with pytest.raises(NotAuthenticated):
            client.append("shop", "s", [penstock.event("T")])
    # Other grants.
    written(file, second, grants="read:other")
    until(lambda: lets_in(served, more) and _grants(served, more) == ("read:other",))
    # A file that is gone is broken too.
    file.unlink()
    until(lambda: "cannot be read" in caplog.text)
    assert lets_in(served, more)


def _grants(served: Server, token: str) -> tuple[str, ...]:
    with penstock.connect(served.url, token=token) as client:
        return client.whoami().grants


def test_commands_that_change_principals_say_that_the_file_decides(file: Path, tmp_path: Path) -> None:
    token, line = new_token()
    written(file, line, grants="all")
    with server(access_file=str(file)) as served:
        for words in (("add", "ann", "read"), ("revoke", "shop", "--force"), ("rotate", "shop"), ("init",)):
            done = run("access", *words, env=variables(served.url, PENSTOCK_TOKEN=token))
            assert done.code == 1
            assert "is decided by the file of the setting access_file; change that file instead" in done.err
        assert run("access", "list", env=variables(served.url, PENSTOCK_TOKEN=token)).code == 0
    # Nor does the owner of a store make principals that count for nothing.
    done = run("access", "init", "--data", tmp_path / "data", env=variables(PENSTOCK_ACCESS_FILE=str(file)))
    assert done.code == 1
    assert f"the file {file} decides who may come in, because access_file names it" in done.err
    assert not (tmp_path / "data").exists()


def test_check_file_reads_a_file_as_the_server_does(file: Path) -> None:
    _, line = new_token()
    written(file, line)
    done = run("access", "check-file", file)
    assert done.code == 0
    assert done.out.endswith(f"{file} is right: 1 principal, 1 credential\n")
    (found,) = json.loads(run("access", "check-file", file, "--json").out)["principals"]
    assert (found["principal"], found["credentials"]) == ("shop", 1)
    written(file, line, grants="fly:shop")
    done = run("access", "check-file", file)
    assert (done.code, done.out) == (1, "")
    assert "has the right 'fly'; there are read," in done.err


def test_principals_of_a_file_have_no_times(file: Path) -> None:
    token, line = new_token()
    written(file, line, grants="all")
    with server(access_file=str(file)) as served:
        environment = variables(served.url, PENSTOCK_TOKEN=token)
        listed = run("access", "list", env=environment)
        assert re.search(r"^ +shop +all:\* +1 +- *$", listed.out, re.MULTILINE), listed.out
        assert "created    -\nchanged    -" in run("access", "show", "shop", env=environment).out
        one = json.loads(run("access", "list", "--json", env=environment).out)
        assert (one["created"], one["changed"]) == (None, None)


def test_a_file_that_every_user_can_write_is_refused(file: Path) -> None:
    written(file)
    file.chmod(0o666)
    done = run("access", "check-file", file)
    assert (done.code, done.out) == (1, "")
    assert f"every user can write {file}, and so become an administrator: chmod o-w {file}" in done.err
    file.chmod(0o664)
    assert run("access", "check-file", file).code == 0
