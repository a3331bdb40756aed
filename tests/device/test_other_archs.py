"""The code objects of other architectures, where the emulator can execute them.

The emulator is a gfx942 exactly. It is no gfx90a, but the instructions that our kernels for gfx90a use are
gfx950's. So the portable kernels of both run the tests of these kernels. (The emulator loads no code object
of another architecture than the one it reports.)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
import ml_dtypes, numpy as np, hipgemm as hg
from hipgemm.testing import assert_gemm_close
rng = np.random.default_rng(1)
x, w = (rng.standard_normal((rows, 96), np.float32).astype(ml_dtypes.bfloat16) for rows in (70, 45))
bias = rng.standard_normal(45).astype(np.float32)
on_device = [hg.asarray(y) for y in (x, w)]
assert_gemm_close(hg.matmul(on_device[0], on_device[1].T, bias=bias).get(), x, w.T, bias=bias)
for quantize in (
    hg.quantize_fp8, lambda y: hg.quantize_fp8(y, axis=-1), hg.quantize_mxfp8, hg.quantize_mxfp6,
    hg.quantize_mxfp4,
    lambda y: hg.quantize_mxfp8(y, format="mxfp8_e5m2", scaling="rceil"),
):
    a, b = map(quantize, on_device)
    assert_gemm_close(hg.matmul(a, b.T, dtype=np.float32).get(), a.get(), b.get().T)
answers = {hg.can_use("matmul", *pair).kernel for pair in ((x, w.T), (a, b.T))}
print(*sorted(k for k in hg.usage().kernels if "gemm" in k), *answers)
"""
FOLDER = Path(__file__).parent
other_architecture = pytest.mark.emulator("a device of another architecture")
# gfx90a needs fewer wait states than gfx950, whose rules the hazard check applies.
CHECKS = {"gfx942": "all", "gfx90a": "race,uninit,bounds"}
PORTABLE = ("test_kernels_plain.py", "test_kernels_elementwise.py", "test_kernels.py", "test_normalize.py")
MATRIX = (
    "test_kernels_plain.py",
    "test_kernels.py",
    "test_kernels_layouts.py",
    "test_kernels_batch.py",
    "test_kernels_scaled.py",
    "test_kernels_blocks.py",
    "test_grouped.py",
)
ALONE = "not clean_under and not loads_may_land"  # those start processes, or take long
SELECTED = {
    "gfx90a": (PORTABLE, f"{ALONE} and (not test_kernels.py or test_copy)"),
    "gfx942": (
        MATRIX,
        f"{ALONE} and not random_calls and (test_kernels_plain or test_kernels.py or ragged and layouts"
        " or edges or every_format_pair or test_bound or (forward_kernels or wgrad_kernels) and exact)",
    ),
}


@other_architecture
@pytest.mark.skipif("HIPGEMM_EMULATOR_ARCH" in os.environ, reason="chooses an architecture itself")
@pytest.mark.parametrize("arch", CHECKS)
def test_kernels(arch):
    """A part of the tests of kernels; all of tests/device: docs/trust/emulator.md."""
    files, chosen = SELECTED[arch]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-p",
            "no:cacheprovider",
            *(FOLDER / f for f in files),
            "-k",
            chosen,
        ],
        env=os.environ | {"HIPGEMM_EMULATOR_ARCH": arch},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout.splitlines()[-1])
    assert int(passed) > 100


@pytest.mark.packaging
@other_architecture
def test_the_library_takes_the_plain_kernel(run_python):
    """With the checks, which the kernels' own tests omit: they would take minutes."""
    arch = "gfx90a"
    environment = {"HIPGEMM_EMULATOR_ARCH": arch, "HIPGEMM_EMULATOR_CHECK": CHECKS[arch]}
    done = run_python(LIBRARY, **environment)
    assert done.stdout == "plain_gemm plain_gemm\n", done.stdout + done.stderr
    (line,) = done.stderr.splitlines()  # of several products
    assert line.startswith(
        f"PlainKernelWarning: matmul: no matrix kernels for {arch}, only for gfx950 or gfx942: the plain"
    )


@pytest.mark.packaging
@other_architecture
def test_who_asks_for_the_plain_kernel_is_not_warned(run_python):
    code = "import numpy as np, hipgemm as hg; x = np.ones((8, 8), np.float16); hg.matmul(x, x)"
    for arch, kernel, lines in (
        ("gfx90a", "plain", 0),
        ("gfx90a", None, 1),
        ("gfx950", "plain", 0),
        ("gfx950", None, 0),
    ):
        done = run_python(code, HIPGEMM_EMULATOR_ARCH=arch, HIPGEMM_KERNEL=kernel, HIPGEMM_RUNTIME="emulator")
        assert (done.returncode, len(done.stderr.splitlines())) == (0, lines), done.stderr
