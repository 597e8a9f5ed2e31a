"""Endpoints: which servers s3:// and gs:// are on, as their own tools are told by the environment.

TensorStore knows other variables than those tools, and fsspec's file systems some of them. Asked
here, all libraries in use go to the same server.
"""

from __future__ import annotations

import os


def s3_endpoint() -> str | None:
    """The URL of the S3 server, or None for Amazon's."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def s3_region() -> str:
    """The region by which requests to a server of one's own are signed."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def gs_emulator() -> str | None:
    """The URL of the server that stands in for Google's, or None."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    return host if not host or host.startswith(("http://", "https://")) else f"http://{host}"


def agree() -> None:
    """Let TensorStore and gcsfs use the server that stands in for Google's, if there is one.

    It lets everybody in. Asking Google who the caller is, or what kind of bucket it is, takes them
    half a minute each where Google cannot be reached.
    """
    emulator = gs_emulator()
    if emulator:
        os.environ["TENSORSTORE_GCS_HTTP_URL"] = emulator
        os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "anonymous")
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
