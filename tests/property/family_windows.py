"""The members of the family that see versions of rows: by time, late ones too, and by number."""

from __future__ import annotations

import headgate as hg
from tests.property.members import member

gauges = hg.Table(
    "gauges",
    "name string, id int, x double NULL, w float, n int, paid decimal(12,2), label string NULL, "
    "ok boolean, big bigint",
    key="id, name",
    check="n < 40",
    history="3 seconds",
    by="ts",
)
digests = hg.Table(
    "digests",
    "id bigint, x double NULL, w double, least double NULL, most int NULL, paid decimal(18,2), "
    "label string NULL, mean double NULL, n bigint",
    key="id",
)
beats = hg.Table("beats", "id bigint, n bigint DEFAULT 1, x float", key="id", history="20 rows")


@member(
    "ts timestamp, id int, other int, name string, x double NULL, w float, n bigint, "
    "paid decimal(12,2), due timestamp",
    "ts",
    "n",
)
def read_gauge(
    event,
    before=gauges.window("id", "name", size="3 seconds"),
    gauge=gauges.at("id", "name", create=True),
    others=gauges.window("other", "name", size="1500 milliseconds"),
    digest=digests.at("n", create=True),
    out=hg.output("count bigint, all_x double, label string NULL, first int NULL, ok boolean"),
):
    gauge.x = event.x
    gauge.w = event.w
    gauge.n += event.n % 4
    gauge.paid += event.paid
    gauge.ok = not gauge.ok
    gauge.big = event.n * 400_000_000_000_000_000
    gauge.label = event.name if event.n % 3 else None
    digest.x = others.x.mean()
    digest.w = before.w.sum()
    digest.least = before.x.min()
    digest.most = others.n.max()
    digest.paid = before.paid.sum()
    digest.mean = before.n.mean()
    digest.label = others.label.last()
    digest.n = others.x.count() + before.big.sum() // 1000
    out.count = len(before) * 100 + len(others)
    out.first = others.n.first()
    for one in before:
        out.all_x = out.all_x * 0.5 + one.w
        out.ok = one.ok
        if one.version_time > event.ts:
            raise ValueError("a version from later on")
    if len(before) > 1 and before[1].n > before[-1].n:
        out.label = before[0].label
    if event.n == 13:
        return hg.abort("thirteen")
    if event.n % 7 == 2:
        hg.delete(gauge)


@member("n bigint, ids array<bigint>, id bigint, x float", "n")
def beat(
    event,
    some=beats.each("ids", create=True),
    last=beats.window("id", size="10 rows"),
    every=beats.window("id", size="20 rows"),
    out=hg.output(
        "total bigint, all_x double, least bigint NULL, high double NULL, number bigint NULL"
    ),
):
    out.total = last.n.sum() * 1000 + len(every)
    out.all_x = every.x.sum()
    out.least = every.n.min()
    out.high = last.x.max()
    out.number = last.version_number.last()
    for one in some:
        if event.n % 5:
            one.n = event.n
        if event.n % 4:
            one.x = event.x
        if event.n == 6:
            hg.delete(one)
