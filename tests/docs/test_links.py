"""Links and names in the documents: every one leads somewhere. No network and no Spark: fast.

Checked are links between documents and to files, their anchors, files named in backquotes, public
names as `hg.name`, and that every page can be reached from the README. Every rule has a canary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from docs.website import PAGES as SITE_PAGES
from tests.docs.blocks import FENCE
from tests.docs.pages import OTHERS, PAGES, ROOT, name_of

DOCUMENTS = [*PAGES, *OTHERS]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`((?:apps|bench|docs|src|tests)/[\w/.-]*\w/?)`")
PUBLIC_NAME = re.compile(r"\bhg\.(\w+)")
WEB = re.compile(r"https://[\w.-]+\.[a-z]{2,}(/\S*)?$")


def prose(text: str) -> str:
    """The text without its blocks; what is left keeps its lines."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it.

    >>> slug("Beside Spark's progress, `x`")
    'beside-sparks-progress-x'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {slug(found) for found in re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)}


def targets(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(prose(text).splitlines(), start=1):
        yield from ((number, found) for found in LINK.findall(line))


def broken_links(document: Path, text: str) -> Iterator[str]:
    for number, target in targets(text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            if not WEB.match(target):
                yield f"{document.name}:{number}: no address: {target}"
            continue
        file = (document.parent / path).resolve() if path else document
        if file != document and not (file.exists() and file.is_relative_to(ROOT)):
            yield f"{document.name}:{number}: no file {target}"
        elif anchor and anchor not in anchors(text if file == document else file.read_text()):
            yield f"{document.name}:{number}: no heading {target}"


def missing_files(document: Path, text: str) -> Iterator[str]:
    for name in NAMED_FILE.findall(prose(text)):
        if not (ROOT / name).exists():
            yield f"{document.name}: no file {name}"


def unknown_names(document: Path, text: str) -> Iterator[str]:
    known = {*headgate.__all__, *headgate._MODULES}
    for name in PUBLIC_NAME.findall(text):
        if name not in known:
            yield f"{document.name}: no public name hg.{name}"


def reachable(start: Path) -> set[Path]:
    """The documents that links lead to from here."""
    found, left = {start}, [start]
    while left:
        document = left.pop()
        for _, target in targets(document.read_text()):
            file = (document.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.exists() and file not in found:
                found.add(file)
                left.append(file)
    return found


RULES = [broken_links, missing_files, unknown_names]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_and_name_leads_somewhere(document: Path) -> None:
    # What has changed is told of its time: a file or a name may be gone since.
    rules = [broken_links] if document.name == "CHANGELOG.md" else RULES
    found = [complaint for rule in rules for complaint in rule(document, document.read_text())]
    assert not found, "\n" + "\n".join(found)


def test_every_page_is_reached_from_the_readme_and_stands_in_the_navigation() -> None:
    assert set(PAGES) - reachable(ROOT / "README.md") == set()
    assert sorted(SITE_PAGES) == sorted(page.stem for page in PAGES[1:])


CANARIES = [
    (broken_links, "see [it](gone.md)"),
    (broken_links, "see [it](README.md#no-such-heading)"),
    (broken_links, "# One\nsee [it](#two)"),
    (broken_links, "see [it](../../elsewhere.md)"),
    (broken_links, "see [it](http://example.org)"),
    (missing_files, "see `src/headgate/gone.py`"),
    (missing_files, "see `tests/gone/`"),
    (unknown_names, "call `hg.opne`"),
]
CLEAN = [
    (broken_links, "# One two\nsee [it](#one-two), [that](README.md#limits), [this](LICENSE)"),
    (broken_links, "```text\n[it](gone.md)\n```\n[web](https://www.apache.org/licenses/)"),
    (missing_files, "see `src/headgate/errors.py` and `apps/`"),
    (unknown_names, "call `hg.open` of `hg.errors`"),
]


@pytest.mark.parametrize(("rule", "text"), CANARIES)
def test_a_broken_link_is_reported(rule, text: str) -> None:  # type: ignore[no-untyped-def]
    assert list(rule(ROOT / "PAGE.md", text))


@pytest.mark.parametrize(("rule", "text"), CLEAN)
def test_a_whole_link_is_not_reported(rule, text: str) -> None:  # type: ignore[no-untyped-def]
    assert not list(rule(ROOT / "PAGE.md", text))


def test_every_rule_has_a_canary() -> None:
    assert {rule for rule, _ in CANARIES} == set(RULES)
