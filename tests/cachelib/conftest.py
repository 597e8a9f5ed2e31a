"""Property tests are bounded by their number of examples, not by a clock that others share."""

from hypothesis import settings

settings.register_profile("forebay", deadline=None)
settings.load_profile("forebay")
