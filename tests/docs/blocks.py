"""Fenced blocks of a Markdown file, with the line each begins in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the line of its fence and its text."""

    language: str
    line: int
    text: str


def blocks_of(markdown: str) -> Iterator[Block]:
    """The blocks in order.

    >>> [block.line for block in blocks_of("# T\\n```python\\nx = 1\\n```\\n")]
    [2]
    """
    for found in FENCE.finditer(markdown):
        yield Block(found[1], markdown.count("\n", 0, found.start()) + 1, found[2])
