"""What holds for all tests: how long a property is tested, how a parameter is named, and Prism."""

import pytest
from hypothesis import settings

from tests.programs import program

# Property tests are bounded by their number of examples, not by a clock that others share.
settings.register_profile("forebay", deadline=None)
settings.load_profile("forebay")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """The name of bytes, which may hold the time at which they were compressed.

    All processes of pytest-xdist must find the same names, whenever they start.
    """
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def prism() -> str:
    """The path of Beam's Prism."""
    return program("prism")
