"""`headgate serve` with limits that have no option, so that tests need not wait for the usual."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from headgate.cli import main
from headgate.web import limits


def strict(**given: Any) -> limits.Limits:
    return dataclasses.replace(usual(**given), **json.loads(os.environ["BANK_LIMITS"]))


if __name__ == "__main__":
    usual, limits.Limits = limits.Limits, strict  # type: ignore[assignment, misc]
    main()
