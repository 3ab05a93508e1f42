"""Readiness: whether the kernels of a scheme compile for a set of transactions, found out once.

What does not compile costs nobody a batch: it is tried before anything runs, the batch runs
serially, which gives the bytes that every scheme promises, and the decision says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from headgate.compiling.refusals import reason_of
from headgate.execution.program import Program
from headgate.kernels.building import (
    UnitKernels,
    build_protocol_kernels,
    build_transaction_kernels,
    build_unit_kernels,
    compile_first,
)
from headgate.parallel.decision import Decision
from headgate.parallel.scheme import Scheme

PLAN = ("serial.resolve", "collect")  # the graph of transactions
UNIT_PLAN = ("serial.resolve", "units.collect")  # the graph of operations


def needed(scheme: Scheme) -> tuple[str, ...]:
    """The kernels that a scheme runs, those of its plan first."""
    kernel = scheme.kind.kernel
    if scheme.is_protocol:
        return "serial.resolve", f"protocol.{kernel}"
    if scheme.by_units:
        return *UNIT_PLAN, f"units.{kernel}", "units.reasons"
    return (kernel,) if scheme.kind.plans_itself else (*PLAN, kernel)


class Readiness:
    """The kernels of one program beyond the serial one, each tried at most once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._refusals: dict[str, str | None] = {}  # by kernel: why it does not compile
        # What the model chose and could not have: serial, and why. It is not asked again, for
        # the graph that it decides by would be built for nothing.
        self.whole_given_up: Decision | None = None
        self.units_given_up: Decision | None = None

    @cached_property
    def unit_kernels(self) -> UnitKernels:
        """The kernels that run a batch by operations, made when first asked for."""
        return build_unit_kernels(self.program.compiled_kernel.generator)

    @cached_property
    def transaction_kernels(self) -> Mapping[str, Any]:
        """The kernels by which threads share whole transactions, made when first asked for."""
        return build_transaction_kernels(self.program.compiled_kernel.generator)

    @cached_property
    def protocol_kernels(self) -> Mapping[str, Any]:
        """The kernels of the protocols, made when first asked for."""
        return build_protocol_kernels(self.program.compiled_kernel.generator)

    def refusal(self, *names: str) -> str | None:
        """Compile these kernels where that was not tried before; why the first one cannot be."""
        for name in names:
            if name not in self._refusals:
                self._refusals[name] = self._try(name)
            if (why := self._refusals[name]) is not None:
                return why
        return None

    def decision(self, scheme: Scheme) -> Decision | None:
        """Serial, and why, for a scheme that cannot run here; None for one that can."""
        return self.serial(f"{scheme}", *needed(scheme))

    def given_up(self, scheme: Scheme) -> Decision | None:
        """As `decision`, of a scheme that the model chose; what it cannot have is remembered."""
        refused = self.decision(scheme)
        if refused is not None and scheme.by_units:
            self.units_given_up = refused
        elif refused is not None:
            self.whole_given_up = refused
        return refused

    def serial(self, what: str, *names: str) -> Decision | None:
        why = self.refusal(*names)
        if why is None:
            return None
        return Decision("serial", f"{what} cannot be compiled for these transactions: {why}")

    def _try(self, name: str) -> str | None:
        try:
            compile_first(self._kernel(name))
        except Exception as error:  # Numba's own kinds, LLVM's, and what a cache may raise
            return f"{type(error).__name__}: {reason_of(error)}"
        return None

    def _kernel(self, name: str) -> Any:
        family, _, own = name.rpartition(".")
        if family == "units":
            return self.unit_kernels.kernels[own]
        if family == "protocol":
            return self.protocol_kernels[own]
        if family == "serial":
            return getattr(self.program.compiled_kernel, own)
        return self.transaction_kernels[own]
