"""Dataflow: procedures and transactions joined by streams; batches go through them in order."""
