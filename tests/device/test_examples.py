"""The examples run as users run them, and the real model agrees with float32 NumPy."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors

import hipgemm as hg

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT / "tools"))

import tables  # noqa: E402

LISTED = tables.read_kernels(tables.read_formats())
DEMO, FAMILIES = LISTED.demo, {pair.name: pair.family for pair in LISTED.pairs}


def run(name: str, *args: str) -> str:
    """Run an example to its end, with kernels that `make demo` builds."""
    command, environment = [sys.executable, EXAMPLES / name, *args], {**os.environ, "HIPGEMM_REPORT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"on {hg.info().summary}\n")
    name = r" (?:gemm|grouped_[a-z]+)_(\w+)_[nt][nt]_(\d+x\d+)x\d+$"
    for pair, tile in re.findall(name, done.stderr, re.MULTILINE):
        assert FAMILIES[pair] in DEMO.families.split(), "DEMO in instances.def does not have it"
        assert tile in DEMO.tiles.split(), "DEMO in instances.def does not have it"
    return done.stdout


def test_quickstart() -> None:
    assert "every element inside the bound" in run("quickstart.py")


@pytest.mark.parametrize("name", ["quickstart", "moe_layer"])
def test_a_gpu_that_is_not_there_is_not_replaced(name: str) -> None:
    environment = {**os.environ, "HIPGEMM_RUNTIME": "rocm", "ROCM_PATH": "/nowhere"}
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    reported = "ROCm cannot be used: ROCM_PATH=/nowhere has no lib/libamdhip64.so"
    assert done.stdout.startswith(f"on none: {reported}")
    assert f"RuntimeNotFoundError: {reported}" in done.stderr


def test_train_mlp(tmp_path: Path) -> None:
    """A short training converges in every recipe; after a full one they differ less."""
    curves = tmp_path / "loss.png"
    out = run("train_mlp.py", "--epochs", "5", "--seeds", "1", "--plot", str(curves))
    rows = dict(re.findall(r"^(float32|bf16|fp8|mxfp8|mxfp4) +(\S.*)$", out, re.MULTILINE))
    assert list(rows) == ["float32", "bf16", "fp8", "mxfp8", "mxfp4"], out
    saved = []
    for row in rows.values():
        accuracy, points, _, loss, saved_bytes, _ = row.replace("%", "").replace(",", "").split()
        assert float(accuracy) > 90, out
        assert abs(float(points)) < 3, out
        assert float(loss) < 0.4, out
        saved.append(int(saved_bytes))
    assert saved[0] == 2 * saved[1]
    assert saved[1] > saved[3] > saved[2] > saved[4], out
    assert curves.read_bytes().startswith(b"\x89PNG")


def test_train_mlp_measures_roundings() -> None:
    """Rounding to nearest keeps its error in the mean; stochastic rounding loses it."""
    out = run("train_mlp.py", "--roundings", "16")
    rows = re.findall(r"^\d +([\d.]+)% +([\d.]+)% +([\d.]+)% +([\d.]+)%$", out, re.MULTILINE)
    assert len(rows) == 3, out
    for row in rows:
        nearest, stochastic, nearest_mean, mean = map(float, row)
        assert nearest == nearest_mean < stochastic, out
        assert mean < stochastic / 3, out


@pytest.mark.matrix
def test_moe_layer() -> None:
    """Grouped experts equal single experts, except for the rounding of their recipe."""
    out = run("moe_layer.py", "--tokens", "200")
    rows = dict(re.findall(r"^(bf16|fp8|mxfp8|mxfp4) +(\S.*)$", out, re.MULTILINE))
    assert list(rows) == ["bf16", "fp8", "mxfp8", "mxfp4"], out
    least = {"bf16": 45, "fp8": 23, "mxfp8": 23, "mxfp4": 10}
    for recipe, row in rows.items():
        y, dx, d_up, d_down, d_router, _ = map(float, row.split())
        assert min(y, d_down, d_router) > least[recipe], out
        assert min(dx, d_up) > 6, out  # some ReLUs switch
    assert "bf16: every element of 48 products inside its bound" in out
    assert "grouped_wgrad_mxfp8" in out


@pytest.mark.matrix
def test_gpt_oss_layer(tmp_path: Path) -> None:
    """Experts in MXFP4 agree with their decoded weights; the file has the names and shapes of gpt-oss."""
    out = run("gpt_oss_layer.py", "--small", "--tokens", "48")
    (noise,) = re.findall(r"^SQNR against float32: (\S+) dB$", out, re.MULTILINE)
    assert float(noise) >= 50, out
    assert "grouped_matmul_bf16_mxfp4_e2m1_nt" in out
    sys.path.insert(0, str(EXAMPLES))
    from gpt_oss_layer import write_layer

    prefix = "model.layers.7.mlp."
    write_layer(tmp_path / "model.safetensors", prefix, 64, np.random.default_rng(2))
    written = safetensors.deserialize((tmp_path / "model.safetensors").read_bytes())
    assert {name.removeprefix(prefix): (x["dtype"], x["shape"]) for name, x in written} == {
        "experts.gate_up_proj_blocks": ("U8", [32, 128, 2, 16]),
        "experts.gate_up_proj_scales": ("U8", [32, 128, 2]),
        "experts.gate_up_proj_bias": ("BF16", [32, 128]),
        "experts.down_proj_blocks": ("U8", [32, 64, 2, 16]),
        "experts.down_proj_scales": ("U8", [32, 64, 2]),
        "experts.down_proj_bias": ("BF16", [32, 64]),
        "router.weight": ("BF16", [32, 64]),
        "router.bias": ("BF16", [32]),
    }
    out = run("gpt_oss_layer.py", "--file", str(tmp_path), "--layer", "7")
    assert float(re.findall(r"^SQNR against float32: (\S+) dB$", out, re.MULTILINE)[0]) >= 50, out


@pytest.mark.parametrize("example", ["sentence_embeddings.py", "transformer.py"])
def test_sentence_embeddings(example: str, bf16_kernels: bool) -> None:
    """bf16 hardly changes the embeddings; the last line says how much."""
    out = run(example)
    last = re.fullmatch(r"mean_cosine=(\d\.\d{5})", out.splitlines()[-1])
    assert last, out
    assert float(last[1]) >= 0.9999
    assert ("gemm_bf16" if bf16_kernels else "plain_gemm") in out


def test_sentence_embeddings_by_recipe(matrix_kernels: bool, bf16_kernels: bool) -> None:
    """Low precision changes the embeddings by no more than its rounding noise."""
    out = run("sentence_embeddings.py", "--recipe", "all")
    rows = dict(re.findall(r"^(bf16|fp8|mxfp8|mxfp4) +(\S.*)$", out, re.MULTILINE))
    assert list(rows) == ["bf16", "fp8", "mxfp8", "mxfp4"], out
    least = {"bf16": 0.9999, "fp8": 0.997, "mxfp8": 0.996, "mxfp4": 0.91}
    for recipe, row in rows.items():
        cosine, _, worst, _, noise, _ = (float(cell.replace(",", "")) for cell in row.split())
        assert cosine >= least[recipe], out
        assert cosine >= noise - 1e-4, out
        assert worst <= 1, out
        assert (
            f"gemm_{recipe}" if matrix_kernels or (recipe == "bf16" and bf16_kernels) else "plain_gemm"
        ) in out


def test_what_can_follow_a_product() -> None:
    found = doctest.testfile(str(ROOT / "docs/use/layers.md"), module_relative=False)
    assert found.attempted > 0
    assert found.failed == 0
