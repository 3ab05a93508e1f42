"""Generating look-ups: the text by which a kernel finds the rows that keys and ranges name.

Passes some events apart, so that waits for memory overlap: `seek` asks for the entries of the
index; `match` takes the entry with the right tag, and `touch` asks for its row; `confirm` compares
the key in the row, which the step needs next anyway, and looks again where another had that tag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headgate.state.table import Access, Table

if TYPE_CHECKING:
    from headgate.kernels.generating import Generator
from headgate.state.entry_looks import SHORT
from headgate.state.layout import WORD_BYTES, row_layout
from headgate.state.ranges import Index, bound_sizes

if TYPE_CHECKING:
    from headgate.compiling.signature import Signature
    from headgate.kernels.generating import Generator


def is_found_late(access: Access) -> bool:
    """Whether the kernel itself looks the rows up: those that are missing are not created, or
    their keys depend on other rows. Ranges are found by their index."""
    return (not access.create or access.is_dynamic) and access.span is None


class LookUpText:
    """Writes the look-ups of one set of transactions."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def functions(self) -> list[str]:
        """The look-up of one key, for each table."""
        return [self._find(table) for table in self.generator.tables]

    def _find(self, table: Table) -> str:
        """The look-up of one table's key, as `state.index.find_wide` does it."""
        number, width = self.generator.number(table), self.generator.table_width(table)
        keys = [f"k{part}" for part in range(len(table.key))]
        same = " and ".join(
            f"get(words, slot * {width} + {1 + part}) == {key}" for part, key in enumerate(keys)
        )
        return _FIND.format(number=number, keys=", ".join(keys), value=hash_of(keys), same=same)

    def _may_be_made(self, table: Table) -> bool:
        """Whether an event may have made a row since it was looked for some events ahead."""
        return table in self.generator.dynamic.made

    def _late(self, number: int, write: Callable[[int, Access, str], Sequence[str]]) -> list[str]:
        """The lines for every row that the kernel itself looks up, its table in {t}."""

        def body(place: int, access: Access) -> list[str]:
            if not is_found_late(access) or access.is_dynamic:
                return []
            table = str(self.generator.number(access.table))
            value = hash_of(self.generator.keys(number, place, access))
            return [line.replace("{t}", table) for line in write(place, access, value)]

        return self.generator.every(number, body, "k")

    def seek(self, number: int) -> str:
        def body(place: int, access: Access, value: str) -> list[str]:
            return [f"prefetch(entries_{{t}} + 8 * ({value} & mask_{{t}}))"]

        lines = [*self._late(number, body), "return 0"]
        return self.generator.function(f"seek_{number}", lines, "e, k, frame")

    def match(self, number: int) -> str:
        """Rows by the tag of their entry alone: the key is compared when the row is there."""

        def body(place: int, access: Access, value: str) -> list[str]:
            found = f"tagged(entries_{{t}}, mask_{{t}}, {value})"
            return [f"put(slots_{place}, {{k}}, {found})"]

        lines = [*self._late(number, body), "return 0"]
        return self.generator.function(f"match_{number}", lines, "e, k, frame")

    def touch(self, number: int) -> str:
        def body(place: int, access: Access) -> list[str]:
            if access.is_dynamic or self.generator.ranges.is_dynamic(access):
                return []  # it is found when the event's turn has come
            row = f"words_{self.generator.number(access.table)}"
            row += f" + {8 * self.generator.width(access)} * s_{place}"
            return ask_for(row, self.generator.width(access), is_written=not access.read_only)

        lines = [*self.generator.every(number, body, "k"), "return 0"]
        return self.generator.function(f"touch_{number}", lines, "e, k, frame")

    def confirm(self, number: int) -> str:
        """Another key may have had the same tag: then look for the key itself."""

        def body(place: int, access: Access, value: str) -> list[str]:
            width, keys = self.generator.width(access), self.generator.keys(number, place, access)
            other = " or ".join(
                f"get(words_{{t}}, s_{place} * {width} + {1 + part}) != {key}"
                for part, key in enumerate(keys)
            )
            found = f"find_{{t}}(entries_{{t}}, mask_{{t}}, words_{{t}}, {', '.join(keys)})"
            made = []
            if self._may_be_made(access.table):
                made = [f"if s_{place} < 0:", f"    put(slots_{place}, {{k}}, {found})"]
            return [
                *made,
                f"if s_{place} >= 0 and ({other}):",
                f"    put(slots_{place}, {{k}}, {found})",
                "    wrong = word(1)",
            ]

        lines = ["wrong = word(0)", *self._late(number, body), "return wrong"]
        return self.generator.function(f"confirm_{number}", lines, "e, k, frame")


def ask_for(row: str, width: int, *, is_written: bool) -> list[str]:
    """Ask for a row by its first and its last word: one of 24 bytes lies in two lines of the cache
    every fourth time, and to wait for the second costs more than all else once tables are large.

    What is about to be written is asked for as such: one transfer of the line, not two.
    """
    ask = "prefetch_to_write" if is_written else "prefetch"
    return [f"{ask}({row} + {8 * word})" for word in sorted({0, width - 1})]


def hash_of(keys: Sequence[str]) -> str:
    """The hash of a key, as `state.index.mix` makes it of its words."""
    value = "0"
    for key in keys:
        value = f"mix({value}, {key})"
    return value


_FIND = """@templated
def find_{number}(entries, mask, words, {keys}):
    value = {value}
    place = value & mask
    while True:
        entry = get(entries, place)
        if entry == 0:
            return -1
        if (entry ^ value) >> 32 == 0:
            slot = (entry & 0xFFFFFFFF) - 1
            if {same}:
                return slot
        place = (place + 1) & mask"""


# --- ranges ---------------------------------------------------------------------------------------
# The text by which a step finds the rows of a range, and keeps indexes in step.
#
# Where no transaction of a program can move a row within the index, ranges are looked up before
# the batch runs, and a kernel sees them as it sees an `each`. Else a range is dynamic: it is
# looked up when the event's turn has come. Whoever changes a row notes that at the end of its
# step, when nothing can undo it any more, and whoever looks into the index goes through the entries
# of such rows, too (see state/entries.py). So an event finds exactly the rows as of its turn.
#
# All room that a step may need is seen to first: slots, copies, nodes of trees. Where there is
# too little it raises `NoRoom`, before it has changed anything, and is run again with more.


# The words of `rooms`: the words of `undo`; then of each access by its number.
UNDO_ROOM, FIRST_ACCESS = 0, 1
UNDO_SLACK = 64  # words of `undo` that stand before the copies, where keys are computed
BOUNDS, SLOTS_ROOM, SLOTS_USED, ACCESS_WORDS = range(4)


class NoRoom(Exception):
    """A step found no room for what it may have to note; nothing is changed."""


def moving_indexes(signatures: Sequence[Signature]) -> tuple[Index, ...]:
    """The indexes that ranges of these transactions look into and some of them may change, or that
    rows leave when they expire."""
    found: dict[Index, None] = {}
    for access in (one for signature in signatures for one in signature.accesses):
        span = access.span
        if span is None:
            continue
        expires = access.table.expires is not None
        if expires or any(may_move(one, access.table, span.index) for one in signatures):
            found[span.index] = None
    return tuple(found)


def may_move(signature: Signature, table: Table, index: Index) -> bool:
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
        return any(
            self.is_dynamic(access)
            or any(self._moved(number, place, access, index) for index in self.of(access.table))
            for place, access in self.generator.accesses(number)
        )

    def functions(self) -> list[str]:
        numbers = range(len(self.generator.signatures))
        return [self._ranges(number) for number in numbers if self._is_needed(number)]

    def begin(self, number: int) -> list[str]:
        """The first lines of a step."""
        return [] if self.generator.signatures[number].is_dynamic else self._looked_up(number)

    def ahead(self, number: int) -> list[str]:
        """The first lines of what finds computed keys, some of which are of rows in a range."""
        return self._looked_up(number) if self.generator.signatures[number].is_dynamic else []

    def _looked_up(self, number: int) -> list[str]:
        if not self._is_needed(number):
            return []
        return [f"if ranges_{number}(e, frame) != 0:", "    raise NoRoom"]

    def brought(self, number: int, place: int, access: Access) -> list[str]:
        """The lines that note of a changed row that its entries are to be brought forward, where
        what has changed is in an entry."""
        lines = []
        for index in self.of(access.table):
            tests = self._moved(number, place, access, index)
            if tests:
                lines.append(f"if {' or '.join(tests)}:")
                lines.append(f"    note_moved(waiting_{index}, s_{place})")
        return lines

    def _moved(self, number: int, place: int, access: Access, index: int) -> list[str]:
        """The tests whether a row has another entry of an index than before; none: it never has."""
        layout = row_layout(access.table.schema, access.table.key)
        columns = self.moving[index].columns
        words = {layout.field(name).offset // WORD_BYTES for name in columns}
        words |= layout.null_bits(columns).keys() | {0}  # which says whether there is the row
        return self.generator.word_tests(number, place, access, words)

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
            for index in self.of(access.table):
                if self._moved(number, place, access, index):
                    moved.setdefault(index, []).append(count)
        lines += [f"if u + {UNDO_SLACK} > get(rooms_0, {UNDO_ROOM}):", "    short = word(1)"]
        for index, counts in moved.items():
            more = f"tree_{index}, waiting_{index}, {' + '.join(counts)}"
            lines += [f"if is_full({more}):", "    short = word(1)"]
        if ends:
            lines += ["if short == 0:", *("    " + line for line in ends)]
        return self.generator.function(f"ranges_{number}", [*lines, "return short"])

    def _find(self, place: int, access: Access) -> list[str]:
        span, at = access.span, FIRST_ACCESS + ACCESS_WORDS * place
        if span is None:
            return []
        index = self.moving.index(span.index)
        tree = f"tree_{index}"
        words, count = bound_sizes(access, span)
        size, high = 8 * words, 8 * (words - count)
        first = f"get(rooms_0, {at + SLOTS_USED})" if self.generator.updates else "word(0)"
        asked = f"{count}, {span.limit}, {int(span.descending)}"
        row = f"words_{self.generator.number(access.table)}"
        row += f" + {8 * self.generator.width(access)} * get(slots_{place}, j)"
        return [
            f"first_{place} = {first}",
            f"room = get(rooms_0, {at + SLOTS_ROOM}) - first_{place}",
            f"low = get(rooms_0, {at + BOUNDS}) + {size} * e",
            f"out = slots_{place} + 8 * first_{place}",
            f"n_{place} = look({tree}, waiting_{index}, low, low + {high}, {asked}, out, room)",
            f"if n_{place} == {SHORT}:",
            "    short = word(1)",
            f"    n_{place} = word(0)",
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
