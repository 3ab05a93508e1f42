"""Kernels stay inside their arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(module: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, **more},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_no_kernel_leaves_its_arrays(tmp_path: Path) -> None:
    """Numba's bounds checking for arrays, ours for words by their address."""
    done = python(
        "tests.property.bounds_program",
        HEADGATE_BOUNDS="1",
        NUMBA_BOUNDSCHECK="1",
        HEADGATE_CACHE=str(tmp_path / "kernels"),
        NUMBA_CACHE_DIR=str(tmp_path / "numba"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["on True outside 0 noticed 1", "wrong []"]
