"""Where stores are, by the environment."""

from __future__ import annotations

import os

import pytest

from cachelib.format import endpoints
from cachelib.format.storage import _kvstore_spec

VARIABLES = (
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION",
    "STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL", "GOOGLE_AUTH_TOKEN_FOR_TESTING",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT",
)  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set later is undone
        monkeypatch.delenv(name)


def test_the_usual_servers() -> None:
    assert endpoints.server_of("s3://a/b") is None
    assert endpoints.server_of("gs://a/b") is None
    assert "endpoint" not in _kvstore_spec("s3://a/b/")
    endpoints.agree()
    assert not set(VARIABLES) & set(os.environ)
    assert endpoints.fault_of("file:///a/") is None


def test_an_s3_server_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
    assert _kvstore_spec("s3://a/b/") == {
        "driver": "s3", "bucket": "a", "path": "b/", "endpoint": "http://all",
        "aws_region": "us-east-1",
    }  # fmt: skip
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "here")
    assert (endpoints.s3_endpoint(), endpoints.s3_region()) == ("http://s3", "here")
    monkeypatch.setenv("AWS_REGION", "there")
    assert endpoints.s3_region() == "there"


@pytest.mark.parametrize("given", ["127.0.0.1:4443", "http://127.0.0.1:4443/"])
def test_a_server_in_place_of_googles(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", given)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "mine")
    assert _kvstore_spec("gs://a/b/") == {"driver": "gcs", "bucket": "a", "path": "b/"}
    assert os.environ["TENSORSTORE_GCS_HTTP_URL"] == "http://127.0.0.1:4443"
    assert os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"] == "mine"
    assert os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] == "false"
