"""The package as users get it: `pip install .` from a clean tree, and the wheel of `make wheel`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.install, pytest.mark.emulator("what is installed runs anywhere")]


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Run a command to its end; its output is part of the failure."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=clean | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} failed\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources; of what was built only units of kernels, named by all that they depend on."""
    copy = tmp_path_factory.mktemp("tree") / "hipgemm"
    ignored = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "__pycache__", ".*_cache", "*.so", "*.co", "manifest.json"
    )
    shutil.copytree(ROOT, copy, ignore=ignored)
    if (built := ROOT / "build" / "kernels").is_dir():
        shutil.copytree(built, copy / "build" / "kernels")
    return copy


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
    """An empty CXX stands for a machine without a C++ compiler: the toolchain wheel builds everything."""
    python = fresh_python(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", tree, cwd=tmp_path, CXX="")
    selftest(python, tmp_path)


def test_wheel(tree: Path, tmp_path: Path) -> None:
    """The wheel holds all a user needs and nothing else; it runs with hip-python 7 as well."""
    run("make", "-C", tree, "wheel", f"BUILD_PYTHON={sys.executable}", cwd=tmp_path, CXX="")
    (wheel,) = (tree / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"py.typed", "kernels/manifest.json", "kernels/hipgemm_gfx950.co", "_emulator/libamdhip64.so"}
    assert {f"hipgemm/{name}" for name in wanted} <= names
    assert not [n for n in names if n.startswith(("tests/", "emulator/", "src_hip/", "tools/"))]
    python = fresh_python(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[build]", "hip-python<8", "pytest", cwd=tmp_path)
    selftest(python, tmp_path)
    api_tests = sorted((ROOT / "tests" / "emulator").glob("test_api*.py"))
    assert api_tests
    run(python, "-m", "pytest", "-q", *api_tests, cwd=tmp_path, HIPGEMM_RUNTIME="emulator")
