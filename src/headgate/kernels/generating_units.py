"""Generating units: the text of what differs between transactions that run over versions of rows.

For each slice of each transaction, and for each transaction as a whole, a function `perform`: copy
the versions it reads to rows of its own, run the function on them, test the checks, and keep the
rows it writes as new versions. Which units an event consists of is listed by `list_units`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.compiling.signature import OutputColumns
from headgate.compiling.slicing import Slice, Slicing, whole_slice
from headgate.kernels.frame import REACH
from headgate.kernels.generating import Generator
from headgate.kernels.protocols import ROW_WORDS
from headgate.kernels.versions import RANK_ABORT, RANK_CHECK, RANK_FOLLOW
from headgate.state.layout import HEADER_ALIVE
from headgate.state.table import Access

if TYPE_CHECKING:
    from headgate.kernels.generating import Generator


WHOLE = "whole"


class UnitGenerator:
    """Writes the pieces by which one set of transactions runs over versions."""

    def __init__(self, generator: Generator, slicings: Sequence[Slicing]) -> None:
        self.generator = generator
        self.slicings = slicings
        self.may_hang = any(slicing.may_hang for slicing in slicings)

    def is_cut(self, number: int) -> bool:
        """Whether a transaction runs slice by slice; where one may hang, none does.

        Nor where a row may be made whose key depends on others: there is no slot for it where one
        of those is missing, and another slice would have to know of that.
        """
        accesses = self.generator.signatures[number].accesses
        makes = any(access.is_dynamic and access.create for access in accesses)
        return self.slicings[number].whole is None and not self.may_hang and not makes

    def source(self) -> str:
        generator, parts = self.generator, []
        for number, signature in enumerate(generator.signatures):
            slices = [(WHOLE, whole_slice(signature))]
            if self.is_cut(number):
                slices += [(str(k), one) for k, one in enumerate(self.slicings[number].slices)]
            performing = [self._perform(number, *one) for one in slices]
            length = sum(one.count("\n") for one in performing)
            parts += [self._list_units(number), *performing, self._choose(number, length)]
        parts.append(generator.dispatch("list_units", "e, i, whole, k, u, r, frame"))
        parts.append(generator.dispatch("perform", "u, i, e, keys, frame"))
        return generator.joined(parts)

    def parameters(self, number: int) -> list[tuple[str, int, Access]]:
        """The accesses of a transaction: parameter, number over all transactions, access."""
        named = [
            parameter.name
            for parameter in self.generator.signatures[number].parameters
            if isinstance(parameter.stands_for, Access)
        ]
        places = self.generator.accesses(number)
        return [(name, *found) for name, found in zip(named, places, strict=True)]

    def _written(self, number: int) -> set[str]:
        """The parameters whose rows the transaction may change."""
        if not self.is_cut(number):
            return set(whole_slice(self.generator.signatures[number]).writes)
        return set().union(*(one.writes for one in self.slicings[number].slices))

    # --- what an event consists of ------------------------------------------------------------

    def _list_units(self, number: int) -> str:
        lines, written, is_cut = ["first = k"], self._written(number), self.is_cut(number)
        lines += ["named = word(0)"] if is_cut else []
        for name, place, access in self.parameters(number):
            table, write = self.generator.number(access.table), int(name in written)
            given = f"{place}, {{j}}, {table}, s_{place}, {write}, first, k, frame"
            body = [f"k = note_operation({given})"]
            body += [f"named += 1 if s_{place} >= 0 else 0"] if is_cut else []
            lines += self.generator.span(place, access)
            lines += self.generator.rows(place, access, body)
        whole = ["r = whole_unit(u, i, first, k, r, frame)", "u += 1"]
        if is_cut:
            # Where two parameters name one row, the slices would have to know of each other.
            lines += ["if whole or named > k - first:", *_inside(whole)]
            lines += ["else:", *_inside(self._list_slices(number))]
        else:
            lines += whole
        given = "e, i, whole, k, u, r, frame"
        return self.generator.function(f"list_units_{number}", [*lines, "return k, u, r"], given)

    def _list_slices(self, number: int) -> list[str]:
        lines = []
        for slice_number, one in enumerate(self.slicings[number].slices):
            lines.append(f"begin_unit(u, i, {slice_number}, r, frame)")
            for name, place, access in self.parameters(number):
                if name not in one.reads:
                    continue
                body = [
                    f"q = get(get(lists, {2 * place}), {{j}})",
                    "if q >= 0:",
                    "    put(reads, r, q)",
                    "    r += 1",
                ]
                if name in one.writes:
                    body.append("    put(unit_of, q, u)")
                lines += self.generator.rows(place, access, body)
            lines.append("u += 1")
        return lines

    # --- one unit -----------------------------------------------------------------------------

    def _choose(self, number: int, length: int) -> str:
        """The slice that a unit is, or all of the transaction."""
        call = f"perform_{number}_{{0}}(u, i, e, keys, frame)"
        lines = []
        if self.is_cut(number):
            lines.append("slice_number = get(part, u)")
            for place in range(len(self.slicings[number].slices)):
                lines += [f"if slice_number == {place}:", f"    return {call.format(place)}"]
        lines.append(f"return {call.format(WHOLE)}")
        return self.generator.function(f"perform_{number}", lines, "u, i, e, keys, frame", length)

    def _perform(self, number: int, label: str, part: Slice) -> str:
        body: list[str] = []
        creates: list[str] = []
        missing: list[str] = []
        for name, place, access in self.parameters(number):
            body += self.generator.span(place, access)
            if name in part.reads:
                body += self._gather(place, access)
                alive = f"get(scratch, {self.generator.number(access.table)})"
                creates += self._create(place, access, alive) if access.create else []
                may_lack = access.create or access.window is not None
                missing += [] if may_lack else self._missing(place, access, alive)
        body += [*missing, *creates, "if keys:", "    return 0"]
        body += self._call(number, label, part)
        body += self._checks(number, part)
        body += self._keep(number, part)
        name = f"perform_{number}_{label}"
        return self.generator.function(name, [*body, "return 0"], "u, i, e, keys, frame")

    def _local(self, place: int) -> str:
        """The place of a row's copy among the scratch rows of its table."""
        return f"get(get(lists, {2 * place + 1}), {{j}})"

    def _row(self, place: int, access: Access) -> list[str]:
        """Sets q (operation), f (address of the version it reads) and c (address of its copy)."""
        table, width = self.generator.number(access.table), self.generator.width(access)
        base = f"words_{table} + {8 * width} * s_{place}"
        return [
            f"q = get(get(lists, {2 * place}), {{j}})",
            f"f = found(q, {base}, frame)",
            f"c = get(scratch, {table}) + {8 * width} * get(locals, q)",
        ]

    def _gather(self, place: int, access: Access) -> list[str]:
        lines = [*self._row(place, access), f"copy(f, c, {self.generator.width(access)})"]
        if not access.create or access.is_dynamic:
            first, *others = lines
            lines = [first, "if q >= 0:", *_inside(others)]
        return self.generator.rows(place, access, lines)

    def _create(self, place: int, access: Access, base: str) -> list[str]:
        table, width = self.generator.number(access.table), self.generator.width(access)
        made = f"defaults_{table}, {len(access.table.key)}, {width}"
        create = f"create({base}, {self._local(place)}, {made})"
        return self.generator.rows(place, access, [create])

    def _missing(self, place: int, access: Access, base: str) -> list[str]:
        width = self.generator.width(access)
        code = self.generator.reason(f"missing key: {access.table.name}")
        return self.generator.rows(place, access, [
            f"if get(get(lists, {2 * place}), {{j}}) < 0 or not "
            f"is_alive({base}, {self._local(place)}, {width}):",
            f"    put(rank, u, {place})",
            f"    return {code}",
        ])  # fmt: skip

    def _call(self, number: int, label: str, part: Slice) -> list[str]:
        signature = self.generator.signatures[number]
        names = [REACH] if signature.is_reaching else []
        accesses = iter(self.parameters(number))
        for parameter in signature.parameters:
            role = parameter.stands_for
            if role is None:
                names.append(f"event_{number}(columns_{number}, e)")
            elif isinstance(role, OutputColumns):
                names.append(f"output_{number}(out_{number}, i, count)")
            else:
                _, place, access = next(accesses)
                base = f"get(scratch, {self.generator.number(access.table)})"
                local = self._local(place).replace("{j}", "e")
                places = f"get(lists, {2 * place + 1})"
                names.append(self.generator.value(place, access, base, places, local))
        called = f"function_{number}" if label == WHOLE else f"function_{number}_{label}"
        rank = RANK_ABORT if part.is_head else RANK_FOLLOW
        return [
            *(self.generator.clear(number) if part.is_head else []),
            f"why = {called}({', '.join(names)})",
            "if why is not None:",
            f"    put(rank, u, {rank})",
            "    reason_code = code_of(why)",
            "    return reason_code if reason_code != 0 else -1",
        ]

    def _checks(self, number: int, part: Slice) -> list[str]:
        lines = []
        for name, place, access in self.parameters(number):
            if name not in part.writes or access.table.check is None:
                continue
            table, width = self.generator.number(access.table), self.generator.width(access)
            check = f"check failed: {access.table.name}: {access.table.check.text}"
            row = f"row_{place}(get(scratch, {table}), {self._local(place)})"
            lines += self.generator.rows(place, access, [
                *self._row(place, access),
                f"if get(c, 0) & {HEADER_ALIVE} and differ(f, c, {width}):",
                f"    if not {self.generator.check(access.table, row)}:",
                f"        put(rank, u, {RANK_CHECK + place})",
                f"        return {self.generator.reason(check)}",
            ])  # fmt: skip
        return lines

    def _keep(self, number: int, part: Slice) -> list[str]:
        """The rows it writes become versions; whether one differs decides if its row changed."""
        lines = []
        for name, place, access in self.parameters(number):
            if name not in part.writes:
                continue
            width = self.generator.width(access)
            lines += self.generator.rows(place, access, [
                *self._row(place, access),
                f"put(version_changed, q, differ(f, c, {width}))",
                f"copy(c, versions + 8 * get(version_offsets, q), {width})",
            ])  # fmt: skip
        return lines


def _inside(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


# --- protocols ------------------------------------------------------------------------------------
# The text by which a protocol sets the rows of a step for each event.


def protocol_source(generator: Generator) -> str:
    """The pieces of the serial loop for protocols, which set the slots of a step for each event."""
    moving = replace(generator.layout, moving=("slots",))
    numbers = range(len(generator.signatures))
    parts = [*generator.steps()]
    parts += [_approach(generator, number) for number in numbers]
    parts += [_gather(generator, number) for number in numbers]
    parts += [_point(generator, number) for number in numbers]
    parts += [generator.dispatch(name, "e, frame") for name in ("approach", "gather", "point")]
    return generator.joined(parts, moving)


def _approach(generator: Generator, number: int) -> str:
    """Ask for the locks or stamps of an event's rows, before its turn."""

    def body(place: int, access: Access) -> list[str]:
        row = f"(get(bases, {generator.number(access.table)}) + s_{place})"
        return [f"prefetch_to_write(held + {8 * ROW_WORDS} * {row})"]

    lines = [*generator.every(number, body), "return 0"]
    return generator.function(f"approach_{number}", lines)


def _gather(generator: Generator, number: int) -> str:
    """Each row once; for each element of the parameters which of them it is."""

    def body(place: int, access: Access) -> list[str]:
        table, write = generator.number(access.table), int(not access.read_only)
        row = f"get(bases, {table}) + s_{place}"
        return [f"n = note(n, o, {table}, {row}, s_{place}, {write}, frame)", "o += 1"]

    lines = ["n = word(0)", "o = word(0)", *generator.every(number, body)]
    return generator.function(f"gather_{number}", [*lines, "put(mine, 0, o)", "return n"])


def _point(generator: Generator, number: int) -> str:
    """The slots of the thread's own frame are those it has set for the event."""
    lines = ["o = word(0)"]
    for place, access in generator.accesses(number):
        slots = generator.layout.places[f"slots_{place}"]
        first, count = "e", "1"
        if not access.is_single:
            lines += generator.span(place, access)
            first, count = f"first_{place}", f"last_{place} - first_{place}"
        lines += [f"put(own, {slots}, private + 8 * (o - {first}))", f"o += {count}"]
    return generator.function(f"point_{number}", [*lines, "return 0"])
