"""Generating windows: the text by which a step keeps versions of rows, and sees those of a window.

A version is kept where a changed row is marked, at the end of a step, when nothing can undo it any
more: an abort has none to take back. A window is a look at the trail of its row as of the event's
turn, so it conflicts with who writes that row, and with nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.compiling.signature import Signature
from headgate.state.table import Access, Table

if TYPE_CHECKING:
    from headgate.kernels.generating import Generator
if TYPE_CHECKING:
    from headgate.compiling.signature import Signature
    from headgate.kernels.generating import Generator


def is_kept(access: Access) -> bool:
    """Whether the rows of an access leave versions behind when they change."""
    return access.table.history is not None and not access.read_only


def trailed_tables(signatures: Sequence[Signature]) -> tuple[Table, ...]:
    """The tables whose trails these transactions look at, or add to."""
    found = (access for one in signatures for access in one.accesses)
    return tuple(dict.fromkeys(one.table for one in found if is_kept(one) or one.window))


def kept_tables(signatures: Sequence[Signature]) -> tuple[Table, ...]:
    """Those that they add to."""
    found = (access for one in signatures for access in one.accesses)
    return tuple(dict.fromkeys(one.table for one in found if is_kept(one)))


class WindowText:
    """Writes what one set of transactions does with versions."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.tables = trailed_tables(generator.signatures)

    def _trail(self, access: Access) -> str:
        return f"trail_{self.tables.index(access.table)}"

    def _time(self, place: int, access: Access) -> str:
        """The time of the event, where the table keeps versions by time."""
        if access.table.history is None or not access.table.history.extent.is_timed:
            return "word(0)"
        return f"time_{place}(columns_{self._owner(place)}, e)"

    def _owner(self, place: int) -> int:
        """The number of the transaction that an access is of."""
        numbers = range(len(self.generator.signatures))
        return next(n for n in numbers if place in dict(self.generator.accesses(n)))

    def begin(self, number: int) -> list[str]:
        """The lines that see to it that there is room for the versions of an event."""
        lines, counts = [], dict[str, list[str]]()
        for place, access in self.generator.accesses(number):
            if not is_kept(access) or not self.generator.saved(number, access):
                continue
            count = "1"
            if not access.is_single:
                lines += self.generator.span(place, access, "k")
                count = f"(last_{place} - first_{place})"
            counts.setdefault(self._trail(access), []).append(count)
        for trail, found in counts.items():
            lines += [f"if is_crowded({trail}, word({' + '.join(found)})):", "    raise NoRoom"]
        return lines

    def noted(self, place: int, access: Access) -> list[str]:
        """The lines that keep a changed row."""
        if not is_kept(access):
            return []
        given = f"{self._trail(access)}, s_{place}, r_{place}, {self._time(place, access)}"
        return [f"note_version({given}, epoch, i)"]

    def value(self, place: int, access: Access) -> str:
        """What a function gets for a window."""
        trail, slot, window = self._trail(access), f"s_{place}", access.window
        if window is None:
            return ""
        extent = window.extent
        rows = 0 if extent.is_timed else extent.size
        first = f"first_of({trail}, {slot}, {rows}), last_of({trail}, {slot})"
        time = self._time(place, access)
        times = f"{time} - {extent.size}, {time}" if extent.is_timed else "-1, 0"
        return f"window_{place}({trail}, {slot}, {first}, {times})"


# --- expiry ---------------------------------------------------------------------------------------
# The text by which the timely loop sees when rows expire that events leave.
#
# Of a transaction that neither makes rows of a table whose rows expire, nor sets the column they
# expire by, nothing is noted: when its rows expire is known before a batch runs.


def expiring_tables(signatures: Sequence[Signature]) -> tuple[Table, ...]:
    """The tables that these transactions name whose rows expire, each once."""
    found = (table for signature in signatures for table in signature.tables)
    return tuple(dict.fromkeys(table for table in found if table.expires is not None))


def sets_expiry(signature: Signature, access: Access) -> bool:
    """Whether rows of an access may expire at another moment than before, when it has run."""
    if access.table.expires is None or access.read_only:
        return False
    stored = signature.effects.stored
    return access.create or not signature.compiled or access.table.expires.column in stored


class ExpiryText:
    """Writes what one set of transactions tells of the rows it leaves."""

    def __init__(self, generator: Generator, expiring: Sequence[Table]) -> None:
        self.generator = generator
        self.expiring = tuple(expiring)  # those too that only transactions name that do not compile

    @property
    def is_needed(self) -> bool:
        """Whether rows may expire in a batch of the program."""
        return bool(self.expiring)

    def functions(self) -> list[str]:
        if not self.is_needed:
            return []
        is_due = ["return get(moments_0, i) >= get(wakes_0, 0)"]
        swept = ["return sweep(wakes_0, get(moments_0, i))"]
        return [
            self.generator.function("is_due", is_due, "i, frame"),
            self.generator.function("sweep_due", swept, "i, frame"),
            *self.generator.each(self._notes),
            self.generator.dispatch("note_dues", "e, k, frame"),
        ]

    def _notes(self, number: int) -> str:
        lines = self.generator.every(number, lambda *given: self._note(number, *given), "k")
        accesses = self.generator.signatures[number].accesses
        if any(access.table.references and not access.read_only for access in accesses):
            lines += ["stir(wakes_0)"]
        return self.generator.function(f"note_dues_{number}", [*lines, "return 0"], "e, k, frame")

    def _note(self, number: int, place: int, access: Access) -> list[str]:
        """The lines that look at one row; of a table that has it by several parameters each."""
        if not sets_expiry(self.generator.signatures[number], access):
            return []
        table, width = self.generator.number(access.table), self.generator.width(access)
        own = self.expiring.index(access.table)
        row = f"words_{table} + {8 * width} * s_{place}"
        return [
            f"if s_{place} >= 0:",
            f"    note_due({row}, s_{place}, {own}, wakes_0)",
        ]
