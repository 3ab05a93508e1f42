"""Generating: the text of what truly differs from one set of transactions to another.

Every table has its own widths and every transaction its own accesses; so the look-up of a key, the
step of one event and its undo, and the lists of what an event touches are written for them. All
else is ordinary functions, which call these by the names in binding.py. The tests
keep one such text, of the transfer in the README (`sample_kernel.txt`), to be read.

An access is a span of rows: those at places first..last of its slots. Where it names one row for
each event, the span is e..e + 1 and the loop over it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence

from headgate.compiling.signature import OutputColumns, Signature
from headgate.kernels.constraints import ConstraintText
from headgate.kernels.frame import REACH, FrameLayout
from headgate.kernels.generating_keys import DynamicText
from headgate.kernels.generating_look_ups import LookUpText, RangeText, is_found_late
from headgate.kernels.generating_windows import ExpiryText, WindowText, is_kept
from headgate.state.integrity import constraints_on
from headgate.state.layout import HEADER_ALIVE, HEADER_WRITTEN, WORD_BYTES, row_layout
from headgate.state.ranges import Index
from headgate.state.table import Access, Reference, Table

# A step compares and puts back so many words by their names; more of them would take long to
# compile, and a loop over the copy in `undo` does the same.
WRITTEN_OUT_MAX = 8
# A function of more lines is compiled once for all kernels that call it, as each scheme has one.
TAKEN_IN_MAX = 150


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
        moving: Sequence[Index] = (),
        expiring: Sequence[Table] = (),
    ) -> None:
        self.signatures = tuple(signatures)
        self.ranges = RangeText(self, moving)
        self.windows = WindowText(self)
        self.expiry = ExpiryText(self, expiring)
        self.updates = updates
        self.declared = {table.name: table for table in declared}
        self.constraints = [constraints_on(one.written, declared) for one in signatures]
        found = [table for signature in signatures for table in signature.tables]
        self.judge = ConstraintText(self)
        found += [
            self.declared[constraint.parent]
            for constraint in self.judge.constraints
            if isinstance(constraint, Reference)
        ]
        self.tables = tuple(dict.fromkeys(found))
        self.roots = self._roots()
        accesses = sum(len(signature.accesses) for signature in signatures)
        self.dynamic = DynamicText(self)
        sizes = len(signatures), accesses, len(self.tables), len(self.judge.constraints)
        needed = (), self.dynamic.is_needed, len(self.ranges.moving), len(self.windows.tables)
        self.layout = FrameLayout(*sizes, *needed, self.expiry.is_needed)
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

    def _roots(self) -> dict[int, tuple[int, Access]]:
        """By access that follows the rows of another one: the first of those, whose span it has."""
        found = {}
        for number, signature in enumerate(self.signatures):
            known = self.accesses(number)
            for place, (at, access) in enumerate(known):
                if access.follows:
                    found[at] = known[signature.root_of(place)]
        return found

    # --- texts --------------------------------------------------------------------------------

    def source(self) -> str:
        """The pieces of the serial loop, and of whole transactions on several threads."""
        dealt = "e, first, thread, threads, frame"
        parts = [*self.steps(), *self.each(self._list_rows), *self.each(self._deal_rows)]
        parts += [self.dispatch("list_rows", "e, first, frame"), self.dispatch("deal_rows", dealt)]
        return self.joined([*parts, *self.expiry.functions()])

    def joined(self, parts: Sequence[str], layout: FrameLayout | None = None) -> str:
        """The text of these functions, every word of the frame that they name found in it."""
        layout = layout or self.layout
        return "\n\n\n".join(layout.bound(part) for part in [_PRELUDE, *parts]) + "\n"

    def steps(self) -> list[str]:
        """The look-ups, the step and the undo of each transaction."""
        look_ups = LookUpText(self)
        parts = [*look_ups.functions(), *self.judge.functions(), *self.ranges.functions()]
        finding = look_ups.seek, look_ups.match, look_ups.touch, look_ups.confirm
        for write in (*finding, self._undo, self._step):
            parts += self.each(write)
        for name in ("seek", "match", "touch", "confirm", "undo"):
            parts.append(self.dispatch(name, "e, k, frame"))
        return [*parts, self.dispatch("step", "e, k, i, epoch, frame"), *self.dynamic.functions()]

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
        return "\n".join(["@templated", *lines, f"    return {name}_{last}({arguments})"])

    # --- spans --------------------------------------------------------------------------------

    def span(self, place: int, access: Access, at: str = "e") -> list[str]:
        """The lines that find the span of an event, or its one slot.

        `at` is where the slots stand that the kernel finds: by event row, or in a block of them.
        """
        if access.is_single:
            return [f"s_{place} = get(slots_{place}, {at if is_found_late(access) else 'e'})"]
        root, followed = self.roots.get(place, (place, access))
        if root != place:  # it has a row for each row of that one
            ends = [f"first_{place} = first_{root}", f"last_{place} = last_{root}"]
            return [*self.span(root, followed), *ends]
        if self.ranges.is_dynamic(access):
            return self.ranges.span(place)
        return [
            f"first_{place} = get(offsets_{place}, e)",
            f"last_{place} = get(offsets_{place}, e + 1)",
        ]

    def rows(self, place: int, access: Access, lines: Sequence[str]) -> list[str]:
        """The lines for every row of a span: its slot in s_{place}, its index for {j}."""
        if not lines:
            return []
        if access.is_single:
            return [line.replace("{j}", "e").replace("{k}", "k") for line in lines]
        is_used = any(f"s_{place}" in line for line in lines)
        inside = [f"s_{place} = get(slots_{place}, j)"] if is_used else []
        loop = f"for j in range(first_{place}, last_{place}):"
        found = [line.replace("{j}", "j").replace("{k}", "j") for line in [*inside, *lines]]
        return [loop, *_inside(found)]

    def keys(self, number: int, place: int, access: Access) -> list[str]:
        """The words of the key at index {j} of an access."""
        parts = range(len(access.columns))
        return [f"key_{place}_{part}(columns_{number}, {{j}})" for part in parts]

    def missing(self, place: int, access: Access, answer: str) -> list[str]:
        """The lines that return an answer where a row is not there."""
        table, width, slot = self.number(access.table), self.width(access), f"s_{place}"
        return self.rows(place, access, [
            f"if {slot} < 0 or get(words_{table}, {slot} * {width}) & {HEADER_ALIVE} == 0:",
            f"    return {answer}",
        ])  # fmt: skip

    def copies_first(self, number: int) -> str:
        """The line that sets `u` to where the copies of an event's rows begin."""
        return f"u = word({self.signatures[number].key_room})"

    def saved(self, number: int, access: Access) -> tuple[int, ...]:
        """The words of a row that the transaction may change, however it names the row.

        Of all parameters that name rows of the table together: two may name one row, and what was
        there before the batch must not have what the other one changed. To judge constraints takes
        the whole of a row.
        """
        if access.read_only:
            return ()
        signature, table = self.signatures[number], access.table
        effects, layout = signature.effects, row_layout(table.schema, table.key)
        if self.constraints[number]:
            return tuple(range(layout.words))
        stored = [f for f in layout.fields if f.name in effects.stored and not f.is_key]
        words = {field.offset // WORD_BYTES for field in stored}
        words |= layout.null_bits(field.name for field in stored).keys()
        creates = any(one.create for one in signature.accesses if one.table == table)
        is_headed = creates or effects.may_delete or is_kept(access)
        return tuple(sorted(words | ({0} if is_headed else set())))

    def function(
        self, name: str, lines: Sequence[str], arguments: str = "e, frame", more: int = 0
    ) -> str:
        """The text of a function; `more` are the lines of what it alone calls."""
        way = "templated" if len(lines) + more <= TAKEN_IN_MAX else "compiled_apart"
        return "\n".join([f"@{way}", f"def {name}({arguments}):", "    FRAME", *_inside(lines)])

    def every(
        self, number: int, write: Callable[[int, Access], Sequence[str]], at: str = "e"
    ) -> list[str]:
        """The lines for every row of every access, the spans found as it goes."""
        lines = []
        for place, access in self.accesses(number):
            body = write(place, access)
            slot = f"s_{place}"
            if body and (not access.is_single or any(slot in _WORD.findall(line) for line in body)):
                lines += self.span(place, access, at)
            lines += self.rows(place, access, body) if body else []
        return lines

    # --- the step -----------------------------------------------------------------------------

    def _step(self, number: int) -> str:
        lines = [
            *self.ranges.begin(number), *self.windows.begin(number),
            *self._begin(number), *self.call(number),
            *self._differences(number),
            *self._checks(number), *self.judge.judge(number), *self._marks(number),
            *self._keep(number), "return 0",
        ]  # fmt: skip
        return self.function(f"step_{number}", lines, "e, k, i, epoch, frame")

    def _begin(self, number: int) -> list[str]:
        """The test for missing keys, copies to undo, creates.

        In this order: a row that the event itself creates is no row for a parameter that needs
        one, and where a key is missing there is nothing to undo.
        """
        spans, missing, saved, create = [], [], [self.copies_first(number)], []
        for place, access in self.accesses(number):
            table, width, slot = self.number(access.table), self.width(access), f"s_{place}"
            spans += self.span(place, access, "k")
            if access.needs_row:
                why = self.reason(f"missing key: {access.table.name}")
                missing += self.missing(place, access, str(why))
            saved += self.rows(place, access, self._saved(number, place, access))
            if access.create:
                made = f"defaults_{table}, {len(access.table.key)}, {width}"
                create += self.rows(place, access, [f"create(words_{table}, {slot}, {made})"])
        if self.signatures[number].is_dynamic:
            saved += ["put(undo, 0, 1)"]
        return [*spans, *missing, *saved, *create]

    def _row(self, place: int, access: Access) -> str:
        """The address of a row."""
        table = self.number(access.table)
        return f"r_{place} = words_{table} + {8 * self.width(access)} * s_{place}"

    def _saved(self, number: int, place: int, access: Access) -> list[str]:
        """The words that it may change, as they are before: in `undo`, and of one row at hand."""
        words = self.saved(number, access)
        lines = [self._row(place, access)] if words else []
        if self._is_whole(number, access):
            kept = [f"old_{place} = undo + 8 * u", f"copy(r_{place}, old_{place}, {len(words)})"]
            return [*lines, *kept, f"u += {len(words)}"]
        for count, word in enumerate(words):
            lines += [
                f"old_{place}_{word} = get(r_{place}, {word})",
                f"put(undo, u + {count}, old_{place}_{word})",
            ]
        return [*lines, f"u += {len(words)}"] if words else []

    def call(self, number: int) -> list[str]:
        """Run the function; when it aborts, undo and return why."""
        signature = self.signatures[number]
        names = [REACH] if signature.is_reaching else []
        accesses = iter(self.accesses(number))
        for parameter in signature.parameters:
            role = parameter.stands_for
            if role is None:
                names.append(f"event_{number}(columns_{number}, e)")
            elif isinstance(role, OutputColumns):
                names.append(f"output_{number}(out_{number}, i, count)")
            else:
                place, access = next(accesses)
                words = f"words_{self.number(access.table)}"
                names.append(self.value(place, access, words, f"slots_{place}", f"s_{place}"))
        return [
            *self.clear(number),
            f"code = function_{number}({', '.join(names)})",
            "if code is not None:",
            *_inside(self.back(number)),
            "    why = code_of(code)",
            "    return why if why != 0 else -1",
        ]

    def check(self, table: Table, row: str) -> str:
        """The call of a table's check on a row."""
        reach = f"{REACH}, " if table.check is not None and table.check.is_reaching else ""
        return f"check_{self.number(table)}({reach}{row})"

    def value(
        self, place: int, access: Access, words: str, slots: str, slot: str, kind: str = ""
    ) -> str:
        """What a function gets for an access: the row, or all rows of the span."""
        if access.window is not None:
            return self.windows.value(place, access)
        if access.is_single:
            return f"{kind}row_{place}({words}, {slot})"
        return f"{kind}rows_{place}({words}, {slots}, first_{place}, last_{place})"

    def clear(self, number: int) -> list[str]:
        """The output as a transaction finds it: zeros, and None in columns that may be."""
        words, layout = self.signatures[number].out_words, self.signatures[number].out_layout
        first = {} if layout is None else layout.all_null
        return [
            f"put(out_{number}, {word} * count + i, {first.get(word, 0)})" for word in range(words)
        ]

    def _is_long(self, number: int) -> bool:
        """Whether its words are too many to write out wherever they are compared or put back."""
        words = sum(len(self.saved(number, access)) for _, access in self.accesses(number))
        return words > WRITTEN_OUT_MAX

    def _is_whole(self, number: int, access: Access) -> bool:
        """Whether all words of a row are kept, and by a loop."""
        return self._is_long(number) and len(self.saved(number, access)) == self.width(access)

    def back(self, number: int) -> list[str]:
        """The rows as they were before; where all of them are at hand, without a look at `undo`."""
        changing = self._changing(number)
        if self._is_long(number) or not all(access.is_single for _, access in changing):
            return [f"undo_{number}(e, k, frame)"]
        return [
            f"put(r_{place}, {word}, old_{place}_{word})"
            for place, access in changing
            for word in self.saved(number, access)
        ]

    def _changing(self, number: int) -> list[tuple[int, Access]]:
        """The accesses whose rows the transaction may change."""
        return [found for found in self.accesses(number) if self.saved(number, found[1])]

    def _differs(self, number: int, place: int, access: Access) -> str:
        """Whether a row is another than before: by its words at hand, or by those in `undo`."""
        tests = [f"get(r_{place}, 0) & {HEADER_WRITTEN} != 0"] if is_kept(access) else []
        if self._is_whole(number, access):
            old = f"old_{place}" if access.is_single else "undo + 8 * u"
            tests.append(f"differ(r_{place}, {old}, {self.width(access)}) != 0")
            return " or ".join(tests)
        return " or ".join(tests + self.word_tests(number, place, access))

    def word_tests(
        self, number: int, place: int, access: Access, wanted: Container[int] | None = None
    ) -> list[str]:
        """The tests whether a word that may change is another than before; of those `wanted`."""
        tests, is_whole = [], self._is_whole(number, access)
        for count, word in enumerate(self.saved(number, access)):
            old = f"get(undo, u + {count})"
            if access.is_single:
                old = f"get(old_{place}, {word})" if is_whole else f"old_{place}_{word}"
            is_other = f"get(r_{place}, {word}) != {old}"
            if word == 0:
                is_other = f"(get(r_{place}, 0) ^ {old}) & {HEADER_ALIVE} != 0"
            tests += [is_other] if wanted is None or word in wanted else []
        return tests

    def _differences(self, number: int) -> list[str]:
        return [
            f"d_{place} = {self._differs(number, place, access)}"
            for place, access in self._changing(number)
            if access.is_single
        ]

    def _if_differs(
        self, number: int, place: int, access: Access, lines: Sequence[str]
    ) -> list[str]:
        """The lines where a row has changed, `u` at its copy and moved on behind it."""
        words = self.saved(number, access)
        if access.is_single:
            return [f"if d_{place}:", *_inside(lines), f"u += {len(words)}"]
        test = [self._row(place, access), f"if {self._differs(number, place, access)}:"]
        return self.rows(place, access, [*test, *_inside(lines), f"u += {len(words)}"])

    def _checks(self, number: int) -> list[str]:
        """The checks of the rows that changed."""
        lines = [self.copies_first(number)]
        if all(access.table.check is None for _, access in self._changing(number)):
            return []
        for place, access in self._changing(number):
            body = ["pass"]
            if access.table.check is not None:
                text = f"check failed: {access.table.name}: {access.table.check.text}"
                row = f"row_{place}(words_{self.number(access.table)}, s_{place})"
                body = [
                    f"if get(r_{place}, 0) & {HEADER_ALIVE}:",
                    f"    if not {self.check(access.table, row)}:",
                    *_inside(_inside(self.back(number))),
                    f"        return {self.reason(text)}",
                ]
            lines += self._if_differs(number, place, access, body)
        return lines

    def _marks(self, number: int) -> list[str]:
        """The marks of what this epoch changed, each row once, and where they are wanted the rows
        as they were before the batch."""
        lines = [self.copies_first(number)]
        for place, access in self._changing(number):
            table, width = self.number(access.table), self.width(access)
            image = f"images_{table} + {8 * width} * n"
            words = self.saved(number, access)
            before = [
                f"copy(r_{place}, {image}, {width})",
                *(f"put({image}, {w}, get(undo, u + {at}))" for at, w in enumerate(words)),
            ]
            if self._is_whole(number, access):
                before = [f"copy(undo + 8 * u, {image}, {width})"]
            body = [
                f"if images_{table} != 0:",
                f"    n = fresh(r_{place}, epoch, counts, {table})",
                "    if n >= 0:",
                *_inside(_inside(before)),
                f"mark(r_{place}, s_{place}, epoch, changed_{table}, counts, {table})",
                *self.ranges.brought(number, place, access),
                *self.windows.noted(place, access),
            ]
            if 0 in words:
                body += [f"if get(r_{place}, 0) & {HEADER_ALIVE} == 0:"]
                body += [f"    put(counts, {2 * table + 1}, 1)  # a row was deleted"]
            lines += self._if_differs(number, place, access, body)
        return lines

    def _keep(self, number: int) -> list[str]:
        """Copies of the rows as the transaction leaves them, for its results."""
        lines = []
        for place, access in self.accesses(number) if self.updates else ():
            if not access.read_only:
                table, width = self.number(access.table), self.width(access)
                keep = f"keep(words_{table}, s_{place}, after_{place}, {{j}}, {width})"
                lines += self.rows(place, access, [keep])
        return lines

    def _undo(self, number: int) -> str:
        lines = [self.copies_first(number)]
        if self.signatures[number].is_dynamic:  # where a key function raised, there are no copies
            lines += ["if get(undo, 0) == 0:", "    return 0"]
        for place, access in self._changing(number):
            words = enumerate(self.saved(number, access))
            back = [f"    put(r_{place}, {word}, get(undo, u + {at}))" for at, word in words]
            body = [f"if s_{place} >= 0:", f"    {self._row(place, access)}", *back]
            body += [f"    u += {len(back)}"]
            lines += [*self.span(place, access, "k"), *self.rows(place, access, body)]
        return self.function(f"undo_{number}", [*lines, "return 0"], "e, k, frame")

    # --- what an event touches ----------------------------------------------------------------

    def _list_rows(self, number: int) -> str:
        lines = self._rows_by(number, "note_row", "first, k, frame")
        return self.function(f"list_rows_{number}", lines, "e, first, frame")

    def _deal_rows(self, number: int) -> str:
        lines = self._rows_by(number, "deal_row", "k, thread, threads, frame")
        return self.function(f"deal_rows_{number}", lines, "e, first, thread, threads, frame")

    def _rows_by(self, number: int, call: str, arguments: str) -> list[str]:
        """The lines that hand every row of an event, and whether it may be written, to a call,
        which returns the place of the next."""

        def body(place: int, access: Access) -> list[str]:
            table, write = self.number(access.table), int(not access.read_only)
            row = f"get(bases, {table}) + s_{place}"
            return [f"if s_{place} >= 0:", f"    k = {call}({row}, {write}, {arguments})"]

        return ["k = first", *self.every(number, body), "return k"]


def _inside(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


_WORD = re.compile(r"\w+")
_PRELUDE = '''"""Generated by Headgate: what one set of transactions does with an event."""

from headgate.state.compiled import compiled_apart
from headgate.state.templates import templated'''
