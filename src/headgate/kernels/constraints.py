"""Constraints: the part of a step that keeps unique columns and references.

At the end of a transaction, for each row it changed: its entries in the indexes and its counts are
exchanged for those of the new row; then every constraint that could be broken is judged; if one is,
all is exchanged back. A bit of a row's header (HEADER_EXCHANGED) marks the rows already
exchanged, because two parameters may name one row; it is never set between transactions.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from numba.core import types
from numba.extending import intrinsic

from headgate.compiling.numba_types import STORED_LLVM
from headgate.kernels.pointers import I64
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.kernels.serial import differs
from headgate.state import integrity
from headgate.state.compiled import linked
from headgate.state.layout import HEADER_ALIVE, HEADER_EXCHANGED, row_layout
from headgate.state.table import Access, Constraint, Reference, Unique

if TYPE_CHECKING:
    from headgate.kernels.generating import Generator


@linked
def marks(words: int, slot: int, undo: int, u: int, width: int) -> bool:
    """Whether this row changed and was not seen before; it is marked as seen."""
    header = get(words, slot * width)
    if header & HEADER_EXCHANGED or not differs(words, slot, undo, u, width):
        return False
    put(words, slot * width, header | HEADER_EXCHANGED)
    return True


@linked
def unmarks(words: int, slot: int, width: int) -> bool:
    header = get(words, slot * width)
    put(words, slot * width, header & ~HEADER_EXCHANGED)
    return header & HEADER_EXCHANGED != 0


def _by_address(function: Any) -> Any:
    """The open addressing of a unique index, on the words of its entries by their address."""
    plain = function.py_func
    space = {**plain.__globals__, "get": get, "put": put}
    return linked(FunctionType(plain.__code__, space, plain.__name__))


enter, leave = _by_address(integrity.enter), _by_address(integrity.leave)
SHARED = {"marks": marks, "unmarks": unmarks, "enter": enter, "leave": leave}


def column_word(offset: int, stored: str, row_bytes: int) -> Any:
    """An intrinsic (address of the words, slot) -> a column's value as one word."""
    kind = STORED_LLVM[stored]

    @intrinsic
    def at(typing_context: Any, words: Any, slot: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            row = builder.add(args[0], builder.mul(args[1], I64(row_bytes)))
            spot = builder.inttoptr(builder.add(row, I64(offset)), kind.as_pointer())
            value = builder.load(spot)
            if stored == "u1":
                return builder.zext(value, I64)
            return value if stored == "i8" else builder.sext(value, I64)

        return types.int64(types.int64, types.int64), generate

    return at


class ConstraintText:
    """Writes the functions and the lines that keep the constraints of one set of transactions."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        found = (one for number in range(len(generator.signatures)) for one in self.of(number))
        self.constraints: tuple[Constraint, ...] = tuple(dict.fromkeys(found))

    def of(self, number: int) -> tuple[Constraint, ...]:
        """What transaction `number` may break, in the order of judgement."""
        return self.generator.constraints[number]

    def number(self, constraint: Constraint) -> int:
        return self.constraints.index(constraint)

    def arguments(self, constraint: Constraint) -> list[str]:
        """The arrays that keep and judge one constraint."""
        number = self.number(constraint)
        if isinstance(constraint, Unique):
            return [f"unique_{number}", f"unique_mask_{number}"]
        parent = self.generator.number_of(constraint.parent)
        return [f"children_{number}", f"words_{parent}", f"entries_{parent}", f"mask_{parent}"]

    def scope(self) -> dict[str, Any]:
        """The columns that the functions read."""
        found = {}
        for constraint in self.constraints:
            table = self.generator.declared[constraint.table]
            layout = row_layout(table.schema, table.key)
            for part, name in enumerate(constraint.columns):
                field = layout.field(name)
                label = f"word_{self.number(constraint)}_{part}"
                found[label] = column_word(field.offset, field.format, 8 * layout.words)
        return found

    # --- functions ----------------------------------------------------------------------------

    def functions(self) -> list[str]:
        if not self.constraints:
            return []
        parts = []
        for constraint in self.constraints:
            make = self._unique if isinstance(constraint, Unique) else self._reference
            parts.append(make(constraint))
        return parts

    def _values(self, constraint: Constraint, words: str, slot: str) -> list[str]:
        number = self.number(constraint)
        return [f"word_{number}_{part}({words}, {slot})" for part in range(len(constraint.columns))]

    def _unique(self, unique: Constraint) -> str:
        number, value = self.number(unique), "0"
        for word in self._values(unique, "words", "slot"):
            value = f"mix({value}, {word})"
        pairs = zip(
            self._values(unique, "words", "slot"),
            self._values(unique, "words", "other"),
            strict=True,
        )
        same = " and ".join(f"{mine} == {theirs}" for mine, theirs in pairs)
        text = _UNIQUE.format(
            number=number, value=value, same=same, unless_alive=self._unless_alive(unique)
        )
        return self._alive(unique) + text

    def _reference(self, reference: Constraint) -> str:
        if not isinstance(reference, Reference):
            return ""
        number, parent = self.number(reference), self.generator.number_of(reference.parent)
        width = self.generator.table_width(self.generator.declared[reference.parent])
        values = ", ".join(self._values(reference, "words", "slot"))
        text = _REFERENCE.format(
            number=number, parent=parent, width=width, values=values, alive=HEADER_ALIVE,
            unless_alive=self._unless_alive(reference),
        )  # fmt: skip
        return self._alive(reference) + text

    def _alive(self, constraint: Constraint) -> str:
        width = self.generator.table_width(self.generator.declared[constraint.table])
        lacking = self._lacking(constraint, width)
        return _ALIVE.format(
            number=self.number(constraint), width=width, alive=HEADER_ALIVE, lacking=lacking
        )

    def _lacking(self, constraint: Constraint, width: int) -> str:
        """Lines for a row that has null in a column of the constraint: it counts as none."""
        table = self.generator.declared[constraint.table]
        bits = row_layout(table.schema, table.key).null_bits(constraint.columns)
        return "".join(
            f"    if get(words, slot * {width} + {word}) & {mask} != 0:\n        return False\n"
            for word, mask in bits.items()
        )

    def _unless_alive(self, constraint: Constraint) -> str:
        """The begin of a judgement: only where null is possible may it come to such a row."""
        table = self.generator.declared[constraint.table]
        if not any(table.schema[name].nullable for name in constraint.columns):
            return ""
        return f"    if not alive_{self.number(constraint)}(words, slot):\n        return False\n"

    # --- the end of a step --------------------------------------------------------------------

    def judge(self, number: int) -> list[str]:
        """Exchange, judge, and exchange back when a constraint is broken."""
        constraints = self.of(number)
        if not constraints:
            return []
        begin = self.generator.copies_first(number)
        lines = [begin, *self._each_row(number, self._exchanged), "broken = 0"]
        for constraint in constraints:
            lines += self._judged(number, constraint)
        back = [begin, *self._each_row(number, self._exchanged_back)]
        back += [f"undo_{number}(e, k, frame)", "return broken"]
        lines += ["if broken != 0:", *("    " + line for line in back)]
        return [*lines, *self._each_row(number, self._unmarked)]

    def _each_row(self, number: int, body: Any) -> list[str]:
        """The body for every row that may have changed, the place of its old copy in u."""
        lines = []
        for place, access in self.generator.accesses(number):
            if not access.read_only:
                inside = [*body(number, place, access), f"u += {self.generator.width(access)}"]
                lines += self.generator.rows(place, access, inside)
        return lines

    def _row(self, place: int, access: Access) -> str:
        return f"words_{self.generator.number(access.table)}, s_{place}"

    def _exchange(self, number: int, access: Access, old: str, new: str, slot: str) -> list[str]:
        """For every constraint of the row's own table: the old row out, the new one in."""
        lines = []
        for constraint in self.of(number):
            if constraint.table == access.table.name:
                name = f"exchange_{self.number(constraint)}"
                arrays = ", ".join(self.arguments(constraint))
                lines.append(f"    {name}({old}, {new}, {slot}, {arrays})")
        return lines or ["    pass"]

    def _exchanged(self, number: int, place: int, access: Access) -> list[str]:
        row, width = self._row(place, access), self.generator.width(access)
        exchanges = self._exchange(number, access, "undo + 8 * u, 0", row, f"s_{place}")
        return [f"if marks({row}, undo, u, {width}):", *exchanges]

    def _exchanged_back(self, number: int, place: int, access: Access) -> list[str]:
        row, width = self._row(place, access), self.generator.width(access)
        exchanges = self._exchange(number, access, row, "undo + 8 * u, 0", f"s_{place}")
        return [f"if unmarks({row}, {width}):", *exchanges]

    def _unmarked(self, number: int, place: int, access: Access) -> list[str]:
        return [f"unmarks({self._row(place, access)}, {self.generator.width(access)})"]

    def _judged(self, number: int, constraint: Constraint) -> list[str]:
        """Is it broken by a row that changed? Only rows of its table or of its parent can."""
        lines = []
        reason = self.generator.reason(constraint.reason)
        arrays = ", ".join(self.arguments(constraint))
        for place, access in self.generator.accesses(number):
            if access.read_only:
                continue
            words, width = (
                f"words_{self.generator.number(access.table)}",
                self.generator.width(access),
            )
            row, tests = f"{words}, s_{place}", []
            both = HEADER_EXCHANGED | HEADER_ALIVE
            header = f"get({words}, s_{place} * {width}) & {both}"
            if access.table.name == constraint.table:
                broken = f"is_broken_{self.number(constraint)}({row}, {arrays})"
                tests.append(f"{header} == {both} and {broken}")
            if isinstance(constraint, Reference) and access.table.name == constraint.parent:
                children = f"get(children_{self.number(constraint)}, s_{place})"
                tests.append(f"{header} == {HEADER_EXCHANGED} and {children} != 0")
            inside = []
            for test in tests:
                inside += [f"if broken == 0 and {test}:", f"    broken = {reason}"]
            lines += self.generator.rows(place, access, inside) if inside else []
        return lines


_ALIVE = """@templated
def alive_{number}(words, slot):
{lacking}    return get(words, slot * {width}) & {alive} != 0


"""

# An old or a new row is words and a slot; a row that is not alive has neither entry nor parent.
_UNIQUE = """@templated
def hash_{number}(words, slot):
    return {value}


@templated
def exchange_{number}(old, old_slot, new, new_slot, slot, entries, mask):
    if alive_{number}(old, old_slot):
        leave(entries, mask, hash_{number}(old, old_slot), slot)
    if alive_{number}(new, new_slot):
        enter(entries, mask, hash_{number}(new, new_slot), slot)


@templated
def is_broken_{number}(words, slot, entries, mask):
{unless_alive}    value = hash_{number}(words, slot)
    place = (value >> 32) & mask
    while True:
        entry = get(entries, place)
        if entry == 0:
            return False
        if (entry ^ value) >> 32 == 0:
            other = (entry & 0xFFFFFFFF) - 1
            if other != slot and {same}:
                return True
        place = (place + 1) & mask"""

_REFERENCE = """@templated
def parent_{number}(words, slot, parent_words, entries, mask):
    return find_{parent}(entries, mask, parent_words, {values})


@templated
def exchange_{number}(old, old_slot, new, new_slot, slot, children, parents, entries, mask):
    if alive_{number}(old, old_slot):
        parent = parent_{number}(old, old_slot, parents, entries, mask)
        if parent >= 0:
            put(children, parent, get(children, parent) - 1)
    if alive_{number}(new, new_slot):
        parent = parent_{number}(new, new_slot, parents, entries, mask)
        if parent >= 0:
            put(children, parent, get(children, parent) + 1)


@templated
def is_broken_{number}(words, slot, children, parents, entries, mask):
{unless_alive}    parent = parent_{number}(words, slot, parents, entries, mask)
    return parent < 0 or get(parents, parent * {width}) & {alive} == 0"""
