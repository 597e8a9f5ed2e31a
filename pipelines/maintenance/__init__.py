"""Changes of a cache that add nothing: shards packed anew, and rows deleted."""
