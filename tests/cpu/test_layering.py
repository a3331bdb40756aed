"""Imports go from higher to lower folders, without cycles inside one; one module imports hip-python."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from cases import each

import hipgemm

PACKAGE = Path(hipgemm.__file__).parent
# Each may import from those before it. Modules of the package itself stand alone.
ORDER = [
    "errors",
    "config",
    "formats",
    "reference",
    "runtime",
    "kernels",
    "array",
    "files",
    "quantize",
    "products",
    "layers",
    "distributed",
    "inspect",
    "__init__",
    "testing",
    "__main__",
]
# Methods of a lower layer that call functions of an upper one, and import them when called.
UPWARD = {("formats/arrays.py", "products.matmul"), ("array/device_array.py", "layers.elementwise")}
FILES = sorted(PACKAGE.rglob("*.py"))
each_file = each("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


def name_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


MODULES = {name_of(path) for path in FILES}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports, those inside functions included; ours from the package's root."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path)[:-1]
    package = () if path.parent == PACKAGE else package
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = (*package[: len(package) - node.level + 1], *filter(None, (node.module or "").split(".")))
            for alias in node.names:
                full = (*base, alias.name)
                found.add("." + ".".join(full if full in MODULES else base))
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            found |= {text for text in texts if isinstance(text, str) and text[:1].isalpha()}
    return found


def own(path: Path) -> set[tuple[str, ...]]:
    return {tuple(name[1:].split(".")) for name in imports(path) if name.startswith(".")}


@each_file
def test_imports_go_downward(path: Path) -> None:
    here = name_of(path)[0]
    assert here in ORDER, f"give {here} a place"
    others = {name.split(".")[0] for name in imports(path)}
    assert "hipgemm" not in others, "import relatively"
    assert "hipgemm_benchmarks" not in others or here == "__main__"
    for name in own(path):
        if (str(path.relative_to(PACKAGE)), ".".join(name)) in UPWARD:
            continue
        assert name in MODULES, f"{path.name} imports {'.'.join(name)}"
        assert ORDER.index(name[0]) <= ORDER.index(here), f"{path.name} imports upward: {'.'.join(name)}"


@pytest.mark.parametrize("folder", sorted({name[0] for name in MODULES if len(name) > 1}))
def test_no_circles_in_a_folder(folder: str) -> None:
    graph = {
        name_of(path): {name for name in own(path) if name[0] == folder and name != name_of(path)}
        for path in FILES
        if name_of(path)[0] == folder
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"{folder}: {error.args[1]}")


@each_file
def test_no_private_names_of_others(path: Path) -> None:
    """What other modules use has no leading underscore."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            private = [a.name for a in node.names if a.name.startswith("_") and not a.name.startswith("__")]
            assert not private, f"{path.name} imports {private}"


@each_file
def test_one_importer_of_hip_python(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert bool(roots & {"hip", "rocm"}) == (name_of(path) == ("runtime", "loader"))


@each_file
def test_one_reader_of_the_environment(path: Path) -> None:
    nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)]
    reads = [node.lineno for node in nodes if ast.unparse(node) == "os.environ"]
    assert not reads or name_of(path) == ("config",), f"line {reads}: settings are read in config.py"
