"""The table of settings, and the parsers of their values. To add a setting, add a field to `Settings`.

A parser takes a string from a flag or the environment, or a value from TOML. It raises ValueError with the reason
alone; the loader adds the key, the value and the source.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
STORE_SCHEMES = ("sqlite:///", "postgresql://")
HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
ORIGIN = re.compile(rf"https?://({HOST_NAME.pattern}|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?")


def text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("must be a string")
    if not raw:
        raise ValueError("must not be empty")
    return raw


def directory(raw: object) -> Path:
    """A path; `~` is the home directory."""
    path = raw if isinstance(raw, Path) else Path(text(raw))
    if "\0" in str(path):
        raise ValueError("must not have a zero in it")
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("names a home directory of an unknown user") from None


def switch(raw: object) -> bool:
    """A boolean, in TOML's words or the environment's."""
    if isinstance(raw, bool):
        return raw
    words = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
    if not isinstance(raw, str) or raw.lower() not in words:
        raise ValueError("must be true or false")
    return words[raw.lower()]


def count(minimum: int) -> Callable[[object], int]:
    """A whole number, underscores allowed, not below `minimum`."""
    return lambda raw: at_least(minimum, whole_number(raw))


def size(minimum: int) -> Callable[[object], int]:
    """A number of bytes not below `minimum`, plain or with a suffix: `64MiB`."""

    def parse(raw: object) -> int:
        unit = 1
        for suffix, factor in UNITS.items():
            if isinstance(raw, str) and raw.endswith(suffix):
                raw, unit = raw.removesuffix(suffix).rstrip(), factor
                break
        return at_least(minimum, whole_number(raw, "a number of bytes such as 1048576 or 64MiB") * unit)

    return parse


def choice(*words: str) -> Callable[[object], str]:

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or raw.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return raw.lower()

    return parse


def address(raw: object) -> str:
    """An address to listen on; see `host_and_port`."""
    host_and_port(text(raw))
    return text(raw)


def endpoint(raw: object) -> str:
    """A ZeroMQ endpoint to listen on: `tcp://HOST:PORT` or `ipc://PATH`."""
    scheme, separator, rest = text(raw).partition("://")
    if not separator or scheme not in ("tcp", "ipc") or not rest:
        raise ValueError("must be tcp://HOST:PORT or ipc://PATH")
    if scheme == "tcp":
        host_and_port(rest)
    return text(raw)


def store_url(raw: object) -> str:
    if not text(raw).startswith(STORE_SCHEMES):
        raise ValueError(f"must begin with {' or '.join(STORE_SCHEMES)}")
    return text(raw)


def host_names(raw: object) -> tuple[str, ...]:
    """Host names, separated by commas or in a list, as they are compared: in lower case."""
    found = tuple(name.lower().removesuffix(".") for name in several(raw))
    if not all(HOST_NAME.fullmatch(name) for name in found):
        raise ValueError(
            "must be host names without scheme and port, such as penstock.example.com, with commas between"
        )
    return found


def origins(raw: object) -> tuple[str, ...]:
    """Origins as browsers write them, separated by commas or in a list."""
    found = tuple(origin.lower() for origin in several(raw))
    if not all(ORIGIN.fullmatch(origin) for origin in found):
        raise ValueError("must be origins such as https://console.example.com:8443, with commas between")
    return found


def several(raw: object) -> list[str]:
    """A list from TOML, or the parts of a string between commas. Nothing is an empty list."""
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("must be a list of strings")
    return [part.strip() for part in parts if part.strip()]


def host_and_port(address: str) -> tuple[str, int]:
    """Split `127.0.0.1:8470` or `[::1]:8470`; port 0 means any free port."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ValueError("must be HOST:PORT, an IPv6 host in brackets")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError("must end in a port from 0 to 65535")
    return host[1:-1] if bracketed else host, int(port)


def whole_number(raw: object, wanted: str = "a whole number") -> int:
    """An int, or a string of ASCII digits that may be grouped by underscores."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if not isinstance(raw, str) or not re.fullmatch(r"-?[0-9]+(_[0-9]+)*", raw.strip()):
        raise ValueError(f"must be {wanted}")
    return int(raw)


def at_least(minimum: int, value: int) -> int:
    if value < minimum:
        raise ValueError(f"must be at least {minimum}")
    return value


T = TypeVar("T")

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


def setting(default: T, parse: Callable[[object], T], help: str) -> T:
    """Declare a setting: a dataclass field that carries its help and its parser."""
    return field(default=default, metadata={"help": help, "parse": parse})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, parsed by `load`."""

    data: Path | None = setting(None, directory, "directory of the embedded store")
    store: str | None = setting(
        None, store_url, "address of the store: sqlite:///DIR or postgresql://…; instead of data"
    )
    group_access: bool = setting(
        False, switch, "let the group of the embedded store's directory use its files, not only their owner"
    )
    http: str = setting(
        "127.0.0.1:8470", address, "where the HTTP API, health and metrics are served; port 0: any free port"
    )
    http_hosts: tuple[str, ...] = setting(
        (), host_names, "names that HTTP answers to, in addition to IP addresses and localhost: NAME,NAME"
    )
    http_origins: tuple[str, ...] = setting(
        (), origins, "other origins whose pages may change something over HTTP: https://NAME,…"
    )
    http_connections_max: int = setting(
        128, count(1), "HTTP connections; for one more, the server closes the one that has been idle longest"
    )
    http_connections_per_address_max: int = setting(32, count(1), "HTTP connections from one IPv4 address or IPv6 /64")
    http_body_bytes_max: int = setting(48 * MIB, size(1024), "bytes of the body of one HTTP request")
    http_webhooks: Path | None = setting(
        None, directory, "file with the webhooks that HTTP takes messages of, and their secrets, in TOML"
    )
    res: str | None = setting(
        "tcp://127.0.0.1:8471",
        endpoint,
        "where Res01 is served over ZeroMQ: tcp://HOST:PORT or ipc://PATH; port 0: any free port",
    )
    res_legacy: str | None = setting(
        None, endpoint, "where Res01 is served with the older results; not unless it is given"
    )
    res_connections_max: int = setting(1000, count(1), "connections of the ZeroMQ gate; one more is refused")
    res_connections_per_address_max: int = setting(
        250, count(1), "connections of the ZeroMQ gate from one IPv4 address, IPv6 /64 or local user"
    )
    res_handshake_ms_max: int = setting(10_000, count(1), "how long the handshake of a ZeroMQ connection may take")
    res_idle_ms_max: int = setting(
        3_600_000, count(1), "how long a ZeroMQ peer may be silent; peers that speak ZMTP 3.1 get a PING before"
    )
    res_frame_bytes_max: int = setting(
        16 * MIB, size(1024), "bytes of one ZeroMQ frame; a larger one ends its connection"
    )
    res_message_bytes_max: int = setting(64 * MIB, size(1024), "bytes of one ZeroMQ message; more end its connection")
    res_message_frames_max: int = setting(250_000, count(16), "frames of one ZeroMQ message; more end its connection")
    res_unread_max: int = setting(
        1000, count(1), "unanswered requests of a ZeroMQ connection; at more the server stops reading from it"
    )
    res_unsent_bytes_max: int = setting(
        64 * MIB, size(1024), "bytes kept for a ZeroMQ peer that does not read; more end its connection"
    )
    mq: str | None = setting(
        "127.0.0.1:8472", address, "where Res01 is served over TCP in MqFrames; port 0: any free port"
    )
    mq_connections_max: int = setting(1000, count(1), "connections of the MQ gate; one more is refused")
    mq_connections_per_address_max: int = setting(
        250, count(1), "connections of the MQ gate from one IPv4 address or IPv6 /64"
    )
    mq_idle_ms_max: int = setting(
        60_000, count(1), "how long a peer of the MQ gate may be silent, take for one message, or read nothing"
    )
    mq_message_bytes_max: int = setting(
        64 * MIB, size(1024), "bytes of one message of the MQ gate; more end its connection"
    )
    mq_unsent_bytes_max: int = setting(
        64 * MIB, size(1024), "bytes kept for a peer of the MQ gate that does not read; more end its connection"
    )
    remits: str | None = setting(
        "127.0.0.1:4242", address, "where logs and iterators are served over TCP; port 0: any free port"
    )
    remits_connections_max: int = setting(1000, count(1), "connections of the Remits gate; one more is refused")
    remits_connections_per_address_max: int = setting(
        250, count(1), "connections of the Remits gate from one IPv4 address or IPv6 /64"
    )
    remits_idle_ms_max: int = setting(600_000, count(1), "how long a peer of the Remits gate may be silent")
    remits_frame_bytes_max: int = setting(
        16 * MIB, size(1024), "bytes of one frame of the Remits gate; more end its connection"
    )
    res_as: str | None = setting(None, text, "principal of clients of the ZeroMQ gate that show no credential")
    res_legacy_as: str | None = setting(None, text, "the same of the gate with the older results")
    mq_as: str | None = setting(None, text, "principal of clients of the MQ gate that show no credential")
    remits_as: str | None = setting(None, text, "principal of clients of the Remits gate that show no credential")
    http_as: str | None = setting(None, text, "principal of HTTP requests without a token")
    curve_secret_key: Path | None = setting(
        None, directory, "file with the secret key of the ZeroMQ gates, which then speak CURVE only"
    )
    curve_known_only: bool = setting(
        False, switch, "refuse clients of CURVE whose key stands for no principal; else they may send a token"
    )
    access_file: Path | None = setting(
        None, directory, "file with the principals, in TOML; without it they are in the store"
    )
    tls_cert: Path | None = setting(
        None, directory, "certificate of the MQ, Remits and HTTP gates, with its chain, in PEM"
    )
    tls_key: Path | None = setting(None, directory, "private key of tls_cert, in PEM, without a password")
    tls_client_ca: Path | None = setting(None, directory, "authorities, in PEM, whose client certificates are accepted")
    tls_handshake_ms_max: int = setting(10_000, count(1), "how long the TLS handshake of a connection may take")
    allow_plaintext: bool = setting(False, switch, "let gates listen beyond loopback without TLS or CURVE")
    allow_anonymous: bool = setting(
        False, switch, "let gates listen beyond loopback although every client may do everything"
    )
    insecure: bool = setting(False, switch, "deprecated: allow_plaintext and allow_anonymous together")
    workers: int = setting(2, count(1), "worker processes for reads and encoding")

    requests_bytes_max: int = setting(
        256 * MIB, size(1024), "bytes of requests that gates have taken and not answered; more are answered busy"
    )
    writer_queue_max: int = setting(10_000, count(1), "requests that may wait for the writer; more are answered busy")
    writer_queue_bytes_max: int = setting(256 * MIB, size(1024), "bytes of requests that may wait for the writer")
    writer_wait_ms_max: int = setting(
        10_000, count(1), "how long a request may wait for the writer before it times out"
    )
    inline_commit_us_max: int = setting(
        2000, count(0), "while commits take less, the event loop's thread writes small ones itself; 0: never"
    )
    batch_requests_max: int = setting(1024, count(1), "requests in one group commit")
    batch_bytes_max: int = setting(16 * MIB, size(1024), "bytes of requests in one group commit")

    reader_queue_max: int = setting(1024, count(1), "reads that may wait for a worker; more are answered busy")
    reader_wait_ms_max: int = setting(10_000, count(1), "how long a read may wait for a worker before it times out")
    worker_job_ms_max: int = setting(
        30_000, count(1), "how long a worker may take for one job before it is killed and replaced"
    )
    page_events_max: int = setting(4096, count(1), "events in one page of a read")
    page_bytes_max: int = setting(8 * MIB, size(1024), "bytes in one page of a read")

    commit_events_max: int = setting(10_000, count(1), "events in one commit")
    event_bytes_max: int = setting(8 * MIB, size(1), "bytes of one event's type, headers and body")
    commit_bytes_max: int = setting(32 * MIB, size(1), "bytes of all events of one commit")

    poll_wait_ms_max: int = setting(60_000, count(0), "how long a long poll may wait for events")
    waiters_max: int = setting(10_000, count(1), "long polls that may wait at once; more are answered busy")
    lua_workers: int = setting(
        1, count(1), "worker processes for the functions of iterators, started when one is needed"
    )
    iterators_max: int = setting(10_000, count(1), "iterators in the whole store")
    iterator_call_ms_max: int = setting(
        1000, count(1), "time an iterator's function may take for one message, of a processor"
    )
    iterator_memory_bytes_max: int = setting(64 * MIB, size(MIB), "memory an iterator's function may take")
    iterator_result_bytes_max: int = setting(8 * MIB, size(1024), "bytes of one item or accumulator of an iterator")
    iterator_points_max: int = setting(
        10_000, count(1), "places in plain iterators that are kept in memory to go on from"
    )
    iterator_points_bytes_max: int = setting(
        64 * MIB, size(1024), "bytes of the places in plain iterators that are kept"
    )

    producer_idle_ms_max: int = setting(7 * 24 * 3_600_000, count(1000), "how long an idle producer's mark is kept")
    idempotency_ms_max: int = setting(
        24 * 3_600_000, count(1000), "how long idempotency keys, and the ids of CloudEvents over HTTP, are kept"
    )
    stage_bytes_max: int = setting(256 * MIB, size(1024), "bytes that one job may have staged before it is published")
    stage_units_max: int = setting(
        100_000, count(1), "units, of one stream and task each, that one job may have staged"
    )
    stage_idle_ms_max: int = setting(
        24 * 3_600_000, count(1000), "how long events stay staged to which nothing is added"
    )
    wal_bytes_max: int = setting(32 * MIB, size(64 * 1024), "size of the write-ahead log that starts a checkpoint")
    seal: bool = setting(True, switch, "merge small records into large ones in the background, for faster reads")
    disk_warn_bytes: int = setting(GIB, size(0), "free disk space below which the log has a warning; 0: never")
    disk_refuse_bytes: int = setting(
        128 * MIB, size(0), "free disk space below which appends are refused, and all else goes on; 0: never"
    )
    stream_cache_max: int = setting(100_000, count(0), "stream heads kept in memory")
    drain_ms: int = setting(
        0, count(0), "how long a stop waits before it closes the gates, while /readyz answers 503; 0: not at all"
    )
    shutdown_ms_max: int = setting(10_000, count(0), "how long a stop may take to finish what is under way")
    slow_request_ms: int = setting(
        1000, count(0), "a request on which the server spends more has a warning in the log; 0: never"
    )
    log_format: str = setting("text", choice(*LOG_FORMATS), "text, or json: one object in each line")
    log_level: str = setting("info", choice(*LOG_LEVELS), f"one of {', '.join(LOG_LEVELS)}")


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    default: object
    help: str
    parse: Callable[[object], Any]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        return "PENSTOCK_" + self.name.upper()


TABLE: Mapping[str, Setting] = {
    row.name: Setting(row.name, row.default, row.metadata["help"], row.metadata["parse"]) for row in fields(Settings)
}
"""Every setting by name, in the order they are shown."""


def format_value(name: str, value: object) -> str:
    """A value as people write it, which parses back to the same value; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    if "_bytes" in name and isinstance(value, int):
        for suffix, unit in reversed(UNITS.items()):
            if value and value % unit == 0:
                return f"{value // unit}{suffix}"
    return str(value)
