"""Every portable kernel at least once, on small operands in allocations of their own: for sanitizers."""

from __future__ import annotations

import os
from typing import Any

# Before hipgemm is imported: an allocation of its own for each array, and no larger.
os.environ["HIPGEMM_POOL"] = "off"

import ml_dtypes
import numpy as np

import hipgemm as hg
from hipgemm.formats.elements import FORMATS
from hipgemm.kernels import launch as _launch
from hipgemm.kernels.manifest import code_object
from hipgemm.kernels.scale_layout import float_scale_bytes, gemm_scale_bytes, gemm_scale_step
from hipgemm.layers import passes as elementwise
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


def products(rng: np.random.Generator) -> None:
    """The product in every format, batches and layouts among them."""
    for dtype in (BF16, np.dtype(np.float16)):
        a, w = random_matrix((70, 100), rng, dtype=dtype), random_matrix((45, 100), rng, dtype=dtype)
        bias = rng.standard_normal(45).astype(F32)
        x, y = hg.asarray(a), hg.asarray(w)
        staged: dict[str, Any] = {"residual": hg.zeros((70, 22), F32), "aux": hg.empty((70, 44), dtype)}
        hg.matmul(x, y[:44].T, activation="gelu", glu="halves", **staged).get()
        for format in ("mxfp8_e5m2", "mxfp6_e2m3", "mxfp4_e2m1"):
            hg.matmul(x, y[:44].T, activation="swiglu_oss", glu="interleaved", out_format=format).get()
        hg.matmul(x, y.T, activation="silu", out_format="fp8_e4m3", out_amax=hg.AmaxState(9.0)).get()
        got = hg.matmul(x, y.T, bias=bias, alpha=0.5, col_scale=np.abs(bias))
        assert_gemm_close(got.get(), a, w.T, bias=bias, alpha=0.5, col_scale=np.abs(bias))
        assert_gemm_close(hg.matmul(x[::-1, ::2], y[:, ::2].T).get(), a[::-1, ::2], w[:, ::2].T)
        batch = random_matrix((3, 5, 100), rng, dtype=dtype)
        assert_gemm_close(hg.matmul(hg.asarray(batch), y.T).get(), batch, w.T)


def quantizers(rng: np.random.Generator) -> None:
    """Every quantizer, dequantized again, and products of the results."""
    x = hg.asarray(rng.standard_normal((70, 96)).astype(F32))
    state = hg.AmaxState(4.0)
    state.step()
    made = [
        *(hg.quantize_fp8(x), hg.quantize_fp8(x, axis=-1), hg.quantize_fp8(x, state)),
        hg.quantize_fp8(x, block=(1, 128)),
        *(hg.quantize_mxfp8(x), hg.quantize_mxfp8(x, format="mxfp8_e5m2", scaling="even")),
        *(hg.quantize_mxfp6(x), hg.quantize_mxfp6(x, format="mxfp6_e3m2")),
        *(hg.quantize_mxfp4(x), hg.quantize_mxfp4(x, hadamard=False)),
    ]
    random: dict[str, Any] = {"rounding": "stochastic", "seed": 5}
    made += [
        *(hg.quantize_fp8(x, **random), hg.quantize_fp8(x, block=(1, 128), **random)),
        *(hg.quantize_mxfp8(x, **random), hg.quantize_mxfp6(x, **random)),
        hg.quantize_mxfp4(x, signs=7, **random),
    ]
    for q in made:
        for dtype in (F32, BF16):
            hg.dequantize(q, dtype=dtype).get()
        assert_gemm_close(hg.matmul(q, q.T, dtype=F32).get(), q.get(), q.get().T)
    hg.quantize_both(x, "mxfp8_e4m3")
    hg.quantize_mxfp8(x, axis=0)
    hg.quantize_mxfp6(x.astype(BF16))
    for dtype in (BF16, np.float16):
        hg.quantize_mxfp4(x.astype(dtype))
    hg.pack_mx_scales(hg.quantize_mxfp8(x).scale).get()


def layers(rng: np.random.Generator) -> None:
    """Linear layers, and passes that are not GEMMs."""
    x, w, dy = (hg.asarray(random_matrix(shape, rng)) for shape in ((40, 64), (48, 64), (40, 48)))
    out, rows = hg.empty((40, 64), BF16), hg.asarray(np.full(40, 0.5, F32))
    elementwise.rescale("linear", x, out, 0, rows=rows, divide=True)
    np.testing.assert_array_equal(out.get(), (2 * x.get().astype(F32)).astype(BF16))
    for recipe in ("bf16", "fp8", "fp8_block", "mxfp8", "mxfp4"):
        _, saved = hg.linear(x, w, bias=np.zeros(48, F32), recipe=recipe)
        hg.linear_backward(dy, saved)
        for activation, glu in (("gelu", None), ("silu", "interleaved"), ("swiglu_oss", "halves")):
            _, saved = hg.linear(x, w, bias=np.zeros(48, F32), recipe=recipe, activation=activation, glu=glu)
            hg.linear_backward(dy[:, ::2] if glu else dy, saved)
    for glu in ("interleaved", "halves"):
        _, saved = hg.linear(x, w, activation="silu", glu=glu)
        hg.linear_backward(dy[:, ::2], saved)
    _, saved = hg.linear(x, w[:45], activation="gelu")
    hg.linear_backward(dy[:, :45], saved)


def normalizations(rng: np.random.Generator) -> None:
    """Softmax and RMS norm, rounded and quantized, of rows that fit in registers and of one that does not."""
    for shape in ((70, 96), (5, 45), (2, 17000), (1, 33000)):
        x = hg.asarray(random_matrix(shape, rng))
        weight = rng.standard_normal(shape[1]).astype(F32)
        hg.softmax(x, causal=True)
        hg.rms_norm(x, weight, residual=x)
        hg.rms_norm(x, weight, out_format="fp8_e4m3", out_amax=hg.AmaxState(4.0))
        for name in ("mxfp8_e4m3", "mxfp6_e2m3", "mxfp4_e2m1"):
            hg.rms_norm(x, weight, out_format=name)
        x[:, ::2] = x[:, ::2] * hg.asarray(weight)[::2].astype(BF16) + 1


def alone(rng: np.random.Generator) -> None:
    """Kernels that prepare operands of kernels which are not built here, launched by themselves."""
    parts = rng.standard_normal((3, 20, 32)).astype(F32)
    source, out = hg.asarray(parts), hg.empty((20, 32), F32)
    kernel = _launch.function(0, "split_reduce")
    values: dict[str, _launch.Value] = {x.name: 0 for x in kernel.args} | {
        "src": source.ptr,
        "dst": out.ptr,
        "src_ld": 32,
        "split_stride": parts[0].nbytes,
        "ldc": 32,
        "m": 20,
        "n": 32,
        "batch_inner": 1,
        "splits": 3,
        "alpha": 1.0,
        "out_type": FORMATS["f32"],
    }
    tiles = -(-20 // kernel.tile[0]) * -(-32 // kernel.tile[1])
    _launch.launch(kernel, tiles, 0, **values)
    np.testing.assert_array_equal(out.get(), (parts[0] + parts[1]) + parts[2])

    for dtype in (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32)):
        numbers, item = rng.integers(0, 99, (33, 65)).astype(dtype), dtype.itemsize
        start, transposed = hg.asarray(numbers), hg.empty((65, 33), dtype)
        there = (transposed.ptr, item, 33 * item)
        _launch.copy_strided(0, 0, item, (start.ptr, 65 * item, item), there, 33, 65)
        np.testing.assert_array_equal(transposed.get(), numbers.T)

    scale = hg.asarray(rng.integers(100, 140, (37, 5)).astype(np.uint8))
    size, step = gemm_scale_bytes(37, 160), gemm_scale_step(37)
    ordered = hg.empty(size, np.uint8)
    floats = hg.asarray(rng.standard_normal((37, 2)).astype(F32))
    kernel = _launch.function(0, "gemm_float_scale")
    size_of_floats = float_scale_bytes(37, 160, alone=False)
    for_floats = hg.zeros(size_of_floats, np.uint8)  # nothing is written between its parts
    values = {"src": floats.ptr, "dst": for_floats.ptr, "src_row_stride": 8, "src_col_stride": 4}
    values |= {"rows": 37, "k": 160, "step": step, "row_block": 1, "e8m0": 0, "whole": 0, "mn_major": 0}
    _launch.launch(kernel, -(-size // 4 // kernel.tile[0]), 0, **values)
    for_floats.get()

    kernel = _launch.function(0, "mx_gemm_scale")
    values = {"src": scale.ptr, "dst": ordered.ptr, "src_row_stride": 5, "src_col_stride": 1}
    values |= {"rows": 37, "k": 160, "step": step, "k_tile": 128, "row_block": 1, "col_block": 1}
    _launch.launch(kernel, -(-size // 4 // kernel.tile[0]), 0, **values)
    ordered.get()


def main() -> None:
    """Run all, and say which kernels ran."""
    rng = np.random.default_rng(3)
    hg.reset_usage()
    for part in (products, quantizers, layers, normalizations, alone):
        part(rng)
        _hip.synchronize()
    kernels = code_object(_hip.arch(0)).kernels.values()
    built, ran = {k.name for k in kernels if k.op != "primitive"}, set(hg.usage().kernels)
    left = ", ".join(sorted(built - ran)) or "none"
    print(f"kernels run: {len(ran & built)} of {len(built)}; not run: {left}")


if __name__ == "__main__":
    main()
