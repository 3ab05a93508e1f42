"""Runs the blocks of pages in order: of each page Python in one namespace, in the current folder.

usage: page_program.py FILE [FILE ...]

Prints one JSON line per block: the number of its page, its line, and its error or null. The tests
that the blocks define are run at the end of the page, by pytest, as the one file that they make.
A page has the folder, which is emptied behind it, and a session of Spark to itself; the process,
and so Java, is that of all: to start them takes longer than most pages.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
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


def run_page(number: int, file: Path) -> None:
    blocks = [block for block in blocks_of(file.read_text()) if block.runs]
    namespace: dict[str, Any] = {"__name__": "page"}
    errors = [run_block(block, file, namespace) for block in blocks]
    if any(name.startswith("test_") for name in namespace) and not any(errors):
        errors[-1] = run_tests(blocks, file)
    for block, error in zip(blocks, errors, strict=True):
        print(json.dumps({"page": number, "line": block.line, "error": error}), flush=True)


def end_spark() -> None:
    """The next page begins without the queries, the tables and the formats of this one."""
    if "pyspark.sql" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        for query in session.streams.active:
            query.stop()
        session.stop()


def clear_up() -> None:
    for found in Path().iterdir():
        if found.is_dir():
            shutil.rmtree(found, ignore_errors=True)
        else:
            found.unlink()


def main(files: Sequence[Path]) -> None:
    for number, file in enumerate(files):
        run_page(number, file)
        end_spark()
        clear_up()


if __name__ == "__main__":
    main([Path(one) for one in sys.argv[1:]])
