"""Triton's kernels for both architectures: late memory with all checks, and random timing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TRITON = HERE.parent / "build/triton"  # make test-clients installs it there
KERNELS = {"matmul_bf16", "matmul_f16", "matmul_f32", "matmul_fp8", "softmax", "attention", "layer_norm"}
KERNELS |= {"layer_norm_gradient", "histogram", "locked_sum", "extremes"}
ONLY = {"gfx950": {"matmul_mxfp4"}, "gfx942": {"matmul_tf32"}}
MODES = {
    "checked": {"HIPGEMM_EMULATOR_CHECK": "all"},
    "random": {"HIPGEMM_EMULATOR_MEMORY": "random", "HIPGEMM_EMULATOR_WAVES": "random"},
}


def run(*command: str | Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HIPGEMM_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module", params=["gfx950", "gfx942"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An architecture, and the folder of its kernels."""
    folder = tmp_path_factory.mktemp(request.param)
    paths = {"PYTHONPATH": str(TRITON), "TRITON_CACHE_DIR": str(TRITON / "cache")}
    run(HERE / "triton_kernels.py", request.param, folder, **paths)
    return request.param, folder


@pytest.mark.parametrize("mode", MODES)
def test_kernels(compiled: tuple[str, Path], mode: str) -> None:
    arch, folder = compiled
    machine = {"HIPGEMM_RUNTIME": "emulator", "HIPGEMM_EMULATOR_ARCH": arch}
    lines = run(HERE / "triton_run.py", folder, **machine, **MODES[mode]).splitlines()
    results = {record["kernel"]: record for record in map(json.loads, lines)}
    assert results.keys() == KERNELS | ONLY[arch]
    assert [record for record in results.values() if "failed" in record] == []
