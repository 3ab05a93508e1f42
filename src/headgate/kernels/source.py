"""Source: the Python text of a serial kernel, written for one set of transactions.

For each event: find its rows, keep a copy of those it may change, run the function, and either mark
what changed or put the copy back. Generated, because every table has its own widths and every
transaction its own accesses; a reader of a traceback finds the text in the compile cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.compiling.signature import OutputColumns, Signature
from headgate.kernels.constraint_source import ConstraintWriter
from headgate.kernels.frame import FrameLayout
from headgate.state.constraint import Reference
from headgate.state.integrity import constraints_on
from headgate.state.layout import record_layout, row_layout
from headgate.state.table import Access, Table

BLOCK_EVENTS = 128  # a block's rows fit the first-level cache


def is_found_late(access: Access) -> bool:
    """Whether the kernel itself looks the rows up: those that are missing are not created."""
    return access.form in ("at", "each") and not access.create


def written(signature: Signature) -> tuple[Table, ...]:
    """The tables that a transaction may change, each once, in the order of its parameters."""
    found = (access.table for access in signature.accesses if not access.read_only)
    return tuple(dict.fromkeys(found))


class SourceWriter:
    """Writes the source of a kernel; every name in it says what it holds, see frame.py.

    Tables, accesses and transactions are numbered, accesses over all transactions. `declared` are
    all tables of the engine when a constraint may matter to these transactions. `more` are words
    that other kernels need in the frame besides, `moving` those that they change as they go.
    """

    def __init__(
        self,
        signatures: Sequence[Signature],
        declared: Sequence[Table] = (),
        updates: bool = False,
        more: Sequence[str] = (),
        moving: Sequence[str] = (),
    ) -> None:
        self.signatures = signatures
        self.updates = updates
        self.declared = {table.name: table for table in declared}
        self.constraints = [constraints_on(written(one), declared) for one in signatures]
        found = [table for signature in signatures for table in signature.tables]
        self.judge = ConstraintWriter(self)
        found += [
            self.declared[constraint.parent]
            for constraint in self.judge.constraints
            if isinstance(constraint, Reference)
        ]
        self.tables = tuple(dict.fromkeys(found))
        accesses = sum(len(signature.accesses) for signature in signatures)
        self.layout = FrameLayout(
            len(signatures), accesses, len(self.tables), len(self.judge.constraints),
            tuple(more), tuple(moving),
        )  # fmt: skip
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

    def source(self) -> str:
        parts = [_PRELUDE]
        parts += [self._find(table) for table in self.tables]
        parts += self.judge.functions()
        for number in range(len(self.signatures)):
            parts += [self._seek_step(number), self._fetch_step(number)]
            parts.append(self._resolve_step(number))
            parts.append(self._restore_step(number))
            parts.append(self._step(number))
        parts += [self._run(), self._restore()]
        return "\n\n".join(self.layout.bound(part) for part in parts) + "\n"

    # The functions below each write one Python function as lines.

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

    def _keys(self, number: int, place: int, access: Access) -> str:
        """The words of the key that an event, or an element of its list, gives to an access."""
        parts, row = range(len(access.columns)), "e" if access.form == "at" else "j"
        return ", ".join(f"key_{place}_{part}(columns_{number}, {row})" for part in parts)

    def _for_all(self, place: int, access: Access, line: str) -> list[str]:
        """The line for the one row of an access, or for each of them."""
        if access.form == "at":
            return [f"    {line}"]
        span = f"get(offsets_{place}, e), get(offsets_{place}, e + 1)"
        return [f"    for j in range({span}):", f"        {line}"]

    def _seek_step(self, number: int) -> str:
        """Ask for the index entries that one event's look-ups begin at."""
        lines = ["@njit(nogil=True)", f"def seek_{number}(e, frame):", "    FRAME"]
        for place, access in self.accesses(number):
            if is_found_late(access):
                table, keys = self.number(access.table), self._keys(number, place, access)
                seek = f"seek_in_{table}(entries_{table}, mask_{table}, {keys})"
                lines += self._for_all(place, access, seek)
        return "\n".join([*lines, "    return 0"])

    def _fetch_step(self, number: int) -> str:
        """Ask for the rows of one event: those known, and those its look-ups will find first."""
        lines = ["@njit(nogil=True)", f"def fetch_{number}(e, frame):", "    FRAME"]
        for place, access in self.accesses(number):
            table, row_bytes = self.number(access.table), 8 * self.width(access)
            if is_found_late(access):
                keys = self._keys(number, place, access)
                fetch = f"fetch_in_{table}(entries_{table}, mask_{table}, words_{table}, {keys})"
            else:
                row = "e" if access.form == "at" else "j"
                fetch = f"prefetch(words_{table} + {row_bytes} * get(slots_{place}, {row}))"
            lines += self._for_all(place, access, fetch)
        return "\n".join([*lines, "    return 0"])

    def _resolve_step(self, number: int) -> str:
        """Look up the rows of one event that must be there."""
        lines = ["@njit(nogil=True)", f"def resolve_{number}(e, frame):", "    FRAME"]
        for place, access in self.accesses(number):
            if is_found_late(access):
                table, keys = self.number(access.table), self._keys(number, place, access)
                found = f"find_{table}(entries_{table}, mask_{table}, words_{table}, {keys})"
                row = "e" if access.form == "at" else "j"
                lines += self._for_all(place, access, f"put(slots_{place}, {row}, {found})")
        return "\n".join([*lines, "    return 0"])

    def _step(self, number: int) -> str:
        lines = ["@njit(nogil=True)", f"def step_{number}(e, i, epoch, frame):", "    FRAME"]
        lines += self._look_up(number)
        lines += self._call(number)
        lines += self._judge(number)
        return "\n".join(lines)

    def _look_up(self, number: int) -> list[str]:
        """The test for missing keys, copies to undo, creates.

        In this order: a row that the event itself creates is no row for a parameter that needs
        one, and where a key is missing there is nothing to undo.
        """
        lines, missing, saved, create = [], [], ["    u = word(0)"], []
        for place, access in self.accesses(number):
            table, width = self.number(access.table), self.width(access)
            slot, inside, loop = f"s_{place}", "    ", []
            if access.form == "each":
                lines.append(f"    first_{place} = get(offsets_{place}, e)")
                lines.append(f"    last_{place} = get(offsets_{place}, e + 1)")
                loop = self.loop(place)
                inside = "        "
            else:
                lines.append(f"    {slot} = get(slots_{place}, e)")
            if not access.create:
                missing += [
                    *loop,
                    f"{inside}if {slot} < 0 or get(words_{table}, {slot} * {width}) & 1 == 0:",
                    f"{inside}    return {self.reason(f'missing key: {access.table.name}')}",
                ]
            if not access.read_only:
                saved += [*loop, f"{inside}u = save(words_{table}, {slot}, undo, u, {width})"]
            if access.create:
                create += [
                    *loop,
                    f"{inside}create(words_{table}, {slot}, defaults_{table}, "
                    f"{len(access.table.key)}, {width})",
                ]
        return [*lines, *missing, *saved, *create]

    def loop(self, place: int) -> list[str]:
        """Over the rows of an `each`, whose span a step knows."""
        return [f"    for j in range(first_{place}, last_{place}):",
                f"        s_{place} = get(slots_{place}, j)"]  # fmt: skip

    def _call(self, number: int) -> list[str]:
        signature, lines, names = self.signatures[number], [], []
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
                if access.form == "at":
                    names.append(f"row_{place}({words}, s_{place})")
                else:
                    span = f"first_{place}, last_{place}"
                    names.append(f"rows_{place}({words}, slots_{place}, {span})")
        if signature.output is not None:
            for word in range(output_words(signature)):
                lines.append(f"    put(out_{number}, i * {output_words(signature)} + {word}, 0)")
        lines.append(f"    code = function_{number}({', '.join(names)})")
        lines += ["    if code is not None:", f"        restore_{number}(e, frame)"]
        lines += ["        why = code_of(code)", "        return why if why != 0 else -1"]
        return lines

    def _judge(self, number: int) -> list[str]:
        """The checks of the rows that changed, then the marks of what this epoch changed."""
        checks, marks = ["    u = word(0)"], ["    u = word(0)"]
        for place, access in self.accesses(number):
            if access.read_only:
                continue
            table, inside = self.number(access.table), "    "
            if access.form == "each":
                checks += self.loop(place)
                marks += self.loop(place)
                inside = "        "
            where, width = f"words_{table}, s_{place}", self.width(access)
            if access.table.check is not None:
                reason = self.reason(
                    f"check failed: {access.table.name}: {access.table.check.text}"
                )
                checks += [
                    f"{inside}if is_alive({where}, {width}):",
                    f"{inside}    if differs({where}, undo, u, {width}):",
                    f"{inside}        if not check_{table}(row_{place}({where})):",
                    f"{inside}            restore_{number}(e, frame)",
                    f"{inside}            return {reason}",
                ]
            step = f"{inside}u += {width}"
            checks.append(step)
            marks += [
                f"{inside}if differs({where}, undo, u, {width}):",
                f"{inside}    mark({where}, epoch, changed_{table}, images_{table}, "
                f"counts, {table}, undo, u, {width})",
                step,
            ]
        needed = any(access.table.check is not None for _, access in self.accesses(number))
        kept = self.judge.judge(number)
        return [*(checks if needed else []), *kept, *marks, *self._keep(number), "    return 0"]

    def _keep(self, number: int) -> list[str]:
        """Copies of the rows as the transaction leaves them, for its results."""
        lines = []
        for place, access in self.accesses(number) if self.updates else ():
            if access.read_only:
                continue
            table, width = self.number(access.table), self.width(access)
            call = f"keep(words_{table}, s_{place}, after_{place}, {{0}}, {width})"
            if access.form == "each":
                lines += [*self.loop(place), "        " + call.format("j")]
            else:
                lines.append("    " + call.format("e"))
        return lines

    def _restore_step(self, number: int) -> str:
        lines = ["@njit(nogil=True)", f"def restore_{number}(e, frame):", "    FRAME"]
        lines.append("    u = word(0)")
        for place, access in self.accesses(number):
            if access.read_only:
                continue
            table, inside = self.number(access.table), "    "
            if access.form == "each":
                span = f"get(offsets_{place}, e), get(offsets_{place}, e + 1)"
                lines.append(f"    for j in range({span}):")
                lines.append(f"        s_{place} = get(slots_{place}, j)")
                inside = "        "
            else:
                lines.append(f"    s_{place} = get(slots_{place}, e)")
            lines += [f"{inside}if s_{place} >= 0:",
                      f"{inside}    u = put_back(words_{table}, s_{place}, undo, u, "
                      f"{self.width(access)})"]  # fmt: skip
        return "\n".join(lines)

    def _run(self) -> str:
        """The loop over the batch, in blocks: all of a block's index entries are asked for, then
        all of its rows, so that waits for memory overlap and few are left when it runs."""
        lines = ["@njit(nogil=True, cache=True)"]
        lines += ["def run(begin, end, epoch, frame):", "    FRAME"]
        lines += [f"    for block in range(begin, end, {BLOCK_EVENTS}):"]
        lines += [f"        stop = min(block + {BLOCK_EVENTS}, end)"]
        for step in ("seek", "fetch", "resolve"):
            lines += ["        for i in range(block, stop):", "            e = get(order, i)"]
            lines += self.branches(f"{step}_{{0}}(e, frame)", "            ")
        lines += ["        for i in range(block, stop):", "            e = get(order, i)"]
        lines += ["            put(progress, 0, i)"]
        lines += self.branches("code = step_{0}(e, i, epoch, frame)", "            ")
        lines += ["            put(reason, i, code)", "    return 0"]
        return "\n".join(lines)

    def _restore(self) -> str:
        lines = ["@njit(nogil=True, cache=True)"]
        lines += ["def restore(i, frame):", "    FRAME", "    e = get(order, i)"]
        lines += self.branches("restore_{0}(e, frame)", "    ")
        return "\n".join([*lines, "    return 0"])

    def branches(self, template: str, indent: str) -> list[str]:
        """The call for the event's transaction, chosen by its route where there are several."""
        lines = []
        last = len(self.signatures) - 1
        for number in range(len(self.signatures)):
            call = template.format(number)
            if last == 0:
                return [f"{indent}{call}"]
            test = f"if get(route, e) == {number}:" if number < last else "else:"
            lines += [f"{indent}{'el' if 0 < number < last else ''}{test}", f"{indent}    {call}"]
        return lines


def output_words(signature: Signature) -> int:
    """The size of a transaction's output record."""
    output = signature.output
    return record_layout(output).words if output is not None else 0


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

_PRELUDE = '''"""Generated by Headgate: the serial kernel of one set of transactions."""

from numba import njit
'''
