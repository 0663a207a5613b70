"""Settings: precedence, parsing, error sentences, and the command that shows them."""

import inspect
import json
import pickle
import re
from dataclasses import FrozenInstanceError, asdict, fields
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.cli import app
from penstock.cli.settings import settings_command, settings_page, with_settings
from penstock.settings import (
    DEFAULT,
    TABLE,
    BadSetting,
    ResolvedSettings,
    Settings,
    explain,
    format_value,
    host_and_port,
    load,
    resolve,
)

MIB = 1024 * 1024


def toml(directory: Path, text: str) -> Path:
    path = directory / "penstock.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(flags: dict[str, object] | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(BadSetting) as caught:
        load(flags or {}, environ or {})
    return str(caught.value)


# ---------------------------------------------------------------- defaults and precedence


def test_without_anything_set_every_setting_has_its_default() -> None:
    assert load({}, {}) == Settings()


def test_the_defaults_are_the_documented_limits() -> None:
    assert asdict(Settings()) == {
        "data": None,
        "store": None,
        "group_access": False,
        "http": "127.0.0.1:8470",
        "http_hosts": (),
        "http_origins": (),
        "http_connections_max": 128,
        "http_connections_per_address_max": 32,
        "http_body_bytes_max": 48 * MIB,
        "http_webhooks": None,
        "res": "tcp://127.0.0.1:8471",
        "res_legacy": None,
        "res_connections_max": 1000,
        "res_connections_per_address_max": 250,
        "res_handshake_ms_max": 10_000,
        "res_idle_ms_max": 3_600_000,
        "res_frame_bytes_max": 16 * MIB,
        "res_message_bytes_max": 64 * MIB,
        "res_message_frames_max": 250_000,
        "res_unread_max": 1000,
        "res_unsent_bytes_max": 64 * MIB,
        "mq": "127.0.0.1:8472",
        "mq_connections_max": 1000,
        "mq_connections_per_address_max": 250,
        "mq_idle_ms_max": 60_000,
        "mq_message_bytes_max": 64 * MIB,
        "mq_unsent_bytes_max": 64 * MIB,
        "remits": "127.0.0.1:4242",
        "remits_connections_max": 1000,
        "remits_connections_per_address_max": 250,
        "remits_idle_ms_max": 600_000,
        "remits_frame_bytes_max": 16 * 1024 * 1024,
        "res_as": None,
        "res_legacy_as": None,
        "mq_as": None,
        "remits_as": None,
        "http_as": None,
        "curve_secret_key": None,
        "curve_known_only": False,
        "access_file": None,
        "allow_plaintext": False,
        "allow_anonymous": False,
        "tls_cert": None,
        "tls_key": None,
        "tls_client_ca": None,
        "tls_handshake_ms_max": 10_000,
        "insecure": False,
        "workers": 2,
        "writer_queue_max": 10_000,
        "requests_bytes_max": 256 * MIB,
        "writer_queue_bytes_max": 256 * MIB,
        "writer_wait_ms_max": 10_000,
        "inline_commit_us_max": 2000,
        "batch_requests_max": 1024,
        "batch_bytes_max": 16 * MIB,
        "reader_queue_max": 1024,
        "reader_wait_ms_max": 10_000,
        "worker_job_ms_max": 30_000,
        "page_events_max": 4096,
        "page_bytes_max": 8 * MIB,
        "commit_events_max": 10_000,
        "event_bytes_max": 8 * MIB,
        "commit_bytes_max": 32 * MIB,
        "poll_wait_ms_max": 60_000,
        "waiters_max": 10_000,
        "lua_workers": 1,
        "iterators_max": 10_000,
        "iterator_call_ms_max": 1000,
        "iterator_memory_bytes_max": 64 * MIB,
        "iterator_result_bytes_max": 8 * MIB,
        "iterator_points_max": 10_000,
        "iterator_points_bytes_max": 64 * MIB,
        "producer_idle_ms_max": 604_800_000,
        "idempotency_ms_max": 86_400_000,
        "stage_bytes_max": 256 * MIB,
        "stage_units_max": 100_000,
        "stage_idle_ms_max": 86_400_000,
        "wal_bytes_max": 32 * MIB,
        "seal": True,
        "disk_warn_bytes": 1024 * MIB,
        "disk_refuse_bytes": 128 * MIB,
        "stream_cache_max": 100_000,
        "drain_ms": 0,
        "shutdown_ms_max": 10_000,
        "slow_request_ms": 1000,
        "log_format": "text",
        "log_level": "info",
    }


def test_the_file_wins_over_the_default(tmp_path: Path) -> None:
    assert load({}, {}, toml(tmp_path, "workers = 3")).workers == 3


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    assert load({}, {"PENSTOCK_WORKERS": "4"}, toml(tmp_path, "workers = 3")).workers == 4


def test_a_flag_wins_over_the_environment_and_the_file(tmp_path: Path) -> None:
    settings = load({"workers": "5"}, {"PENSTOCK_WORKERS": "4"}, toml(tmp_path, "workers = 3"))
    assert settings.workers == 5


def test_a_bad_value_that_is_overridden_does_no_harm() -> None:
    assert load({"workers": "5"}, {"PENSTOCK_WORKERS": "many"}).workers == 5


def test_a_flag_that_was_not_given_is_none_and_does_not_count() -> None:
    assert load({"workers": None}, {"PENSTOCK_WORKERS": "4"}).workers == 4


def test_an_empty_environment_variable_does_not_count() -> None:
    assert load({}, {"PENSTOCK_WORKERS": "", "PENSTOCK_CONFIG": ""}) == Settings()


def test_unknown_environment_variables_are_left_alone() -> None:
    assert load({}, {"PENSTOCK_SERVICE_HOST": "10.0.0.1", "HOME": "x"}) == Settings()


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    environ = {"PENSTOCK_CONFIG": str(toml(tmp_path, "workers = 3"))}
    assert load({}, environ).workers == 3


def test_the_file_named_by_the_flag_wins_over_the_one_in_the_environment(tmp_path: Path) -> None:
    environ = {"PENSTOCK_CONFIG": str(tmp_path / "missing.toml")}
    assert load({}, environ, toml(tmp_path, "workers = 3")).workers == 3


def test_each_value_remembers_its_source(tmp_path: Path) -> None:
    path = toml(tmp_path, "workers = 3\nwaiters_max = 9\nlog_level = 'debug'")
    resolved = resolve({"workers": "5"}, {"PENSTOCK_WAITERS_MAX": "4"}, path)
    assert resolved.sources["workers"] == "--workers"
    assert resolved.sources["waiters_max"] == "PENSTOCK_WAITERS_MAX"
    assert resolved.sources["log_level"] == str(path)
    assert resolved.sources["http"] == DEFAULT
    assert list(resolved.sources) == list(TABLE)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(("raw", "value"), [("7", 7), ("10_000", 10_000), (" 7", 7), (7, 7)])
def test_numbers_may_be_grouped_by_underscores(raw: object, value: int) -> None:
    assert load({"waiters_max": raw}, {}).waiters_max == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("2048", 2048),
        ("2KiB", 2048),
        ("3 MiB", 3 * MIB),
        ("1GiB", 1024 * MIB),
        ("1_024KiB", MIB),
        (4096, 4096),
    ],
)
def test_sizes_may_have_a_suffix(raw: object, value: int) -> None:
    assert load({"batch_bytes_max": raw}, {}).batch_bytes_max == value


@pytest.mark.parametrize("raw", [True, "true", "TRUE", "yes", "on", "1"])
def test_a_switch_may_be_on(raw: object) -> None:
    assert load({"insecure": raw}, {}).insecure is True


@pytest.mark.parametrize("raw", [False, "false", "no", "off", "0"])
def test_a_switch_may_be_off(raw: object) -> None:
    assert load({"insecure": raw}, {"PENSTOCK_INSECURE": "true"}).insecure is False


def test_the_data_directory_may_start_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load({"data": "~/events"}, {}).data == tmp_path / "events"
    assert load({"data": tmp_path}, {}).data == tmp_path


@pytest.mark.parametrize("url", ["sqlite:///relative/dir", "sqlite:////var/lib/p", "postgresql://u:p@h/db"])
def test_a_store_is_named_by_its_address(url: str) -> None:
    assert load({"store": url}, {}).store == url


def test_words_are_taken_in_any_case() -> None:
    assert load({}, {"PENSTOCK_LOG_LEVEL": "DEBUG"}).log_level == "debug"


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:8470", ("127.0.0.1", 8470)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts
    assert load({"http": address}, {}).http == address


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ("Penstock.Example.com.", ("penstock.example.com",)),
        (" a , b-1.c_2,", ("a", "b-1.c_2")),
        (["a", "B"], ("a", "b")),
        ("", ()),
        ([], ()),
    ],
)
def test_several_names_have_commas_between_or_are_a_list(raw: object, names: tuple[str, ...]) -> None:
    assert load({"http_hosts": raw}, {}).http_hosts == names


def test_toml_gives_typed_values(tmp_path: Path) -> None:
    text = 'data = "d"\ninsecure = true\nwriter_queue_max = 20_000\n'
    text += 'page_bytes_max = "4MiB"\nwal_bytes_max = 65536\n'
    settings = load({}, {}, toml(tmp_path, text))
    assert settings == Settings(
        data=Path("d"), insecure=True, writer_queue_max=20_000, page_bytes_max=4 * MIB, wal_bytes_max=65536
    )


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().workers = 3  # type: ignore[misc]


def test_settings_and_their_errors_reach_another_process() -> None:
    settings = Settings(workers=7, data=Path("d"))
    assert pickle.loads(pickle.dumps(settings)) == settings
    error = pickle.loads(pickle.dumps(BadSetting("workers", "0", "--workers", "must be at least 1")))
    assert str(error) == "workers = '0' (from --workers): must be at least 1"


# ---------------------------------------------------------------- errors


WHOLE = "must be a whole number"
SIZE = "must be a number of bytes such as 1048576 or 64MiB"
ADDRESS = "must be HOST:PORT, an IPv6 host in brackets"
PORT = "must end in a port from 0 to 65535"
NAMES = "must be host names without scheme and port, such as penstock.example.com, with commas between"
ORIGINS = "must be origins such as https://console.example.com:8443, with commas between"
SCHEME = "must begin with sqlite:/// or postgresql://"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("workers", "0", "must be at least 1"),
        ("workers", "-3", "must be at least 1"),
        ("workers", "two", WHOLE),
        ("workers", "2.0", WHOLE),
        ("workers", "1__0", WHOLE),
        ("workers", "\u0663", WHOLE),
        ("workers", True, WHOLE),
        ("workers", 2.0, WHOLE),
        ("workers", "4KiB", WHOLE),
        ("poll_wait_ms_max", "-1", "must be at least 0"),
        ("producer_idle_ms_max", "999", "must be at least 1000"),
        ("lua_workers", "0", "must be at least 1"),
        ("iterator_memory_bytes_max", "1000KiB", "must be at least 1048576"),
        ("writer_queue_bytes_max", "1023", "must be at least 1024"),
        ("wal_bytes_max", "63KiB", "must be at least 65536"),
        ("wal_bytes_max", "64MB", SIZE),
        ("wal_bytes_max", "MiB", SIZE),
        ("wal_bytes_max", "1.5GiB", SIZE),
        ("wal_bytes_max", [1], SIZE),
        ("insecure", "maybe", "must be true or false"),
        ("insecure", 1, "must be true or false"),
        ("log_level", "loud", "must be one of debug, info, warning, error"),
        ("log_level", 3, "must be one of debug, info, warning, error"),
        ("http", "", "must not be empty"),
        ("http", 8470, "must be a string"),
        ("http", "8470", ADDRESS),
        ("http", ":8470", ADDRESS),
        ("http", "::1:8470", ADDRESS),
        ("http", "localhost:http", PORT),
        ("http", "localhost:65536", PORT),
        ("http", "localhost:", PORT),
        ("http_hosts", "penstock.example.com:8470", NAMES),
        ("http_hosts", "http://penstock.example.com", NAMES),
        ("http_hosts", "*.example.com", NAMES),
        ("http_hosts", "a b", NAMES),
        ("http_hosts", [8470], "must be a list of strings"),
        ("http_hosts", 8470, "must be a list of strings"),
        ("http_origins", "console.example.com", ORIGINS),
        ("http_origins", "https://console.example.com/", ORIGINS),
        ("http_origins", "null", ORIGINS),
        ("store", "mysql://h/db", SCHEME),
        ("store", "sqlite://relative", SCHEME),
        ("data", "", "must not be empty"),
        ("data", 5, "must be a string"),
    ],
)
def test_a_bad_value_names_the_key_the_value_and_the_source(name: str, value: object, reason: str) -> None:
    with pytest.raises(BadSetting) as caught:
        load({name: value}, {})
    flag = TABLE[name].flag
    assert str(caught.value) == f"{name} = {value!r} (from {flag}): {reason}"
    assert (caught.value.key, caught.value.value, caught.value.source) == (name, value, flag)
    assert caught.value.reason == reason


def test_a_bad_value_in_the_environment_names_the_variable() -> None:
    sentence = "waiters_max = 'x' (from PENSTOCK_WAITERS_MAX): must be a whole number"
    assert refusal(environ={"PENSTOCK_WAITERS_MAX": "x"}) == sentence


def test_a_bad_value_in_the_file_names_the_file(tmp_path: Path) -> None:
    path = toml(tmp_path, "workers = 0")
    with pytest.raises(BadSetting, match=re.escape(f"workers = 0 (from {path}): must be at least 1")):
        load({}, {}, path)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("writer_queu_max", "; did you mean writer_queue_max?"),
        ("writer-queue-max", "; did you mean writer_queue_max?"),
        ("Workers", "; did you mean workers?"),
        ("colour", ""),
    ],
)
def test_an_unknown_key_in_the_file_is_an_error_with_a_suggestion(tmp_path: Path, key: str, hint: str) -> None:
    path = toml(tmp_path, f"{key} = 5")
    with pytest.raises(BadSetting) as caught:
        load({}, {}, path)
    assert str(caught.value) == f"{key} = 5 (from {path}): is not a setting{hint}"


def test_an_unknown_flag_is_an_error_too() -> None:
    assert refusal({"worker": "5"}) == "worker = '5' (from --worker): is not a setting; did you mean workers?"


def test_a_table_in_the_file_is_an_unknown_key(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="is not a setting"):
        load({}, {}, toml(tmp_path, "[penstock]\nworkers = 5"))


def test_a_missing_file_is_named_with_who_named_it(tmp_path: Path) -> None:
    path = tmp_path / "missing.toml"
    reason = "cannot be read: No such file or directory"
    with pytest.raises(BadSetting, match=re.escape(f"config = {str(path)!r} (from --config): {reason}")):
        load({}, {}, path)
    environ = {"PENSTOCK_CONFIG": str(path)}
    assert refusal(environ=environ) == f"config = {str(path)!r} (from PENSTOCK_CONFIG): {reason}"


@pytest.mark.parametrize("content", [b"workers = ", b"workers = \xff"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "penstock.toml"
    path.write_bytes(content)
    with pytest.raises(BadSetting, match="is not TOML: "):
        load({}, {}, path)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:sec@ret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a/secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db?password=secret&x=1", "postgresql://me@host/db?password=***&x=1"),
        ("postgresql://me@host/db?sslpassword=secret", "postgresql://me@host/db?sslpassword=***"),
        ("postgresql://me@host:5432/db", "postgresql://me@host:5432/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
    ],
)
def test_a_password_is_never_shown(url: str, safe: str) -> None:
    settings = resolve({"store": url}, {})
    assert settings.settings.store == url
    assert {row.name: row.value for row in explain(settings)}["store"] == safe
    wrong = url.replace("postgresql", "mysql")
    assert refusal({"store": wrong}).startswith(f"store = {safe.replace('postgresql', 'mysql')!r} (from ")


# ---------------------------------------------------------------- the table


def test_every_name_is_derived_from_the_field() -> None:
    row = TABLE["writer_queue_max"]
    assert (row.flag, row.environment) == ("--writer-queue-max", "PENSTOCK_WRITER_QUEUE_MAX")
    assert list(TABLE) == [field.name for field in fields(Settings)]


def test_every_setting_has_a_help_that_fits_a_line() -> None:
    assert [row.name for row in TABLE.values() if not 0 < len(row.help) <= 90] == []


def test_every_default_passes_its_own_parser() -> None:
    for row in TABLE.values():
        if row.default is not None:
            assert row.parse(row.default) == row.default
            assert row.parse(format_value(row.name, row.default)) == row.default


def test_every_limit_refuses_what_is_below_zero() -> None:
    for row in TABLE.values():
        if isinstance(row.default, int) and not isinstance(row.default, bool):
            with pytest.raises(ValueError, match="must be at least"):
                row.parse(-1)


@given(st.integers(min_value=64 * 1024))
def test_a_shown_size_parses_back(value: int) -> None:
    assert load({"wal_bytes_max": format_value("wal_bytes_max", value)}, {}).wal_bytes_max == value


EXAMPLES: dict[str, object] = {
    "data": Path("d"),
    "store": "sqlite:///d",
    "http": "[::1]:0",
    "http_hosts": ("penstock.example.com", "events"),
    "http_origins": ("https://console.example.com", "http://[::1]:3000"),
    "res": "ipc://some/place",
    "res_legacy": "tcp://[::1]:0",
    "mq": "[::1]:1",
    "remits": "[::1]:1",
    "group_access": True,
    "tls_cert": Path("server.pem"),
    "tls_key": Path("server.key"),
    "tls_client_ca": Path("clients.pem"),
    "res_as": "shop",
    "res_legacy_as": "shop",
    "mq_as": "shop",
    "remits_as": "shop",
    "http_as": "monitoring",
    "curve_secret_key": Path("curve.key"),
    "curve_known_only": True,
    "access_file": Path("access.toml"),
    "http_webhooks": Path("webhooks.toml"),
    "allow_plaintext": True,
    "allow_anonymous": True,
    "insecure": True,
    "seal": False,
    "log_format": "json",
    "log_level": "error",
}


def other_values() -> Settings:
    numbers = {row.name: row.default + 65536 for row in TABLE.values() if type(row.default) is int}
    values: dict[str, Any] = numbers | EXAMPLES
    return Settings(**values)


def test_every_setting_survives_the_way_through_flags_environment_and_file(tmp_path: Path) -> None:
    wanted = other_values()
    texts = {name: format_value(name, getattr(wanted, name)) for name in TABLE}
    document = "".join(f"{name} = {json.dumps(value)}\n" for name, value in texts.items())
    assert all(getattr(wanted, name) != TABLE[name].default for name in TABLE)
    assert load(texts, {}) == wanted
    assert load({}, {TABLE[name].environment: value for name, value in texts.items()}) == wanted
    assert load({}, {}, toml(tmp_path, document)) == wanted


def test_an_explained_setting_has_all_its_names() -> None:
    rows = {row.name: row for row in explain(resolve({"workers": "5"}, {}))}
    assert list(rows) == list(TABLE)
    assert asdict(rows["workers"]) == {
        "name": "workers",
        "value": 5,
        "source": "--workers",
        "default": 2,
        "flag": "--workers",
        "environment": "PENSTOCK_WORKERS",
        "help": TABLE["workers"].help,
    }


# ---------------------------------------------------------------- the command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    for row in TABLE.values():
        monkeypatch.delenv(row.environment, raising=False)
    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)
    alone = typer.Typer()
    alone.command()(with_settings(settings_command))
    return alone


def test_settings_are_shown_as_a_table(command: typer.Typer) -> None:
    result = CliRunner().invoke(command, ["--workers", "5"], env={"PENSTOCK_LOG_LEVEL": "debug", "COLUMNS": "200"})
    assert result.exit_code == 0
    lines = {line.split()[0]: line.split() for line in result.output.splitlines() if line.split()}
    assert lines["workers"][1:3] == ["5", "--workers"]
    assert lines["log_level"][1:3] == ["debug", "PENSTOCK_LOG_LEVEL"]
    assert lines["data"][1:3] == ["-", "default"]
    assert lines["wal_bytes_max"][1:3] == ["32MiB", "default"]
    assert set(TABLE) <= set(lines)


def test_settings_are_printed_as_json_for_programs(command: typer.Typer, tmp_path: Path) -> None:
    path = toml(tmp_path, 'data = "events"\nwal_bytes_max = "1MiB"')
    result = CliRunner().invoke(command, ["--json", "--config", str(path), "--insecure"])
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert list(rows) == list(TABLE)
    assert (rows["data"]["value"], rows["data"]["source"]) == ("events", str(path))
    assert rows["wal_bytes_max"]["value"] == MIB
    assert (rows["insecure"]["value"], rows["insecure"]["source"]) == (True, "--insecure")


def test_a_switch_can_be_taken_back_by_a_flag(command: typer.Typer) -> None:
    result = CliRunner().invoke(command, ["--json", "--no-insecure"], env={"PENSTOCK_INSECURE": "true"})
    assert {row["name"]: row["value"] for row in json.loads(result.output)}["insecure"] is False


def test_a_bad_setting_ends_the_command_with_one_line() -> None:
    result = CliRunner().invoke(app, ["settings", "--workers", "0"])
    assert result.exit_code == 2
    assert result.stderr == "penstock: workers = '0' (from --workers): must be at least 1\n"
    assert result.stdout == ""


def test_every_setting_is_a_flag_of_a_command_that_wants_settings() -> None:
    def serve(resolved: ResolvedSettings, name: str = "x") -> None: ...

    parameters = inspect.signature(with_settings(serve)).parameters
    assert list(parameters) == ["name", "config", *TABLE]


def test_the_page_has_a_row_for_every_setting() -> None:
    rows = [line for line in settings_page("").splitlines() if line.startswith("| `")]
    assert len(rows) == len(TABLE)
    for row, setting in zip(rows, TABLE.values(), strict=True):
        assert all(f"`{name}`" in row for name in (setting.name, setting.flag, setting.environment))


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:8471", "tcp://[::1]:0", "ipc://run/penstock.sock"])
def test_an_endpoint_is_tcp_or_ipc(endpoint: str) -> None:
    assert load({"res": endpoint}, {}).res == endpoint


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:8471", "udp://127.0.0.1:1", "tcp://", "tcp://x", "tcp://x:99999"])
def test_any_other_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(BadSetting):
        load({"res": endpoint}, {})
