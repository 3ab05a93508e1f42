"""Parallel: how the threads of an engine share a batch, and who decides whether they do."""
