"""Property tests are bounded by their number of examples, not by a clock that others share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("forebay", deadline=None)
settings.load_profile("forebay")


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """No test here cuts the power; waiting for the disk would be most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
