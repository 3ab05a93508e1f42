"""The family: transactions that together span the shapes a user may write, each in two forms.

A kernel takes seconds to compile, so the properties do not make up transactions: they take a fixed
family and make up tables, events, ties, nulls, routes and batches. Each member is declared compiled
and interpreted; both forms are one function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import headgate as hg
from tests.property import (
    family_expiry,  # noqa: F401  its members
    family_keys,  # noqa: F401  its members
    family_nulls,  # noqa: F401  its members
    family_ranges,  # noqa: F401  its members
    family_windows,  # noqa: F401  its members
    tariff,
)
from tests.property.members import FAMILY, Member, member

__all__ = ["FAMILY", "Member"]


# --- the usual: transfers, deposits that create, reference rows -----------------------------------

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")
wallets = hg.Table(
    "wallets",
    """id int, owner string DEFAULT 'nobody', balance decimal(12,2) DEFAULT 1.50,
       opened date DEFAULT date'2024-01-01', touched timestamp""",
    key="id",
    check="balance between 0 and 5000.00 and owner <> 'mallory'",
)
prices = hg.Table("prices", "item string, price double, sold bigint", key="item")
stock = hg.Table("stock", "item string, left_over int DEFAULT 5, last string", key="item")


@member("ts timestamp, src bigint, dst bigint, amount double", "ts")
def transfer(
    event, src=accounts.at("src"), dst=accounts.at("dst"), out=hg.output("src_balance double")
):
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    out.src_balance = src.balance


@member("ts timestamp, id int, amount decimal(10,2), owner string, day date", "ts")
def deposit(
    event,
    wallet=wallets.at("id", create=True),
    out=hg.output("total decimal(14,4), was string, since bigint"),
):
    out.was = wallet.owner
    out.since = event.day - wallet.opened
    wallet.balance += event.amount
    wallet.touched = event.ts
    if event.owner != "":
        wallet.owner = event.owner
    if event.day > wallet.opened:
        wallet.opened = event.day
    out.total = wallet.balance * hg.decimal("1.0005")


@member("ts timestamp, item string, buyer string, count bigint", "item", "ts")
def buy(
    event,
    price=prices.at("item", mode="read"),
    shelf=stock.at("item", create=True),
    out=hg.output("paid double, item_again string"),
):
    if event.count > shelf.left_over:
        return hg.abort("sold out")
    shelf.left_over -= event.count
    shelf.last = event.buyer
    out.paid = price.price * event.count
    out.item_again = price.item


# --- several rows: each, one row under two names, rows that come and go ---------------------------

pots = hg.Table(
    "pots", "id bigint, n bigint, label string", key="id", check="n < 50 or n in (70, 77)"
)
halls = hg.Table(
    "halls",
    "hall int, name string, taken_by string, times int",
    key="hall, name",
    check="times < 4",
)
grid = hg.Table("grid", "a int, b bigint, n bigint DEFAULT 5", key=["b", "a"], check="n >= 0")
lights = hg.Table("lights", "id boolean, level int DEFAULT 7, seen bigint", key="id")


@member("n bigint, ids array<bigint>, shares array<bigint>, src bigint", "n")
def share_out(
    event,
    source=pots.at("src"),
    targets=pots.each("ids"),
    out=hg.output("given bigint, last bigint"),
):
    total = 0
    for place in range(len(targets)):
        targets[place].n += event.shares[place]
        total += event.shares[place]
    source.n -= total
    for target in targets:
        target.label = source.label
        out.last = target.id
    if len(targets) > 3:
        return hg.abort("too many")
    out.given = total


@member("hall int, name string, guest string")
def take_seat(event, seat=halls.at("hall", "name", create=True), out=hg.output("times int")):
    if seat.taken_by != "" and seat.taken_by != event.guest:
        return hg.abort(seat.taken_by)
    if event.guest == "":
        hg.delete(seat)
    else:
        seat.taken_by = event.guest
        seat.times += 1
    out.times = seat.times


@member("ts timestamp, rows_a array<int>, rows_b array<bigint>, by bigint", "ts", "by")
def add_all(event, cells=grid.each("rows_b", "rows_a", create=True), out=hg.output("total bigint")):
    for cell in cells:
        cell.n += event.by
        out.total = out.total + cell.n


@member("id boolean, on_ boolean, by int", "by")
def switch(
    event,
    light=lights.at("id", create=True),
    same=lights.at("id", create=True),
    out=hg.output("level int, was_on boolean"),
):
    out.was_on = same.level > 0
    light.seen += 1
    if event.on_:
        light.level += event.by
        out.level = same.level
    else:
        hg.delete(light)
        light.level = -1


# A row that one parameter creates is not there for another that needs it, whichever comes first.


@member("n bigint, src bigint, dst bigint, ids array<bigint>", "n")
def hand_on(
    event,
    seen=pots.at("src", mode="read"),
    target=pots.at("dst", create=True),
    source=pots.at("src"),
    others=pots.each("ids"),
    out=hg.output("was bigint"),
):
    out.was = seen.n
    target.n += event.n
    source.n -= event.n
    for other in others:
        other.n += 1
    if event.n == 13:
        hg.delete(target)


@member("n bigint, ids array<bigint>, src bigint", "n")
def fill_up(event, targets=pots.each("ids", create=True), source=pots.at("src")):
    for target in targets:
        target.n += event.n
        source.n -= 1
    if source.n < -20:
        return hg.abort("empty")
    if source.n == 3:
        hg.delete(source)


# --- numbers: decimals with products, float32, ints that overflow ---------------------------------

loans = hg.Table(
    "loans",
    "id bigint, due decimal(18,2), rate decimal(6,4) DEFAULT 0.0125, payments int",
    key="id",
    check="due >= 0 and rate * 2 < 1.5",
)
gauges = hg.Table(
    "gauges",
    "id bigint, level float, peak float DEFAULT -1.5, mean double",
    key="id",
    check="level < 1e6 or peak >= 3.5",
)
ratios = hg.Table("ratios", "id bigint, n bigint, x double", key="id")
counters = hg.Table("counters", "id bigint, small int, big bigint, steps int", key="id")


@member("id bigint, factor decimal(6,3), paid decimal(18,2), rate decimal(4,4)")
def charge(
    event,
    loan=loans.at("id", create=True),
    out=hg.output("interest decimal(18,6), whole bigint, least decimal(18,2)"),
):
    interest = loan.due * loan.rate * event.factor
    loan.due = loan.due + interest - event.paid
    loan.payments += 1
    if event.rate > loan.rate:
        loan.rate = event.rate
    out.interest = interest
    out.whole = int(loan.due)
    out.least = min(abs(event.paid), loan.due)


@member("level float, id bigint, weight double", "level", "weight")
def measure(event, gauge=gauges.at("id", create=True), out=hg.output("mean double, triple float")):
    gauge.level = gauge.level * 0.5 + event.level * event.weight
    if gauge.level > gauge.peak:
        gauge.peak = gauge.level
    gauge.mean = (gauge.mean + gauge.level) / 2
    out.mean = gauge.mean
    out.triple = event.level * 3


@member("id bigint, by bigint, times bigint, few int", "few")
def count_up(event, counter=counters.at("id"), out=hg.output("big bigint, small int")):
    counter.steps += 1
    counter.big = counter.big * event.times + event.by
    counter.small += event.by
    out.big = counter.big - event.times * event.times // 2
    out.small = -counter.small + event.few


@member("id bigint, op int, a bigint, b bigint, x double, d decimal(18,2)", "op", "a")
def compute(event, row=ratios.at("id", mode="read"), out=hg.output("number bigint, real double")):
    out.number = row.n
    if event.op == 0:
        out.number = event.a**event.b
    elif event.op == 1:
        out.number = event.a << event.b
    elif event.op == 2:
        out.number = -event.a + abs(event.b)
    elif event.op == 3:
        out.number = int(event.x)
    elif event.op == 4:
        out.number = round(event.x)
    elif event.op == 5:
        out.number = int(event.d * event.d)
    elif event.op == 6:
        out.real = float(event.d) / 3
    elif event.op == 7:
        out.number = event.a // event.b
    elif event.op == 8:
        out.number = (event.a ^ event.b) & (event.a | 7) >> 1


@member("ids array<bigint>, shares array<bigint>, weights array<double>")
def spread(event, targets=pots.each("ids"), out=hg.output("total bigint, weighted double")):
    total = 0
    for number, (target, share) in enumerate(zip(targets, event.shares)):  # noqa: B905
        target.n += share * (number + 1)
        total += target.n
    for weight in event.weights:
        out.weighted = out.weighted + weight
        if weight > 10:
            break
    out.total = total


# --- the rest: booleans, dates, helpers, errors, checks -------------------------------------------

visits = hg.Table(
    "visits",
    "day date, last timestamp DEFAULT timestamp'2024-01-01 00:00:00', visits int, open boolean",
    key="day",
    check="visits <> 4 and last >= timestamp '2023-12-31'",
)
grades = hg.Table("grades", "id bigint, points bigint, grade string DEFAULT 'none'", key="id")
audited = hg.Table(
    "audited",
    "id int, kind string, n bigint, x double, day date, ok boolean, due bigint",
    key="id",
    check="""not (n > 90 or n < -90) and kind in ('a', 'b', 'it''s') and (ok or abs(n) <= 50)
             and x is not null and least(n, due) >= -80 and greatest(n, due, 3) < 99
             and day not between date '2024-02-01' and date '2024-02-10' and n * 2 - due / 4 <> 6.5
             and (kind <> 'b' or ok = true)""",
)

BONUS = 7
GOLD = "gold"


def _with_bonus(points: int, factor: int = 2) -> int:
    return points * factor + BONUS


def _grade(points: int) -> Any:
    if points > 100:
        return GOLD
    return tariff.LABEL if points > 60 else "plain"


def _refuse(points: int) -> Any:
    if points < 0:
        return hg.abort("below zero")
    return None


@member("day date, ts timestamp, leave boolean", "ts")
def visit(
    event,
    visit=visits.at("day", create=True),
    out=hg.output("gap bigint, next_day date, later timestamp, open boolean"),
):
    out.gap = event.ts - visit.last
    out.next_day = event.day + 1
    out.later = event.ts + 1_000_000
    visit.last = event.ts
    visit.visits += 1
    visit.open = not event.leave and (visit.open or visit.visits > 1)
    out.open = visit.open


@member("id bigint, points bigint")
def grade(event, pupil=grades.at("id", create=True), out=hg.output("grade string, points bigint")):
    pupil.points += tariff.capped(_with_bonus(event.points), 90) - tariff.STEP
    pupil.grade = _grade(pupil.points)
    out.grade = pupil.grade
    out.points = _with_bonus(pupil.points, 3)
    return _refuse(pupil.points)


@member("id bigint, a bigint, b bigint, x double", "x")
def divide(event, row=ratios.at("id"), out=hg.output("whole bigint, rest bigint, ratio double")):
    row.n += 1
    if event.a < -90:
        raise ValueError("far too small")
    assert event.a != 13, "unlucky"
    out.whole = event.a // event.b
    out.rest = event.a % event.b
    row.x = event.x / (row.n - 3)
    out.ratio = row.x


@member("id int, kind string, n bigint, x double, day date, ok boolean, why string", "id")
def audit(event, row=audited.at("id", create=True), copy=audited.at("id", create=True)):
    row.kind = event.kind
    row.n = event.n
    row.x = event.x
    row.day = event.day
    row.ok = event.ok
    row.due = copy.n + row.due // 2
    if event.why != "no":
        return hg.abort(event.why)


# --- characters of texts: order, length, parts, new ones ------------------------------------------

paths = hg.Table(
    "paths",
    "name string, path string, last string DEFAULT 'l', n bigint",
    key="name",
    check="""length(path) <= 12 and path not like '%bb%' and path < 'x' and
             (last < 'z' or endswith(path, 'a') or concat(path, last) <> 'azz')""",
)


def _is_longer(one: str, other: str) -> bool:
    return len(one) > len(other)


@member("ts timestamp, name string, beside string, text string", "ts")
def extend(
    event,
    row=paths.at("name", create=True),
    beside=paths.at("beside", create=True),
    out=hg.output("path string, is_first boolean, n bigint"),
):
    if event.text and event.text in row.path:
        return hg.abort("again " + event.text)
    row.path += event.text
    if row.path.startswith(beside.path):
        row.last = max(row.last, beside.path, event.text)
    if row.path.endswith((event.name, "b")) or _is_longer(beside.path, row.path):
        beside.path = row.path + beside.last
    beside.n += len(row.path)
    out.path = min(row.path, beside.path) + "/" + row.last
    out.is_first = row.path < beside.path
    out.n = len(out.path)


# --- a set to route, over one table ---------------------------------------------------------------

book = hg.Table("book", "id bigint, n bigint DEFAULT 10, note string", key="id", check="n >= 0")


@member("ts timestamp, id bigint, n bigint, note string", "ts")
def put(event, row=book.at("id", create=True), out=hg.output("n bigint")):
    row.n += event.n
    row.note = event.note
    out.n = row.n


@member("ts timestamp, id bigint, other bigint, n bigint", "ts")
def move(event, row=book.at("id"), other=book.at("other"), out=hg.output("n bigint, note string")):
    row.n -= event.n
    other.n += event.n
    out.n = row.n
    out.note = other.note


@member("ts timestamp, id bigint", "ts")
def drop(event, row=book.at("id")):
    if row.n == 11:
        return hg.abort("eleven stays")
    hg.delete(row)


@member("ts timestamp, id bigint, n bigint", "ts")
def chase(
    event,
    row=book.at("id"),
    other=book.at(lambda row: row.n % 6),
    made=book.at(lambda event, other: other.id + event.n, create=True),
):
    other.n += 1
    made.n += event.n


ROUTED = ("put", "move", "drop", "chase")


def routes(forms: Mapping[str, bool]) -> dict[str, Any]:
    """The routed set, each member in the form that is asked for."""
    return {name: FAMILY[name].form(forms[name]) for name in ROUTED}
