"""The format: what is stored, as objects, arrays and commits."""
