"""The engine: the way of an event as prose: ordering, a batch, its results, calls, reading."""
