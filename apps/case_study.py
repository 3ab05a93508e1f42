"""Case studies: what they share: files of events, a query over them on Spark, a plot at the end.

The plot has what was expected and what was found, over time, as one SVG file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

FILES = 6
FIRST_FILE_TIME = 1_700_000_000
ARRIVAL_SECONDS = 1.0  # so much later than its turn an event may arrive; watermarks are longer


def write_files(
    folder: Path, events: Sequence[Mapping[str, Any]], late: float = ARRIVAL_SECONDS
) -> None:
    """The events in files by time; inside each, and a little beyond, they lie in no order."""
    folder.mkdir(parents=True)
    dice = random.Random(11)
    times = [event["ts"].timestamp() + late * dice.random() for event in events]
    timed = sorted(zip(times, events, strict=True), key=lambda one: one[0])
    write_parts(folder, [event for _, event in timed], dice)


def write_parts(
    folder: Path, arrival: Sequence[Mapping[str, Any]], dice: random.Random | None = None
) -> None:
    """Events in files as they arrive; inside each they lie in the order of the dice, if any."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(arrival) // FILES)
    for number in range(FILES):
        part = list(arrival[number * size : (number + 1) * size])
        if dice is not None:
            dice.shuffle(part)
        lines = [json.dumps(event, default=str) for event in part]
        path = folder / f"{number}.json"
        path.write_text("\n".join(lines))
        # Spark reads files by their times, and those of one moment in any order.
        os.utime(path, (FIRST_FILE_TIME + number,) * 2)


def feed(spark: Any, folder: Path, columns: str, made: Sequence[str], sink: Any) -> None:
    """A Structured Streaming query over FOLDER/events, a micro-batch for each file, to its end.

    `made` are columns that plain Spark makes of the others, before the transactions.
    """
    stream = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    query = (
        stream.json(str(folder / "events"))
        .selectExpr("*", *made)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sink.flush(query)  # no younger event comes to move the watermark


def main(in_memory: Callable[[], bool], on_spark: Callable[[Any, Path], bool]) -> None:
    """Run a case study by its command line: in memory, or on Spark in a folder."""
    words = argparse.ArgumentParser(description="Without FOLDER it runs in memory, with no Spark.")
    words.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER",
        help="where events, store, checkpoint and plot are: on Spark; again, it goes on there",
    )  # fmt: skip
    folder: Path | None = words.parse_args().folder
    if folder is None:
        sys.exit(0 if in_memory() else 1)
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").appName(Path(sys.argv[0]).stem).getOrCreate()
    try:
        is_right = on_spark(spark, folder)
    finally:
        spark.stop()
    sys.exit(0 if is_right else 1)


# --- the plot ---------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, ABOVE, BELOW = 760, 300, 60, 40, 44
# The first is drawn thick and pale, so that one that covers it exactly shows both.
STYLES = (("#f4a582", 6.0), ("#2166ac", 1.6), ("#4d9221", 1.6), ("#762a83", 1.6))


def draw(path: Path, title: str, unit: str, series: Mapping[str, Sequence[float]]) -> None:
    """One line for each series, all over the same steps of time."""
    top = max((value for values in series.values() for value in values), default=0.0) or 1.0
    steps = max(max(map(len, series.values())) - 1, 1)
    parts = [_text(LEFT, 20, title, 15), *_frame(top, steps, unit)]
    for number, (name, values) in enumerate(series.items()):
        colour, wide = STYLES[number % len(STYLES)]
        points = " ".join(f"{_x(n / steps):.1f},{_y(v / top):.1f}" for n, v in enumerate(values))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}"/>'
        )
        parts.append(_text(LEFT + 200 + 130 * number, HEIGHT - 12, name, 12, colour))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
    white = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    path.write_text("\n".join([head, white, *parts, "</svg>"]))


def _frame(top: float, steps: int, unit: str) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<line x1="{LEFT}" y1="{_y(share):.1f}" x2="{_x(1):.1f}" y2="{_y(share):.1f}" '
            'stroke="#dddddd"/>'
        )
        parts.append(_text(6, _y(share) + 4, f"{top * share:.3g}", 11))
    parts.append(_text(_x(0), HEIGHT - 12, f"0 to {steps} {unit}", 11))
    return parts


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - 20)


def _y(share: float) -> float:
    return ABOVE + (1 - share) * (HEIGHT - ABOVE - BELOW)


def _text(x: float, y: float, words: str, size: int, colour: str = "#333333") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="{size}" '
        f'fill="{colour}">{escape(words)}</text>'
    )
