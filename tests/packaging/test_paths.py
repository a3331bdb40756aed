"""Folders with any name: the package runs there, make builds there or says at once why it cannot."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fake_rocm
import pytest
from odd_names import NEWLINE, NOT_UTF8, ODD

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.emulator("it runs anywhere")

NAMES = {
    "characters": ODD,
    "newline": NEWLINE,
    "not UTF-8": NOT_UTF8,
    "escape": "a\\012b",  # what a newline looks like in /proc/self/maps
    "trailing blank": "end ",
    "200 characters": "n" * 200,
}


def run(*command: str | Path, cwd: Path, **variables: str | Path) -> subprocess.CompletedProcess[str]:
    ours = ("MAKEFLAGS", "MAKELEVEL", "BUILD_PYTHON")  # of the make that runs this test
    env = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        command,
        cwd=cwd,
        env=env | {name: os.fspath(value) for name, value in variables.items()},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )


def link(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:  # another file system
        shutil.copy2(source, to)


# ---- running -------------------------------------------------------------------------------------------

PRODUCT = """
import os, numpy as np, hipgemm as hg
assert os.path.dirname(os.path.dirname(hg.__file__)) == os.environ["PYTHONPATH"], hg.__file__
print(hg.matmul(np.eye(2, dtype="f2"), np.eye(2, dtype="f2")).tolist(), hg.info().runtime)
"""


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_the_package_runs(tmp_path, name):
    place = tmp_path / name
    shutil.copytree(
        ROOT / "hipgemm", place / "hipgemm", copy_function=link, ignore=shutil.ignore_patterns("__pycache__")
    )
    done = run(
        sys.executable, "-B", "-c", PRODUCT, cwd=tmp_path, PYTHONPATH=place, HIPGEMM_RUNTIME="emulator"
    )
    assert done.stdout == "[[1.0, 0.0], [0.0, 1.0]] emulator\n", done.stderr


def test_the_package_runs_behind_a_link(tmp_path):
    (tmp_path / ODD).symlink_to(ROOT)
    done = run(
        sys.executable,
        "-B",
        "-c",
        PRODUCT,
        cwd=tmp_path,
        PYTHONPATH=tmp_path / ODD,
        HIPGEMM_RUNTIME="emulator",
    )
    assert done.stdout.endswith(" emulator\n"), done.stderr


def test_rocm_is_found(tmp_path):
    place = tmp_path / (ODD + NEWLINE)
    fake_rocm.make(place)
    code = "import hipgemm as hg; print(hg.info().library)"
    done = run(
        sys.executable, "-c", code, cwd=tmp_path, ROCM_PATH=place, HIPGEMM_RUNTIME="rocm", PYTHONPATH=ROOT
    )
    assert done.stdout == f"{place}/lib/libamdhip64.so\n", done.stderr


# ---- building ------------------------------------------------------------------------------------------


def copy_sources(place: Path) -> Path:
    """What a build needs, in `place`; also a Python whose name is as odd as the folder's."""
    for part in ("emulator", "src_hip", "tools"):
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / file, place)
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


ONE_KERNEL = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path("tools").resolve()))
import code_object, units
from archs import ARCHS
from instances import instances_for
from kernels import CACHE
from probe import find_toolchain
from toolchain import SOURCE
tools = find_toolchain()
(one,) = [i for i in instances_for(tools, ARCHS["gfx950"]) if i.kernel["name"] == sys.argv[1]]
assembly, content = units.build(tools, SOURCE / "kernels.hip", [one], "gfx950", CACHE)
print(*code_object.read(content).kernels)
"""


@pytest.mark.parametrize("compiler", ["c++", ""], ids=["c++", "ziglang"])
def test_the_emulator_is_compiled(tmp_path, compiler):
    python = copy_sources(tmp_path / (ODD + NEWLINE).ljust(200, "n"))
    if compiler and not shutil.which(compiler):
        pytest.skip("there is no c++")
    target = f"build/{'cxx' if compiler else 'zig'}/count.o"
    made = python.parent / target
    times = []
    for touched in (None, None, "emulator/count/counting.hpp"):
        if touched:
            os.utime(python.parent / touched)
        done = run("make", target, cwd=python.parent, BUILD_PYTHON=python, CXX=compiler)
        assert done.returncode == 0, done.stdout + done.stderr
        times.append(made.stat().st_mtime_ns)
    assert times[0] == times[1] < times[2]  # its sources are found again


@pytest.mark.parametrize("named", [False, True], ids=["pinned compiler", "HIPGEMM_HIPCC"])
def test_a_kernel_is_compiled(tmp_path, named):
    python = copy_sources(tmp_path / (ODD + NEWLINE).ljust(200, "n"))
    compiler = python.with_name("clang") if named else ""
    if named:
        headers = Path(str(importlib.util.find_spec("ziglang").origin)).parent / "lib"
        for tool, command in (("clang", f'clang -resource-dir="{headers}"'), ("ld.lld", "ld.lld")):
            script = python.with_name(tool)
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command} "$@"\n')
            script.chmod(0o755)
    done = run(python, "-c", ONE_KERNEL, "mx_group_scale", cwd=python.parent, HIPGEMM_HIPCC=compiler)
    assert done.stdout == "mx_group_scale\n", done.stderr


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a:b", "a colon"),
        (NEWLINE, "a newline"),
        ("end ", "white space at its end"),
        (NOT_UTF8, "a name that is not UTF-8"),
    ],
)
def test_make_refuses_at_once(tmp_path, name, why):
    """Where Python can have no environment: before anything is built, and with the path."""
    place = tmp_path / name
    copy_sources(place)
    before = sorted(place.iterdir())
    done = run("make", "demo", cwd=place)
    assert done.returncode == 2
    shown = os.fsencode(place).decode(errors="backslashreplace")
    assert f"no Python environment can be in {shown!r}: the path has {why}" in done.stderr, done.stderr
    assert done.stdout == ""
    assert sorted(place.iterdir()) == before
