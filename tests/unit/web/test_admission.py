"""Tokens: files of them, their expiry, and what the server keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import InputError
from headgate.testing.disk import SimulatedClock
from headgate.web.admission import Token, Tokens, make_token, read_tokens
from headgate.web.limits import Refused

GOOD = "0123456789abcdef"


def code(tokens: Tokens, header: bytes | None) -> str:
    try:
        tokens.check(header)
    except Refused as refusal:
        assert refusal.status == 401
        return refusal.code
    return "welcome"


def test_a_token_is_known_and_nothing_near_it_is() -> None:
    tokens = Tokens([Token.of("another-token-000"), Token.of(GOOD)])
    assert code(tokens, f"Bearer {GOOD}".encode()) == "welcome"
    assert code(tokens, f"bearer  {GOOD} ".encode()) == "welcome"
    for wrong in (f"Bearer {GOOD}x", f"Bearer {GOOD[:-1]}", f"Basic {GOOD}", GOOD, "Bearer", ""):
        assert code(tokens, wrong.encode()) == "bad_token"
    assert code(tokens, None) == "no_token"
    assert code(Tokens([]), f"Bearer {GOOD}".encode()) == "bad_token"
    assert code(Tokens(None), None) == "welcome"


def test_a_token_ends_at_its_time() -> None:
    clock = SimulatedClock()
    now = clock.time_us()
    tokens = Tokens([Token.of(GOOD, now + 10_000_000)], clock)
    header = f"Bearer {GOOD}".encode()
    assert code(tokens, header) == "welcome"
    late = Tokens([Token.of(GOOD, now)], clock)
    assert code(late, header) == "token_expired"


def test_the_server_keeps_no_token(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{GOOD}\n")
    assert GOOD not in repr(read_tokens(tmp_path / "tokens"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no token"),
        ("# nothing\n", "no token"),
        ("short\n", "line 1: a token has at least 16"),
        (f"{GOOD}\n{GOOD} tomorrow\n", "line 2: 'tomorrow' is no time"),
        (f"{GOOD} 2024-01-01 12:00\n", "line 1: write a token"),
    ],
)
def test_a_bad_file_is_refused_with_the_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tokens").write_text(content)
    with pytest.raises(InputError, match=message):
        read_tokens(tmp_path / "tokens")
    with pytest.raises(InputError, match="cannot read the token file"):
        read_tokens(tmp_path / "nothing")


def test_new_tokens_differ() -> None:
    assert len({make_token() for _ in range(100)}) == 100
    assert len(make_token()) >= 32
