"""Kernels for groups of rows under the sanitizers, in every order of memory and waves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from checked import programs

FOLDER = Path(__file__).parents[2] / "hipgemm" / "kernels"
ENTRY = json.loads((FOLDER / "manifest.json").read_text())["archs"]["gfx950"]
KERNELS = [k for k in ENTRY["kernels"] if "grouped" in k["op"]]

CLEAN = """
import numpy as np, ml_dtypes, hipgemm as hg
from hipgemm import config
from hipgemm.kernels.manifest import load_manifest
rng = np.random.default_rng(5)
o = np.array([0, 33, 33, 70, 70], np.int32)
there = hg.asarray(o)

def operand(shape, format, axis, **options):
    x = hg.asarray(rng.standard_normal(shape).astype(np.float16 if format == "f16" else ml_dtypes.bfloat16))
    if format in ("bf16", "f16"):
        return x
    if format.endswith("_block"):
        block = (1, 128) if axis == -1 else (128, 128)  # squares serve either axis
        return hg.quantize_fp8(x, format=format.removesuffix("_block"), block=block)
    if format.startswith("fp8"):
        return hg.quantize_fp8(x, format=format)
    options |= {"hadamard": False} if format == "mxfp4_e2m1" else {"format": format}
    return getattr(hg, "quantize_" + format.split("_")[0])(x, axis=axis, **options)

kernels = load_manifest()["gfx950"].kernels
for kernel in (kernels[name] for name in NAMES):
    with config(kernel=kernel.name):
        if kernel.op.endswith("matmul"):
            k = kernel.tile[2] * 3 // 2
            x, w = operand((75, k), kernel.a, -1), operand((4, 80, k), kernel.b, -1).mT
            if kernel.layout == "nn":
                w = operand((4, k, 80), kernel.b, -2)
            results = [hg.grouped_matmul(x, w, o), hg.grouped_matmul(x, w, there, dtype=np.float32)]
        else:
            dy = operand((75, 80), kernel.a, 0, group_offsets=there)
            x = operand((75, 33), kernel.b, 0, group_offsets=there)
            out = hg.zeros((4, 80, 33), np.float32)
            results = [hg.grouped_wgrad(dy, x, there), hg.grouped_wgrad(dy, x, there, out, accumulate=True)]
        for result in results:
            assert np.isfinite(result.get().astype(np.float32)).all()
    print("clean", kernel.name)
"""


@pytest.mark.parametrize("memory", ["late", "early", "random:3"])
def test_clean(memory: str, run_python: Callable[..., CompletedProcess[str]]) -> None:
    """In other orders than the usual one: one of the kernels with the same code."""
    names = [k["name"] for k in KERNELS] if memory == "late" else programs(KERNELS)
    done = run_python(
        f"NAMES = {names}\n{CLEAN}",
        HIPGEMM_RUNTIME="emulator",
        HIPGEMM_EMULATOR_CHECK="all",
        HIPGEMM_EMULATOR_MEMORY=memory,
        HIPGEMM_EMULATOR_WAVES="random:3" if memory.startswith("random") else "reverse",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("clean grouped_") == len(names) >= 60


WRONG = """
import numpy as np, ml_dtypes, hipgemm as hg
x = hg.asarray(np.ones((70, 40), ml_dtypes.bfloat16))
w = hg.asarray(np.ones((4, 40, 24), ml_dtypes.bfloat16))
for wrong in ([5, 9, 9, 70, 70], [0, 70, 0, 70, 0], [0, -3, 99, 2**31 - 1, -(2**31)]):
    o = hg.asarray(np.array(wrong, np.int32))
    for call in (
        lambda: hg.grouped_matmul(x, w, o),
        lambda: hg.grouped_wgrad(x, x, o),
        lambda: hg.grouped_wgrad(x, x, o, recipe="mxfp8"),
    ):
        made = call()
        try:
            made.get()
        except hg.HipError as error:
            assert "group_offsets" in str(error), error
            print("reported")
        made.get()
"""


def test_wrong_offsets_touch_nothing_outside(run_python: Callable[..., CompletedProcess[str]]) -> None:
    """Groups neither overlap nor leave their matrix, whatever offsets on the device say."""
    done = run_python(WRONG, HIPGEMM_RUNTIME="emulator", HIPGEMM_EMULATOR_CHECK="all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("reported") == 9
