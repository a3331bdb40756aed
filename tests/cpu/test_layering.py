"""Imports go downward only, and hip-python has one importer."""

import ast
from pathlib import Path

import pytest

import hipgemm

PACKAGE = Path(hipgemm.__file__).parent
# Each module may import from layers above its own line, and from its own where the order below allows it.
LAYERS = [
    ["errors", "formats", "scaled", "groups"],
    [
        "reference",
        "testing",
        "problem",
        "linear_problem",
        "manifest",
        "cost",
        "batches",
        "support",
        "grouped_problem",
        "explain",
    ],
    ["_rocm", "_runtime", "_hip", "_pool", "_staging", "memory", "stream"],
    ["usage", "counters", "_notes", "_dlpack", "_foreign", "_transfer", "_launch", "array", "amax"],
    ["_rows", "_quantizing", "quantize", "_plan", "gemm", "grouped", "info"],
    ["elementwise", "linear", "grouped_linear"],
    ["_mpi", "sharded", "sharding"],
    ["emulator_bench", "overhead", "timing", "bench", "choice_check", "__main__"],
    ["__init__"],
]
ORDER = {name: (layer, place) for layer, names in enumerate(LAYERS) for place, name in enumerate(names)}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, those inside functions included; ours without a package name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level and not node.module:
                found |= {f".{alias.name}" for alias in node.names}
            else:
                found.add("." * node.level + (node.module or ""))
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            found |= {text for text in texts if isinstance(text, str) and text[:1].isalpha()}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda p: p.stem)
def test_imports_go_downward(path: Path) -> None:
    assert path.stem in ORDER, f"give {path.stem} a layer"
    for name in imports(path):
        assert not name.startswith("hipgemm"), f"{path.name} must import {name} relatively"
        if name.startswith("."):
            assert ORDER[name[1:]] < ORDER[path.stem], f"{path.name} imports upward: {name}"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda p: p.stem)
def test_only_runtime_imports_hip_python(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert bool(roots & {"hip", "rocm"}) == (path.stem == "_runtime")


def test_every_layer_exists() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(ORDER)
