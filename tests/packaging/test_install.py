"""The package as users get it: `pip install .` from a clean tree, and the wheel of `make wheel`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ziglang
from odd_names import ODD

ROOT = Path(__file__).resolve().parents[2]
COMPILED = (
    "build/cxx",
    "build/zig",
    "build/kernels",
)  # if from these sources: make and tools/units.py rebuild them
pytestmark = [pytest.mark.install, pytest.mark.emulator("what is installed runs anywhere")]


def run(*command: str | Path, cwd: Path, with_errors: bool = False, **env: str) -> str:
    """Run a command to its end; its output is part of the failure."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env=clean | env,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # without a terminal, on which the build would print progress
    )
    assert done.returncode == 0, f"{command} failed\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr * with_errors


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the sources and of compiled files; what it compiles is saved for the next run."""
    copy = tmp_path_factory.mktemp("tree") / ODD / "hipgemm"
    ignored = (".git", ".venv*", "build", "dist", "__pycache__", ".*_cache", "*.so", "*.co", "manifest.json")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*ignored))
    for compiled in COMPILED:
        if (ROOT / compiled).is_dir():
            shutil.copytree(ROOT / compiled, copy / compiled)
    yield copy
    for compiled in COMPILED:
        if not (ROOT / compiled).is_dir():
            shutil.copytree(copy / compiled, ROOT / compiled)


CPU_LEVEL = """
import ctypes
from hipgemm.runtime import hip
level = hip.runtime().emulator.hipgemm_emulator_cpu
level.restype = ctypes.c_char_p
print(level().decode())
"""


def cpu_level() -> str:
    """The best level of instructions that this CPU has; "base" where there are no levels."""
    return run(sys.executable, "-c", CPU_LEVEL, cwd=ROOT, HIPGEMM_RUNTIME="emulator").strip()


def fresh_python(where: Path) -> Path:
    run(sys.executable, "-m", "venv", where, cwd=where.parent)
    return where / "bin" / "python"


def selftest(python: Path, cwd: Path) -> None:
    """The installed package runs a product on the emulator, away from any source tree."""
    out = run(python, "-m", "hipgemm", "selftest", cwd=cwd, HIPGEMM_RUNTIME="emulator")
    assert "selftest: all right" in out
    where = run(python, "-c", "import hipgemm; print(hipgemm.__file__)", cwd=cwd)
    assert "site-packages" in where


def test_pip_install_without_a_compiler(tree: Path, tmp_path: Path) -> None:
    """An empty CXX simulates a machine without a C++ compiler: the toolchain wheel builds everything.

    For one level of CPUs, and as fast as that goes; `-v` shows what is built.
    """
    python = fresh_python(tmp_path / ODD)
    quick = {"ALL_LEVELS": cpu_level(), "CXXFLAGS": "-O1 -g0"}
    output = run(python, "-m", "pip", "install", "-v", ".", cwd=tree, with_errors=True, CXX="", **quick)
    assert re.search(r"hipgemm: emulator: \d+ of \d+ units compiled", output)
    assert re.search(r"hipgemm: built in \d+ s", output)
    selftest(python, tmp_path)


def test_wheel(tree: Path, tmp_path: Path) -> None:
    """The wheel holds all a user needs and nothing else; it runs with hip-python 7 as well."""
    run("make", "-C", tree, "wheel", cwd=tmp_path, BUILD_PYTHON=sys.executable)
    (built,) = (tree / "dist").glob("*.whl")
    wheel = Path(shutil.copy(built, tmp_path))  # pip parses what follows a semicolon in a name as a condition
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"py.typed", "kernels/manifest.json", "kernels/hipgemm_gfx950.co", "_emulator/libamdhip64.so"}
    assert {f"hipgemm/{name}" for name in wanted} <= names
    assert not [n for n in names if n.startswith(("tests/", "emulator/", "src_hip/", "tools/"))]
    python = fresh_python(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", wheel, "hip-python<8", "pytest", cwd=tmp_path)
    selftest(python, tmp_path)
    best = cpu_level()
    for level in ("v2", "v3", "v4"):
        if level <= best:
            used = run(
                python, "-c", CPU_LEVEL, cwd=tmp_path, HIPGEMM_RUNTIME="emulator", HIPGEMM_EMULATOR_CPU=level
            )
            assert used == f"{level}\n"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "ziglang").symlink_to(Path(ziglang.__file__).parent)  # the tests' assembler
    api_tests = sorted((ROOT / "tests" / "emulator").glob("test_api*.py"))
    assert api_tests
    run(python, "-m", "pytest", "-q", *api_tests, cwd=tmp_path, HIPGEMM_RUNTIME="emulator")
