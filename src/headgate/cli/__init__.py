"""The `headgate` command: thin faces over stores and the demo."""

from __future__ import annotations


def main() -> None:
    """The entry point; it imports the commands only now, so that importing us costs nothing."""
    from headgate.cli.commands import app

    app(prog_name="headgate")
