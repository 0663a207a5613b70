"""Spark with its Connect server, in one process of our own: what declarative pipelines run on.

`spark-pipelines` starts the same, on a port that is always the same one. Here it listens on a port of its own on this
machine alone, for clients that know a token.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Final

from penstock.files import is_shared, make_folder
from penstock.pipelines.projects import Project
from penstock.spark.sessions import OWNER_ALONE, UMASK, late_session, run_in_thread

TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable
IS_CONNECTED: Final = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark's functions make columns for Connect if this variable is there."""
SERVICE: Final = "org.apache.spark.sql.connect.service.SparkConnectService$"
SERVER: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    # A flow that fails is told by us, in a line.
    "spark.log.level": "OFF",
}
JAVA: Final = "spark.driver.extraJavaOptions"
GROUP_TOO: Final = "007"

Connect = Callable[[], AbstractContextManager[Any]]
"""Gives a Connect session, for as long as it is needed."""


@contextmanager
def connect_server(project: Project, master: str, conf: Mapping[str, str]) -> Iterator[Connect]:
    """A server for a project's pipeline, and how to get a session. Raises InvalidRequest if Spark does not start."""
    settings = _settings(project, conf)
    if project.tables is not None and settings[UMASK] in (OWNER_ALONE, GROUP_TOO):
        # Hive's part of Spark creates the folders of tables for everybody, whatever it is told.
        make_folder(project.tables, shared=is_shared(project.folder))
    with late_session(f"penstock pipeline {project.name}", master, settings) as start, _variables():
        gateway = start()._jvm
        service = getattr(getattr(gateway, SERVICE), "MODULE$")
        os.environ[IS_CONNECTED] = "1"
        yield partial(_session, f"sc://localhost:{service.localPort()}")


@contextmanager
def _session(address: str) -> Iterator[Any]:
    """A session. The server keeps everything that was ever defined in one, until it is released."""
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

    spark = run_in_thread(SparkSession.builder.remote(address).create)
    # The server is ours: if it does not answer it is gone, and to ask again would only keep us from ending.
    spark.client.set_retry_policies([])
    try:
        yield spark
    except KeyboardInterrupt:
        # Nobody wants to wait for an answer of a server that is about to be ended.
        raise
    except BaseException:
        _leave(spark)
        raise
    _leave(spark)


def _leave(spark: Any) -> None:
    with suppress(Exception):
        run_in_thread(spark.stop)


def _settings(project: Project, conf: Mapping[str, str]) -> dict[str, str]:
    # In a project that is a group's, what runs leave behind is, too.
    umask = GROUP_TOO if is_shared(project.folder) else OWNER_ALONE
    settings = {**SERVER, UMASK: umask, **project.conf, **conf}
    # The metastore's Derby writes a log where the process is, unless it is told otherwise.
    derby = f"-Dderby.stream.error.file={project.own / 'derby.log'}"
    settings[JAVA] = f"{derby} {settings.get(JAVA, '')}".strip()
    return settings


@contextmanager
def _variables() -> Iterator[None]:
    """PySpark's Connect is told by variables; whatever comes after us must not see them."""
    kept = {name: os.environ.pop(name, None) for name in (TOKEN, IS_CONNECTED)}
    os.environ[TOKEN] = str(uuid.uuid4())
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
