"""These tests are collected where PyTorch is installed: `make test-all` makes such a place."""

import multiprocessing
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]

# Importing PyTorch takes seconds: once for all processes of the start method "forkserver".
multiprocessing.set_forkserver_preload(["cachelib.torch", "tests.torch.sources"])
