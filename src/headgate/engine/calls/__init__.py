"""Calls: single events handed in by many threads, run together, and those with a key run once."""
