"""Generating ranges: the text by which a step finds the rows of a range, and keeps indexes in step.

Where no transaction of a program can move a row within the index, ranges are looked up before the
batch runs, and a kernel sees them as it sees an `each`. Else a range is dynamic: it is looked up
when the event's turn has come, and whoever changes a row brings its entries forward at the end of
its step, when nothing can undo it any more. So an event finds exactly the rows as of its turn.

All room that a step may need is seen to first: slots, copies, nodes of trees. Where there is too
little it raises `NoRoom`, before it has changed anything, and is run again with more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.state.ranges import Index
from headgate.state.table import Access, Table

if TYPE_CHECKING:
    from headgate.compiling.signature import Signature
    from headgate.kernels.generating import Generator

# The words of `rooms`: the words of `undo`; then of each access by its number.
UNDO_ROOM, FIRST_ACCESS = 0, 1
UNDO_SLACK = 64  # words of `undo` that stand before the copies, where keys are computed
BOUNDS, SLOTS_ROOM, SLOTS_USED, ACCESS_WORDS = range(4)


class NoRoom(Exception):
    """A step found no room for what it may have to note; nothing is changed."""


def moving_indexes(signatures: Sequence[Signature]) -> tuple[Index, ...]:
    """The indexes that ranges of these transactions look into and some of them may change."""
    found: dict[Index, None] = {}
    for access in (one for signature in signatures for one in signature.accesses):
        span = access.span
        if span is not None and any(_may_move(one, access.table, span.index) for one in signatures):
            found[span.index] = None
    return tuple(found)


def _may_move(signature: Signature, table: Table, index: Index) -> bool:
    """Whether a transaction may change the entries of an index."""
    accesses = [one for one in signature.accesses if one.table == table and not one.read_only]
    if not accesses:
        return False
    effects = signature.effects
    is_written = not signature.compiled or any(name in effects.stored for name in index.columns)
    return is_written or effects.may_delete or any(one.create for one in accesses)


class RangeText:
    """Writes the dynamic ranges of one set of transactions."""

    def __init__(self, generator: Generator, moving: Sequence[Index]) -> None:
        self.generator = generator
        self.moving = tuple(moving)

    def is_dynamic(self, access: Access) -> bool:
        """Whether its rows are looked up when the event's turn has come."""
        return access.span is not None and access.span.index in self.moving

    def span(self, place: int) -> list[str]:
        """The lines that find the span of an event, which has both of its ends."""
        return [
            f"first_{place} = get(offsets_{place}, 2 * e)",
            f"last_{place} = get(offsets_{place}, 2 * e + 1)",
        ]

    def of(self, table: Table) -> list[int]:
        """The numbers of a table's indexes that are kept in step."""
        return [n for n, one in enumerate(self.moving) if one.table == table.name]

    def _is_needed(self, number: int) -> bool:
        accesses = [access for _, access in self.generator.accesses(number)]
        return any(self.is_dynamic(one) or self._moves(one) for one in accesses)

    def _moves(self, access: Access) -> bool:
        return not access.read_only and bool(self.of(access.table))

    def functions(self) -> list[str]:
        numbers = range(len(self.generator.signatures))
        return [self._ranges(number) for number in numbers if self._is_needed(number)]

    def begin(self, number: int) -> list[str]:
        """The first lines of a step."""
        if not self._is_needed(number):
            return []
        return [f"if ranges_{number}(e, frame) != 0:", "    raise NoRoom"]

    def brought(self, place: int, access: Access) -> list[str]:
        """The lines that bring the entries of a changed row forward."""
        return [
            f"bring(tree_{n}, held_{n}, recipe_{n}, s_{place}, r_{place})"
            for n in self.of(access.table)
        ]

    def _ranges(self, number: int) -> str:
        """Look all ranges of an event up; 1 where there is too little room for its step."""
        lines, ends = ["short = word(0)", "u = word(0)"], []
        moved: dict[int, list[str]] = {}
        for place, access in self.generator.accesses(number):
            count = "1"
            if self.is_dynamic(access):
                lines += self._find(place, access)
                ends += self._used(place)
                count = f"n_{place}"
            elif not access.is_single:
                lines += self.generator.span(place, access)
                count = f"(last_{place} - first_{place})"
            words = len(self.generator.saved(number, access))
            lines += [f"u += {words} * {count}"] if words else []
            for index in self.of(access.table) if words else ():
                moved.setdefault(index, []).append(count)
        lines += [f"if u + {UNDO_SLACK} > get(rooms_0, {UNDO_ROOM}):", "    short = word(1)"]
        for index, counts in moved.items():
            lines += [f"if is_short(tree_{index}, {' + '.join(counts)}):", "    short = word(1)"]
        if ends:
            lines += ["if short == 0:", *("    " + line for line in ends)]
        return self.generator.function(f"ranges_{number}", [*lines, "return short"])

    def _find(self, place: int, access: Access) -> list[str]:
        span, at = access.span, FIRST_ACCESS + ACCESS_WORDS * place
        if span is None:
            return []
        tree = f"tree_{self.moving.index(span.index)}"
        size, high = 8 * len(access.columns), 8 * (len(access.columns) - span.count)
        first = f"get(rooms_0, {at + SLOTS_USED})" if self.generator.updates else "word(0)"
        asked = f"{span.count}, {span.limit}, {int(span.descending)}"
        row = f"words_{self.generator.number(access.table)}"
        row += f" + {8 * self.generator.width(access)} * get(slots_{place}, j)"
        return [
            f"first_{place} = {first}",
            f"room = get(rooms_0, {at + SLOTS_ROOM}) - first_{place}",
            f"low = get(rooms_0, {at + BOUNDS}) + {size} * e",
            f"out = slots_{place} + 8 * first_{place}",
            f"n_{place} = scan({tree}, low, low + {high}, {asked}, out, room)",
            f"put(offsets_{place}, 2 * e, first_{place})",
            f"put(offsets_{place}, 2 * e + 1, first_{place} + n_{place})",
            f"if n_{place} > room:",
            "    short = word(1)",
            f"for j in range(first_{place}, first_{place} + min(n_{place}, room)):",
            f"    prefetch({row})",
        ]

    def _used(self, place: int) -> list[str]:
        """Where rows are kept as they were left, the slots of an event stay."""
        if not self.generator.updates:
            return []
        at = FIRST_ACCESS + ACCESS_WORDS * place + SLOTS_USED
        return [f"put(rooms_0, {at}, first_{place} + n_{place})"]
