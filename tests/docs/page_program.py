"""Runs the blocks of a page in order, Python in one namespace, in the current folder.

usage: page_program.py FILE      prints one JSON line per block: its line, and its error or null

The tests that the blocks define are run at the end, by pytest, as the one file that they make.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.docs.blocks import Block, blocks_of


def run_commands(block: Block) -> str | None:
    """What the first command of a shell block that fails says, or None."""
    program = f"{shlex.quote(sys.executable)} -m headgate.cli "
    for line in block.text.splitlines():
        command = line.replace("headgate ", program, 1) if line.startswith("headgate ") else line
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{line}\n{done.stdout}{done.stderr}"
    return None


def run_block(block: Block, file: Path, namespace: dict[str, Any]) -> str | None:
    """The error of a block, or None; its lines are those of the file, so a traceback fits it."""
    if block.language == "sh":
        return run_commands(block)
    source = "\n" * block.line + block.text
    try:
        exec(compile(source, str(file), "exec"), namespace)
    except Exception:
        return traceback.format_exc()
    return None


def run_tests(blocks: list[Block], file: Path) -> str | None:
    """What pytest says of the tests of a page, or None when all of them passed."""
    written = Path(f"test_{file.stem}.py")
    written.write_text("\n\n".join(block.text for block in blocks if block.language == "python"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(written)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if finished.returncode == 0 else finished.stdout + finished.stderr


def main(file: Path) -> None:
    blocks = [block for block in blocks_of(file.read_text()) if block.runs]
    namespace: dict[str, Any] = {"__name__": "page"}
    errors = [run_block(block, file, namespace) for block in blocks]
    if any(name.startswith("test_") for name in namespace) and not any(errors):
        errors[-1] = run_tests(blocks, file)
    for block, error in zip(blocks, errors, strict=True):
        print(json.dumps({"line": block.line, "error": error}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
