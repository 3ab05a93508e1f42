"""Isolation: levels and the protocols that keep them."""
