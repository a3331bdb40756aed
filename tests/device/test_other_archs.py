"""The code objects of other architectures at work, where the emulator can execute them.

CDNA's instructions differ little from one generation to the next, and those of gfx942 and gfx90a that our
kernels use are gfx950's. So their portable kernels run the tests of these kernels. (The emulator loads no
code object of another architecture than the one it is told to be.)
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
# gfx90a needs fewer wait states than gfx950, whose the hazard check counts.
CHECKS = {"gfx942": "all", "gfx90a": "race,uninit,bounds"}
TESTS = {
    "test_kernels_plain.py": "not clean_under",
    "test_kernels_quantize.py": "",
    "test_kernels_rescale.py": "",
    "test_kernels.py": "test_copy",
}


@pytest.mark.skipif("HIPGEMM_EMULATOR_ARCH" in os.environ, reason="chooses an architecture itself")
@pytest.mark.parametrize("file", TESTS)
@pytest.mark.parametrize("arch", CHECKS)
def test_kernels(emulator, arch, file):
    environment = {"HIPGEMM_EMULATOR_ARCH": arch, "HIPGEMM_EMULATOR_CHECK": CHECKS[arch]}
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest_, FOLDER / file, "-k", TESTS[file]],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
