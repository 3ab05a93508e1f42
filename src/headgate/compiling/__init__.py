"""Compiling: a user's function to machine code, with the outcome and bytes of plain Python."""
