"""Endpoints: which servers s3:// and gs:// are on, as their own tools are told by the environment.

TensorStore knows other variables than those tools, and fsspec's file systems some of them. Asked
here, all libraries in use go to the same server.
"""

from __future__ import annotations

import os
import socket

_STORES = {
    "gs": ("https://storage.googleapis.com", "/storage/v1/b/", "STORAGE_EMULATOR_HOST"),
    "s3": ("https://s3.amazonaws.com", "/", "AWS_ENDPOINT_URL"),
}
"""Of each scheme: the usual server, what its paths of buckets begin with, who names another."""

ANSWER_SECONDS = 5.0
"""For how long a server is waited for that may not be there."""


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


def server_of(url: str) -> str | None:
    """The URL of the server of a gs:// or s3:// URL where it is not Google's or Amazon's."""
    return {"gs": gs_emulator, "s3": s3_endpoint}[url.partition("://")[0]]() or None


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


def fault_of(url: str) -> str | None:
    """Why nothing of a bucket can be had: its server cannot be reached, or has no such bucket.

    None where neither is known. One request, which says nothing of who asks.
    """
    import urllib.error
    import urllib.request

    scheme, _, rest = url.partition("://")
    if scheme not in _STORES:
        return None
    usual, path, variable = _STORES[scheme]
    server, bucket = server_of(url) or usual, rest.partition("/")[0]
    place = f"{server.rstrip('/')}{path}{bucket}"
    try:
        with urllib.request.urlopen(place, timeout=ANSWER_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return f"there is no bucket {bucket!r} at {server}; check its name and {variable}"
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, (ConnectionError, TimeoutError, socket.gaierror)):
            return (
                f"the server {server} could not be reached: {reason}; check the network and "
                f"{variable}"
            )
    return None
