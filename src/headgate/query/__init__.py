"""Queries: consistent reads of whole epochs, in SQL and by key."""
