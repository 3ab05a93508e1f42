"""Scheduling: pure functions from a batch's figures to how it is run."""
