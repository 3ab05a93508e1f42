"""The site: it is built, every public name is on it with its docstring, and no link is broken."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import headgate
import headgate.testing
from docs.website import AFTER, MODULES, PAGES, build


class Page(HTMLParser):
    """The links of a page and the places in it that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "href" and tag == "a" and value is not None:
                self.links.append(value)
            if name == "id" and value is not None:
                self.places.add(value)


def broken(pages: dict[Path, Page]) -> list[str]:
    found = []
    for path, page in pages.items():
        for link in page.links:
            name, _, place = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if "://" in link or (target in pages and (not place or place in pages[target].places)):
                continue
            if not (target.is_file() and not place):
                found.append(f"{path.name}: {link}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    written = build(tmp_path_factory.mktemp("site"))
    return {path: Page(path.read_text()) for path in written}


def named(site: dict[Path, Page], name: str) -> Page:
    return next(page for path, page in site.items() if path.name == name)


def test_every_document_and_module_has_its_page(site: dict[Path, Page]) -> None:
    names = {"index", "given", *PAGES, *(name.lower() for name in AFTER)}
    names |= {name.rpartition(".")[2] for name in MODULES}
    assert {path.stem for path in site} == names


def test_no_link_is_broken(site: dict[Path, Page]) -> None:
    assert broken(site) == []


def test_every_public_name_is_on_its_page(site: dict[Path, Page]) -> None:
    assert set(headgate.__all__) - named(site, "headgate.html").places == set()
    page = next(
        page for path, page in site.items() if path.parts[-2:] == ("headgate", "testing.html")
    )
    assert set(headgate.testing.__all__) - page.places == set()


def test_a_signature_and_a_docstring_are_shown(site: dict[Path, Page]) -> None:
    text = next(path for path in site if path.name == "headgate.html").read_text()
    shown = re.sub(r"<[^>]+>", "", text)
    assert "Remove a row; it counts as missing" in shown
    assert "order_by" in shown and "watermark" in shown


def test_a_broken_link_would_be_noticed(tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    for link in ("#gone", "gone.html", "one.html#gone"):
        assert broken({path: Page(f'<h1 id="here"></h1><a href="{link}">x</a>')})
    assert not broken({path: Page('<h1 id="here"></h1><a href="one.html#here">x</a>')})
