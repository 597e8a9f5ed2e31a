"""In which order rows are stored: orders, keys of rows, and passes over sorted runs. Pure."""
