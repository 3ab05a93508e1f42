"""State: what a table is, where its rows live, how a key finds its row."""
