"""The house style over the whole package: what no file can tell by itself.

Names that nothing uses, two classes of one name, imports that are late for no reason, and the pages
on words and index spaces, which say what the code says. As in `test_style.py`, every rule is a
plain function to the complaints about the files, and has a canary: a seeded offence that it must
report.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import PurePosixPath

import pytest

from tests.unit.test_style import (
    PACKAGE,
    PUBLIC,
    ROOT,
    Import,
    import_targets,
    is_source,
    is_type_checking,
    layer_of,
    may_import,
    module_name,
    read,
    tracked,
)

SPACES = f"{PACKAGE}/state/spaces.py"
LAYOUT = f"{PACKAGE}/state/layout.py"
WORDS_PAGE = "docs/words.md"
SPACES_PAGE = "docs/index-spaces.md"

# A package that takes long to load, or that need not be installed, and who does without it.
HEAVY = {
    "numba": "who only reads a store compiles nothing",
    "duckdb": "who only asks for help or the version runs no query",
    "pyspark": "everything but the sink and the source works with no Spark",
    "starlette": "of the extra [serve]",
    "uvicorn": "of the extra [serve]",
    "httpx": "of the extra [serve]",
    "prompt_toolkit": "of the extra [shell]",
    "pymetis": "of the extra [design]",
    "typer": "a user's program imports the package, not its command line",
}
# Doors whose whole purpose is to load what is behind them when it is asked for.
LATE_ON_PURPOSE = {
    f"{PACKAGE}/__init__.py": "the public names are loaded when they are first used",
    f"{PACKAGE}/cli/__init__.py": "the command line is loaded when it is run",
}
# Methods that are called from outside, by their names.
CALLED_BY_OTHERS = {
    "run_pass": "Numba",
    "define_pipelines": "Numba",
    "can_convert_from": "Numba",
    "generic_resolve": "Numba",
    "_load_overload": "Numba",
    "_optimize_functions": "Numba",
    "_save_overload": "Numba",
    "onQueryStarted": "Spark",
    "onQueryProgress": "Spark",
    "onQueryIdle": "Spark",
    "onQueryTerminated": "Spark",
    "initialOffset": "Spark",
    "getDefaultReadLimit": "Spark",
    "streamReader": "Spark",
    "data_received": "asyncio",
    "_repr_html_": "notebooks",
}
# What a decorator of these hands on is used by whom it is handed to.
HANDED_ON = {
    "overload", "overload_method", "lower_builtin", "lower_cast", "lower_getattr_generic",
    "infer", "infer_getattr", "register_model", "register", "command", "callback",
}  # fmt: skip
# Numbers that are counted through: one of them may be named in no other place.
ENUMERATIONS = {f"{PACKAGE}/kernels/ticks.py", f"{PACKAGE}/kernels/versions.py"}
# Classes that share their name on purpose.
TWINS = {
    "Int64": "messages of the oracle and of the engine name the type alike, and share no code",
}

Files = Mapping[PurePosixPath, str]
Rule = Callable[[Files], Iterator[str]]


# ---------------------------------------------------------------- imports inside functions


def imports_of(path: PurePosixPath, source: str) -> Iterator[tuple[str, int, bool]]:
    """What a file imports: the dotted name, the line, and whether it is inside a function."""
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[str, int, bool]]:
        if is_type_checking(node):
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in import_targets(node, package):
                yield target, node.lineno, inside
        inside |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), False)


class Loading:
    """What is loaded with each module of the package: other modules, and packages of others."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @cached_property
    def modules(self) -> dict[str, PurePosixPath]:
        return {module_name(path): path for path in self._files if is_source(path)}

    @cached_property
    def _at_once(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for module, path in self.modules.items():
            at_once = (one for one, _, late in imports_of(path, self._files[path]) if not late)
            found[module] = {one for target in at_once for one in self.met(target)}
        return found

    def met(self, target: str) -> Iterator[str]:
        """The modules that are loaded to reach an imported name, or the package of others."""
        parts = target.split(".")
        if parts[0] != "headgate":
            yield parts[0]
            return
        for length in range(2, len(parts) + 1):
            if ".".join(parts[:length]) in self.modules:
                yield ".".join(parts[:length])

    def loaded_with(self, names: set[str]) -> set[str]:
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += self._at_once.get(one, ())
        return found


def must_be_late(module: str, target: str) -> bool:
    """Whether the order of the layers lets it in only when it is asked for."""
    layer = layer_of(module)
    ours = target.startswith("headgate.")
    return ours and layer != PUBLIC and not may_import(layer, Import(target, 0, lazy=False))


def late_imports(files: Files) -> Iterator[str]:
    """An import inside a function breaks a cycle, or spares a heavy package; else it is above."""
    loading = Loading(files)
    for module, path in loading.modules.items():
        if str(path) in LATE_ON_PURPOSE:
            continue
        at_once = loading.loaded_with({module})
        for target, line, late in imports_of(path, files[path]):
            if not late:
                continue
            behind = loading.loaded_with(set(loading.met(target)))
            spares = (behind - at_once) & set(HEAVY)
            if module not in behind and not spares and not must_be_late(module, target):
                yield f"{path}:{line}: {target} breaks no cycle and spares nothing; import it above"


# ---------------------------------------------------------------- names that nothing uses


def docstrings(tree: ast.AST) -> set[int]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = (node.body[0] for node in ast.walk(tree) if isinstance(node, holders) and node.body)
    return {id(node.value) for node in first if isinstance(node, ast.Expr)}


def names_used(source: str) -> set[str]:
    """Every name that code reads, calls or gives, and every word in its texts but docstrings."""
    tree = ast.parse(source)
    described = docstrings(tree)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and id(node) not in described:
            found.update(re.findall(r"[A-Za-z_]\w*", str(node.value)))
    return found


def is_handed_on(node: ast.AST) -> bool:
    for decorator in getattr(node, "decorator_list", ()):
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(function).rpartition(".")[2] in HANDED_ON:
            return True
    return False


def names_defined(source: str) -> Iterator[tuple[str, int]]:
    """The functions, classes and constants of a module, and the methods of its classes."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not is_handed_on(node):
                yield node.name, node.lineno
            if isinstance(node, ast.ClassDef):
                methods = (ast.FunctionDef, ast.AsyncFunctionDef)
                yield from ((m.name, m.lineno) for m in node.body if isinstance(m, methods))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names = (one for one in ast.walk(target) if isinstance(one, ast.Name))
                yield from ((one.id, node.lineno) for one in names)


def dead_names(files: Files) -> Iterator[str]:
    """What is defined in the package is used somewhere; what is private, in its own file."""
    used_in = {path: names_used(text) for path, text in files.items() if path.suffix == ".py"}
    everywhere: set[str] = set().union(*used_in.values())
    for path, text in files.items():
        if path.suffix == ".md":
            everywhere.update(re.findall(r"[A-Za-z_]\w*", text))
    for path, text in files.items():
        if not is_source(path) or str(path) in {SPACES, *ENUMERATIONS}:
            continue  # the spaces have a rule of their own
        for name, line in names_defined(text):
            if name.startswith("__") or name in CALLED_BY_OTHERS:
                continue
            if name not in (used_in[path] if name.startswith("_") else everywhere):
                yield f"{path}:{line}: nothing uses {name}"


# ---------------------------------------------------------------- one class for a name


def twin_classes(files: Files) -> Iterator[str]:
    """No two classes of the package share a name: a word has one meaning."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path, text in files.items():
        if is_source(path):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    homes[node.name].append(f"{path}:{node.lineno}")
    for name, places in sorted(homes.items()):
        if len(places) > 1 and name not in TWINS:
            yield f"{places[0]}: another class is called {name}, too: {', '.join(places[1:])}"


def twin_modules(files: Files) -> Iterator[str]:
    """No two modules of the package share a name, in any rooms: a name leads to one file."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in files:
        if is_source(path) and not path.name.startswith("__"):
            homes[path.stem].append(str(path))
    for name, places in sorted(homes.items()):
        if len(places) > 1:
            yield f"{places[0]}: another module is called {name}, too: {', '.join(places[1:])}"


# ---------------------------------------------------------------- the pages on words and spaces


def table_under(text: str, heading: str) -> list[list[str]]:
    """The cells of each line of the table under a heading, without its head."""
    section = re.split(rf"^#+ {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def aliases(source: str) -> list[str]:
    """The index spaces that have a type, each as one word or two."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node).endswith("= Int64s"):
            words = re.findall(
                r"[A-Z][a-z]+", ast.unparse(node.target).replace("Strata", "Stratum")
            )
            if words[-1] == "Numbers" and words != ["Row", "Numbers"]:
                words = words[:-1]
            found.append(" ".join(words).lower().removesuffix("s"))
    return found


def spaces_are_described(files: Files) -> Iterator[str]:
    """Each index space of the page has its type, and the other way round."""
    typed = set(aliases(files[PurePosixPath(SPACES)]))
    told = {cells[0] for cells in table_under(files[PurePosixPath(SPACES_PAGE)], "The spaces")}
    yield from (f"{SPACES_PAGE}:1: {name} is not among the spaces" for name in sorted(typed - told))
    yield from (f"{SPACES}:1: no type for the space {name}" for name in sorted(told - typed))


def header_bits_are_described(files: Files) -> Iterator[str]:
    """Each named bit of a row's header stands in the page at its place, and no other does."""
    named: dict[str, int] = {}
    for node in ast.parse(files[PurePosixPath(LAYOUT)]).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, is_shift = re.subn(r"_SHIFT$", "", node.targets[0].id)
            if name.startswith("HEADER_"):
                value = ast.literal_eval(node.value)
                bit = value if is_shift else value.bit_length() - 1
                named[name.removeprefix("HEADER_").lower()] = bit
    page = table_under(files[PurePosixPath(SPACES_PAGE)], "The header bits")
    told = {cells[1]: int(cells[0].partition("-")[0]) for cells in page if cells[1]}
    for name in sorted(named.keys() | told.keys()):
        if named.get(name) != told.get(name):
            yield f"{SPACES_PAGE}:1: the bit {name} is {told.get(name)}, in code {named.get(name)}"


def one_line_for_a_word(files: Files) -> Iterator[str]:
    """No word is explained twice."""
    words = re.findall(r"^\| `([^`]+)` \|", files[PurePosixPath(WORDS_PAGE)], re.MULTILINE)
    for word, count in Counter(words).items():
        if count > 1:
            yield f"{WORDS_PAGE}:1: {word} has {count} lines"


# ---------------------------------------------------------------- the files, and the canaries

RULES: list[Rule] = [
    late_imports,
    dead_names,
    twin_classes,
    twin_modules,
    spaces_are_described,
    header_bits_are_described,
    one_line_for_a_word,
]


@pytest.fixture(scope="module")
def files() -> dict[PurePosixPath, str]:
    found = {path: read(path) for path in sorted(tracked()) if path.suffix in (".py", ".md")}
    return {path: text for path, text in found.items() if text is not None}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule, files: Files) -> None:
    found = list(rule(files))
    assert not found, "\n" + "\n".join(found)


def test_every_exemption_is_still_needed(files: Files) -> None:
    defined = {
        name for path, text in files.items() if is_source(path) for name, _ in names_defined(text)
    }
    assert sorted(CALLED_BY_OTHERS.keys() - defined) == []
    assert [name for name in (*LATE_ON_PURPOSE, *ENUMERATIONS) if not (ROOT / name).exists()] == []
    classes = Counter(
        node.name
        for path, text in files.items()
        if is_source(path)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name in TWINS if classes[name] < 2] == []


PAGE = "## The spaces\n\n| space |\n|---|\n| `slot` |\n\n## The header bits\n\n| bits |\n|---|\n"
CANARIES: list[tuple[Rule, dict[str, str]]] = [
    (late_imports, {"state/a.py": "def f():\n    from headgate.state import b", "state/b.py": ""}),
    (late_imports, {"state/a.py": "def f():\n    import json"}),
    (late_imports, {"state/a.py": "import numba\ndef f():\n    from numba.core import types"}),
    (
        late_imports,
        {
            "cli/a.py": "import headgate.state.b\ndef f():\n    import headgate.state.c",
            "state/b.py": "import numba",
            "state/c.py": "import numba",
        },
    ),
    (dead_names, {"state/a.py": "def forgotten(): ..."}),
    (dead_names, {"state/a.py": "LIMIT = 3"}),
    (dead_names, {"state/a.py": "class A:\n    def b(self): ...\nA"}),
    (dead_names, {"state/a.py": '"""forgotten"""\nclass forgotten: ...'}),
    (dead_names, {"state/a.py": "def _own(): ...", "state/b.py": "_own"}),
    (twin_classes, {"state/a.py": "class Row: ...", "query/b.py": "class Row: ..."}),
    (twin_modules, {"state/rows.py": "", "query/rows.py": ""}),
    (twin_classes, {"state/a.py": "class _Row: ...", "query/b.py": "class _Row: ..."}),
    (spaces_are_described, {"state/spaces.py": "", SPACES_PAGE: PAGE}),
    (
        spaces_are_described,
        {"state/spaces.py": "Slots: TypeAlias = Int64s\nStrata: X = Int64s", SPACES_PAGE: PAGE},
    ),
    (header_bits_are_described, {"state/layout.py": "HEADER_ALIVE = 1", SPACES_PAGE: PAGE}),
    (
        header_bits_are_described,
        {"state/layout.py": "HEADER_ALIVE = 1", SPACES_PAGE: f"{PAGE}| `1` | alive |"},
    ),
    (one_line_for_a_word, {WORDS_PAGE: "| `row` | one |\n| `row` | two |"}),
]
CLEAN: list[tuple[Rule, dict[str, str]]] = [
    (
        late_imports,
        {
            "state/a.py": "def f():\n    from headgate.state import b",
            "state/b.py": "import headgate.state.a",
        },
    ),
    (late_imports, {"state/a.py": "def f():\n    import numba"}),
    (
        late_imports,
        {"cli/a.py": "def f():\n    from headgate.state.b import c", "state/b.py": "import duckdb"},
    ),
    (late_imports, {"state/a.py": "if TYPE_CHECKING:\n    import json"}),
    (dead_names, {"state/a.py": "def used(): ...", "cli/b.py": "used()"}),
    (dead_names, {"state/a.py": "def used(): ...", "docs/page.md": "call `used`"}),
    (dead_names, {"state/a.py": "@overload(len)\ndef _len(x): ..."}),
    (dead_names, {"state/a.py": "def used(): ...\nTEXT = 'used(x)'\nprint(TEXT)"}),
    (twin_modules, {"state/rows.py": "", "query/__init__.py": "", "state/__init__.py": ""}),
    (twin_classes, {"state/a.py": "class Row: ...", "query/b.py": "class Rows: ..."}),
    (
        spaces_are_described,
        {"state/spaces.py": "Slots: TypeAlias = Int64s", SPACES_PAGE: PAGE},
    ),
    (
        header_bits_are_described,
        {
            "state/layout.py": "HEADER_ALIVE = 1\nHEADER_EPOCH_SHIFT = 8",
            SPACES_PAGE: f"{PAGE}| `0` | alive |\n| `1-7` | |\n| `8-63` | epoch |",
        },
    ),
    (one_line_for_a_word, {WORDS_PAGE: "| `row` | one |\n| `rows` | two |"}),
]


def placed(files: dict[str, str]) -> dict[PurePosixPath, str]:
    return {
        PurePosixPath(name if name.endswith(".md") else f"{PACKAGE}/{name}"): text
        for name, text in files.items()
    }


@pytest.mark.parametrize(("rule", "files"), CANARIES)
def test_a_seeded_offence_is_reported(rule: Rule, files: dict[str, str]) -> None:
    assert list(rule(placed(files)))


@pytest.mark.parametrize(("rule", "files"), CLEAN)
def test_what_is_allowed_is_not_reported(rule: Rule, files: dict[str, str]) -> None:
    assert not list(rule(placed(files)))


def test_every_rule_has_a_canary_and_a_clean_case() -> None:
    assert set(RULES) == {rule for rule, _ in CANARIES} == {rule for rule, _ in CLEAN}
