"""The site: the documents and the API reference, built by pdoc from Markdown and docstrings.

usage: website.py [FOLDER]      writes HTML that needs no server and no network (`./run docs`)

Each document becomes a module whose docstring is its text, so that one generator makes one
navigation and one search over all of them. Invariant: a link that holds in the repository holds in
the site (`tests/docs/test_site.py` follows each of them).
"""

from __future__ import annotations

import importlib
import re
import sys
import types
import warnings
from pathlib import Path

import pdoc.doc
import pdoc.render

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_FOLDER = ROOT / "build" / "site"
# In the order of the navigation; every page of docs/ is named.
PAGES = (
    *("spark", "transactions", "dataflow", "engine", "results", "isolation", "schemes"),
    *("store", "serve", "shards"),
    *("operations", "testing", "figures", "words", "index-spaces"),
)
AFTER = ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")
MODULES = ("headgate", "headgate.errors", "headgate.testing")
# What public functions hand out: a user has these in hand, but does not make them.
GIVEN = {
    "headgate.spark.sink": ("Sink",),
    "headgate.spark.progress": ("Listener", "Progress"),
    "headgate.web.client": ("Client",),
    "headgate.parallel.figures": ("Figures",),
    "headgate.parallel.decision": ("Decision",),
}
GIVEN_NAME = "given"
GIVEN_TEXT = (
    "What public functions hand out: `engine.sink`, `hg.listen`, `hg.connect`, `engine.explain`, "
    "`engine.decisions`."
)

LINK = re.compile(r"\]\(([^)\s:#]+)(#[\w-]*)?\)")


def documents() -> dict[str, Path]:
    """The documents by the name of their page; the README is the first one."""
    found = {"index": ROOT / "README.md"}
    found |= {name: ROOT / "docs" / f"{name}.md" for name in PAGES}
    return found | {name.lower(): ROOT / f"{name}.md" for name in AFTER}


def relinked(text: str, document: Path, pages: dict[Path, str]) -> str:
    """The text with links to other documents leading to their pages, and to files as they are."""

    def page_of(found: re.Match[str]) -> str:
        target = (document.parent / found[1]).resolve()
        name = f"{pages[target]}.html" if target in pages else target.relative_to(ROOT).as_posix()
        return f"]({name}{found[2] or ''})"

    fences = re.sub(r"^```(\w+) .*$", r"```\1", text, flags=re.MULTILINE)  # "sh run" is for tests
    return LINK.sub(page_of, fences)


def linked_files(texts: dict[str, str]) -> set[str]:
    """The files of the repository that the documents link to, beside each other."""
    found = {name for text in texts.values() for name, _ in LINK.findall(text)}
    return {name for name in found if not name.endswith(".html") and (ROOT / name).is_file()}


def title_of(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")


def module_of(name: str, text: str, members: dict[str, object] | None = None) -> pdoc.doc.Module:
    """A module that is not imported: a text, and the names it has."""
    module = types.ModuleType(name)
    module.__doc__ = text
    vars(module).update(members or {}, __all__=list(members or {}))
    return pdoc.doc.Module(module)


def public_module(name: str) -> pdoc.doc.Module:
    """A module of the package; names that are imported when first used are fetched before."""
    module = importlib.import_module(name)
    for member in getattr(module, "__all__", ()):
        vars(module)[member] = getattr(module, member)
    return pdoc.doc.Module(module)


def given_module() -> pdoc.doc.Module:
    members = {
        name: getattr(importlib.import_module(home), name)
        for home, names in GIVEN.items()
        for name in names
    }
    return module_of(GIVEN_NAME, GIVEN_TEXT, members)


def build(folder: Path) -> list[Path]:
    """Write the site and return its pages."""
    # A class with a method called `list` has fields of that type, too; pdoc shows them as they are.
    warnings.filterwarnings("ignore", "Error parsing type annotation")
    sources = documents()
    pages = {path: name for name, path in sources.items()}
    texts = {name: relinked(path.read_text(), path, pages) for name, path in sources.items()}
    modules = {name: module_of(name, text) for name, text in texts.items()}
    titles = {name: title_of(text) for name, text in texts.items()}
    modules |= {name: public_module(name) for name in MODULES} | {GIVEN_NAME: given_module()}
    titles |= {name: f"API: {name}" for name in MODULES} | {GIVEN_NAME: "API: what is handed out"}

    template = ROOT / "docs" / "template"
    pdoc.render.configure(
        docformat="markdown",
        show_source=False,
        template_directory=template,
    )
    pdoc.render.env.globals.update(titles=titles, documents=set(texts))
    written = []
    for name, module in modules.items():
        path = folder / f"{name.replace('.', '/')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pdoc.render.html_module(module, modules))
        written.append(path)
    (folder / "search.js").write_text(pdoc.render.search_index(modules))
    for name in linked_files(texts):
        copied = folder / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes((ROOT / name).read_bytes())
    return written


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    written = build(folder)
    print(f"{len(written)} pages, begin with {folder / 'index.html'}")


if __name__ == "__main__":
    main()
