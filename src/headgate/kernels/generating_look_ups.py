"""Generating look-ups: the text by which a kernel finds the rows that the keys of an event name.

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


_FIND = """@linked
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
