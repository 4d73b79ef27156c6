"""Pages of docs/ that are made from code: the Python interface, the command line, the hooks."""
