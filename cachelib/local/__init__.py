"""Local: copies of stored objects in a folder of this machine, kept for reads to come."""
