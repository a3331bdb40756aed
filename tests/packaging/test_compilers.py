"""Clang 20 and 21, as ROCm hosts have them: from other releases of the pinned package, under ROCm's names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the packages are unpacked."""
    folder = tmp_path_factory.mktemp("releases")
    yield folder
    shutil.rmtree(folder)


def rocm_bin(releases: Path, release: str, driver: str) -> Path:
    """A folder as ROCm's, with that release's clang and linker."""
    unpacked = releases / release
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1"]
    done = subprocess.run(
        [*command, "--dest", unpacked, f"ziglang=={release}"], capture_output=True, text=True, check=False
    )
    if "connection broken" in done.stderr:
        pytest.skip(f"the package index cannot be reached, so there is no ziglang=={release}")
    assert done.returncode == 0, done.stderr
    (wheel,) = map(zipfile.ZipFile, unpacked.glob("*.whl"))
    parts = ("ziglang/zig", "ziglang/lib/include/")  # libraries of C are most of it
    wheel.extractall(unpacked, [name for name in wheel.namelist() if name.startswith(parts)])
    zig = unpacked / "ziglang" / "zig"
    zig.chmod(0o755)
    folder = releases / f"rocm-{release}" / "bin"
    folder.mkdir(parents=True)
    for name, tool in ((driver, f"clang -resource-dir={unpacked}/ziglang/lib"), ("ld.lld", "ld.lld")):
        (folder / name).write_text(f'#!/bin/sh\nexec {zig} {tool} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


LIMITS = r"does not keep the limits of \w+: VGPR spills \d+, must be 0, and .*"
BUILTIN = r"cannot compile the kernels: use of undeclared identifier '__builtin_amdgcn_\w+'"


@pytest.mark.parametrize(
    ("release", "driver", "version", "why"),
    [
        ("0.15.2", "hipcc", "clang version 20.1.2", BUILTIN),
        ("0.16.0", "amdclang++", "clang version 21.1.0", LIMITS),
    ],
    ids=["clang 20", "clang 21"],
)
def test_a_compiler_that_cannot_be_used(
    releases: Path, release: str, driver: str, version: str, why: str
) -> None:
    """On request it is refused within seconds by one line with a solution; the default is the pinned one."""
    folder = rocm_bin(releases, release, driver)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HIPGEMM_")}
    host = clean | {"ROCM_PATH": str(folder.parent), "PATH": f"{folder}:{clean['PATH']}"}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "kernels.py"],
        env=host | {"HIPGEMM_HIPCC": driver},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert time.monotonic() - started < 60
    assert (done.returncode, done.stdout) == (1, "")
    pin = subprocess.run(
        [sys.executable, "-c", "from toolchain import *; tools = choose(); print(tools.origin, pinned())"],
        env=host | {"PYTHONPATH": str(ROOT / "tools")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(pin) == 1  # only from the pinned release
    way_out = f"unset HIPGEMM_HIPCC to use the pinned compiler (pip install {pin[0]})"
    line = f"tools/kernels.py: HIPGEMM_HIPCC={driver} ({version}) WHY; {way_out}\n"
    assert re.fullmatch(re.escape(line).replace("WHY", why), done.stderr), done.stderr
