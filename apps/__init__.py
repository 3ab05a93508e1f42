"""Applications to read and to copy, each one short file."""
