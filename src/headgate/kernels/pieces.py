"""Pieces: what kernels call and only a set of transactions can give, see generating.py.

They are declared here so that kernels are ordinary typed functions; `binding.bind` puts the
program's own in their place. `e` is an event row, `i` a position, `frame` the address of a frame;
`k` is where the slots of the event stand that kernels look up: its place in a block, or `e`.
"""

from __future__ import annotations

from headgate.kernels.binding import unbound


def seek(e: int, k: int, frame: int) -> int:
    """Ask for the index entries that the look-ups of one event begin at."""
    unbound()


def match(e: int, k: int, frame: int) -> int:
    """Find the rows of one event by the tags of their entries."""
    unbound()


def touch(e: int, k: int, frame: int) -> int:
    """Ask for the rows of one event that were found."""
    unbound()


def confirm(e: int, k: int, frame: int) -> int:
    """See to it that the rows that were found have the keys of the event; 1 if one had not."""
    unbound()


def step(e: int, k: int, i: int, epoch: int, frame: int) -> int:
    """Run one transaction in the tables; 0 when it committed, else its reason and no trace."""
    unbound()


def undo(e: int, k: int, frame: int) -> int:
    """Put the rows of one event back as they were before its step."""
    unbound()


def list_rows(e: int, first: int, frame: int) -> int:
    """List the operations of one event from place `first` on; returns the place after them."""
    unbound()


def deal_rows(e: int, first: int, thread: int, threads: int, frame: int) -> int:
    """Deal the operations of one event out, see shares.py; returns the place behind its links."""
    unbound()


def list_units(
    e: int, i: int, whole: int, k: int, u: int, r: int, frame: int
) -> tuple[int, int, int]:
    """List the operations, units and reads of one event; returns the places after them."""
    unbound()


def perform(u: int, i: int, e: int, keys: int, frame: int) -> int:
    """Run one unit over versions, or with `keys` only see to its keys; its reason, or 0."""
    unbound()


def gather(e: int, frame: int) -> int:
    """The operations of one event, each row once; returns how many."""
    unbound()


def point(e: int, frame: int) -> int:
    """Let the thread's own frame find the rows of one event at their private slots."""
    unbound()


def attempt(task: int, eager: int, frame: int) -> int:
    """Run one task; 1 when an abort must be settled before others go on."""
    unbound()


def is_run(task: int, frame: int) -> bool:
    """Whether all of a task has run."""
    unbound()


def finish(task: int, frame: int) -> int:
    """Tell those that wait for a task; returns one that may run at once, or -1."""
    unbound()


def next_stratum(stratum: int, eager: int, frame: int) -> int:
    """Where all threads go on when they have met at the end of a stratum."""
    unbound()


def is_over(threads: int, is_queued: int, frame: int) -> int:
    """Meet when nothing seems left to run; whether that is so once aborts are settled."""
    unbound()
