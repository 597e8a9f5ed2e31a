"""Pure index arithmetic: which rows come when. No I/O, and nothing of the cache is known here."""
