"""Reading: the values of stored arrays, by position or from first to last."""
