"""The engine: the way of an event as prose: arriving, a batch, its results, calls, reading."""
