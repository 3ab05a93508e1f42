"""Runs the Python blocks of a Markdown file in order, in one namespace, in the current folder.

usage: readme_program.py FILE      prints one JSON line per block: its line, and its error or null
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.docs.blocks import Block, blocks_of


def run_block(block: Block, file: Path, namespace: dict[str, Any]) -> str | None:
    """The error of a block, or None; its lines are those of the file, so a traceback fits it."""
    source = "\n" * block.line + block.text
    try:
        exec(compile(source, str(file), "exec"), namespace)
    except Exception:
        return traceback.format_exc()
    return None


def main(file: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "readme"}
    for block in blocks_of(file.read_text()):
        if block.language == "python":
            error = run_block(block, file, namespace)
            print(json.dumps({"line": block.line, "error": error}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
