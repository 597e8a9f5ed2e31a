"""Commands: what `forebay` tells of caches, and what stands behind it."""
