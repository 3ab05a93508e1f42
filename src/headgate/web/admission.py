"""Admission: who may ask the server, by which of its names, and from whose pages.

Whoever sends one of the server's tokens may ask, as long as it has not expired. A token is compared
by its digest and with every token there is, so that the time a refusal takes tells nothing. A token
file has one token on a line, maybe followed by the time it expires:

    # for the dashboard
    k3v9-lantern-orchid-57    2026-12-31T00:00:00Z

A page of any site can make a browser send requests here, under a name that its owner lets point to
this machine. So the host must be one that the server was told of, an address, or this machine; and
a page must come from the server itself or from an origin that was allowed.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import InputError
from headgate.io import Clock, RealClock, RealDisk
from headgate.io.files import read_file
from headgate.web.limits import Refused

TOKEN_CHARACTERS_MIN = 16
EVERY = "*"
_LOCAL = ("localhost",)
_CHALLENGE = 'Bearer realm="headgate"'


@dataclass(frozen=True)
class Token:
    """What the server keeps of a token: never the token itself."""

    digest: bytes
    expires_us: int | None = None

    @classmethod
    def of(cls, text: str, expires_us: int | None = None) -> Token:
        return cls(_digest(text.encode()), expires_us)


class Tokens:
    """The tokens that a server takes; None of them means that it takes everyone."""

    def __init__(self, tokens: Iterable[Token] | None, clock: Clock | None = None) -> None:
        self._tokens = None if tokens is None else tuple(tokens)
        self._clock = clock if clock is not None else RealClock()

    @property
    def are_needed(self) -> bool:
        return self._tokens is not None

    def check(self, header: bytes | None) -> None:
        """Refused unless the Authorization header has a good token."""
        if self._tokens is None:
            return
        if header is None:
            raise _refused("no_token", "send a token: Authorization: Bearer TOKEN")
        scheme, _, text = header.partition(b" ")
        found = self._find(_digest(text.strip()))
        if scheme.lower() != b"bearer" or found is None:
            raise _refused("bad_token", "the server does not know this token")
        if found.expires_us is not None and found.expires_us <= self._clock.time_us():
            raise _refused("token_expired", "the token has expired; ask for a new one")

    def _find(self, digest: bytes) -> Token | None:
        found = None
        for token in self._tokens or ():
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


def _refused(code: str, message: str) -> Refused:
    return Refused(401, code, message, www_authenticate=_CHALLENGE)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def make_token() -> str:
    """A new token that no one can guess."""
    return secrets.token_urlsafe(32)


def read_tokens(path: Path) -> list[Token]:
    """The tokens of a file; InputError that names the line that cannot be read."""
    try:
        content = read_file(RealDisk(), os.fspath(path)).decode()
    except OSError as error:
        raise InputError(f"cannot read the token file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the token file {path} is not text") from None
    tokens = []
    for number, line in enumerate(content.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            tokens.append(_read_token(words, f"{path}, line {number}"))
    if not tokens:
        raise InputError(f"the token file {path} has no token; write one on a line")
    return tokens


def _read_token(words: list[str], where: str) -> Token:
    if len(words) > 2:
        raise InputError(f"{where}: write a token, and maybe the time it expires")
    if len(words[0]) < TOKEN_CHARACTERS_MIN:
        raise InputError(f"{where}: a token has at least {TOKEN_CHARACTERS_MIN} characters")
    return Token.of(words[0], _expiry_us(words[1], where) if len(words) == 2 else None)


def _expiry_us(text: str, where: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{where}: {text!r} is no time; write 2026-12-31T00:00:00Z") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1_000_000)


# --- hosts and origins ----------------------------------------------------------------------------


class AllowedOrigins:
    """The hosts and origins that one server takes; None of hosts means all of them."""

    def __init__(self, hosts: Iterable[str] | None = None, origins: Iterable[str] = ()) -> None:
        self._hosts = None if hosts is None else {_name(host) for host in hosts}
        self._origins = frozenset(map(_checked, origins))
        self._known: set[str] = set()  # hosts that were found good: a header is read once

    @classmethod
    def of(cls, bound: str, hosts: Iterable[str], origins: Iterable[str]) -> AllowedOrigins:
        """Those of a server that listens on this address."""
        given = set(hosts)
        if EVERY in given:
            return cls(None, origins)
        return cls({*_LOCAL, bound, socket.gethostname(), *given}, origins)

    def check(self, host: str | None, origin: str | None) -> None:
        """Refused unless this host is ours and the page, if it is one, may ask."""
        if host is None:
            raise Refused(400, "no_host", "send the header Host, once")
        if host not in self._known:
            if not self._is_good(host):
                raise Refused(
                    403, "bad_host", "the server is not known by this name; see --allow-host"
                )
            if len(self._known) < 1000:
                self._known.add(host)
        if origin is None or self.is_allowed(origin):
            return
        if origin.partition("://")[2].lower() != host.lower():  # a page of our own
            raise Refused(403, "bad_origin", "pages of this origin may not ask; see --allow-origin")

    def is_allowed(self, origin: str) -> bool:
        """Whether pages of this other origin may ask, and read what they are answered."""
        return EVERY in self._origins or origin.lower() in self._origins

    def _is_good(self, host: str) -> bool:
        if self._hosts is None:
            return True
        name = _name(host)
        return name in self._hosts or _is_address(name)


def _name(host: str) -> str:
    """The host without its port, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and ":" not in name else host


def _is_address(name: str) -> bool:
    """Whether it is an address itself, which no one else can let point here."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _checked(origin: str) -> str:
    scheme, found, rest = origin.lower().rstrip("/").partition("://")
    if origin != EVERY and (not found or not scheme or not rest or "/" in rest):
        raise InputError(f"{origin!r} is no origin; write one as https://example.org")
    return origin.lower().rstrip("/")
