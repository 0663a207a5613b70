"""The Spark session is that of `tests.spark`; `tests.scheduling` has all of them run in one process."""

from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from tests.spark.conftest import data, pytest_collection_modifyitems, shared_spark, spark

__all__ = ["data", "pytest_collection_modifyitems", "s3", "shared_spark", "spark"]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 with the bucket `lakes`."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        options = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        buckets = fs.S3FileSystem(
            endpoint_override=f"{host}:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        buckets.create_dir("lakes")
        yield options
    server.stop()
