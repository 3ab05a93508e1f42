"""The web: an engine or a store over HTTP, and the client of it; thin faces over the engine."""
