"""These tests are collected where JAX and grain are installed: `make test-all` makes such a place.

They see eight devices, all of them this machine's processors.
"""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("jax") and find_spec("grain") else ["test_*.py"]

# JAX reads both when it is first used.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
