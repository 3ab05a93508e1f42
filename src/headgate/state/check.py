"""Checks: an SQL-like boolean expression over a table's columns, turned into a Python expression.

One translation serves every way of running a transaction, so a check means the same compiled,
interpreted and in the serial oracle. Columns are never null, so SQL's third truth value is absent.
"""

from __future__ import annotations

import keyword
import math
import re
from dataclasses import dataclass
from typing import NoReturn

from headgate.errors import DeclarationError
from headgate.state.schema import ColumnType, Schema, default_value

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+|\d+(?:[eE][-+]?\d+)?)
    |(?P<text>'(?:[^']|'')*')
    |`(?P<quoted>[^`]+)`
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign><=|>=|<>|!=|==|[-+*/()<>=,])
    )""",
    re.VERBOSE,
)
_COMPARE = {
    "=": "==", "==": "==", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
_FUNCTIONS = {"abs": "abs", "least": "min", "greatest": "max"}
_KEYWORDS = {"and", "or", "not", "between", "in", "is", "null", "true", "false"}


@dataclass(frozen=True)
class Check:
    """A check as the user wrote it and as Python source over the name `row`."""

    text: str
    python: str

    @property
    def texts(self) -> set[str]:
        """The text literals it names."""
        tokens = _TOKEN.finditer(self.text)
        return {token["text"][1:-1].replace("''", "'") for token in tokens if token["text"]}


def parse_check(text: str, schema: Schema, where: str) -> Check:
    """Translate the expression, or raise a DeclarationError that points at the place.

    >>> parse_check("balance >= 0 and id <> 7", Schema.parse("id int, balance int"), "t").python
    '((row.balance >= 0) and (row.id != 7))'
    """
    return Check(text, _Parser(text, schema, where).whole())


class _Parser:
    """Recursive descent, loosest binding first: or, and, not, comparison, sum, product, atom."""

    def __init__(self, text: str, schema: Schema, where: str) -> None:
        self.text = text
        self.schema = schema
        self.where = where
        self.tokens = self._tokens()
        self.place = 0
        # A literal like 0.5 must be exact beside a decimal column and a float beside a double.
        words = {value for kind, value, _ in self.tokens if kind == "name"}
        kinds = {schema[word].type.kind for word in words if word in schema}
        self.exact = "decimal" in kinds

    def _tokens(self) -> list[tuple[str, str, int]]:
        tokens, place = [], 0
        while self.text[place:].strip():
            match = _TOKEN.match(self.text, place)
            if match is None:
                self._fail(place, "cannot read this")
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
        raise DeclarationError(f"{self.where}: {why}: {self.text!r} at {self.text[place:]!r}")

    def _peek(self, *values: str) -> bool:
        kind, value, _ = self.tokens[self.place]
        return kind in ("sign", "keyword") and value in values

    def _take(self, *values: str) -> str:
        if not self._peek(*values):
            self._fail(self.tokens[self.place][2], f"expected {' or '.join(values)}")
        self.place += 1
        return self.tokens[self.place - 1][1]

    def whole(self) -> str:
        source = self._either()
        if self.tokens[self.place][0] != "end":
            self._fail(self.tokens[self.place][2], "the expression should end here")
        return source

    def _either(self) -> str:
        source = self._both()
        while self._peek("or"):
            self._take("or")
            source = f"({source} or {self._both()})"
        return source

    def _both(self) -> str:
        source = self._negated()
        while self._peek("and"):
            self._take("and")
            source = f"({source} and {self._negated()})"
        return source

    def _negated(self) -> str:
        if self._peek("not"):
            self._take("not")
            return f"(not {self._negated()})"
        return self._comparison()

    def _comparison(self) -> str:
        left = self._sum()
        if self._peek(*_COMPARE):
            return f"({left} {_COMPARE[self._take(*_COMPARE)]} {self._sum()})"
        if self._peek("is"):
            return self._null_test()
        negated = self._peek("not")
        if negated:
            self._take("not")
        if negated or self._peek("between", "in"):
            source = self._range(left) if self._peek("between") else self._membership(left)
            return f"(not {source})" if negated else source
        return left

    def _null_test(self) -> str:
        self._take("is")
        if self._peek("not"):
            self._take("not")
            self._take("null")
            return "True"
        self._take("null")
        return "False"

    def _range(self, left: str) -> str:
        self._take("between")
        low = self._sum()
        self._take("and")
        return f"(({left} >= {low}) and ({left} <= {self._sum()}))"

    def _membership(self, left: str) -> str:
        self._take("in")
        self._take("(")
        choices = [f"({left} == {self._sum()})"]
        while self._peek(","):
            self._take(",")
            choices.append(f"({left} == {self._sum()})")
        self._take(")")
        return f"({' or '.join(choices)})"

    def _sum(self) -> str:
        source = self._product()
        while self._peek("+", "-"):
            source = f"({source} {self._take('+', '-')} {self._product()})"
        return source

    def _product(self) -> str:
        source = self._signed()
        while self._peek("*", "/"):
            source = f"({source} {self._take('*', '/')} {self._signed()})"
        return source

    def _signed(self) -> str:
        if self._peek("-"):
            self._take("-")
            return f"(-{self._signed()})"
        return self._atom()

    def _atom(self) -> str:
        if self._peek("("):
            self._take("(")
            source = self._either()
            self._take(")")
            return source
        if self._peek("true", "false"):
            return str(self._take("true", "false") == "true")
        kind, value, place = self.tokens[self.place]
        self.place += 1
        if kind == "number":
            return self._number(value, place)
        if kind == "text":
            return repr(value[1:-1].replace("''", "'"))
        if kind == "name":
            return self._name(value, place)
        self._fail(place, "expected a column, a literal or a bracket")

    def _number(self, value: str, place: int) -> str:
        if value.isdigit():
            return str(int(value))
        if not math.isfinite(float(value)):
            self._fail(place, "this number is too large")
        return f"decimal({value!r})" if self.exact else repr(float(value))

    def _name(self, value: str, place: int) -> str:
        lowered = value.lower()
        following = self.tokens[self.place]
        if lowered in ("date", "timestamp") and following[0] == "text":
            self.place += 1
            literal = following[1][1:-1]
            return str(default_value(ColumnType(lowered), literal, self.where))
        if lowered in _FUNCTIONS and self._peek("("):
            return self._call(lowered, place)
        if value not in self.schema:
            known = ", ".join(self.schema.names)
            self._fail(place, f"no column {value!r} (the columns are: {known})")
        is_plain = value.isidentifier() and not keyword.iskeyword(value)
        return f"row.{value}" if is_plain else f"getattr(row, {value!r})"

    def _call(self, name: str, place: int) -> str:
        self._take("(")
        arguments = [self._sum()]
        while self._peek(","):
            self._take(",")
            arguments.append(self._sum())
        self._take(")")
        if (len(arguments) == 1) != (name == "abs"):
            self._fail(place, f"{name} takes {'one value' if name == 'abs' else 'several values'}")
        return f"{_FUNCTIONS[name]}({', '.join(arguments)})"
