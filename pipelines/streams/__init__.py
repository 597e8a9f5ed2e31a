"""Caches that an unbounded pipeline fills: units become shards, and one committer numbers them."""
