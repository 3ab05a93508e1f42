"""Fenced blocks of a Markdown file, with the line each begins in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the line of its fence, its text, and whether it is to run.

    Python runs; commands run where their fence says so: "sh run".
    """

    language: str
    line: int
    text: str
    runs: bool = False


def blocks_of(markdown: str) -> Iterator[Block]:
    """The blocks in order.

    >>> [(block.line, block.runs) for block in blocks_of("# T\\n```python\\nx = 1\\n```\\n")]
    [(2, True)]
    """
    for found in FENCE.finditer(markdown):
        line = markdown.count("\n", 0, found.start()) + 1
        runs = found[1] == "python" or found[2].strip() == "run"
        yield Block(found[1], line, found[3], runs)
