"""Social event detection: what people suddenly write about, found in a stream of posts.

    ./run python apps/detection.py             in memory, without Spark
    ./run python apps/detection.py FOLDER      on Spark: reads FOLDER/events, keeps FOLDER/social

The case study OSED of MorphStream as a dataflow of six procedures, each one transaction for all
posts of ten seconds. Posts are registered and their words counted; words that are written far more
often than before are in a burst; posts with such words are put into the cluster that is most alike,
or begin one; a cluster that grows fast is an event. Events are planted in the generated posts, so
that what is detected can be judged: which of them, when, and from how many posts.
"""

from __future__ import annotations

import datetime
import math
import random
from pathlib import Path
from typing import Any

import headgate as hg
from apps import case_study

STEP = datetime.timedelta(seconds=10)
STEPS = 60
FIRST = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
VOCABULARY = 300
# When each planted event begins, how long it lasts in steps, and what is written of it.
PLANTED = {
    "storm": (10, 4, ("storm", "flood", "rescue", "river")),
    "final": (22, 3, ("goal", "final", "penalty", "cup")),
    "launch": (35, 5, ("rocket", "launch", "orbit", "crew")),
    "outage": (48, 3, ("outage", "power", "dark", "grid")),
}
POSTS_A_STEP = 60  # about everyday things
POSTS_OF_EVENT = 25  # more a step while an event lasts

BURST_COUNT_MIN = 8  # of a word in a step
BURST_GROWTH = 4.0  # times what was usual
ALIKE_MIN = 0.4  # cosine of a post and its cluster
GROWTH_MIN = 8  # posts that a cluster gains in a step to be an event
IDLE_STEPS_MAX = 3  # then a cluster is forgotten

posts = hg.Stream(
    "posts", "ts timestamp, id bigint, words string", order_by="ts, id", batch="10 seconds"
)
tokens = hg.Stream("tokens", "step bigint, id bigint, word string")
counted = hg.Stream("counted", "step bigint, id bigint, word string")
bursting = hg.Stream("bursting", "step bigint, id bigint, words string")
alike = hg.Stream("alike", "step bigint, id bigint, words string, cluster bigint")
grown = hg.Stream("grown", "step bigint, cluster bigint, gained bigint")
events = hg.Stream("events", "step bigint, cluster bigint, gained bigint, words string")

tweets = hg.Table("tweets", "id bigint, step bigint, words string", key="id")
words = hg.Table(
    "words", "word string, step bigint, count bigint, usual double", key="word", check="count >= 0"
)
clusters = hg.Table("clusters", "id bigint, step bigint, posts bigint, words string", key="id")


@hg.procedure(posts, output=tokens, writes=tweets)
def register(batch: Any, tx: Any) -> Any:
    """The tweet registrant: posts are kept, and taken apart into words."""
    width = STEP // datetime.timedelta(microseconds=1)
    fresh = tx.sql(f"select id, epoch_us(ts) // {width} as step, words from batch")
    tx.insert(tweets, fresh)
    split = "select step, id, unnest(string_split(words, ' ')) as word from tweets"
    return tx.sql(f"{split} semi join batch using (id) order by id, word")


@hg.procedure(tokens, output=counted, writes=words)
def count_words(batch: Any, tx: Any) -> Any:
    """The word updater: how often each was written in this step, and what was usual before."""
    tx.upsert(
        words,
        """
        with now as (select word, any_value(step) as step, count(*) as count from batch group by 1)
        select now.word, now.step, now.count,
            -- what was usual fades by a half with every step that a word was not written in
            coalesce((0.95 * w.usual + 0.05 * w.count) * 0.5 ** (now.step - w.step - 1), 0.0)
                as usual
        from now left join words w using (word)
        """,
    )
    return batch


@hg.procedure(counted, output=bursting, reads=[words, tweets])
def find_bursts(batch: Any, tx: Any) -> Any:
    """The trend calculator: posts with words that are written far more often than they were."""
    return tx.sql(
        f"""
        with burst as (select word from words semi join batch using (word)
                       where count >= {BURST_COUNT_MIN} and count > {BURST_GROWTH} * usual)
        select step, id, t.words from tweets t
        where id in (select id from batch semi join burst using (word)) order by id
        """
    )


@hg.procedure(bursting, output=alike, reads=clusters)
def compare(batch: Any, tx: Any) -> Any:
    """The similarity calculator: the cluster that a post is most alike, or a new one."""
    known = {row["id"]: weights(row["words"]) for row in tx.sql("from clusters").to_pylist()}
    found = []
    for row in batch.to_pylist():
        mine = weights(row["words"])
        best = max(known, key=lambda one: (cosine(mine, known[one]), -one), default=None)
        if best is None or cosine(mine, known[best]) < ALIKE_MIN:
            best = row["id"]  # a new cluster has the number of its first post
            known[best] = mine
        found.append({**row, "cluster": best})
    return found


@hg.procedure(alike, output=grown, writes=clusters)
def merge(batch: Any, tx: Any) -> Any:
    """The cluster updater: posts go into their clusters, and those that sleep are forgotten."""
    known = {row["id"]: row for row in tx.sql("from clusters").to_pylist()}
    gained: dict[int, int] = {}
    for row in batch.to_pylist():
        new = {"id": row["cluster"], "step": row["step"], "posts": 0, "words": ""}
        mine = known.setdefault(row["cluster"], new)
        mine["posts"] += 1
        mine["step"] = row["step"]
        mine["words"] = shortened(f"{mine['words']} {row['words']}".strip())
        gained[row["cluster"]] = gained.get(row["cluster"], 0) + 1
    if not gained:
        return []
    step = batch.column("step")[0].as_py()
    tx.upsert(clusters, [known[one] for one in sorted(gained)])
    tx.delete(clusters, f"select id from clusters where step < {step - IDLE_STEPS_MAX}")
    return [{"step": step, "cluster": one, "gained": gained[one]} for one in sorted(gained)]


@hg.procedure(grown, output=events, reads=clusters)
def select(batch: Any, tx: Any) -> Any:
    """The event selector: clusters that grew fast."""
    return tx.sql(
        f"""
        select b.step, b.cluster, b.gained, c.words from batch b join clusters c on c.id = b.cluster
        where b.gained >= {GROWTH_MIN} order by b.cluster
        """
    )


flow = hg.Dataflow("detection", [register, count_words, find_bursts, compare, merge, select])
TABLES = [tweets, words, clusters]


# --- how alike texts are ----------------------------------------------------------------------


def weights(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in text.split():
        found[word] = found.get(word, 0) + 1
    return found


def cosine(one: dict[str, int], other: dict[str, int]) -> float:
    both = sum(count * other.get(word, 0) for word, count in one.items())
    lengths = [math.sqrt(sum(n * n for n in found.values())) for found in (one, other)]
    return both / (lengths[0] * lengths[1]) if both else 0.0


def shortened(text: str) -> str:
    """The words that a cluster is known by: its forty newest."""
    return " ".join(text.split()[-40:])


# --- the posts, and what must be found in them ------------------------------------------------


def make_events(count: int = STEPS) -> list[dict[str, Any]]:
    """Everyday posts, and while an event lasts, posts that are about it."""
    dice = random.Random(7)
    everyday = [f"word{number}" for number in range(VOCABULARY)]
    found = []
    for step in range(count):
        texts = [" ".join(dice.sample(everyday, 5)) for _ in range(POSTS_A_STEP)]
        for begin, steps, topic in PLANTED.values():
            if begin <= step < begin + steps:
                texts += [
                    " ".join([*dice.sample(topic, 3), dice.choice(everyday)])
                    for _ in range(POSTS_OF_EVENT)
                ]
        dice.shuffle(texts)
        for place, text in enumerate(texts):
            ts = FIRST + step * STEP + STEP * place / len(texts)
            found.append({"ts": ts, "id": 1000 * step + place, "words": text})
    return found


def judge(found: list[tuple[int, int, int, str]], count: int) -> tuple[list[str], list[str]]:
    """The planted events that were found in their first step or the one behind it, by their own
    words; and what was found that nobody planted."""
    first = int(FIRST.timestamp()) // STEP.seconds
    right, wrong = {}, []
    for step, cluster, _, text in found:
        topics = [
            name
            for name, (begin, steps, topic) in PLANTED.items()
            if begin <= step - first < begin + steps + 1 and set(topic) <= set(text.split())
        ]
        if topics:
            right.setdefault(topics[0], step - first)
        else:
            wrong.append(f"cluster {cluster} at step {step - first}: {text}")
    in_time = [name for name, step in right.items() if step <= PLANTED[name][0] + 1]
    return in_time, wrong


FOUND = """
    select step, cluster, gained, words from results
    where transaction = 'events' order by step, cluster
"""


def report(found: list[tuple[int, int, int, str]], count: int, picture: Path | None) -> bool:
    """Print, and draw, what was planted and what was detected; whether it is the same."""
    in_time, wrong = judge(found, count)
    planted = [name for name, (begin, _, _) in PLANTED.items() if begin + 1 < count]
    print(f"planted: {', '.join(planted)}; detected in time: {', '.join(in_time)}")
    print(f"{len(wrong)} detected that nobody planted")
    if picture is not None:
        first = int(FIRST.timestamp()) // STEP.seconds
        gained = [0.0] * count
        for step, _, number, _ in found:
            gained[step - first] += number
        wanted = [0.0] * count
        for begin, steps, _ in PLANTED.values():
            for step in range(begin, min(begin + steps, count)):
                wanted[step] += POSTS_OF_EVENT
        series = {"planted": wanted, "detected": gained}
        case_study.draw(picture, "Posts about events", f"steps of {STEP.seconds} s", series)
        print(f"drawn in {picture}")
    return in_time == planted and not wrong


# --- the two ways to run it -------------------------------------------------------------------


def open_social(path: str | None) -> hg.Engine:
    return hg.open(path, tables=TABLES, dataflows=[flow])


def in_memory(count: int = STEPS) -> bool:
    with open_social(None) as engine:
        engine.push(posts, make_events(count))
        engine.flush(posts)
        return report(engine.sql(FOUND).rows(), count, None)


def on_spark(spark: Any, folder: Path, count: int = STEPS) -> bool:
    if not (folder / "events").exists():
        case_study.write_files(folder / "events", make_events(count), late=0.0)
    with open_social(str(folder / "social")) as engine:
        columns = "ts timestamp, id bigint, words string"
        case_study.feed(spark, folder, columns, [], engine.sink(posts))
        return report(engine.sql(FOUND).rows(), count, folder / "detection.svg")


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
