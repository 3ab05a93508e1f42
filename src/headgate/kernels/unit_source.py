"""Unit source: the text of the kernels that run a batch by operations over versions of rows.

For each slice of each transaction, and for each transaction as a whole, a function `perform`: copy
the versions it reads to rows of its own, run the function on them, test the checks, and keep the
rows it writes as new versions. The explorations call it for one unit after another.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.compiling.signature import OutputColumns
from headgate.compiling.slicing import Slice, Slicing, whole_slice
from headgate.kernels import versions
from headgate.kernels.exploration_source import EXPLORATIONS
from headgate.kernels.source import SourceWriter, output_words
from headgate.kernels.versions import LISTS, RANK_ABORT, RANK_CHECK, RANK_FOLLOW
from headgate.state.table import Access

WHOLE = "whole"
UNIT_KERNELS = ("strata", "ready", "depth", "chains", "lwm", "collect", "reasons")


class UnitWriter:
    """Writes the unit kernels of one set of transactions."""

    def __init__(self, writer: SourceWriter, slicings: Sequence[Slicing]) -> None:
        self.writer = writer
        self.slicings = slicings
        self.may_hang = any(slicing.may_hang for slicing in slicings)

    def is_cut(self, number: int) -> bool:
        """Whether a transaction runs slice by slice; where one may hang, none does."""
        return self.slicings[number].whole is None and not self.may_hang

    def source(self) -> str:
        parts = [_PRELUDE, self._collect()]
        for number in range(len(self.writer.signatures)):
            whole = whole_slice(self.writer.signatures[number])
            parts.append(self._perform(number, WHOLE, whole))
            if self.is_cut(number):
                for place, one in enumerate(self.slicings[number].slices):
                    parts.append(self._perform(number, str(place), one))
        parts.append(self._attempt())
        parts += EXPLORATIONS
        return "\n\n\n".join(self.writer.layout.bound(part) for part in parts) + "\n"

    def parameters(self, number: int) -> list[tuple[str, int, Access]]:
        """The accesses of a transaction: parameter, number over all transactions, access."""
        named = [
            parameter.name
            for parameter in self.writer.signatures[number].parameters
            if isinstance(parameter.stands_for, Access)
        ]
        places = self.writer.accesses(number)
        return [(name, *found) for name, found in zip(named, places, strict=True)]

    def _written(self, number: int) -> set[str]:
        """The parameters whose rows the transaction may change."""
        if not self.is_cut(number):
            return set(whole_slice(self.writer.signatures[number]).writes)
        return set().union(*(one.writes for one in self.slicings[number].slices))

    # --- what a batch consists of -------------------------------------------------------------

    def _collect(self) -> str:
        """Operations and units of every transaction, in serial order."""
        head = (
            "count, whole, bases, starts, rows, writes, tables, slots, locals_, "
            "unit_of, unit_starts, transaction_of, part, read_starts, reads, lists, sizes"
        )
        lines = ["@njit(nogil=True, cache=True)", f"def collect({head}, frame):", "    FRAME"]
        lines += ["    k, u, r = 0, 0, 0", "    for i in range(count):"]
        lines += ["        e = get(order, i)", "        put(starts, i, k)"]
        lines += ["        put(unit_starts, i, u)", "        first, shared = k, 0"]
        several = len(self.writer.signatures) > 1
        for number in range(len(self.writer.signatures)):
            inside = "        "
            if several:
                lines.append(f"        if get(route, e) == {number}:")
                inside += "    "
            lines += [inside + line for line in self._collect_one(number)]
        lines += ["    put(starts, count, k)", "    put(unit_starts, count, u)"]
        lines += ["    put(read_starts, u, r)", "    put(sizes, 0, k)", "    put(sizes, 1, u)"]
        lines += ["    put(sizes, 2, r)", "    return 0"]
        return "\n".join(lines)

    def _collect_one(self, number: int) -> list[str]:
        lines, written = [], self._written(number)
        for table in dict.fromkeys(
            self.writer.number(a.table) for _, _, a in self.parameters(number)
        ):
            lines.append(f"c_{table} = 0")
        for name, place, access in self.parameters(number):
            table, write = self.writer.number(access.table), int(name in written)
            inside = ""
            if access.form == "each":
                span = f"get(offsets_{place}, e), get(offsets_{place}, e + 1)"
                lines.append(f"for j in range({span}):")
                inside, index = "    ", "j"
            else:
                index = "e"
            lines += [
                f"{inside}slot = get(slots_{place}, {index})",
                f"{inside}q = -1",
                f"{inside}if slot >= 0:",
                f"{inside}    q = known(rows, first, k, get(bases, {table}) + slot)",
                f"{inside}    if q < 0:",
                f"{inside}        q = k",
                f"{inside}        put(rows, k, get(bases, {table}) + slot)",
                f"{inside}        put(writes, k, {write})",
                f"{inside}        put(tables, k, {table})",
                f"{inside}        put(slots, k, slot)",
                f"{inside}        put(locals_, k, c_{table})",
                f"{inside}        put(unit_of, k, -1)",
                f"{inside}        c_{table} += 1",
                f"{inside}        k += 1",
                f"{inside}    else:",
                f"{inside}        shared = 1",
                f"{inside}        put(writes, q, get(writes, q) | {write})",
                f"{inside}    put(get(lists, {2 * place + 1}), {index}, get(locals_, q))",
                f"{inside}put(get(lists, {2 * place}), {index}, q)",
            ]
        return [*lines, *self._collect_units(number)]

    def _collect_units(self, number: int) -> list[str]:
        whole = [
            "put(transaction_of, u, i)", "put(part, u, -1)", "put(read_starts, u, r)",
            "for q in range(first, k):",
            "    put(reads, r, q)",
            "    r += 1",
            "    if get(writes, q):",
            "        put(unit_of, q, u)",
            "u += 1",
        ]  # fmt: skip
        if not self.is_cut(number):
            return whole
        lines = ["if whole or shared:", *("    " + line for line in whole), "else:"]
        for place, one in enumerate(self.slicings[number].slices):
            lines += ["    put(transaction_of, u, i)", f"    put(part, u, {place})"]
            lines.append("    put(read_starts, u, r)")
            for name, access_place, access in self.parameters(number):
                if name not in one.reads:
                    continue
                inside, index = "    ", "e"
                if access.form == "each":
                    span = f"get(offsets_{access_place}, e), get(offsets_{access_place}, e + 1)"
                    lines.append(f"    for j in range({span}):")
                    inside, index = "        ", "j"
                lines += [
                    f"{inside}q = get(get(lists, {2 * access_place}), {index})",
                    f"{inside}if q >= 0:",
                    f"{inside}    put(reads, r, q)",
                    f"{inside}    r += 1",
                ]
                if name in one.writes:
                    lines.append(f"{inside}    put(unit_of, q, u)")
            lines.append("    u += 1")
        return lines

    # --- one unit -----------------------------------------------------------------------------

    def _perform(self, number: int, label: str, part: Slice) -> str:
        lines = ["@njit(nogil=True)"]
        lines += [f"def perform_{number}_{label}(u, i, e, keys, plan, scratch, frame):"]
        lines += ["    FRAME"]
        body: list[str] = []
        creates: list[str] = []
        missing: list[str] = []
        for name, place, access in self.parameters(number):
            if access.form == "each":
                body += [f"first_{place} = get(offsets_{place}, e)"]
                body += [f"last_{place} = get(offsets_{place}, e + 1)"]
            if name in part.reads:
                body += self._gather(place, access)
                alive = f"get(scratch, {self.writer.number(access.table)})"
                creates += self._create(place, access, alive) if access.create else []
                missing += self._missing(place, access, alive) if not access.create else []
        body += [*missing, *creates, "if keys:", "    return 0"]
        body += self._call(number, label, part)
        body += self._checks(number, part)
        body += self._keep(number, part)
        lines += ["    " + line for line in [*body, "return 0"]]
        return "\n".join(lines)

    def _each(self, place: int, access: Access, lines: Sequence[str]) -> list[str]:
        """The lines for the one row of an `at`, or for every row of an `each`; `{x}` its index."""
        if access.form == "at":
            return [line.replace("{x}", "e") for line in lines]
        loop = f"for j in range(first_{place}, last_{place}):"
        return [loop, *("    " + line.replace("{x}", "j") for line in lines)]

    def _row(self, place: int, access: Access) -> list[str]:
        """Sets q (operation), f (address of the version it reads) and s (address of its copy)."""
        table, width = self.writer.number(access.table), self.writer.width(access)
        base = f"words_{table} + {8 * width} * get(slots_{place}, {{x}})"
        return [
            f"q = get(get(plan, {LISTS + 2 * place}), {{x}})",
            f"f = found(plan, q, {base})",
            f"s = get(scratch, {table}) + {8 * width} * get(get(plan, {versions.LOCALS}), q)",
        ]

    def _gather(self, place: int, access: Access) -> list[str]:
        width = self.writer.width(access)
        inner = [*self._row(place, access), f"copy(f, s, {width})"]
        if not access.create:
            first, *others = inner
            inner = [first, "if q >= 0:", *("    " + line for line in others)]
        return self._each(place, access, inner)

    def _create(self, place: int, access: Access, base: str) -> list[str]:
        table, width = self.writer.number(access.table), self.writer.width(access)
        local = f"get(get(plan, {LISTS + 2 * place + 1}), {{x}})"
        return self._each(place, access, [
            f"create({base}, {local}, defaults_{table}, {len(access.table.key)}, {width})"
        ])  # fmt: skip

    def _missing(self, place: int, access: Access, base: str) -> list[str]:
        width = self.writer.width(access)
        local = f"get(get(plan, {LISTS + 2 * place + 1}), {{x}})"
        code = self.writer.reason(f"missing key: {access.table.name}")
        return self._each(place, access, [
            f"if get(get(plan, {LISTS + 2 * place}), {{x}}) < 0 or not "
            f"is_alive({base}, {local}, {width}):",
            f"    put(get(plan, {versions.RANK}), u, {place})",
            f"    return {code}",
        ])  # fmt: skip

    def _call(self, number: int, label: str, part: Slice) -> list[str]:
        signature, lines, names = self.writer.signatures[number], [], []
        accesses = iter(self.parameters(number))
        for parameter in signature.parameters:
            role = parameter.stands_for
            if role is None:
                names.append(f"event_{number}(columns_{number}, e)")
            elif isinstance(role, OutputColumns):
                names.append(f"output_{number}(out_{number}, i)")
            else:
                _, place, access = next(accesses)
                base = f"get(scratch, {self.writer.number(access.table)})"
                locals_ = f"get(plan, {LISTS + 2 * place + 1})"
                if access.form == "at":
                    names.append(f"row_{place}({base}, get({locals_}, e))")
                else:
                    names.append(f"rows_{place}({base}, {locals_}, first_{place}, last_{place})")
        if signature.output is not None and part.is_head:
            for word in range(output_words(signature)):
                lines.append(f"put(out_{number}, i * {output_words(signature)} + {word}, 0)")
        called = f"function_{number}" if label == WHOLE else f"function_{number}_{label}"
        rank = RANK_ABORT if part.is_head else RANK_FOLLOW
        return [
            *lines,
            f"code = {called}({', '.join(names)})",
            "if code is not None:",
            f"    put(get(plan, {versions.RANK}), u, {rank})",
            "    why = code_of(code)",
            "    return why if why != 0 else -1",
        ]

    def _checks(self, number: int, part: Slice) -> list[str]:
        lines = []
        for name, place, access in self.parameters(number):
            if name not in part.writes or access.table.check is None:
                continue
            table, width = self.writer.number(access.table), self.writer.width(access)
            check = f"check failed: {access.table.name}: {access.table.check.text}"
            local = f"get(get(plan, {LISTS + 2 * place + 1}), {{x}})"
            lines += self._each(place, access, [
                *self._row(place, access),
                f"if get(s, 0) & 1 and differ(f, s, {width}):",
                f"    if not check_{table}(row_{place}(get(scratch, {table}), {local})):",
                f"        put(get(plan, {versions.RANK}), u, {RANK_CHECK + place})",
                f"        return {self.writer.reason(check)}",
            ])  # fmt: skip
        return lines

    def _keep(self, number: int, part: Slice) -> list[str]:
        """The rows it writes become versions; whether one differs decides if its row changed."""
        lines = []
        for name, place, access in self.parameters(number):
            if name not in part.writes:
                continue
            width = self.writer.width(access)
            lines += self._each(place, access, [
                *self._row(place, access),
                f"put(get(plan, {versions.CHANGED}), q, differ(f, s, {width}))",
                f"copy(s, get(plan, {versions.VERSIONS}) + "
                f"8 * get(get(plan, {versions.OFFSETS}), q), {width})",
            ])  # fmt: skip
        return lines

    def _attempt(self) -> str:
        """One unit by one thread; 1 when an abort must be settled before others go on."""
        lines = ["@njit(nogil=True)", "def perform(u, keys, plan, scratch, frame):"]
        lines += _PERFORM_HEAD.splitlines()
        for number in range(len(self.writer.signatures)):
            inside = "        "
            if len(self.writer.signatures) > 1:
                lines.append(f"        if routed == {number}:")
                inside += "    "
            call = f"code = perform_{number}_{{0}}(u, i, e, keys, plan, scratch, frame)"
            if not self.is_cut(number):
                lines.append(inside + call.format(WHOLE))
                continue
            lines += [f"{inside}if part < 0:", f"{inside}    {call.format(WHOLE)}"]
            for place in range(len(self.slicings[number].slices)):
                lines += [f"{inside}elif part == {place}:", f"{inside}    {call.format(place)}"]
        return "\n".join([*lines, *_PERFORM_TAIL.splitlines(), *_ATTEMPT.splitlines()])


def named(text: str) -> str:
    """The text with the names of versions.py as numbers."""
    for name in sorted(_CONSTANTS, key=len, reverse=True):
        text = text.replace(f"<{name}>", str(getattr(versions, name)))
    return text


_CONSTANTS = [name for name in vars(versions) if name.isupper()]

_PERFORM_HEAD = named("""\
    i = get(get(plan, <TRANSACTION_OF>), u)
    e = get(get(plan, <ORDER>), i)
    routed = get(get(plan, <ROUTE>), e)
    part = get(get(plan, <PART>), u)
    code = 0
    try:""")

_PERFORM_TAIL = named("""\
    except Exception:
        code = <RAISED>
        put(get(plan, <RANK>), u, <RANK_RAISED>)
    put(get(plan, <CODE>), u, code)
    return code""")

_ATTEMPT = named("""

@njit(nogil=True)
def attempt(u, plan, scratch, times, frame):
    i = get(get(plan, <TRANSACTION_OF>), u)
    if load(get(plan, <FAILED>), i):
        store(get(plan, <STATE>), u, <ABT>)
        return 0
    began = tick(times)
    code = perform(u, word(0), plan, scratch, frame)
    spend(times, 0, began)
    if code != 0:
        store(get(plan, <STATE>), u, <ABT>)
        return fail(plan, u)
    swap_if(get(plan, <STATE>), u, <BLK>, <EXE>)
    return load(get(plan, <FAILED>), i)


@njit(nogil=True, cache=True)
def reasons(begin, end, plan, scratch, frame):
    # Units of a failed transaction that did not run may know a reason that comes first.
    starts = get(plan, <UNIT_STARTS>)
    for i in range(begin, end):
        if get(get(plan, <FAILED>), i) == 0:
            continue
        best = <FAR>
        for u in range(get(starts, i), get(starts, i + 1)):
            if get(get(plan, <CODE>), u) != 0:
                best = min(best, get(get(plan, <RANK>), u))
        for u in range(get(starts, i), get(starts, i + 1)):
            if get(get(plan, <CODE>), u) == 0:
                perform(u, word(1 if best <= <RANK_ABORT> else 0), plan, scratch, frame)
    return 0
""")

_PRELUDE = '''"""Generated by Headgate: the unit kernels of one set of transactions."""

from numba import njit'''
