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
pytestmark = pytest.mark.emulator("what is installed runs anywhere")


def run(*command: str | Path, cwd: Path, with_errors: bool = False, **env: str) -> str:
    """Run a command to its end; its output is part of the failure."""
    ours = ("PYTHONPATH", "MAKEFLAGS")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
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
    for compiled in COMPILED:  # by zig only these tests compile, a minute long where sources have changed
        if compiled == "build/zig" or not (ROOT / compiled).is_dir():
            shutil.copytree(copy / compiled, ROOT / compiled, dirs_exist_ok=True)


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
    """An environment without anything, not even pip, which takes longer than all else in it."""
    run(sys.executable, "-m", "venv", "--without-pip", where, cwd=where.parent)
    return where / "bin" / "python"


def site_packages(python: Path) -> Path:
    (found,) = python.parents[1].glob("lib/python*/site-packages")
    return found


def pip_install(python: Path, *arguments: str | Path, cwd: Path, **env: str) -> str:
    """Install by this environment's pip into another; return all that is printed."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile"]
    return run(*pip, *arguments, cwd=cwd, with_errors=True, **env)


def check_it_runs(python: Path, *command: str, prints: str, cwd: Path) -> None:
    """The installed package runs products on the emulator, away from any source tree."""
    assert prints in run(python, "-m", "hipgemm", *command, cwd=cwd, HIPGEMM_RUNTIME="emulator")
    where = run(python, "-c", "import hipgemm; print(hipgemm.__file__)", cwd=cwd)
    assert "site-packages" in where


def link_toolchain(python: Path) -> None:
    """Share this environment's toolchain: wherever zig is, it builds its C++ library once, in 40 s."""
    for shared in Path(ziglang.__file__).parents[1].glob("ziglang*"):
        (site_packages(python) / shared.name).symlink_to(shared)


def test_pip_install_without_a_compiler(tree: Path, tmp_path: Path) -> None:
    """An empty CXX simulates a machine without a C++ compiler: the toolchain wheel builds everything.

    For one level of CPUs, and as fast as that goes; `-v` shows what is built. That pip itself installs the
    toolchain for a build, `test_container.py` tests.
    """
    python = fresh_python(tmp_path / ODD)
    link_toolchain(python)
    pip_install(python, "--quiet", "hatchling", cwd=tmp_path)
    (tree / "build" / "zig" / "count.o").unlink(missing_ok=True)  # so that there is something to compile
    quick = {"ALL_LEVELS": cpu_level(), "CXXFLAGS": "-O1 -g0"}
    output = pip_install(python, "-v", "--no-build-isolation", ".", cwd=tree, CXX="", **quick)
    assert re.search(r"hipgemm: emulator: \d+ of \d+ units compiled", output)
    assert re.search(r"hipgemm: built in \d+ s", output)
    check_it_runs(python, "selftest", "_64x64", prints="selftest: all right", cwd=tmp_path)


def test_wheel(tree: Path, tmp_path: Path) -> None:
    """The wheel holds all a user needs and nothing else; it runs with hip-python 7 as well."""
    builder = fresh_python(tmp_path / "builder")
    pip_install(builder, "--quiet", "hatchling", cwd=tmp_path)
    (site_packages(builder) / "shared.pth").write_text(str(Path(ziglang.__file__).parents[1]))  # and pip
    # false is pip's way to say: no environment for this build, into which it would install the toolchain.
    alone = {"BUILD_PYTHON": str(builder), "PIP_NO_BUILD_ISOLATION": "false"}
    run("make", "-C", tree, "wheel", cwd=tmp_path, **alone)
    (built,) = (tree / "dist").glob("*.whl")
    wheel = Path(shutil.copy(built, tmp_path))  # pip parses what follows a semicolon in a name as a condition
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    wanted = {
        "py.typed",
        "kernels/manifest.json",
        "kernels/hipgemm_gfx950.co",
        "kernels/hipgemm_gfx942.co",
        "_emulator/libamdhip64.so",
        "_emulator/libhiprtc.so",
    }
    assert {f"hipgemm/{name}" for name in wanted} <= names
    assert not [n for n in names if n.startswith(("tests/", "emulator/", "src_hip/", "tools/"))]
    for file in ROOT.glob("hipgemm/kernels/*.co"):  # those that all other tests run
        assert archive.read(f"hipgemm/kernels/{file.name}") == file.read_bytes()
    python = fresh_python(tmp_path / "venv")
    pip_install(python, "--quiet", wheel, "hip-python<8", "pytest", cwd=tmp_path)
    one = ("bench", "--op", "matmul", "--shapes", "70x64x96", "--calls", "3", "--refcheck")
    check_it_runs(python, *one, prints=" ok ", cwd=tmp_path)
    check_it_runs(python, "selftest", prints="selftest: all right", cwd=tmp_path)  # with every kernel
    best = cpu_level()
    for level in ("v2", "v3", "v4"):
        if level <= best:
            used = run(
                python, "-c", CPU_LEVEL, cwd=tmp_path, HIPGEMM_RUNTIME="emulator", HIPGEMM_EMULATOR_CPU=level
            )
            assert used == f"{level}\n"
    link_toolchain(python)  # the tests' assembler
    api_tests = sorted((ROOT / "tests" / "emulator").glob("test_api*.py"))
    assert api_tests
    less = ("-k", "not too_much_to_keep")  # 64 MiB copied six times, which asks nothing of hip-python
    run(python, "-m", "pytest", "-q", *api_tests, *less, cwd=tmp_path, HIPGEMM_RUNTIME="emulator")
