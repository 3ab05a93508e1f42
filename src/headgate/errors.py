"""The whole error tree: one class per action a caller can take.

HeadgateError                 catch this to catch everything Headgate raises
├── InputError                fix the input: an unknown column, a wrong type, an unknown table
│   ├── LimitError            ask for less: the answer is too large or takes too long
│   └── ConflictError         choose another key: this one was used for another call
├── DeclarationError          fix the declaration: a bad schema, a function that does not compile
├── StoreError                reopen the store: the disk failed or is full, the engine was stopped
│   ├── LockedError           wait or stop the other writer: a store has one writing process
│   └── FormatError           upgrade Headgate: the store was written by a newer format
├── ServerError               try again: a server cannot be reached, is busy or failed
├── DamageError               restore: bytes of the store are damaged, with their file and offset
└── InvariantError            report a bug: Headgate broke a promise it makes to itself

What a transaction does (an abort, a failed check, a missing key, a malformed event) is never an
exception: it is an outcome in the results.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable

SHOWN_CHARACTERS_MAX = 200  # of a value in a message


class HeadgateError(Exception):
    """The base class of every error that Headgate raises."""


class InputError(HeadgateError, ValueError):
    """The data or the argument handed in does not fit; the message names what and where."""


class LimitError(InputError):
    """What was asked for is too large, or takes too long; the message names the bound."""


class ConflictError(InputError):
    """The key of a call was used before, for a call with other columns."""


class DeclarationError(HeadgateError, ValueError):
    """A table or a transaction is declared wrongly; the message names the line or the column."""


class StoreError(HeadgateError):
    """The store cannot go on; what was committed is safe and reopening recovers it."""


class LockedError(StoreError):
    """Another process writes to this store; the message names it."""


class FormatError(StoreError):
    """The store was written by a newer Headgate than this one."""


class ServerError(HeadgateError):
    """A Headgate server cannot be reached, or could not do what it was asked."""


class DamageError(HeadgateError):
    """Bytes of the store do not match their checksum; the message names file and offset."""


class InvariantError(HeadgateError):
    """A promise Headgate makes to itself is broken: a bug, please report it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return f"{super().__str__()} (this is a bug in Headgate, please report it)"


def check_invariant(holds: bool, message: str) -> None:
    """Raise InvariantError with the message unless the condition holds."""
    if not holds:
        raise InvariantError(message)


def describe(error: BaseException) -> str:
    """An error in words, also one that has none of its own, such as Ctrl-C."""
    if isinstance(error, HeadgateError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C (KeyboardInterrupt)"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def add_words(error: BaseException, words: str) -> None:
    """Have an error say more: one of ours in its message, which pickles; any other in a note."""
    if isinstance(error, HeadgateError) and len(error.args) == 1:
        error.args = (f"{error.args[0]}; {words}",)
    else:
        error.add_note(words)


def shown(value: object) -> str:
    """A user's value in a message: its repr, cut where it is long, or its type if it has none.

    >>> shown("x"), shown(10**5000)
    ("'x'", 'an int that cannot be shown')
    """
    try:
        text = repr(value)
    except Exception:  # whatever a stranger's __repr__ does, our message must come through
        kind = type(value).__name__
        return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind} that cannot be shown"
    half = SHOWN_CHARACTERS_MAX // 2
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:half]}...{text[-half:]}"


def not_among(name: object, known: Iterable[object], what: str) -> str:
    """The end of a message about an unknown name: those there are, and the one that is meant.

    >>> not_among("blance", ["id", "balance"], "columns")
    "the columns are: id, balance; did you mean 'balance'?"
    """
    names = [str(one) for one in known]
    return f"the {what} are: {', '.join(names) or 'none'}{did_you_mean(name, names)}"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """What to add to a message when a known name is close to the one that was given."""
    return _closest(str(name), tuple(known))


@functools.lru_cache(maxsize=1024)  # asked for each name in a function's code: is it of headgate?
def _closest(name: str, known: tuple[str, ...]) -> str:
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), list(names), 1)
    return f"; did you mean {names[close[0]]!r}?" if close and names[close[0]] != name else ""


def forked(process: int) -> str:
    """Why an engine cannot be used in a child of the process that opened it."""
    return (
        f"it belongs to process {process}, which opened it, and this is a child of that: what a "
        "child commits would be lost; hand the work to the parent, or open the store in the child "
        "after the parent closed it"
    )
