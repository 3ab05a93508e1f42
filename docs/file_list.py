"""The file list of ARCHITECTURE.md, written from the first sentence of each module's docstring.

usage: file_list.py            writes the list between its two markers; `./run format` does it, too

Invariant: what stands between the markers is what this makes of the package, and nothing else; what
is outside them is never touched. `tests/docs/test_architecture.py` keeps the list current.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headgate"
DOCUMENT = ROOT / "ARCHITECTURE.md"
STYLE = ROOT / "tests" / "unit" / "test_style.py"

BEGIN = "<!-- files: begin (written by docs/file_list.py from the docstrings) -->"
END = "<!-- files: end -->"


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring on one line, fit for a table.

    A number such as 6.1.1 or a name such as web/worker.py does not end it: only a full stop before
    a blank does.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    words = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", words)[0].removesuffix(".").replace("|", "\\|")


def layers(style: Path) -> list[str]:
    """The rooms from the top down, as the style test holds imports to them."""
    for node in ast.parse(style.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            return list(ast.literal_eval(node.value))
    return []


def rooms(package: Path, order: list[str]) -> list[Path]:
    """The folders of the package in the order of the layers; what is in none of them comes last."""
    found = [folder.parent for folder in package.glob("*/__init__.py")]

    def turn(folder: Path) -> tuple[int, str]:
        known = folder.name in order
        return (order.index(folder.name) if known else len(order), folder.name)

    return sorted(found, key=turn)


def line(path: Path, package: Path) -> str:
    """One line of a table: a file, or a folder that its `__init__` speaks for."""
    name = path.relative_to(package).as_posix()
    if "/" in name:
        name = name.removesuffix("__init__.py")
    return f"| `{name}` | {first_sentence(path)} |"


def table(paths: list[Path], package: Path) -> list[str]:
    """A table headed by the `__init__` of its folder."""
    head, *rest = (line(path, package) for path in paths)
    return ["", head, "|---|---|", *rest]


def file_list(package: Path = PACKAGE, style: Path = STYLE) -> str:
    """The whole list: the loose modules first, then a table for each room."""
    lines = table(sorted(package.glob("*.py")), package)
    for room in rooms(package, layers(style)):
        modules = sorted(set(room.rglob("*.py")) - {room / "__init__.py"})
        lines += table([room / "__init__.py", *modules], package)
    return "\n".join(lines[1:]) + "\n"


def with_list(text: str, listing: str) -> str:
    """The document with this list between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{DOCUMENT.name} lacks its markers: {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{listing}\n{END}{after}"


def main() -> None:
    text = DOCUMENT.read_text()
    written = with_list(text, file_list())
    if written != text:
        DOCUMENT.write_text(written)
        print(f"{DOCUMENT.name}: the file list is written anew")


if __name__ == "__main__":
    main()
