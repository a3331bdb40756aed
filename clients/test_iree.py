"""Functions compiled by IREE, run by its HIP driver, under all checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IREE = HERE.parent / "build/iree"  # make test-clients installs it there


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_functions(arch: str) -> None:
    paths = os.pathsep.join(map(str, (IREE, HERE.parent)))
    command = ["-m", "hipgemm", "sanitize", "--", sys.executable, HERE / "iree_functions.py", arch]
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": paths, "HIPGEMM_EMULATOR_ARCH": arch},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": error ") == 3
    assert done.stderr.endswith("sanitize: 0 findings in 0 kernels\n")
