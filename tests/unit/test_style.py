"""The house style as a test: layering, lengths, names, and nothing of one machine in the repo.

Every rule is a plain function from a file to the complaints about it, and every rule has a canary:
a seeded offence that it must report. A rule that cannot fail would prove nothing.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/headgate"

# From the top down, as in ARCHITECTURE.md: a module imports its own layer and those after it.
LAYERS = (
    "cli",
    "web",
    "lab",
    "spark",
    "shards",
    "dataflow",
    "engine",
    "transactions",
    "isolation",
    "parallel",
    "execution",
    "kernels",
    "compiling",
    "query",
    "state",
    "durability",
    "io",
)
# Beside the layers: `errors` is open to all and imports nothing of ours; `testing` looks at the
# layers below spark, and no layer may lean on it.
PUBLIC = "headgate"
ERRORS = "errors"
TESTING = "testing"
TESTING_SEES_FROM = LAYERS.index("dataflow")

# The ways up: `engine.sink` hands out the face that Spark calls, `hg.open` runs dataflows, and
# batches in tasks.
DOORS = {
    ("engine", "headgate.spark.sink"),
    ("engine", "headgate.spark.cluster"),
    ("engine", "headgate.shards.resharding"),
    *(
        ("engine", f"headgate.dataflow.{one}")
        for one in ("declared", "handles", "nodes", "streams")
    ),
    ("dataflow", "headgate.spark.sink"),
}
# Studies are for the command line, and for bench/ beside the package: nothing that runs needs them.
LABORATORY_FOR = "cli"
# Above Spark, but usable at once and with no Java: these reach for it only when asked.
LAZY_ABOVE_SPARK = {PUBLIC, "cli", "web"}

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
VAGUE_WORDS = {"util", "utils", "helper", "helpers", "manager", "managers", "misc"}

MACHINE_PATH = re.compile(
    r"(?<![\w.~$}-])/(?:root|work|home/\w[\w.-]*|Users/\w[\w.-]*)/\w|[A-Z]:\\Users\\"
)
# Written with classes of one character, so that the pattern does not report itself.
PACKAGE_INDEX = re.compile(
    r"\bpypi[.]|hosted[.]org|[.]pkg[.]dev\b|index[-]url|https?:[/]/(?:deb|repo1?|registry)[.]|"
    r"https?:[/]/\S+(?:/simple\b|[.](?:whl|tar[.]gz|deb|jar)\b)"
)

Rule = Callable[[PurePosixPath, str], Iterator[str]]


# ---------------------------------------------------------------- imports and layers


@dataclass(frozen=True)
class Import:
    """One imported name, dotted in full; lazy when it only happens inside a function."""

    target: str
    line: int
    lazy: bool


def module_name(path: PurePosixPath) -> str:
    parts = path.relative_to("src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else PUBLIC


CHECKED_ONLY = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in CHECKED_ONLY


def import_targets(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parents = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parents, base] if base else parents)
    yield from (f"{base}.{alias.name}" for alias in node.names)


def imports(path: PurePosixPath, source: str) -> Iterator[Import]:
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in import_targets(node, package):
                yield Import(target, node.lineno, lazy)
        in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy or in_function or is_type_checking(node))

    yield from visit(ast.parse(source), False)


def target_layer(target: str) -> str:
    """The layer of an imported name; a public name of the package itself belongs to the top."""
    layer = layer_of(target)
    return layer if layer in {*LAYERS, ERRORS, TESTING} else PUBLIC


def may_import(layer: str, found: Import) -> bool:
    target = target_layer(found.target)
    if (layer, ".".join(found.target.split(".")[:3])) in DOORS:
        return found.lazy
    if layer == PUBLIC and found.target.startswith("headgate.spark.session."):
        return True  # it imports no pyspark
    if target == "spark" and layer in LAZY_ABOVE_SPARK:
        return found.lazy
    if target == "lab":
        return layer in (LABORATORY_FOR, "lab")
    if layer == PUBLIC or target in (layer, ERRORS):
        return True
    if target in (PUBLIC, TESTING) or layer == ERRORS:
        return False
    floor = TESTING_SEES_FROM if layer == TESTING else LAYERS.index(layer)
    return LAYERS.index(target) >= floor


def layering(path: PurePosixPath, source: str) -> Iterator[str]:
    layer = layer_of(module_name(path))
    if layer not in {*LAYERS, PUBLIC, ERRORS, TESTING}:
        yield f"{path}:1: {layer} is no layer; put it into one or name it in LAYERS"
        return
    for found in imports(path, source):
        if found.target.split(".")[0] == "headgate" and not may_import(layer, found):
            yield f"{path}:{found.line}: {layer} may not import {found.target} here"


def pyspark_only_in_spark(path: PurePosixPath, source: str) -> Iterator[str]:
    if layer_of(module_name(path)) == "spark":
        return
    for found in imports(path, source):
        if found.target.split(".")[0] in ("pyspark", "py4j"):
            yield f"{path}:{found.line}: only src/headgate/spark imports {found.target}"


# ---------------------------------------------------------------- lengths, names, statements


def lengths(path: PurePosixPath, source: str) -> Iterator[str]:
    lines = source.splitlines()
    if len(lines) > FILE_LINES_MAX:
        yield f"{path}:1: {len(lines)} lines in a file, at most {FILE_LINES_MAX}"
    for number, line in enumerate(lines, start=1):
        if len(line) > COLUMNS_MAX:
            yield f"{path}:{number}: {len(line)} columns, at most {COLUMNS_MAX}"


def function_lengths(path: PurePosixPath, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINES_MAX:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {count} lines, "
                    f"at most {FUNCTION_LINES_MAX}"
                )


def no_bare_assert(path: PurePosixPath, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            yield f"{path}:{node.lineno}: a bare assert; use errors.check_invariant"


def module_docstring(path: PurePosixPath, source: str) -> Iterator[str]:
    if source.strip() and not ast.get_docstring(ast.parse(source)):
        yield f"{path}:1: no module docstring: what is it for, which invariant does it keep"


def vague(name: str) -> bool:
    return not VAGUE_WORDS.isdisjoint(
        word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    )


def defined_once(path: PurePosixPath, source: str) -> Iterator[str]:
    """A second definition quietly takes the place of the first, also for what stands above it."""
    seen: set[str] = set()
    for node in ast.parse(source).body:
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = (one for target in targets for one in ast.walk(target))
            names = [
                one.id
                for one in found
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            ]
        for name in names:
            if name in seen and name != "_":
                yield f"{path}:{node.lineno}: {name} is defined a second time"
            seen.add(name)


def whole_names(path: PurePosixPath, source: str) -> Iterator[str]:
    for part in path.with_suffix("").parts:
        if vague(part):
            yield f"{path}:1: '{part}' says nothing; name the thing"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and vague(
            node.name
        ):
            yield f"{path}:{node.lineno}: '{node.name}' says nothing; name the thing"


def is_public_name_statement(node: ast.stmt) -> bool:
    """An import, `__all__`, `__version__`, or the `__getattr__` that imports Spark's part late."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Assign):
        names = [ast.unparse(name) for name in node.targets]
        return all(name in ("__all__", "__version__", "_HOMES", "_MODULES") for name in names)
    if isinstance(node, ast.Expr):  # workers take our interpreter from the moment of the import
        return ast.unparse(node) == "_choose_worker_interpreter()"
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__getattr__", "__dir__")
    if isinstance(node, ast.If) and ast.unparse(node.test) == "not TYPE_CHECKING":
        return all(is_public_name_statement(child) for child in node.body)
    return is_type_checking(node) and all(
        isinstance(child, ast.Import | ast.ImportFrom) for child in getattr(node, "body", ())
    )


def only_public_names(path: PurePosixPath, source: str) -> Iterator[str]:
    tree = ast.parse(source)
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    for node in body:
        if not is_public_name_statement(node):
            yield f"{path}:{node.lineno}: more than imports and __all__ in the public names"


# ---------------------------------------------------------------- one machine's traces


def no_machine_path(path: PurePosixPath, text: str) -> Iterator[str]:
    here = str(ROOT) if len(ROOT.parts) > 2 else None
    for number, line in enumerate(text.splitlines(), start=1):
        if MACHINE_PATH.search(line) or (here and here in line):
            yield f"{path}:{number}: a path of one machine: {line.strip()}"


def no_package_index(path: PurePosixPath, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if PACKAGE_INDEX.search(line):
            yield f"{path}:{number}: an address to download from: {line.strip()}"


# ---------------------------------------------------------------- the files of the repo


def tracked() -> Iterator[PurePosixPath]:
    """Every file that git has or would take; in a tree without git, every file but the ignored."""
    if (ROOT / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        names = [name for name in listing.stdout.decode().split("\0") if name]
        yield from (PurePosixPath(name) for name in names if (ROOT / name).is_file())
        return
    left_out = {".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in left_out | {".hypothesis"}]
        yield from (PurePosixPath(Path(folder, name).relative_to(ROOT)) for name in names)


def read(path: PurePosixPath) -> str | None:
    data = (ROOT / path).read_bytes()
    return None if b"\0" in data else data.decode(errors="replace")


def complaints(rule: Rule, wanted: Callable[[PurePosixPath], bool]) -> list[str]:
    found: list[str] = []
    for path in sorted(tracked()):
        text = read(path) if wanted(path) else None
        if text is not None:
            found += rule(path, text)
    return found


def is_python(path: PurePosixPath) -> bool:
    return path.suffix == ".py"


def is_source(path: PurePosixPath) -> bool:
    return is_python(path) and path.is_relative_to(PACKAGE)


def is_code(path: PurePosixPath) -> bool:
    return is_python(path) or path.name == "run"


def is_public_face(path: PurePosixPath) -> bool:
    return path == PurePosixPath(PACKAGE, "__init__.py")


def is_any(path: PurePosixPath) -> bool:
    return True


RULES: list[tuple[Rule, Callable[[PurePosixPath], bool]]] = [
    (layering, is_source),
    (pyspark_only_in_spark, is_source),
    (lengths, is_code),
    (function_lengths, is_python),
    (no_bare_assert, is_source),
    (module_docstring, is_python),
    (defined_once, is_source),
    (whole_names, is_python),
    (only_public_names, is_public_face),
    (no_machine_path, is_any),
    (no_package_index, is_any),
]


@pytest.mark.parametrize(("rule", "wanted"), RULES, ids=lambda value: value.__name__)
def test_the_repo_keeps_the_rule(rule: Rule, wanted: Callable[[PurePosixPath], bool]) -> None:
    found = complaints(rule, wanted)
    assert not found, "\n" + "\n".join(found)


def test_the_rules_see_the_files_they_judge() -> None:
    paths = set(tracked())
    assert PurePosixPath("run") in paths
    assert PurePosixPath(PACKAGE, "__init__.py") in paths
    assert PurePosixPath("tests/unit/test_style.py") in paths
    assert not [path for path in paths if ".venv" in path.parts]


# ---------------------------------------------------------------- the public names


def test_all_names_every_public_name_and_nothing_else() -> None:
    package = importlib.import_module("headgate")
    unknown = [name for name in package.__all__ if not hasattr(package, name)]
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    public -= {"annotations", "TYPE_CHECKING"}
    assert not unknown
    assert public <= set(package.__all__)


def test_importing_headgate_does_not_import_pyspark() -> None:
    program = "import sys, headgate; print(sorted({'pyspark', 'py4j'} & set(sys.modules)))"
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (finished.stdout.strip(), finished.stderr) == ("[]", "")


# ---------------------------------------------------------------- canaries

LONG_FUNCTION = "def walk():\n" + "    step = 1\n" * FUNCTION_LINES_MAX
CANARIES: list[tuple[Rule, str, str]] = [
    (layering, "state/table.py", "from headgate.engine.engine import open_engine"),
    (layering, "state/table.py", "def f():\n    from headgate.engine.engine import open_engine"),
    (layering, "state/table.py", "from ..engine import open"),
    (layering, "state/__init__.py", "from ..query import sql"),
    (layering, "state/table.py", "import headgate.query.sql"),
    (layering, "state/table.py", "from headgate import query"),
    (layering, "state/table.py", "import headgate as hg"),
    (layering, "state/table.py", "from headgate.testing import disk"),
    (layering, "errors.py", "from headgate.io import files"),
    (layering, "testing/oracle.py", "from headgate.spark import sink"),
    (layering, "engine.py", "from headgate.spark.sink import Sink"),
    (layering, "engine.py", "def f():\n    from headgate.spark.reader import Source"),
    (layering, "transaction.py", "def f():\n    from headgate.spark.sink import Sink"),
    (layering, "__init__.py", "from headgate.spark.register import register"),
    (layering, "cli/demo.py", "from headgate.spark import sink"),
    (layering, "extras/thing.py", "x = 1"),
    (layering, "web/server.py", "from headgate.lab.simulation import simulate"),
    (layering, "engine/engine.py", "from headgate.lab.simulation import simulate"),
    (pyspark_only_in_spark, "engine.py", "def f():\n    from pyspark.sql import DataFrame"),
    (pyspark_only_in_spark, "cli/demo.py", "import pyspark"),
    (lengths, "state/table.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    (lengths, "state/table.py", "x" * (COLUMNS_MAX + 1)),
    (function_lengths, "state/table.py", LONG_FUNCTION),
    (no_bare_assert, "state/table.py", "assert True"),
    (module_docstring, "state/table.py", "x = 1"),
    (defined_once, "state/table.py", "LOG = 1\ndef f(): ...\nLOG = 2"),
    (defined_once, "state/table.py", "def f(): ...\ndef f(): ..."),
    (whole_names, "state/utils.py", ""),
    (whole_names, "state/table_helpers.py", ""),
    (whole_names, "state/table.py", "class TableManager: ..."),
    (whole_names, "state/table.py", "def misc(): ..."),
    (only_public_names, "__init__.py", "def open(): ..."),
    (only_public_names, "__init__.py", "limit = 3"),
    (no_machine_path, "state/table.py", "see /" + "root/notes.txt"),
    (no_machine_path, "state/table.py", "open('/" + "home/ada/x')"),
    (no_machine_path, "state/table.py", str(ROOT / "run")),
    (no_package_index, "state/table.py", "https://py" + "pi.org/project"),
    (no_package_index, "state/table.py", "https:/" + "/mirror.example.org/x-1.0.whl"),
    (no_package_index, "state/table.py", "pip install --extra-index" + "-url x"),
]
CLEAN: list[tuple[Rule, str, str]] = [
    (layering, "state/table.py", "from headgate.io import files\nfrom .index import Index"),
    (layering, "state/table.py", "from headgate.errors import InputError"),
    (layering, "state/table.py", "from headgate import errors, io"),
    (layering, "engine.py", "def f():\n    from headgate.spark.sink import Sink"),
    (layering, "engine.py", "if TYPE_CHECKING:\n    from headgate.spark.sink import Sink"),
    (layering, "__init__.py", "def __getattr__(n):\n    from headgate.spark import register"),
    (layering, "cli/demo.py", "def f():\n    from headgate.spark import sink"),
    (layering, "testing/disk.py", "from headgate.io import files"),
    (layering, "cli/studies.py", "from headgate.lab.simulation import simulate"),
    (layering, "spark/sink.py", "from headgate.engine.engine import Engine"),
    (pyspark_only_in_spark, "spark/sink.py", "import pyspark"),
    (function_lengths, "state/table.py", LONG_FUNCTION.rpartition("    step")[0]),
    (defined_once, "state/table.py", "LOG = 1\nif LOG:\n    LOG = 2\nLOG.name = 3"),
    (whole_names, "io/files.py", "from contextlib import contextmanager"),
    (only_public_names, "__init__.py", '"""Doc."""\nfrom .errors import X\n__all__ = ["X"]'),
    (no_package_index, "io/files.py", "https://www.apache.org/licenses/ and x.tar.gz"),
    (no_machine_path, "io/files.py", "https://example.org/home/page and /usr/lib/jvm and ~/work/x"),
]


@pytest.mark.parametrize(("rule", "name", "source"), CANARIES)
def test_a_seeded_offence_is_reported(rule: Rule, name: str, source: str) -> None:
    assert list(rule(PurePosixPath(PACKAGE, name), source))


@pytest.mark.parametrize(("rule", "name", "source"), CLEAN)
def test_what_is_allowed_is_not_reported(rule: Rule, name: str, source: str) -> None:
    assert not list(rule(PurePosixPath(PACKAGE, name), source))


def test_every_rule_has_a_canary() -> None:
    assert {rule for rule, _ in RULES} == {rule for rule, _, _ in CANARIES}
