"""Operators x edge values: what compiles gives the outcome, the reason and the bytes of Python.

Each expression is a branch of a generated function; an event chooses the branch and brings the
operands. The function runs compiled, interpreted and in the oracle. What cannot keep the rule is in
REFUSED: it must be refused where it is defined, with its line.
"""

from __future__ import annotations

import datetime
import itertools
import math
import random
import re
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

import headgate as hg
from headgate.state.schema import Schema
from headgate.testing import SerialOracle, results_difference
from tests.property.harness import decoded, same_bytes

EVENT = """op int, a bigint, b bigint, c bigint, small int, x double, y double, f float,
    d decimal(12,2), e decimal(9,4), h decimal(18,4), p boolean, q boolean, s string, t string,
    day date, ts timestamp, ns array<bigint>, xs array<double>"""
OUT = "r bigint, v double, u boolean, g float, m decimal(18,4), k string, w int"
ANCHOR = hg.Table("anchor", "id bigint, n bigint", key="id")

INTS = [0, 1, -1, 2, -2, 3, 7, -7, 10, 62, 63, 64, 65, 2**31 - 1, -(2**31), 2**31, 2**53, -(2**53),
        2**53 + 1, -(2**53) - 1, 2**53 + 3, 10**18 + 1, 2**62, -(2**62), 2**62 + 1,
        2**63 - 1, -(2**63), -(2**63) + 1]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 2.675, -8.0, 1e-5, 7.7,
          5e-324, -5e-324, 2.2250738585072014e-308, 1e16, 4503599627370497.5, 9007199254740992.0,
          9007199254740994.0, 2.0**62, 2.0**63, -(2.0**63), 9223372036854774784.0, 1e22, 709.7,
          710.0, -745.2, 1e200, 1e308, -1e308, 1.7976931348623157e308, math.inf, -math.inf,
          math.nan]  # fmt: skip
DECIMALS = ["0", "0.01", "-0.01", "0.05", "1.00", "-1.00", "2.50", "99.99", "9999999999.99",
            "-9999999999.99"]  # fmt: skip
HUGE = ["0", "99999999999999.9999", "-99999999999999.9999", "12345678901234.5679",
        "90071992547409.9321", "70000000000000.0001", "0.0003"]  # fmt: skip
TEXTS = ["", "a", "b", "ab", "aa", "\x00", "a\x00", "a\x00b", "e\u0301", "\u00e9", "\u007f",
         "\u0080", "\u07ff", "\uffff", "\U00010000", "\U0001f600", "a" * 3000,
         "a" * 3000 + "b"]  # fmt: skip

_INT_PAIR = ["+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>", "**"]
_COMPARE = ["<", "<=", ">", ">=", "==", "!="]
_ONE_FLOAT = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh", "degrees", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "log", "log10", "log1p", "log2", "radians", "sin",
    "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip


def _expressions() -> Iterator[tuple[str, str]]:
    """(the output column, the expression over e.<column>) of everything that compiles."""
    for sign in _INT_PAIR:
        yield "r", f"e.a {sign} e.b"
    for sign in ["+", "-", "*", "/", "//", "%"]:
        for pair in ("e.x {} e.y", "e.x {} e.a", "e.a {} e.x", "e.f {} e.y", "e.p {} e.x"):
            yield "v", pair.format(sign)
    yield from [("v", "e.a / e.b"), ("v", "e.p / e.a"), ("v", "e.a / e.p"), ("v", "e.small / e.a")]
    for sign in _COMPARE:
        for pair in ("e.a {} e.b", "e.x {} e.y", "e.a {} e.x", "e.x {} e.a", "e.p {} e.q",
                     "e.p {} e.x", "e.a {} e.p", "e.d {} e.e", "e.d {} e.a", "e.f {} e.x",
                     "e.day {} e.small", "e.ts {} e.a"):  # fmt: skip
            yield "u", pair.format(sign)
    yield from [
        ("v", f"e.x ** {power}") for power in (2, 3, 7, -1, -2, 0, "2.0", "-3.0", "e.a", "e.small")
    ]
    yield from [("v", "2.5 ** e.x"), ("v", "0.0 ** e.x"), ("v", "2 ** e.x"), ("v", "pow(e.x, 3)")]
    yield from [
        ("r", "pow(e.a, e.b)"),
        ("r", "e.a ** 2"),
        ("r", "2 ** e.a"),
        ("r", "e.a + e.p"),
        ("r", "e.a * e.p"),
    ]
    for text in ("-e.a", "+e.a", "~e.a", "abs(e.a)", "round(e.a)", "int(e.a)", "int(e.x)",
                 "round(e.x)", "int(e.p)", "min(e.a, e.b)", "max(e.a, e.b)", "min(e.a, e.b, e.c)",
                 "max(e.a, e.b, e.c, e.small)", "sum(e.ns)", "sum(e.ns, e.a)",
                 "sum((e.a, e.b, e.c))",
                 "sum([e.a, e.b])", "len(e.ns)", "e.ns[e.small]", "math.gcd(e.a, e.b)",
                 "math.isqrt(e.a)", "math.floor(e.x)", "math.ceil(e.x)", "math.trunc(e.x)",
                 "math.floor(e.a)", "divmod(e.a, e.b)[0]", "divmod(e.a, e.b)[1]", "int(e.d)",
                 "e.a if e.p else e.b", "e.a or e.b", "e.a and e.b", "e.p and e.a > 1 and 3 or 4",
                 "int(e.x) * int(e.y)", "int(e.x) * int(e.y) // 1000003", "round(e.x) - int(e.y)",
                 "(e.a + e.b) - e.b", "e.a * e.b // 2", "LARGE + LARGE - e.a", "LARGE * 2 // e.a",
                 "(e.a & e.b) | (e.a ^ e.b)", "len(e.ns) * LARGE * 4 - e.a", "tripled(e.a, e.b)",
                 "e.day + e.small", "e.ts - e.a", "e.small * e.small * e.small",
                 "math.floor(e.x) * math.ceil(e.y) - 1", "sum(e.ns) * sum(e.ns) // 3",
                 "loop(e.small, e.a)", "last(e.a)",
                 "abs(int(e.x)) + abs(int(e.y)) - LARGE"):  # fmt: skip
        yield "r", text
    for text in ("-e.x", "+e.x", "abs(e.x)", "float(e.a)", "float(e.p)", "float(e.x)", "float(e.d)",
                 "round(e.x, 0)", "round(e.x, 1)", "round(e.x, 2)", "round(e.x, 17)",
                 "round(e.x, 330)", "min(e.x, e.y)", "max(e.x, e.y)", "min(e.x, e.y, e.f)",
                 "max(0, e.x)", "min(e.x, 1)", "sum(e.xs)", "sum(e.xs, e.x)", "e.x if e.p else e.y",
                 "e.x or e.y", "e.x and e.y", "math.pow(e.x, e.y)", "math.pow(e.a, e.x)",
                 "math.fmod(e.x, e.y)", "math.atan2(e.x, e.y)", "math.copysign(e.x, e.y)",
                 "math.log(e.x, 2)", "math.log(e.x, e.y)", "math.log(e.a)", "math.sqrt(e.a)",
                 "divmod(e.x, e.y)[0]", "divmod(e.x, e.y)[1]", "divmod(e.a, e.x)[1]", "e.x * 2",
                 "e.x + e.y * e.f", "(e.x + e.y) - e.x", "e.xs[0] + e.xs[-1]", "added(e.xs)",
                 "e.x * e.y + e.x", "1 / e.x", "e.a / 3", "e.a * 0.1", "e.a - e.x"):  # fmt: skip
        yield "v", text
    yield from [("v", f"math.{name}(e.x)") for name in _ONE_FLOAT]
    for text in ("not e.a", "not e.x", "not e.p", "not e.s", "not e.d", "bool(e.a)", "bool(e.x)",
                 "e.a < e.b < e.c",
                 "e.x <= e.y != e.f", "0 <= e.x < e.a", "e.p and e.q", "e.p or e.q", "e.p & e.q",
                 "e.p | e.q", "e.p ^ e.q", "e.p is e.q", "e.a in (1, 2, 63)", "e.s in ('a', 'b')",
                 "e.a not in (e.b, e.c)", "math.isnan(e.x)", "math.isinf(e.x)",
                 "math.isfinite(e.x)",
                 "math.isfinite(e.a)", "e.x == e.x", "e.a == 9007199254740993.0",
                 "e.a / e.b == e.x", "e.x == LARGE", "e.p == (e.a > e.b)"):  # fmt: skip
        yield "u", text
    for text in ("e.d + e.e", "e.d - e.e", "e.d * e.e", "e.d * 2", "-e.d", "abs(e.d)", "e.d + e.a",
                 "min(e.d, e.e)", "max(e.d, e.e)", "e.d * hg.decimal('1.19')",
                 "e.d if e.p else e.e", "max(e.d, 0)", "e.d * e.small - e.e"):  # fmt: skip
        yield "m", text


def _of_texts() -> Iterator[tuple[str, str]]:
    for sign in _COMPARE:
        for pair in ("e.s {} e.t", "e.s {} 'b'", "e.s + e.t {} e.t + e.s", "'' {} e.s"):
            yield "u", pair.format(sign)
    for text in ("e.s in e.t", "e.t not in e.s", "'b' in e.s + e.t", "e.s.startswith(e.t)",
                 "'ab'.startswith(e.s)", "'abc'.endswith(('', e.t))", "'ab'.startswith('')",
                 "e.s.startswith(('a', e.t))", "e.t.endswith(e.s)", "(e.s + e.t).endswith(e.t)",
                 "e.s.endswith(())", "e.s < e.t < 'm'", "bool(e.s + e.t)", "before(e.s, e.t)",
                 "e.s + e.t in ('ab', 'aa')"):  # fmt: skip
        yield "u", text
    yield from [("r", "len(e.s)"), ("r", "len(e.s + e.t) * e.a"), ("r", "len('\u00e9\U0001f600')")]


_STORED = [
    ("g", "e.x"), ("g", "e.f * 2"), ("g", "e.f + e.f"), ("g", "e.a"), ("g", "e.f / 3"),
    ("k", "e.s if e.p else e.t"), ("k", "e.s or e.t"), ("k", "e.s and 'z'"),
    ("k", "str(e.a)"), ("k", "str(e.s)"), ("k", "str(e.p)"), ("k", "f'{e.a}/{e.s}/{e.p}'"),
    ("k", "f'{e.t}'"), ("k", "f'{e.small}{e.day}{e.a + e.b}'"),
    ("k", "str(e.a > 1) + str(len(e.s))"),
    ("k", "e.s + e.t"), ("k", "'<' + e.s + '>'"), ("k", "min(e.s, e.t)"), ("k", "max(e.s, e.t)"),
    ("k", "max('b', e.s, e.t, e.s + e.t)"), ("k", "e.s + '' + e.t"), ("k", "grown(e.s, e.small)"),
    ("w", "e.a"), ("w", "e.small + e.small"), ("w", "int(e.x)"), ("w", "-e.small"),
    ("v", "float(e.h)"), ("v", "float(e.h + e.d)"), ("m", "e.h + e.h"), ("m", "e.h + e.d"),
    ("r", "int(e.h)"), ("u", "e.h == e.a"), ("m", "e.h * e.small"), ("v", "float(e.h) / 3"),
    ("r", "(q := e.a) + q"), ("r", "e.a if (q := e.b) > 2 else q"),
]  # fmt: skip
EXPRESSIONS = [*_expressions(), *_of_texts(), *_STORED]
CHUNK = 60
LARGE = 2**62


def tripled(one, other):
    return one * 3 - other


def loop(times, start):
    total = start
    for number in range(times % 5):
        total = total * 3 + number
    return total


def last(start):
    found = 0
    for number in range(start, start + 3, 2):
        found = number
    return found


def before(one, other):
    return one < other


def grown(text, times):
    found = text
    for _ in range(times % 7):
        found += text + "."
    return found


def added(items):
    total = 0.0
    for item in items:
        total += item
    return total


def generated(expressions: Sequence[tuple[str, str]], name: str, key: str, out: str) -> Any:
    """A function with a branch for each expression."""
    lines = [f"def {name}(event, row=anchor.at('{key}', create=True), out=hg.output(OUT)):"]
    lines += ["    e = event", "    row.n = 1"]
    for number, (column, text) in enumerate(expressions):
        word = "if" if number == 0 else "elif"
        lines += [f"    {word} e.op == {number}:", f"        out.{column} = {text}"]
    scope = {
        "hg": hg, "math": math, "OUT": out, "anchor": ANCHOR, "LARGE": LARGE, "tripled": tripled,
        "loop": loop, "last": last, "added": added, "before": before,
        "grown": grown, "__name__": __name__,
    }  # fmt: skip
    exec(compile("\n".join(lines), f"<{name}>", "exec"), scope)
    return scope[name]


def _used(text: str, column: str) -> bool:
    return re.search(rf"\be\.{column}\b", text) is not None


def _values(column: str) -> list[Any]:
    """The edge values of a column."""
    singles = [v for v in FLOATS if v != v or abs(v) in (0.0, math.inf) or 1e-44 < abs(v) < 3e38]
    return {
        "a": INTS, "b": INTS, "c": [0, 1, -5, 2**63 - 1],
        "small": [0, 1, 2, -1, -3, 4, 5, 100, 2**31 - 1, -(2**31)],
        "x": FLOATS, "y": FLOATS,
        "f": [struct.unpack("f", struct.pack("f", value))[0] for value in singles],
        "d": [Decimal(text) for text in DECIMALS],
        "e": [Decimal(text) for text in ("0", "0.0001", "-0.0050", "1.5", "99999.9999")],
        "h": [Decimal(text) for text in HUGE],
        "p": [True, False], "q": [True, False],
        "s": TEXTS, "t": [*TEXTS, "long text"],
        "day": [datetime.date(1970, 1, 1), datetime.date(1969, 12, 30), datetime.date.max],
        "ts": [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
               datetime.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=datetime.UTC)],
        "ns": [[], [1, 2, 3], [2**62, 2**62], [2**62, 2**62, -1], [-(2**63), -1, 1], [4]],
        "xs": [[], [0.1] * 10, [1e308, 1e308, -1e308], [-0.0], [1e16, 1.0, -1e16], [math.nan, 1.0]],
    }[column]  # fmt: skip


COLUMNS = [name for name in Schema.parse(EVENT, "event").names if name != "op"]


def events_for(
    expressions: Sequence[tuple[str, str]], most: int, draw: random.Random
) -> list[dict[str, Any]]:
    """Events that bring every combination of edge values to each expression, or `most` of them."""
    found = []
    for number, (_, text) in enumerate(expressions):
        named = [column for column in COLUMNS if _used(text, column)]
        combined = list(itertools.product(*(_values(column) for column in named)))
        if len(combined) > most:
            combined = draw.sample(combined, most)
        for values in combined:
            event = {column: _values(column)[0] for column in COLUMNS}
            found.append({**event, "a": 0, "op": number, **dict(zip(named, values, strict=True))})
    return found


def judge(
    expressions: Sequence[tuple[str, str]],
    events: list[dict[str, Any]],
    name: str,
    event: str = EVENT,
    out: str = OUT,
    key: str = "a",
) -> None:
    function = generated(expressions, name, key, out)
    both = [hg.transaction(event=event, compiled=form)(function) for form in (True, False)]
    found = []
    for form in both:
        with hg.open(None, tables=[ANCHOR], transactions=[form]) as engine:
            found.append(engine.run(form, events))
    expected = SerialOracle([ANCHOR], [both[1]]).run(both[1], events)
    assert same_bytes(decoded(found[0]), decoded(found[1]))
    if all(results_difference(table, expected) is None for table in found):
        return
    rows = [decoded(table).to_pylist() for table in found]
    for number, one in enumerate(events):  # one by one, to say which
        wanted = expected[number]
        for who, row in zip(("compiled", "plain"), (rows[0][number], rows[1][number]), strict=True):
            words = results_difference([row], [wanted])
            text = expressions[one["op"]][1]
            used = {column: one[column] for column in COLUMNS if _used(text, column)}
            assert words is None, (
                f"{who}: {text} of {used}: {words} ({row['reason']} / {wanted['reason']})"
            )
    raise AssertionError("the results differ, and none of their rows does")


CHUNKS = [EXPRESSIONS[first : first + CHUNK] for first in range(0, len(EXPRESSIONS), CHUNK)]


@pytest.mark.parametrize("number", range(len(CHUNKS)))
def test_every_operator_gives_pythons_bytes_on_edge_values(number: int, long_run: bool) -> None:
    draw = random.Random(number)
    events = events_for(CHUNKS[number], 2000 if long_run else 40, draw)
    judge(CHUNKS[number], events, f"chunk_{number}")


# --- operands that may be None --------------------------------------------------------------------


def _nullable(ddl: str) -> str:
    """The same columns, all but arrays declared NULL."""
    columns = Schema.parse(ddl, "columns")
    return ", ".join(
        f"{one.name} {one.type}{'' if one.type.element is not None else ' NULL'}" for one in columns
    )


# What is refused where an operand may be None: it has no compiled form that keeps Python's meaning.
_NOT_OF_NONE = re.compile(
    r" [&|^] |sum\(\[|sum\(e\.\w+, |e\.ns\[e|last\(|not in \(e\.b|loop\(|str\(|f'|grown\("
    r"|with\(\(['e]"
)
OF_NONE = [(column, text) for column, text in EXPRESSIONS if not _NOT_OF_NONE.search(text)]
# A form of each operator and function; the others differ in the kinds of numbers alone.
SOME_OF_NONE = [
    (column, text)
    for column, text in OF_NONE
    if not re.search(r"e\.(f|small|c|day|ts|h|q)\b|e\.x [-+*/%<>=!]+ e\.a|math\.(a|e|s|t|c)", text)
]


@pytest.mark.parametrize("number", range(-(-len(SOME_OF_NONE) // CHUNK)))
def test_every_operator_meets_none_as_in_python(number: int, long_run: bool) -> None:
    draw, chosen = random.Random(number), OF_NONE if long_run else SOME_OF_NONE
    size = -(-len(chosen) // -(-len(SOME_OF_NONE) // CHUNK))
    expressions = chosen[number * size : (number + 1) * size]
    events = events_for(expressions, 200 if long_run else 6, draw)
    scalars = [name for name in COLUMNS if name not in ("ns", "xs")]
    met = []
    for event in events:
        text = expressions[event["op"]][1]
        lacking = [name for name in scalars if _used(text, name) and draw.random() < 0.6]
        met.append({**event, **dict.fromkeys(lacking), "id": 0})
    nothing = {**dict.fromkeys(scalars), "ns": [], "xs": [], "id": 0}
    met += [{**nothing, "op": place} for place in range(len(expressions))]
    columns = "op int, id bigint, " + _nullable(EVENT.replace("op int,", ""))
    judge(expressions, met, f"none_{number}", columns, _nullable(OUT), "id")


@pytest.mark.parametrize("text", ["e.a & e.b", "sum([e.a, e.b])", "e.ns[e.small]", "last(e.a)"])
def test_what_cannot_keep_pythons_meaning_of_none_is_refused(text: str) -> None:
    columns = "op int, id bigint, " + _nullable(EVENT.replace("op int,", ""))
    function = generated([("r", text)], "refused", "id", _nullable(OUT))
    with pytest.raises(hg.DeclarationError, match="may be None here, where a value is needed"):
        hg.transaction(event=columns)(function)
