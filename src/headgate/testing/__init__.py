"""For users' tests and our own: a simulated disk and clock, and the serial oracle that judges."""

from __future__ import annotations

from headgate.testing.disk import SimulatedClock, SimulatedCrash, SimulatedDisk
from headgate.testing.history import History
from headgate.testing.oracle import SerialOracle, difference, results_difference
from headgate.testing.survival import Survival

__all__ = [
    "History",
    "SerialOracle",
    "SimulatedClock",
    "SimulatedCrash",
    "SimulatedDisk",
    "Survival",
    "difference",
    "results_difference",
]
