"""Generating keys: the text by which a kernel finds rows whose keys depend on other rows.

Such an access is dynamic: `compute` finds its row when the event's turn has come, parameter after
parameter, each key from the event and from rows found before. Other threads need to know rows
beforehand: `foresee` finds them on the rows as they stand, and says when that is not certain, for
an earlier event of the section may write what it reads; `stamp` notes what an event may write.

A key is put together in the first words of `undo`, as it stands in a row; the very first is 0 until
the event's rows are copied behind it, so that nothing is undone when a key function raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from headgate.compiling.keys import columns_read, never_raises, source_names
from headgate.kernels.frame import REACH
from headgate.kernels.generating_look_ups import ask_for, hash_of
from headgate.state.table import Access, Table

if TYPE_CHECKING:
    from headgate.kernels.generating import Generator

THERE = ""  # beside the names of columns: whether a row is there


class DynamicText:
    """Writes the dynamic look-ups of one set of transactions."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.is_needed = any(signature.is_dynamic for signature in generator.signatures)

    @cached_property
    def made(self) -> set[Table]:
        """The tables that rows are made in whose keys depend on others."""
        accesses = (one for signature in self.generator.signatures for one in signature.accesses)
        return {access.table for access in accesses if access.is_dynamic and access.create}

    # --- texts --------------------------------------------------------------------------------

    def functions(self) -> list[str]:
        """All that a program with dynamic accesses needs beside what the others have."""
        if not self.is_needed:
            return []
        generator = self.generator
        parts = [self._take(table) for table in generator.tables if table in self.made]
        parts += [*generator.each(self._compute), generator.dispatch("compute", "e, k, frame")]
        parts += [*generator.each(self._guess), generator.dispatch("guess", "e, k, frame")]
        parts += [*generator.each(self._ask), generator.dispatch("ask", "e, k, frame")]
        parts += [*generator.each(self._foresee), generator.dispatch("foresee", "e, k, frame")]
        parts += [*generator.each(self._stamp), generator.dispatch("stamp", "e, k, frame")]
        return parts

    def _take(self, table: Table) -> str:
        """A slot for a key that has none, dead so far, as `state.index.find_or_take` does it."""
        number, width = self.generator.number(table), self.generator.table_width(table)
        keys = [f"k{part}" for part in range(len(table.key))]
        put = [f"put(words_{number}, slot * {width} + {1 + n}, {k})" for n, k in enumerate(keys)]
        lines = [
            f"used = get(used_{number}, 0)",
            f"slot = get(spare_{number}, used)",
            f"put(used_{number}, 0, used + 1)",
            f"put(words_{number}, slot * {width}, 0)",
            *put,
            f"value = {hash_of(keys)}",
            f"place = value & mask_{number}",
            f"while get(entries_{number}, place) != 0:",
            f"    place = (place + 1) & mask_{number}",
            f"put(entries_{number}, place, (value >> 32 << 32) | (slot + 1))",
            "return slot",
        ]
        return self.generator.function(f"take_{number}", lines, f"{', '.join(keys)}, frame")

    def _compute(self, number: int) -> str:
        lines = [*self.generator.ranges.ahead(number), *self._found(number, "k", is_foreseen=False)]
        return self.generator.function(f"compute_{number}", [*lines, "return 0"], "e, k, frame")

    def _foresee(self, number: int) -> str:
        lines = self._found(number, "e", is_foreseen=True)
        return self.generator.function(f"foresee_{number}", [*lines, "return 0"], "e, k, frame")

    def _found(self, number: int, at: str, *, is_foreseen: bool) -> list[str]:
        """The rows of an event up to the last dynamic one, in the order of the parameters."""
        accesses = self.generator.accesses(number)
        dynamic = [place for place, access in accesses if access.is_dynamic]
        if not dynamic:
            return []
        lines = ["put(undo, 0, 0)"]
        for place, access in accesses:
            if access.is_dynamic and access.is_single:
                lines += [f"put(slots_{place}, {at}, -1)"]
            elif access.is_dynamic:
                lines += self.generator.span(place, access, at)
                lines += self.generator.rows(place, access, [f"put(slots_{place}, {{j}}, -1)"])
        for place, access in accesses:
            if place > dynamic[-1]:
                break
            if access.follows:
                lines += self._followed(number, place, access, at, is_foreseen=is_foreseen)
            elif access.is_dynamic:
                lines += self._key(number, place, access, is_foreseen=is_foreseen)
                lines += [f"put(slots_{place}, {at}, s_{place})"]
            else:
                lines += self.generator.span(place, access, at)
            if place == dynamic[-1] or access.create or access.window is not None:
                continue
            lines += self._certain(place, access, {THERE}) if is_foreseen else []
            why = self.generator.reason(f"missing key: {access.table.name}")
            lines += self.generator.missing(place, access, "0" if is_foreseen else str(why))
        return lines

    def _key(self, number: int, place: int, access: Access, *, is_foreseen: bool) -> list[str]:
        """Compute a key, and look for its row; where it may be made, give it a slot."""
        lines = self._shown(number, access, is_foreseen=is_foreseen)
        table, keys = self.generator.number(access.table), ", ".join(_words(access))
        lines += [
            *self._computed(number, place, access),
            f"s_{place} = find_{table}(entries_{table}, mask_{table}, words_{table}, {keys})",
        ]
        if access.create:
            lines += [f"if s_{place} < 0:", f"    s_{place} = take_{table}({keys}, frame)"]
        return lines

    def _shown(self, number: int, access: Access, *, is_foreseen: bool) -> list[str]:
        """The rows that a key is computed from are certain, and show what they will be."""
        lines = []
        for source, role in self._sources(number, access):
            table, width = self.generator.number(role.table), self.generator.width(role)
            if is_foreseen:
                read = columns_read(access, role.table.schema.names)
                lines += self._certain(source, role, {THERE, *read})
            if role.create:  # where it is not there yet, it shows what it will be made of
                shown = f"defaults_{table}, {len(role.table.key)}, {width}"
                show = f"show(words_{table}, s_{source}, {shown})"
                lines += self.generator.rows(source, role, [show])
        return lines

    def _followed(
        self, number: int, place: int, access: Access, at: str, *, is_foreseen: bool
    ) -> list[str]:
        """A key, and its row, for each row of another access."""
        first = self.generator.accesses(number)[0][0]
        source = first + self.generator.signatures[number].source_of(place - first)
        inside = [f"s_{source} = get(slots_{source}, j)"]
        before = self._shown(number, access, is_foreseen=is_foreseen)
        table, keys = self.generator.number(access.table), ", ".join(_words(access))
        inside += [
            *self._computed(number, place, access),
            f"found = find_{table}(entries_{table}, mask_{table}, words_{table}, {keys})",
            f"put(slots_{place}, j, found)",
        ]
        loop = f"for j in range(first_{place}, last_{place}):"
        found = self.generator.span(place, access, at)
        return [*before, *found, loop, *("    " + line for line in inside)]

    def _sources(self, number: int, access: Access) -> list[tuple[int, Access]]:
        """The accesses whose rows a key is computed from."""
        names = self.generator.signatures[number].row_names
        known = dict(zip(names, self.generator.accesses(number), strict=True))
        return [known[name] for name in source_names(access) if name in known]

    def _computed(self, number: int, place: int, access: Access) -> list[str]:
        """The key in the first words of `undo`, the slots of its sources at hand."""
        sources, given = iter(self._sources(number, access)), [f"target_{place}(undo, 0)"]
        given = [REACH, *given] if self.generator.signatures[number].is_reaching else given
        rows = self.generator.signatures[number].row_names
        for name in source_names(access):
            if name not in rows:
                given.append(f"event_{number}(columns_{number}, e)")
                continue
            source, role = next(sources)
            words, slots = f"words_{self.generator.number(role.table)}", f"slots_{source}"
            if access.follows and not role.is_single:  # one row of it at a time
                given.append(f"read_row_{source}({words}, s_{source})")
                continue
            given.append(self.generator.value(source, role, words, slots, f"s_{source}", "read_"))
        lines = [
            f"put(undo, {1 + part}, key_{place}_{part}(columns_{number}, e))"
            for part, one in enumerate(access.keys)
            if isinstance(one, str)
        ]
        return [*lines, f"compute_key_{place}({', '.join(given)})"]

    # --- ahead of its turn --------------------------------------------------------------------
    # A key as it is some events before its turn is mostly the one that counts: what it leads to is
    # asked for, so that it is there by then. Nothing else depends on it.

    def _guess(self, number: int) -> str:
        """Ask for the entries of the index that the keys seem to lead to."""

        def body(access: Access, table: int, value: str) -> list[str]:
            return [f"prefetch(entries_{table} + 8 * ({value} & mask_{table}))"]

        return self._ahead("guess", number, body)

    def _ask(self, number: int) -> str:
        """Ask for the rows that they seem to lead to."""

        def body(access: Access, table: int, value: str) -> list[str]:
            width = self.generator.width(access)
            row = f"words_{table} + {8 * width} * tagged(entries_{table}, mask_{table}, {value})"
            return [f"row = {row}", *ask_for("row", width, is_written=not access.read_only)]

        return self._ahead("ask", number, body)

    def _ahead(self, name: str, number: int, write: Callable[[Access, int, str], list[str]]) -> str:
        """The lines for every key that can be computed out of its turn: from rows that are found
        by the event alone, by a function that never raises."""
        lines = []
        for place, access in self.generator.accesses(number):
            sources = self._sources(number, access)
            is_known = all(one.is_single and not one.is_dynamic for _, one in sources)
            is_ready = access.is_dynamic and access.is_single
            if not is_ready or not is_known or not never_raises(access):
                continue
            lines += [line for one in sources for line in self.generator.span(*one, "k")]
            test = " and ".join(f"s_{source} >= 0" for source, _ in sources) or "True"
            body = write(access, self.generator.number(access.table), hash_of(_words(access)))
            inside = [*self._computed(number, place, access), *body]
            lines += [f"if {test}:", *("    " + line for line in inside)]
        return self.generator.function(f"{name}_{number}", [*lines, "return 0"], "e, k, frame")

    # --- certainty ----------------------------------------------------------------------------

    @cached_property
    def read(self) -> dict[Table, set[str]]:
        """By table: the columns that look-ups read, and whether they ask if a row is there."""
        found: dict[Table, set[str]] = {}
        for number, signature in enumerate(self.generator.signatures):
            names = dict(zip(signature.row_names, signature.accesses, strict=True))
            accesses = self.generator.accesses(number)
            last = max((place for place, one in accesses if one.is_dynamic), default=-1)
            for place, access in accesses:
                if place < last and not access.create and access.window is None:
                    found.setdefault(access.table, set()).add(THERE)
                for name in source_names(access):
                    if name in names:
                        table = names[name].table
                        read = columns_read(access, table.schema.names)
                        found.setdefault(table, set()).update({THERE, *read})
        return found

    def written(self, number: int, access: Access) -> set[str]:
        """What a transaction may write in the rows of an access, as look-ups see it."""
        if access.read_only:
            return set()
        effects = self.generator.signatures[number].effects
        names = set(access.table.schema.names)
        found = set(effects.stored) & names
        if effects.may_delete:
            found.add(THERE)
        return found | names | {THERE} if access.create else found

    @cached_property
    def uncertain(self) -> dict[Table, set[str]]:
        """By table: what look-ups read and transactions may write."""
        found: dict[Table, set[str]] = {}
        for number, signature in enumerate(self.generator.signatures):
            for access in signature.accesses:
                both = self.written(number, access) & self.read.get(access.table, set())
                if both:
                    found.setdefault(access.table, set()).update(both)
        return found

    def _certain(self, place: int, access: Access, read: set[str]) -> list[str]:
        """Return where an earlier event of the section may write what is about to be read."""
        if not read & self.uncertain.get(access.table, set()):
            return []
        table, slot = self.generator.number(access.table), f"s_{place}"
        lines = [f"if {slot} >= 0 and get(stamps_{table}, {slot}) == k:", "    return 1"]
        return self.generator.rows(place, access, lines)

    def _stamp(self, number: int) -> str:
        def body(place: int, access: Access) -> Sequence[str]:
            if not self.written(number, access) & self.uncertain.get(access.table, set()):
                return []
            table = self.generator.number(access.table)
            return [f"if s_{place} >= 0:", f"    put(stamps_{table}, s_{place}, k)"]

        lines = [*self.generator.every(number, body), "return 0"]
        return self.generator.function(f"stamp_{number}", lines, "e, k, frame")

    # --- virtual operations -------------------------------------------------------------------

    def virtual_source(self) -> str:
        """The pieces of whole transactions on several threads, where a dynamic access touches the
        whole of its table: its row is found by the step, when all that may decide on it has run."""
        parts = [*self.generator.steps(), *([_VIRTUAL] if self.is_needed else [])]
        parts += self.generator.each(self._list_virtual)
        dispatched = self.generator.dispatch("list_rows", "e, first, frame")
        return self.generator.joined([*parts, dispatched])

    def _list_virtual(self, number: int) -> str:
        """What an event touches: a dynamic access the whole of its table, a static one its row and,
        as if it read that, the whole of its table. The whole counts as a row behind all others."""
        tables, lines = len(self.generator.tables), ["k = first"]
        for place, access in self.generator.accesses(number):
            table, write = self.generator.number(access.table), int(not access.read_only)
            whole = f"get(bases, {tables}) + {table}"
            if access.is_dynamic:
                lines += [f"k = note_row({whole}, 1, first, k, frame)"]
                continue
            row = f"get(bases, {table}) + s_{place}"
            body = [f"if s_{place} >= 0:", f"    k = note_row({row}, {write}, first, k, frame)"]
            lines += self.generator.span(place, access)
            lines += self.generator.rows(place, access, body)
            lines += [f"k = note_row({whole}, 0, first, k, frame)"]
        lines.append("return k")
        return self.generator.function(f"list_rows_{number}", lines, "e, first, frame")


def _words(access: Access) -> list[str]:
    """The words of a key that was computed."""
    return [f"get(undo, {1 + part})" for part in range(len(access.table.key))]


_VIRTUAL = """given_step = step


@templated
def step(e, k, i, epoch, frame):
    confirm(e, k, frame)
    code = compute(e, k, frame)
    return code if code != 0 else given_step(e, k, i, epoch, frame)"""
