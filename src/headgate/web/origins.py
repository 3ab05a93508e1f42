"""Origins: which names the server answers to, and whose pages may ask it.

A page of any site can make a browser send requests here, under a name that its owner lets point to
this machine. So the host must be one that the server was told of, an address, or this machine; and
a page must come from the server itself or from an origin that was allowed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence

from headgate.errors import InputError
from headgate.web.refusals import Refusal

EVERY = "*"
_LOCAL = ("localhost",)
Headers = Sequence[tuple[bytes, bytes]]


class Origins:
    """The hosts and origins that one server takes; None of hosts means all of them."""

    def __init__(self, hosts: Iterable[str] | None = None, origins: Iterable[str] = ()) -> None:
        self._hosts = None if hosts is None else {_name(host) for host in hosts}
        self._origins = frozenset(map(_checked, origins))
        self._known: set[str] = set()  # hosts that were found good: a header is read once

    @classmethod
    def of(cls, bound: str, hosts: Iterable[str], origins: Iterable[str]) -> Origins:
        """Those of a server that listens on this address."""
        given = set(hosts)
        if EVERY in given:
            return cls(None, origins)
        return cls({*_LOCAL, bound, socket.gethostname(), *given}, origins)

    def check(self, host: str | None, origin: str | None) -> None:
        """Refusal unless this host is ours and the page, if it is one, may ask."""
        if host is None:
            raise Refusal(400, "no_host", "send the header Host, once")
        if host not in self._known:
            if not self._is_good(host):
                raise Refusal(
                    403, "bad_host", "the server is not known by this name; see --allow-host"
                )
            if len(self._known) < 1000:
                self._known.add(host)
        if origin is None or self.is_allowed(origin):
            return
        if origin.partition("://")[2].lower() != host.lower():  # a page of our own
            raise Refusal(403, "bad_origin", "pages of this origin may not ask; see --allow-origin")

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
