"""Generating: the text of what truly differs from one set of transactions to another.

Every table has its own widths and every transaction its own accesses; so the look-up of a key, the
step of one event and its undo, and the lists of what an event touches are written for them. All
else is ordinary functions, which call these by the names in pieces.py. The tests
keep one such text, of the transfer in the README (`sample_kernel.txt`), to be read.

An access is a span of rows: those at places first..last of its slots. Where it names one row for
each event, the span is e..e + 1 and the loop over it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.compiling.signature import OutputColumns, Signature
from headgate.kernels.constraints import ConstraintText
from headgate.kernels.frame import FrameLayout
from headgate.state.constraint import Reference
from headgate.state.integrity import constraints_on
from headgate.state.layout import HEADER_ALIVE, record_layout, row_layout
from headgate.state.table import Access, Table


def is_found_late(access: Access) -> bool:
    """Whether the kernel itself looks the rows up: those that are missing are not created."""
    return not access.create


def written(signature: Signature) -> tuple[Table, ...]:
    """The tables that a transaction may change, each once, in the order of its parameters."""
    found = (access.table for access in signature.accesses if not access.read_only)
    return tuple(dict.fromkeys(found))


def output_words(signature: Signature) -> int:
    """The size of a transaction's output record."""
    output = signature.output
    return record_layout(output).words if output is not None else 0


class Generator:
    """Writes the pieces of one set of transactions; every name in them is a word of the frame.

    Tables, accesses and transactions are numbered, accesses over all transactions. `declared` are
    all tables of the engine when a constraint may matter to these transactions.
    """

    def __init__(
        self,
        signatures: Sequence[Signature],
        declared: Sequence[Table] = (),
        updates: bool = False,
    ) -> None:
        self.signatures = tuple(signatures)
        self.updates = updates
        self.declared = {table.name: table for table in declared}
        self.constraints = [constraints_on(written(one), declared) for one in signatures]
        found = [table for signature in signatures for table in signature.tables]
        self.judge = ConstraintText(self)
        found += [
            self.declared[constraint.parent]
            for constraint in self.judge.constraints
            if isinstance(constraint, Reference)
        ]
        self.tables = tuple(dict.fromkeys(found))
        accesses = sum(len(signature.accesses) for signature in signatures)
        self.layout = FrameLayout(
            len(signatures), accesses, len(self.tables), len(self.judge.constraints)
        )
        self.reasons: list[str] = [""]  # an abort with an empty text is code -1
        for table in self.tables:
            self.reasons.append(f"missing key: {table.name}")
            if table.check is not None:
                self.reasons.append(f"check failed: {table.name}: {table.check.text}")
        self.reasons += [constraint.reason for constraint in self.judge.constraints]

    def reason(self, text: str) -> int:
        return -1 - self.reasons.index(text)

    def number(self, table: Table) -> int:
        return self.tables.index(table)

    def number_of(self, name: str) -> int:
        return [table.name for table in self.tables].index(name)

    def width(self, access: Access) -> int:
        return self.table_width(access.table)

    def table_width(self, table: Table) -> int:
        return row_layout(table.schema, table.key).words

    def accesses(self, number: int) -> list[tuple[int, Access]]:
        """The accesses of transaction `number` with their numbers over all transactions."""
        before = sum(len(signature.accesses) for signature in self.signatures[:number])
        return list(enumerate(self.signatures[number].accesses, start=before))

    # --- texts --------------------------------------------------------------------------------

    def source(self) -> str:
        """The pieces of the serial loop, and of whole transactions on several threads."""
        lists = self.each(self._list_rows), self.dispatch("list_rows", "e, first, frame")
        return self.joined([*self._steps(), *lists[0], lists[1]])

    def protocol_source(self) -> str:
        """The same for protocols, which set the slots of a step for each event."""
        moving = FrameLayout(
            self.layout.transactions, self.layout.accesses, self.layout.tables, moving=("slots",)
        )
        parts = [*self._steps(), *self.each(self._gather), *self.each(self._point)]
        parts += [self.dispatch("gather", "e, frame"), self.dispatch("point", "e, frame")]
        return self.joined(parts, moving)

    def joined(self, parts: Sequence[str], layout: FrameLayout | None = None) -> str:
        """The text of these functions, every word of the frame that they name found in it."""
        layout = layout or self.layout
        return "\n\n\n".join(layout.bound(part) for part in [_PRELUDE, *parts]) + "\n"

    def _steps(self) -> list[str]:
        parts = [self._find(table) for table in self.tables]
        parts += self.judge.functions()
        for write in (self._seek, self._fetch, self._look_up, self._undo, self._step):
            parts += self.each(write)
        parts += [self.dispatch(name, "e, frame") for name in ("seek", "fetch", "look_up", "undo")]
        return [*parts, self.dispatch("step", "e, i, epoch, frame")]

    def each(self, write: Callable[[int], str]) -> list[str]:
        return [write(number) for number in range(len(self.signatures))]

    def dispatch(self, name: str, arguments: str) -> str:
        """The function of the event's transaction, chosen by its route where there are several."""
        last = len(self.signatures) - 1
        if last == 0:
            return f"{name} = {name}_0"
        lines = [f"def {name}({arguments}):", "    FRAME"]
        for number in range(last):
            lines += [f"    if get(route, e) == {number}:"]
            lines += [f"        return {name}_{number}({arguments})"]
        return "\n".join(["@njit(nogil=True)", *lines, f"    return {name}_{last}({arguments})"])

    # --- spans --------------------------------------------------------------------------------

    def span(self, place: int, access: Access) -> list[str]:
        """The lines that find the span of an event, or its one slot."""
        if access.is_single:
            return [f"s_{place} = get(slots_{place}, e)"]
        return [
            f"first_{place} = get(offsets_{place}, e)",
            f"last_{place} = get(offsets_{place}, e + 1)",
        ]

    def rows(self, place: int, access: Access, lines: Sequence[str]) -> list[str]:
        """The lines for every row of a span: its slot in s_{place}, its index for {j}."""
        if access.is_single:
            return [line.replace("{j}", "e") for line in lines]
        is_used = any(f"s_{place}" in line for line in lines)
        inside = [f"s_{place} = get(slots_{place}, j)"] if is_used else []
        loop = f"for j in range(first_{place}, last_{place}):"
        return [loop, *("    " + line.replace("{j}", "j") for line in [*inside, *lines])]

    def keys(self, number: int, place: int, access: Access) -> str:
        """The words of the key at index {j} of an access."""
        parts = range(len(access.columns))
        return ", ".join(f"key_{place}_{part}(columns_{number}, {{j}})" for part in parts)

    def function(self, name: str, lines: Sequence[str], arguments: str = "e, frame") -> str:
        return "\n".join(
            ["@njit(nogil=True)", f"def {name}({arguments}):", "    FRAME"]
            + ["    " + line for line in lines]
        )

    def _every(self, number: int, write: Callable[[int, Access], Sequence[str]]) -> list[str]:
        """The lines for every row of every access, the spans found as it goes."""
        lines = []
        for place, access in self.accesses(number):
            body = write(place, access)
            if body and (not access.is_single or any(f"s_{place}" in line for line in body)):
                lines += self.span(place, access)
            lines += self.rows(place, access, body) if body else []
        return lines

    # --- look-ups -----------------------------------------------------------------------------

    def _find(self, table: Table) -> str:
        """The look-up of one table's key, as `state.index.find_wide` does it."""
        number, width = self.number(table), self.table_width(table)
        keys = [f"k{part}" for part in range(len(table.key))]
        value = "0"
        for key in keys:
            value = f"mix({value}, {key})"
        same = " and ".join(
            f"get(words, slot * {width} + {1 + part}) == {key}" for part, key in enumerate(keys)
        )
        return _FIND.format(
            number=number, keys=", ".join(keys), value=value, same=same, row_bytes=8 * width
        )

    def _seek(self, number: int) -> str:
        def body(place: int, access: Access) -> list[str]:
            table, keys = self.number(access.table), self.keys(number, place, access)
            seek = f"seek_in_{table}(entries_{table}, mask_{table}, {keys})"
            return [seek] if is_found_late(access) else []

        return self.function(f"seek_{number}", [*self._every(number, body), "return 0"])

    def _fetch(self, number: int) -> str:
        def body(place: int, access: Access) -> list[str]:
            table, row_bytes = self.number(access.table), 8 * self.width(access)
            if is_found_late(access):
                keys = self.keys(number, place, access)
                return [f"fetch_in_{table}(entries_{table}, mask_{table}, words_{table}, {keys})"]
            return [f"prefetch(words_{table} + {row_bytes} * s_{place})"]

        return self.function(f"fetch_{number}", [*self._every(number, body), "return 0"])

    def _look_up(self, number: int) -> str:
        def body(place: int, access: Access) -> list[str]:
            table, keys = self.number(access.table), self.keys(number, place, access)
            found = f"find_{table}(entries_{table}, mask_{table}, words_{table}, {keys})"
            return [f"put(slots_{place}, {{j}}, {found})"] if is_found_late(access) else []

        return self.function(f"look_up_{number}", [*self._every(number, body), "return 0"])

    # --- the step -----------------------------------------------------------------------------

    def _step(self, number: int) -> str:
        lines = [
            *self._begin(number), *self.call(number), *self._checks(number),
            *self.judge.judge(number), *self._marks(number), *self._keep(number), "return 0",
        ]  # fmt: skip
        return self.function(f"step_{number}", lines, "e, i, epoch, frame")

    def _begin(self, number: int) -> list[str]:
        """The test for missing keys, copies to undo, creates.

        In this order: a row that the event itself creates is no row for a parameter that needs
        one, and where a key is missing there is nothing to undo.
        """
        spans, missing, saved, create = [], [], ["u = word(0)"], []
        for place, access in self.accesses(number):
            table, width, slot = self.number(access.table), self.width(access), f"s_{place}"
            spans += self.span(place, access)
            if not access.create:
                missing += self.rows(place, access, [
                    f"if {slot} < 0 or get(words_{table}, {slot} * {width}) & {HEADER_ALIVE} == 0:",
                    f"    return {self.reason(f'missing key: {access.table.name}')}",
                ])  # fmt: skip
            if not access.read_only:
                save = f"u = save(words_{table}, {slot}, undo, u, {width})"
                saved += self.rows(place, access, [save])
            if access.create:
                made = f"defaults_{table}, {len(access.table.key)}, {width}"
                create += self.rows(place, access, [f"create(words_{table}, {slot}, {made})"])
        return [*spans, *missing, *saved, *create]

    def call(self, number: int) -> list[str]:
        """Run the function; when it aborts, undo and return why."""
        signature, names = self.signatures[number], []
        accesses = iter(self.accesses(number))
        for parameter in signature.parameters:
            role = parameter.stands_for
            if role is None:
                names.append(f"event_{number}(columns_{number}, e)")
            elif isinstance(role, OutputColumns):
                names.append(f"output_{number}(out_{number}, i)")
            else:
                place, access = next(accesses)
                words = f"words_{self.number(access.table)}"
                names.append(self.value(place, access, words, f"slots_{place}", f"s_{place}"))
        return [
            *self.clear(number),
            f"code = function_{number}({', '.join(names)})",
            "if code is not None:",
            f"    undo_{number}(e, frame)",
            "    why = code_of(code)",
            "    return why if why != 0 else -1",
        ]

    def value(self, place: int, access: Access, words: str, slots: str, slot: str) -> str:
        """What the function gets for an access: the row, or all rows of the span."""
        if access.is_single:
            return f"row_{place}({words}, {slot})"
        return f"rows_{place}({words}, {slots}, first_{place}, last_{place})"

    def clear(self, number: int) -> list[str]:
        """The output as a transaction finds it."""
        words = output_words(self.signatures[number])
        return [f"put(out_{number}, i * {words} + {word}, 0)" for word in range(words)]

    def _changing(self, number: int) -> list[tuple[int, Access]]:
        return [found for found in self.accesses(number) if not found[1].read_only]

    def _checks(self, number: int) -> list[str]:
        """The checks of the rows that changed."""
        changing, lines = self._changing(number), ["u = word(0)"]
        if all(access.table.check is None for _, access in changing):
            return []
        for place, access in changing:
            table, width = self.number(access.table), self.width(access)
            where, body = f"words_{table}, s_{place}", []
            if access.table.check is not None:
                text = f"check failed: {access.table.name}: {access.table.check.text}"
                body = [
                    f"if is_alive({where}, {width}):",
                    f"    if differs({where}, undo, u, {width}):",
                    f"        if not check_{table}(row_{place}({where})):",
                    f"            undo_{number}(e, frame)",
                    f"            return {self.reason(text)}",
                ]
            lines += self.rows(place, access, [*body, f"u += {width}"])
        return lines

    def _marks(self, number: int) -> list[str]:
        """The marks of what this epoch changed."""
        lines = ["u = word(0)"]
        for place, access in self._changing(number):
            table, width = self.number(access.table), self.width(access)
            where = f"words_{table}, s_{place}"
            lines += self.rows(place, access, [
                f"if differs({where}, undo, u, {width}):",
                f"    mark({where}, epoch, changed_{table}, images_{table}, counts, {table}, "
                f"undo, u, {width})",
                f"u += {width}",
            ])  # fmt: skip
        return lines

    def _keep(self, number: int) -> list[str]:
        """Copies of the rows as the transaction leaves them, for its results."""
        lines = []
        for place, access in self._changing(number) if self.updates else ():
            table, width = self.number(access.table), self.width(access)
            keep = f"keep(words_{table}, s_{place}, after_{place}, {{j}}, {width})"
            lines += self.rows(place, access, [keep])
        return lines

    def _undo(self, number: int) -> str:
        lines = ["u = word(0)"]
        for place, access in self._changing(number):
            table, width = self.number(access.table), self.width(access)
            back = f"u = put_back(words_{table}, s_{place}, undo, u, {width})"
            body = [f"if s_{place} >= 0:", f"    {back}"]
            lines += [*self.span(place, access), *self.rows(place, access, body)]
        return self.function(f"undo_{number}", [*lines, "return 0"])

    # --- what an event touches ----------------------------------------------------------------

    def _list_rows(self, number: int) -> str:
        def body(place: int, access: Access) -> list[str]:
            table, write = self.number(access.table), int(not access.read_only)
            row = f"get(bases, {table}) + s_{place}"
            return [f"if s_{place} >= 0:", f"    k = note_row({row}, {write}, first, k, frame)"]

        lines = ["k = first", *self._every(number, body), "return k"]
        return self.function(f"list_rows_{number}", lines, "e, first, frame")

    def _gather(self, number: int) -> str:
        """For protocols: each row once; for each element of the parameters which of them it is."""

        def body(place: int, access: Access) -> list[str]:
            table, write = self.number(access.table), int(not access.read_only)
            row = f"get(bases, {table}) + s_{place}"
            return [f"n = note(n, o, {table}, {row}, s_{place}, {write}, frame)", "o += 1"]

        lines = ["n = word(0)", "o = word(0)", *self._every(number, body)]
        return self.function(f"gather_{number}", [*lines, "put(mine, 0, o)", "return n"])

    def _point(self, number: int) -> str:
        """For protocols: the slots of the thread's own frame are those it has set for the event."""
        lines = ["o = word(0)"]
        for place, access in self.accesses(number):
            slots = self.layout.places[f"slots_{place}"]
            first, count = "e", "1"
            if not access.is_single:
                lines += self.span(place, access)
                first, count = f"first_{place}", f"last_{place} - first_{place}"
            lines += [f"put(own, {slots}, private + 8 * (o - {first}))", f"o += {count}"]
        return self.function(f"point_{number}", [*lines, "return 0"])


_FIND = """@njit(nogil=True)
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
        place = (place + 1) & mask


@njit(nogil=True)
def seek_in_{number}(entries, mask, {keys}):
    prefetch(entries + 8 * ({value} & mask))


@njit(nogil=True)
def fetch_in_{number}(entries, mask, words, {keys}):
    entry = get(entries, {value} & mask)
    prefetch(words + {row_bytes} * ((entry & 0xFFFFFFFF) - 1))"""

_PRELUDE = '''"""Generated by Headgate: what one set of transactions does with an event."""

from numba import njit'''
