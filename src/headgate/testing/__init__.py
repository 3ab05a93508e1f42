"""For users' tests and our own: a simulated disk and clock, and the serial oracle that judges."""

from __future__ import annotations

from headgate.testing.comparing import difference, results_difference
from headgate.testing.disk import SimulatedClock, SimulatedCrash, SimulatedDisk
from headgate.testing.flow_oracle import Executed, FlowOracle, schedule_faults
from headgate.testing.history import History
from headgate.testing.oracle import SerialOracle
from headgate.testing.survival import Survival

__all__ = [
    "Executed",
    "FlowOracle",
    "History",
    "SerialOracle",
    "SimulatedClock",
    "SimulatedCrash",
    "SimulatedDisk",
    "Survival",
    "difference",
    "results_difference",
    "schedule_faults",
]
