"""Everything that fills a cache."""
