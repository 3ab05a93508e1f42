"""Execution: a set of transactions over the rows of an engine, one batch after another."""
