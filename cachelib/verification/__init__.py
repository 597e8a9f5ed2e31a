"""Verification: everything that a cache says of itself, checked against what is stored.

The ledger is walked from commit 0; every shard is read in full, in bounded memory, and its digest
computed anew.
"""

from cachelib.verification.difference import difference
from cachelib.verification.problems import Problem, Progress
from cachelib.verification.walk import garbage, verify

__all__ = ["Problem", "Progress", "difference", "garbage", "verify"]
