"""Refusals: what a client is told when something is wrong: a status, a code and a sentence.

Invariant: nothing else of an error leaves the server; its trace stays in the log, under the number
of the request.
"""

from __future__ import annotations

import re

from headgate.errors import (
    ConflictError,
    DamageError,
    HeadgateError,
    InputError,
    LimitError,
    StoreError,
)


class Refused(Exception):
    """A request that is not done, and why."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Gone(Exception):
    """The client went away, or stopped to read."""


def refusal_of(error: BaseException) -> Refused:
    """What the client is told of an error."""
    if isinstance(error, Refused):
        return error
    for kind, status, code in _TOLD:
        if isinstance(error, kind):
            return Refused(status, code, _sentence(str(error)))
    if isinstance(error, HeadgateError):
        return Refused(500, "failed", "the server could not do this; its log says why")
    return Refused(500, "internal", "something went wrong in the server; its log says what")


_TOLD: tuple[tuple[type[HeadgateError], int, str], ...] = (
    (ConflictError, 409, "key_reused"),
    (LimitError, 422, "too_much"),
    (InputError, 400, "bad_input"),
    (StoreError, 503, "stopped"),
    (DamageError, 500, "damaged"),
)


def _sentence(message: str) -> str:
    """The message without the picture that DuckDB draws below it, and without folders of ours."""
    words = " ".join(message.partition("\n\nLINE ")[0].split())
    return _PATH.sub(lambda found: found[1], words)


# An absolute path of two names or more; of it the last one stays: the store's, or a file's of it.
_PATH = re.compile(r"(?<![\w.)\]*/-])/(?:[^\s/:;,'\"()<>]+/)+([^\s/:;,'\"()<>]+)/?")
