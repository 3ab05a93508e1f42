"""Workers: executors read the store's files themselves, on the interpreter of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.spark.session import choose_worker_interpreter
from tests.spark.stores import Writer, thing

PROGRAM = Path(__file__).with_name("read_program.py")


@pytest.fixture
def wrong_python(tmp_path: Path) -> Path:
    """A folder whose python3 is not the one that has headgate."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "python3"
    script.write_text("#!/bin/sh\necho 'the wrong python was started' >&2\nexit 1\n")
    script.chmod(0o755)
    return folder


def run_program(
    master: str, first: str, tmp_path: Path, environment: dict[str, str], wrong_python: Path
) -> dict[str, Any]:
    writer = Writer(tmp_path / "store")
    writer.commit({number: thing(number) for number in range(8)})
    path = os.pathsep.join([str(wrong_python), environment["PATH"]])
    # The store stays open for writing here: the program reads it from other processes meanwhile.
    done = subprocess.run(
        [sys.executable, str(PROGRAM), master, "store", first],
        env={**environment, "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    writer.close()
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_workers_of_an_earlier_session_use_the_interpreter_of_the_driver(
    tmp_path: Path, program_environment: dict[str, str], wrong_python: Path
) -> None:
    answer = run_program("local[2]", "session", tmp_path, program_environment, wrong_python)
    assert answer == {"ids": list(range(8)), "executables": [sys.executable]}


def test_executors_of_a_cluster_read_the_store_by_a_relative_path(
    tmp_path: Path, program_environment: dict[str, str], wrong_python: Path
) -> None:
    # Executors are processes with working folders of their own.
    master = "local-cluster[2,1,1024]"
    answer = run_program(master, "headgate", tmp_path, program_environment, wrong_python)
    assert answer == {"ids": list(range(8)), "executables": [sys.executable]}


def test_an_interpreter_chosen_by_the_user_stays() -> None:
    chosen = {"PYSPARK_PYTHON": "python3.12"}
    choose_worker_interpreter(chosen)
    assert chosen == {"PYSPARK_PYTHON": "python3.12"}


def test_under_spark_submit_nothing_is_chosen() -> None:
    submitted = {"PYSPARK_GATEWAY_PORT": "1"}
    choose_worker_interpreter(submitted)
    assert "PYSPARK_PYTHON" not in submitted


def test_otherwise_the_interpreter_of_the_driver_is_chosen() -> None:
    variables: dict[str, str] = {}
    choose_worker_interpreter(variables)
    assert variables == {"PYSPARK_PYTHON": sys.executable}
