"""Execution: transactions as machine code over rows, and the schemes that drive them."""
