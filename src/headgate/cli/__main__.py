"""`python -m headgate.cli`: the command where the entry point is not installed."""

from __future__ import annotations

from headgate.cli import main

main()
