"""Numba types: those of what a transaction sees: rows, events, outputs, texts.

A row is a pointer; a column is read and written at its offset in the row's bytes. The words of an
output stand apart, each beside those of other events, so that they leave as columns. Inside a
function every integer is 64 bits and every float is a double, as in Python; a narrower column
checks or rounds what is stored into it. Texts are codes (see `state.strings`).
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model

from headgate.compiling.decimals import DecimalType, store_decimal
from headgate.compiling.optionals import (
    inner_of,
    is_none_type,
    is_null_at,
    made_optional,
    null_bit_of,
    taken,
)
from headgate.compiling.refusals import ALWAYS, Refusal
from headgate.state.compiled import overload
from headgate.state.layout import HEADER_WRITTEN, STORED
from headgate.state.types import BOUNDS, FLOAT_END

I64 = ir.IntType(64)
STORED_LLVM = {
    "u1": ir.IntType(8),
    "i4": ir.IntType(32),
    "i8": I64,
    "f4": ir.FloatType(),
    "f8": ir.DoubleType(),
}


class TextType(types.Type):
    """A text, as its code."""

    def __init__(self) -> None:
        super().__init__(name="text")


class AbortType(types.Type):
    """The answer of `abort`: the code of the reason."""

    def __init__(self) -> None:
        super().__init__(name="abort")


class RecordType(types.Type):
    """A row: a pointer to its bytes.

    `fields` is a tuple of (name, kind, precision, scale, offset, stored format, is key, null bit),
    the bit counted from the begin of the row; -1: it is never None.
    """

    def __init__(
        self,
        label: str,
        fields: tuple[tuple[Any, ...], ...],
        read_only: bool,
        is_watched: bool = False,
    ) -> None:
        self.label = label
        self.fields = fields
        self.read_only = read_only
        self.is_watched = is_watched  # its header tells whether a column was set
        mode = "read" if read_only else "watched" if is_watched else "write"
        super().__init__(name=f"record({label}, {mode}, {fields})")

    def field(self, name: str) -> tuple[Any, ...] | None:
        return next((field for field in self.fields if field[0] == name), None)


class OutputType(types.Type):
    """An output: the address of its first word, and how far it is from there to the next word.

    `fields` are as those of a row; none is a key.
    """

    def __init__(self, label: str, fields: tuple[tuple[Any, ...], ...]) -> None:
        self.label = label
        self.fields = fields
        self.read_only = False
        super().__init__(name=f"output({label}, {fields})")

    def field(self, name: str) -> tuple[Any, ...] | None:
        return next((field for field in self.fields if field[0] == name), None)


class RowsType(types.IterableType):
    """The rows of an `each` access: base address of the table, slots, how many."""

    def __init__(self, row: RecordType, row_bytes: int) -> None:
        self.row = row
        self.row_bytes = row_bytes
        super().__init__(name=f"rows({row}, {row_bytes})")

    @property
    def iterator_type(self) -> types.Type:
        return WalkType(self, element_type(self))


class EventType(types.Type):
    """An event: the addresses of its columns and its row in them.

    `fields` is a tuple of (name, kind, precision, scale, column number, element kind or None,
    whether it may be None).
    """

    def __init__(self, label: str, fields: tuple[tuple[Any, ...], ...]) -> None:
        self.label = label
        self.fields = fields
        super().__init__(name=f"event({label}, {fields})")

    def field(self, name: str) -> tuple[Any, ...] | None:
        return next((field for field in self.fields if field[0] == name), None)


class ItemsType(types.IterableType):
    """An array column of an event: address of the first element, how many."""

    def __init__(self, kind: str, precision: int, scale: int) -> None:
        self.kind = kind
        self.precision = precision
        self.scale = scale
        super().__init__(name=f"items({kind}, {precision}, {scale})")

    @property
    def iterator_type(self) -> types.Type:
        return WalkType(self, element_type(self))


class WalkType(types.SimpleIteratorType):
    """The iterator over rows or items."""

    def __init__(self, container: types.Type, element: types.Type) -> None:
        self.container = container
        super().__init__(name=f"walk({container})", yield_type=element)


text_type = TextType()
abort_type = AbortType()


@register_model(TextType)
@register_model(AbortType)
@register_model(RecordType)
class _WordModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, I64)


@register_model(OutputType)
class _OutputModel(models.StructModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, [("first", types.int64), ("stride", types.int64)])


@register_model(EventType)
class _EventModel(models.StructModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, [("columns", types.int64), ("row", types.int64)])


@register_model(RowsType)
class _RowsModel(models.StructModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        members = [("base", types.int64), ("slots", types.int64), ("count", types.int64)]
        super().__init__(manager, kind, members)


@register_model(ItemsType)
class _ItemsModel(models.StructModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, [("first", types.int64), ("count", types.int64)])


@register_model(WalkType)
class _WalkModel(models.StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        members = [("container", kind.container), ("place", types.EphemeralPointer(types.int64))]
        super().__init__(manager, kind, members)


# --- reading a stored value -----------------------------------------------------------------------


def value_type(kind: str, precision: int, scale: int, nullable: bool = False) -> types.Type:
    """The Numba type of a column's value inside a function."""
    if nullable:
        return types.Optional(value_type(kind, precision, scale))
    if kind == "decimal":
        return DecimalType(scale, precision)
    return {
        "boolean": types.boolean,
        "float": types.float64,
        "double": types.float64,
        "string": text_type,
    }.get(kind, types.int64)


def element_type(kind: Any) -> types.Type:
    """What one of the rows or items is inside a function."""
    if isinstance(kind, RowsType):
        return kind.row
    return value_type(kind.kind, kind.precision, kind.scale)


def fixed_load(builder: Any, pointer: Any) -> Any:
    """What does not change while a kernel runs: it need not be loaded again behind a store."""
    value = builder.load(pointer)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def load_value(builder: Any, address: Any, kind: str, stored: str, is_fixed: bool = False) -> Any:
    """The value at an address, widened to its type inside a function."""
    pointer = builder.inttoptr(address, STORED_LLVM[stored].as_pointer())
    value = fixed_load(builder, pointer) if is_fixed else builder.load(pointer)
    if kind == "boolean":
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))
    if kind == "decimal":
        return builder.sext(value, ir.IntType(128))
    if stored == "i4":
        return builder.sext(value, I64)
    if stored == "f4":
        return builder.fpext(value, ir.DoubleType())
    return value


def _unknown(kind: Any, attr: str) -> Refusal:
    names = ", ".join(field[0] for field in kind.fields)
    return Refusal(f"{kind.label} has no column {attr!r}; the columns are: {names}{ALWAYS}")


class _ColumnAttribute(AttributeTemplate):
    def generic_resolve(self, kind: Any, attr: str) -> types.Type:
        field = kind.field(attr)
        if field is None:
            raise _unknown(kind, attr)
        return value_type(field[1], field[2], field[3], field[7] >= 0)


@infer_getattr
class _RecordAttribute(_ColumnAttribute):
    key = RecordType


@infer_getattr
class _OutputAttribute(_ColumnAttribute):
    key = OutputType


def _column_address(context: Any, builder: Any, kind: Any, value: Any, offset: int) -> Any:
    """Where a column of a row or an output stands that is at this offset of its record."""
    if isinstance(kind, RecordType):
        return builder.add(value, I64(offset))
    output = cgutils.create_struct_proxy(kind)(context, builder, value=value)
    word, rest = divmod(offset, 8)
    return builder.add(builder.add(output.first, builder.mul(output.stride, I64(word))), I64(rest))


@lower_getattr_generic(RecordType)
@lower_getattr_generic(OutputType)
def _record_column(context: Any, builder: Any, kind: Any, value: Any, attr: str) -> Any:
    _, column_kind, precision, scale, offset, stored, _, null_bit = kind.field(attr)
    address = _column_address(context, builder, kind, value, offset)
    found = load_value(builder, address, column_kind, stored)
    if null_bit < 0:
        return found
    pointer, mask = _null_word(context, builder, kind, value, null_bit)
    is_null = null_bit_of(builder, builder.load(pointer), mask)
    plain = value_type(column_kind, precision, scale)
    return made_optional(context, builder, plain, found, is_null)


def _null_word(context: Any, builder: Any, kind: Any, value: Any, null_bit: int) -> tuple[Any, int]:
    """A pointer to the word of a row or an output in which a null bit stands, and the bit."""
    word, bit = divmod(null_bit, 64)
    address = _column_address(context, builder, kind, value, 8 * word)
    return builder.inttoptr(address, I64.as_pointer()), 1 << bit


@infer_getattr
class _EventAttribute(AttributeTemplate):
    key = EventType

    def generic_resolve(self, kind: EventType, attr: str) -> types.Type:
        field = kind.field(attr)
        if field is None:
            raise _unknown(kind, attr)
        _, column_kind, precision, scale, _, element, nullable = field
        if element is not None:
            return ItemsType(element, precision, scale)
        return value_type(column_kind, precision, scale, nullable)


def word_at(builder: Any, address: Any, place: Any) -> Any:
    """The int64 at address + 8 * place."""
    pointer = builder.inttoptr(builder.add(address, builder.mul(place, I64(8))), I64.as_pointer())
    return builder.load(pointer)


def _fixed_word_at(builder: Any, address: Any, place: Any) -> Any:
    """The same of a word that does not change."""
    pointer = builder.inttoptr(builder.add(address, builder.mul(place, I64(8))), I64.as_pointer())
    return fixed_load(builder, pointer)


@lower_getattr_generic(EventType)
def _event_column(context: Any, builder: Any, kind: Any, value: Any, attr: str) -> Any:
    _, column_kind, precision, scale, column, element, nullable = kind.field(attr)
    event = cgutils.create_struct_proxy(kind)(context, builder, value=value)
    base = _fixed_word_at(builder, event.columns, I64(column))
    if element is None:
        stored = STORED[column_kind]
        size = context.get_abi_sizeof(STORED_LLVM[stored])
        address = builder.add(base, builder.mul(event.row, I64(size)))
        found = load_value(builder, address, column_kind, stored, True)
        if not nullable:
            return found
        bits = _fixed_word_at(builder, event.columns, I64(column + 1))
        is_null = is_null_at(builder, bits, event.row, fixed_load)
        plain = value_type(column_kind, precision, scale)
        return made_optional(context, builder, plain, found, is_null)
    # An array column takes two places: its elements, then the row's first element.
    offsets = _fixed_word_at(builder, event.columns, I64(column + 1))
    first = _fixed_word_at(builder, offsets, event.row)
    last = _fixed_word_at(builder, offsets, builder.add(event.row, I64(1)))
    size = context.get_abi_sizeof(STORED_LLVM[STORED[element]])
    items = cgutils.create_struct_proxy(ItemsType(element, precision, scale))(context, builder)
    items.first = builder.add(base, builder.mul(first, I64(size)))
    items.count = builder.sub(last, first)
    return items._getvalue()


# --- writing a stored value -----------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def store_column(typing_context: Any, row: Any, name: Any, value: Any) -> Any:
    """`row.name = value`, with every rule about what may be stored where."""
    if not isinstance(name, types.StringLiteral):
        return None  # Numba tries again without literals after a refusal
    attr = name.literal_value
    if not isinstance(row, RecordType | OutputType):
        what = row.label if isinstance(row, EventType) else f"a {row}"
        raise Refusal(f"only columns of rows and outputs can be set, not .{attr} of {what}{ALWAYS}")
    field = row.field(attr)
    if field is None:
        raise _unknown(row, attr)
    _, kind, precision, scale, offset, stored, is_key, null_bit = field
    if row.read_only:
        raise Refusal(f"{row.label} was declared mode='read', so .{attr} cannot be set{ALWAYS}")
    if is_key:
        raise Refusal(f"{row.label}.{attr} is a key column and cannot be set{ALWAYS}")
    target = value_type(kind, precision, scale)
    given = types.unliteral(value)
    plain, where = inner_of(given), f"{row.label}.{attr}"
    if is_none_type(given) and null_bit < 0:
        raise Refusal(f"{where} is not declared NULL, and None cannot be stored in it{ALWAYS}")
    if not is_none_type(given):
        _refuse_store(where, kind, plain)

    def put(context: Any, builder: Any, place: Any, found: Any) -> None:
        address = _column_address(context, builder, row, place, offset)
        pointer = builder.inttoptr(address, STORED_LLVM[stored].as_pointer())
        if found is None:
            word = ir.Constant(STORED_LLVM[stored], 0)
        elif kind == "decimal":
            word = store_decimal(context, builder, plain, found, precision, scale)
        else:
            word = context.cast(builder, found, plain, target)
            word = _narrow(context, builder, word, kind, stored)
        builder.store(word, pointer)
        if isinstance(row, RecordType) and row.is_watched:
            header = builder.inttoptr(place, I64.as_pointer())
            builder.store(builder.or_(builder.load(header), I64(HEADER_WRITTEN)), header)
        if null_bit >= 0:
            pointer, mask = _null_word(context, builder, row, place, null_bit)
            before = builder.load(pointer)
            marked = builder.or_(before, I64(mask))
            kept = marked if found is None else builder.and_(before, I64(~mask))
            builder.store(kept, pointer)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if not isinstance(given, types.Optional):
            put(context, builder, args[0], None if is_none_type(given) else args[2])
        elif null_bit < 0:
            put(context, builder, args[0], taken(context, builder, given, args[2]))
        else:
            found = context.make_helper(builder, given, value=args[2])
            is_there = cgutils.as_bool_bit(builder, found.valid)
            with builder.if_else(is_there) as (then, otherwise):
                with then:
                    put(context, builder, args[0], found.data)
                with otherwise:
                    put(context, builder, args[0], None)
        return context.get_dummy_value()

    return types.void(row, name, given), generate


def _refuse_store(where: str, kind: str, value: types.Type) -> None:
    fits = {
        "boolean": isinstance(value, types.Boolean),
        "float": isinstance(value, (types.Integer, types.Float)),
        "double": isinstance(value, (types.Integer, types.Float)),
        "string": isinstance(value, TextType),
        "decimal": isinstance(value, (types.Integer, DecimalType)),
    }.get(kind, isinstance(value, types.Integer))
    if fits:
        return
    to_integer = isinstance(value, types.Float) and kind in ("int", "bigint")
    hint = "; use int() or round()" if to_integer else ""
    raise Refusal(f"{where} is {kind}, and a {value} cannot be stored in it{hint}{ALWAYS}")


def _narrow(context: Any, builder: Any, value: Any, kind: str, stored: str) -> Any:
    """A value as its column stores it; a number that does not fit is an OverflowError."""
    if kind == "boolean":
        return builder.zext(value, ir.IntType(8))
    if stored == "f4":
        return _narrow_float(context, builder, value)
    if kind not in ("int", "date", "timestamp"):
        return value
    least, greatest = (I64(bound) for bound in BOUNDS[kind])
    lost = builder.or_(
        builder.icmp_signed("<", value, least), builder.icmp_signed(">", value, greatest)
    )
    with builder.if_then(lost, likely=False):
        context.call_conv.return_user_exc(builder, OverflowError, ("overflow",))
    return builder.trunc(value, ir.IntType(32)) if stored == "i4" else value


def _narrow_float(context: Any, builder: Any, value: Any) -> Any:
    """A double as the nearest float of 32 bits; infinite and NaN stay, too large is an overflow."""
    size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [ir.DoubleType()]), [value])
    lost = builder.and_(
        builder.fcmp_ordered(">=", size, ir.Constant(ir.DoubleType(), FLOAT_END)),
        builder.fcmp_ordered("!=", size, ir.Constant(ir.DoubleType(), float("inf"))),
    )
    with builder.if_then(lost, likely=False):
        context.call_conv.return_user_exc(builder, OverflowError, ("overflow",))
    return builder.fptrunc(value, ir.FloatType())


# --- texts ----------------------------------------------------------------------------------------


@intrinsic
def text_of(typing_context: Any, code: Any) -> Any:
    """A text from its code."""
    return text_type(types.int64), lambda context, builder, sig, args: args[0]


@intrinsic
def code_of(typing_context: Any, value: Any) -> Any:
    """The code of a text or of an abort; 0 for a function that never aborts."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if isinstance(value, types.NoneType):
            return I64(0)
        if isinstance(value, types.Optional):
            return builder.extract_value(args[0], 0)
        return args[0]

    return types.int64(value), generate


@overload(operator.eq)
def _text_eq(left: Any, right: Any) -> Any:
    if isinstance(left, TextType) and isinstance(right, TextType):
        return lambda left, right: code_of(left) == code_of(right)
    return None


@overload(operator.ne)
def _text_ne(left: Any, right: Any) -> Any:
    if isinstance(left, TextType) and isinstance(right, TextType):
        return lambda left, right: code_of(left) != code_of(right)
    return None


@overload(bool)
def _text_truth(text: Any) -> Any:
    return (lambda text: code_of(text) != 0) if isinstance(text, TextType) else None


@overload(operator.not_)
def _text_not(text: Any) -> Any:
    return (lambda text: code_of(text) == 0) if isinstance(text, TextType) else None
