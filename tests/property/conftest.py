"""What makes thousands of examples affordable: kernels are built once, whole tables skip DuckDB."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from headgate.engine import reading
from headgate.execution import program
from headgate.parallel import scheduler
from headgate.query.connections import KeptConnections
from headgate.query.sql import Answer, run_sql

CONNECTIONS = KeptConnections()
WHOLE_TABLE = re.compile(r'select \* from "?(\w+)"?')


@pytest.fixture(scope="session", autouse=True)
def kernels_are_built_once() -> Iterator[None]:
    """A kernel holds no state, so every engine of the session may share it."""
    build = functools.cache(lambda *given: program_build_kernel(*given))
    program_build_kernel = program.build_kernel
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "build_kernel", lambda one, *more: build(tuple(one), *more))
        units = functools.cache(scheduler.build_unit_kernels)
        patch.setattr(scheduler, "build_unit_kernels", units)
        yield


@pytest.fixture(scope="module", autouse=True)  # and no longer: other tests ask for what is not
def whole_tables_skip_duckdb() -> Iterator[None]:
    """`select * from "table"` is answered from the very tables that DuckDB would be given.

    All other queries share connections: each of thousands of engines would make one of its own.
    """

    def answer(query: str, tables: Mapping[str, pa.Table], *more: Any, **others: Any) -> Answer:
        whole = WHOLE_TABLE.fullmatch(query)
        others["connections"] = CONNECTIONS
        return Answer(tables[whole[1]]) if whole else run_sql(query, tables, *more, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "run_sql", answer)
        yield
