"""Checks: an SQL-like boolean expression over a table's columns, turned into a Python expression.

One translation serves every way of running a transaction, so a check means the same compiled,
interpreted and in the serial oracle. A check that names nullable columns has SQL's three values: a
comparison with null is unknown, and a check passes unless it is false. `least` and `greatest` pass
over nulls, as in Spark and DuckDB.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from headgate.errors import DeclarationError, not_among
from headgate.state.schema import Schema, require_text
from headgate.state.types import ColumnType, default_value

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+|\d+(?:[eE][-+]?\d+)?)
    |(?P<text>'(?:[^']|'')*')
    |`(?P<quoted>[^`]+)`
    |(?P<word>[^\W\d]\w*)
    |(?P<sign><=|>=|<>|!=|==|=(?![<>])|[-+*/()<>,])
    )""",
    re.VERBOSE,
)
_COMPARE = {
    "=": "==", "==": "==", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
AMONG_MAX = 6  # values of which some may be null: those before it stand twice beside each
_FUNCTIONS = {"abs": "abs", "least": "min", "greatest": "max"}
_KINDS = {"string": "text", "boolean": "boolean", "date": "moment", "timestamp": "moment"}
_TEXT_FUNCTIONS = {  # how many texts each takes at least and at most, its Python form, its kind
    "length": (1, 1, "len({0})", "number"),
    "startswith": (2, 2, "{0}.startswith({1})", "boolean"),
    "endswith": (2, 2, "{0}.endswith({1})", "boolean"),
    "contains": (2, 2, "({1} in {0})", "boolean"),
    "concat": (2, 9, "({all})", "text"),
}
_HINTS = {
    "&&": "write AND",
    "||": "write OR, or concat(a, b) of texts",
    '"': "write a text in single quotes, a column without quotes or in backticks: `order`",
    "=>": "write >=",
    "=<": "write <=",
    "%": "there is no remainder in a check; compute it in the transaction",
}
_KEYWORDS = {"and", "or", "not", "between", "in", "is", "null", "true", "false", "like"}


class _Term(NamedTuple):
    """A part of the expression as Python source, and what its values are.

    A condition that may be unknown has two sources: whether it is true, and whether it is false.
    """

    source: str
    kind: str  # number, text, boolean, moment
    nullable: frozenset[str] = frozenset()  # what all must hold where it is not null, as source
    false: str | None = None  # None: a condition that is false when it is not true


def _known(term: _Term) -> str:
    """Whether a value is not null, as Python source; empty when it never is."""
    return " and ".join(sorted(term.nullable))


def _true(term: _Term) -> str:
    """Whether a condition is true; one that is a value may be null."""
    return f"({_known(term)} and {term.source})" if term.nullable else term.source


def _false(term: _Term) -> str:
    if term.nullable:
        return f"({_known(term)} and not {term.source})"
    return f"(not {term.source})" if term.false is None else term.false


def _may_be_unknown(*terms: _Term) -> bool:
    return any(term.nullable or term.false is not None for term in terms)


@dataclass(frozen=True)
class Check:
    """A check as the user wrote it and as Python source over the name `row`."""

    text: str
    python: str
    is_reaching: bool = False  # it looks at the characters of texts

    @property
    def texts(self) -> set[str]:
        """The texts that are in its Python form."""
        parts = ast.walk(ast.parse(self.python, mode="eval"))
        constants = (part.value for part in parts if isinstance(part, ast.Constant))
        return {value for value in constants if isinstance(value, str)}


def parse_check(text: str, schema: Schema, where: str) -> Check:
    """Translate the expression, or raise a DeclarationError that points at the place.

    >>> parse_check("balance >= 0 and id <> 7", Schema.parse("id int, balance int"), "t").python
    '((row.balance >= 0) and (row.id != 7))'
    """
    given: Any = text
    if not isinstance(given, str):
        kind = type(given).__name__
        raise DeclarationError(f"{where}: it is a text such as 'balance >= 0', not {kind}")
    require_text(text, where)
    parser = _Parser(text, schema, where)
    return Check(text, parser.whole(), parser.is_reaching)


def names_in(text: str) -> list[tuple[str, int, int]]:
    """The columns that a check names: name, and where it stands, from its first to its last quote.

    >>> names_in("abs(n) >= 0 and kind <> 'n'")
    [('n', 4, 5), ('kind', 16, 20)]
    """
    tokens = list(_TOKEN.finditer(text))
    found = []
    for place, token in enumerate(tokens):
        word, following = token["word"], tokens[place + 1] if place + 1 < len(tokens) else None
        if token["quoted"]:
            found.append((token["quoted"], token.start("quoted") - 1, token.end()))
        elif word and not _is_syntax(word.lower(), following):
            found.append((word, token.start("word"), token.end()))
    return found


def _is_syntax(word: str, following: re.Match[str] | None) -> bool:
    """Whether a word is one of the language: a keyword, a function, the begin of a literal."""
    if word in _KEYWORDS:
        return True
    if following is None:
        return False
    is_call = word in (*_FUNCTIONS, *_TEXT_FUNCTIONS) and following["sign"] == "("
    return is_call or (word in ("date", "timestamp") and following["text"] is not None)


def _is_plain(name: str) -> bool:
    """Whether a column is read without backticks."""
    return bool(re.fullmatch(r"[^\W\d]\w*", name)) and name.lower() not in _KEYWORDS


def renamed_in(text: str, old: str, new: str) -> str:
    """A check in which a column has another name."""
    quoted = new if _is_plain(new) else f"`{new}`"
    for name, first, last in reversed(names_in(text)):
        if name == old:
            text = text[:first] + quoted + text[last:]
    return text


class _Parser:
    """Recursive descent, loosest binding first: or, and, not, comparison, sum, product, atom."""

    def __init__(self, text: str, schema: Schema, where: str) -> None:
        self.text = text
        self.schema = schema
        self.where = where
        self.tokens = self._tokens()
        self.place = 0
        self.is_reaching = False  # whether it needs more of a text than which one it is
        # A literal like 0.5 must be exact beside a decimal column and a float beside a double.
        words = {value for kind, value, _ in self.tokens if kind == "name"}
        kinds = {schema[word].type.kind for word in words if word in schema}
        self.exact = "decimal" in kinds

    def _tokens(self) -> list[tuple[str, str, int]]:
        tokens, place = [], 0
        while self.text[place:].strip():
            match = _TOKEN.match(self.text, place)
            if match is None:
                rest = self.text[place:].lstrip()
                hint = next((told for sign, told in _HINTS.items() if rest.startswith(sign)), None)
                self._fail(place, "cannot read this" + (f" ({hint})" if hint else ""))
            kind = str(match.lastgroup)
            value = match[kind]
            if kind == "word" and value.lower() in _KEYWORDS:
                kind, value = "keyword", value.lower()
            elif kind in ("word", "quoted"):
                kind = "name"
            tokens.append((kind, value, match.start(str(match.lastgroup))))
            place = match.end()
        return [*tokens, ("end", "", len(self.text))]

    def _fail(self, place: int, why: str) -> NoReturn:
        meant = self._meant(place)
        hint = f" (write the column {meant!r} in backticks: `{meant}`)" if meant else ""
        raise DeclarationError(f"{self.where}: {why}{hint}: {self.text!r} at {self.text[place:]!r}")

    def _meant(self, place: int) -> str | None:
        """A column that stands here without the backticks that its name needs."""
        rest = self.text[place:].lstrip().lower()
        names = (name for name in self.schema.names if not _is_plain(name))
        return next((name for name in names if rest.startswith(name.lower())), None)

    def _peek(self, *values: str) -> bool:
        kind, value, _ = self.tokens[self.place]
        return kind in ("sign", "keyword") and value in values

    def _take(self, *values: str) -> str:
        if not self._peek(*values):
            self._fail(self.tokens[self.place][2], f"expected {' or '.join(values)}")
        self.place += 1
        return self.tokens[self.place - 1][1]

    def whole(self) -> str:
        term = self._either()
        kind, value, place = self.tokens[self.place]
        if kind != "end":
            known = value.lower() in ("ilike", "rlike", "similar")
            told = f"there is no {value.upper()}, only LIKE" if known else ""
            self._fail(place, told or "the expression should end here")
        return self._passing(self._condition(term, 0))

    def _passing(self, term: _Term) -> str:
        """A row passes where its check is true or unknown."""
        return f"(not {_false(term)})" if _may_be_unknown(term) else term.source

    def _condition(self, term: _Term, place: int) -> _Term:
        if term.kind != "boolean":
            self._fail(place, f"this is a {term.kind}, and a condition is needed, as in n > 0")
        return term

    def _either(self) -> _Term:
        return self._joined("or", self._both)

    def _both(self) -> _Term:
        return self._joined("and", self._negated)

    def _joined(self, word: str, inner: Callable[[], _Term]) -> _Term:
        place = self.tokens[self.place][2]
        term = inner()
        while self._peek(word):
            self._take(word)
            left, beside = self._condition(term, place), self.tokens[self.place][2]
            right = self._condition(inner(), beside)
            term = _joined_by(word, left, right)
        return term

    def _negated(self) -> _Term:
        if self._peek("not"):
            self._take("not")
            place = self.tokens[self.place][2]
            return _opposite(self._condition(self._negated(), place))
        return self._comparison()

    def _comparison(self) -> _Term:
        left = self._sum()
        if self._peek(*_COMPARE):
            place = self.tokens[self.place][2]
            sign = _COMPARE[self._take(*_COMPARE)]
            return self._compared(left, sign, self._sum(), place)
        if self._peek("is"):
            return self._null_test(left)
        negated = self._peek("not")
        if negated:
            self._take("not")
        if self._peek("like"):
            term = self._pattern(left)
            return _opposite(term) if negated else term
        if negated or self._peek("between", "in"):
            term = self._range(left) if self._peek("between") else self._membership(left)
            return _opposite(term) if negated else term
        return left

    def _compared(self, left: _Term, sign: str, right: _Term, place: int) -> _Term:
        kinds = {left.kind, right.kind}
        if left.false is not None or right.false is not None:
            self._fail(place, "what may be unknown is no value to compare; write AND, OR and NOT")
        if kinds == {"text", "moment"}:
            self._fail(place, "a time is no text: write DATE '2024-01-31' or TIMESTAMP '...'")
        if "text" in kinds and len(kinds) > 1:
            self._fail(place, f"a {left.kind} cannot be compared with a {right.kind}")
        self.is_reaching |= "text" in kinds and sign not in ("==", "!=")
        return _compared(f"({left.source} {sign} {right.source})", left, right)

    def _pattern(self, left: _Term) -> _Term:
        """LIKE a text, which is unknown where that is null."""
        return _compared(self._like(left), left)

    def _like(self, left: _Term) -> str:
        """LIKE a text with % at its ends, or once within."""
        self._take("like")
        kind, value, place = self.tokens[self.place]
        self.place += 1
        if left.kind != "text" or kind != "text":
            self._fail(place, "LIKE takes a text and a pattern, as in name like 'a%'")
        parts = value[1:-1].replace("''", "'").split("%")
        is_within = len(parts) == 3 and not parts[0] and not parts[2]
        if re.search(r"[_\\]", value) or (len(parts) > 2 and not is_within):
            self._fail(place, "a pattern has % at its ends or once within, and no _ or backslash")
        if len(parts) == 1:
            return f"({left.source} == {parts[0]!r})"
        self.is_reaching = True
        if is_within:
            return f"({parts[1]!r} in {left.source})"
        first, last = parts
        if not first or not last:
            end, part = ("endswith", last) if last else ("startswith", first)
            return f"{left.source}.{end}({part!r})"
        ends = f"{left.source}.startswith({first!r}) and {left.source}.endswith({last!r})"
        return f"({ends} and len({left.source}) >= {len(first + last)})"

    def _null_test(self, left: _Term) -> _Term:
        self._take("is")
        negated = self._peek("not")
        if negated:
            self._take("not")
        self._take("null")
        if left.false is not None:
            self._fail(self.tokens[self.place - 1][2], "IS NULL of a column, not of a condition")
        known = f"({_known(left)})" if left.nullable else "True"
        unknown = f"(not {known})" if left.nullable else "False"
        return _Term(known if negated else unknown, "boolean")

    def _range(self, left: _Term) -> _Term:
        place = self.tokens[self.place][2]
        self._take("between")
        low = self._compared(left, ">=", self._sum(), place)
        self._take("and")
        high = self._compared(left, "<=", self._sum(), place)
        return _joined_by("and", low, high)

    def _membership(self, left: _Term) -> _Term:
        place = self.tokens[self.place][2]
        self._take("in")
        self._take("(")
        choices = [self._compared(left, "==", self._sum(), place)]
        while self._peek(","):
            self._take(",")
            choices.append(self._compared(left, "==", self._sum(), place))
        self._take(")")
        return _joined_by("or", *choices)

    def _sum(self) -> _Term:
        return self._computed("+-", self._product)

    def _product(self) -> _Term:
        return self._computed("*/", self._signed)

    def _computed(self, signs: str, inner: Callable[[], _Term]) -> _Term:
        term = inner()
        while self._peek(*signs):
            place = self.tokens[self.place][2]
            sign = self._take(*signs)
            right = inner()
            self._refuse_text(term, place)
            self._refuse_text(right, place)
            both = term.nullable | right.nullable
            term = _Term(f"({term.source} {sign} {right.source})", "number", both)
        return term

    def _refuse_text(self, term: _Term, place: int) -> None:
        if term.kind == "text":
            self._fail(place, "texts cannot be computed with; concat(a, b) joins them")

    def _signed(self) -> _Term:
        if self._peek("-"):
            self._take("-")
            place, term = self.tokens[self.place][2], self._signed()
            self._refuse_text(term, place)
            return _Term(f"(-{term.source})", "number", term.nullable)
        return self._atom()

    def _atom(self) -> _Term:
        if self._peek("("):
            self._take("(")
            term = self._either()
            self._take(")")
            return term
        if self._peek("true", "false"):
            return _Term(str(self._take("true", "false") == "true"), "boolean")
        kind, value, place = self.tokens[self.place]
        self.place += 1
        if kind == "number":
            return _Term(self._number(value, place), "number")
        if kind == "text":
            return _Term(repr(value[1:-1].replace("''", "'")), "text")
        if kind == "name":
            return self._name(value, place)
        self._fail(place, "expected a column, a literal or a bracket")

    def _number(self, value: str, place: int) -> str:
        if value.isdigit():
            return str(int(value))
        if not math.isfinite(float(value)):
            self._fail(place, "this number is too large")
        return f"decimal({value!r})" if self.exact else repr(float(value))

    def _name(self, value: str, place: int) -> _Term:
        lowered = value.lower()
        following = self.tokens[self.place]
        if lowered in ("date", "timestamp") and following[0] == "text":
            self.place += 1
            literal = following[1][1:-1]
            return _Term(str(default_value(ColumnType(lowered), literal, self.where)), "moment")
        if self._peek("("):
            return self._call(lowered, place)
        if value not in self.schema:
            among = not_among(value, self.schema.names, "columns")
            self._fail(place, f"no column {value!r} ({among})")
        is_plain = value.isidentifier() and not keyword.iskeyword(value)
        is_plain = is_plain and unicodedata.normalize("NFKC", value) == value  # as Python reads it
        source = f"row.{value}" if is_plain else f"getattr(row, {value!r})"
        column = self.schema[value]
        nullable = frozenset([f"{source} is not None"] if column.nullable else [])
        return _Term(source, _KINDS.get(column.type.kind, "number"), nullable)

    def _call(self, name: str, place: int) -> _Term:
        if name not in _FUNCTIONS and name not in _TEXT_FUNCTIONS:
            known = ", ".join((*_FUNCTIONS, *_TEXT_FUNCTIONS))
            self._fail(
                place,
                f"no function {name!r} in a check; the functions are: {known}; "
                "test the rest in the transaction and return hg.abort(...)",
            )
        self._take("(")
        arguments = [self._sum()]
        while self._peek(","):
            self._take(",")
            arguments.append(self._sum())
        self._take(")")
        if name in _TEXT_FUNCTIONS:
            return self._text_call(name, arguments, place)
        if (len(arguments) == 1) != (name == "abs"):
            self._fail(place, f"{name} takes {'one value' if name == 'abs' else 'several values'}")
        kinds = {one.kind for one in arguments}
        if "text" in kinds and (name == "abs" or len(kinds) > 1):
            self._fail(place, f"{name} takes numbers alone, or texts alone")
        self.is_reaching |= "text" in kinds
        kind = kinds.pop() if len(kinds) == 1 else "number"
        if name == "abs":
            return _Term(f"abs({arguments[0].source})", kind, arguments[0].nullable)
        if len(arguments) > AMONG_MAX and any(one.nullable for one in arguments):
            self._fail(place, f"{name} of more than {AMONG_MAX} values, of which one may be null")
        return _among(_FUNCTIONS[name], kind, arguments)

    def _text_call(self, name: str, arguments: list[_Term], place: int) -> _Term:
        least, most, form, kind = _TEXT_FUNCTIONS[name]
        if not least <= len(arguments) <= most or {one.kind for one in arguments} != {"text"}:
            count = least if least == most else f"{least} to {most}"
            self._fail(place, f"{name} takes {count} text{'s' if most > 1 else ''}")
        self.is_reaching = True
        sources = [one.source for one in arguments]
        return _made(form.format(*sources, all=" + ".join(sources)), kind, arguments)


def _among(function: str, kind: str, terms: Sequence[_Term]) -> _Term:
    """The least or greatest of some values: of those that are not null, and null where all are."""
    if not any(one.nullable for one in terms):
        return _Term(f"{function}({', '.join(one.source for one in terms)})", kind)
    found, sign = terms[0], "<" if function == "min" else ">"
    for one in terms[1:]:
        known, is_next = [_known(found), _known(one)], f"{one.source} {sign} {found.source}"
        is_next = f"(not ({known[0]}) or {is_next})" if found.nullable else is_next
        is_next = f"{known[1]} and {is_next}" if one.nullable else is_next
        nullable = frozenset([f"({' or '.join(known)})"] if all(known) else [])
        found = _Term(f"({one.source} if {is_next} else {found.source})", kind, nullable)
    return found


def _made(source: str, kind: str, terms: Sequence[_Term]) -> _Term:
    """What a function gives, null where one of its arguments is; a condition is unknown then."""
    if kind == "boolean":
        return _compared(source, *terms)
    return _Term(source, kind, frozenset(one for term in terms for one in term.nullable))


def _compared(source: str, *terms: _Term) -> _Term:
    """A comparison, which is unknown where one of its sides is null."""
    nullable = frozenset(one for term in terms for one in term.nullable)
    if not nullable:
        return _Term(source, "boolean")
    known = _known(_Term(source, "boolean", nullable))
    return _Term(f"({known} and {source})", "boolean", false=f"({known} and not {source})")


def _joined_by(word: str, *terms: _Term) -> _Term:
    """AND is false where one is, OR where all are; both may be unknown beside what is."""
    source = f"({f' {word} '.join(map(_true, terms))})"
    if not _may_be_unknown(*terms):
        return _Term(source, "boolean")
    other = " or " if word == "and" else " and "
    return _Term(source, "boolean", false=f"({other.join(map(_false, terms))})")


def _opposite(term: _Term) -> _Term:
    if not _may_be_unknown(term):
        return _Term(f"(not {term.source})", "boolean")
    return _Term(_false(term), "boolean", false=_true(term))
