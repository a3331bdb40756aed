"""The choice of kernel: constraints, copies, costs, and manifests that are missing or damaged."""

import json
import os
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from hipgemm import can_use, manifest
from hipgemm.errors import KernelNotFoundError, UnsupportedError
from hipgemm.formats import BF16, F32
from hipgemm.manifest import Kernel, load_manifest
from hipgemm.problem import GemmProblem, Operand
from hipgemm.support import copy_reason, cost, padded_k, select, tiles

BIG = Kernel("big", "gemm", "gfx950", 512, (256, 256, 64), (), "bf16", "bf16", "nt")
SMALL = Kernel("small", "gemm", "gfx950", 256, (64, 64, 64), (), "bf16", "bf16", "nt")
COPY = Kernel("copy", "copy", "gfx950", 256, (64, 64), (), element_bytes=2)
BFLOAT16 = ml_dtypes.bfloat16


def operand(rows, columns, *, strides=None, address=0, device=0, padded=False):
    return Operand((rows, columns), strides or (2 * columns, 2), BF16, address, device, padded)


def problem(m, n, k, out_format=BF16):
    return GemmProblem(m, n, k, operand(m, k), operand(k, n), None, out_format)


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (operand(4, 64), None),
        (operand(4, 64, strides=(256, 2)), None),
        (operand(1, 64, strides=(6, 2)), None),
        (operand(4, 64, strides=(2, 8)), "K not contiguous"),
        (operand(4, 64, strides=(128, -2)), "K not contiguous"),
        (operand(4, 64, strides=(-128, 2)), "rows reversed or overlapping"),
        (operand(4, 64, strides=(64, 2)), "rows reversed or overlapping"),
        (operand(4, 64, strides=(0, 2)), "rows reversed or overlapping"),
        (operand(4, 64, strides=(136, 2)), "row pitch not a multiple of 16 bytes"),
        (operand(4, 64, address=8), "base not 16-byte aligned"),
        (operand(4, 63, strides=(128, 2)), "K not a multiple of 8"),
        (operand(4, 63, strides=(128, 2), padded=True), None),
        (operand(4, 0, strides=(16, 2)), "K=0"),
        (operand(4, 0, strides=(16, 2), padded=True), None),
        (operand(4, 8, strides=(2**24, 2)), "row pitch too large"),
        (operand(4, 63, device=None), None),
        (operand(4, 64, strides=(2, 8), device=None), "K not contiguous"),
    ],
)
def test_copy_reason(x, reason):
    assert copy_reason(x, BIG) == reason


@pytest.mark.parametrize(("k", "padded"), [(0, 8), (1, 8), (8, 8), (9, 16), (4096, 4096)])
def test_padded_k(k, padded):
    assert padded_k(k, BIG) == padded


@pytest.mark.parametrize(("m", "n", "count"), [(1, 1, 1), (256, 256, 1), (257, 256, 2), (257, 513, 6)])
def test_tiles(m, n, count):
    assert tiles(problem(m, n, 8), BIG) == count


def test_small_problems_take_the_small_tile():
    for m, n, k in ((1, 1, 1), (64, 64, 64), (512, 512, 4096), (16, 4096, 4096)):
        assert select(problem(m, n, k), [BIG, SMALL, COPY])[0] is SMALL


def test_large_problems_take_the_big_tile():
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 512), (16384, 1024, 1024)):
        assert select(problem(m, n, k), [SMALL, COPY, BIG])[0] is BIG


def test_cost_counts_rounds_of_tiles():
    one, two = cost(problem(4096, 4096, 640), BIG), cost(problem(4096, 4097, 640), BIG)
    assert (one.tiles, one.rounds, two.tiles, two.rounds) == (256, 1, 272, 2)
    assert two.clocks == 2 * one.clocks
    assert str(one).startswith("big: 256 tiles in 1 round, estimated at ")
    assert "272 tiles in 2 rounds" in str(two)
    assert ": 1 tile in 1 round," in str(cost(problem(1, 1, 8), BIG))


@pytest.mark.parametrize(
    ("p", "code"),
    [
        (problem(8, 8, 4194304), "size"),
        (problem(8, 4194304, 8), "output"),
        (problem(8, 2097152, 8, F32), "output"),
        (problem(2**31 - 1, 300_000, 8), "grid"),
        (replace(problem(8, 8, 8), a=replace(operand(8, 8), format=F32)), "format"),
    ],
)
def test_constraints(p, code):
    kernel, reasons = select(p, [BIG, COPY])
    assert kernel is None
    assert [reason.code for reason in reasons] == [code]
    assert reasons[0].kind is UnsupportedError


def test_just_inside_the_constraints():
    for p in (problem(8, 8, 4194296), problem(8, 4194303, 8), problem(8, 2097151, 8, F32)):
        assert select(p, [BIG])[0] is BIG


def test_all_reasons_are_given():
    p = problem(8, 4194304, 4194304)
    assert {reason.code for reason in select(p, [BIG, SMALL])[1]} == {"size", "output"}


def test_no_gemm_kernel_at_all():
    kernel, reasons = select(problem(8, 8, 8), [COPY])
    assert kernel is None
    assert [reason.code for reason in reasons] == ["kernel"]


def test_forced_kernel(monkeypatch):
    monkeypatch.setenv("HIPGEMM_KERNEL", "big")
    assert select(problem(1, 1, 1), [BIG, SMALL])[0] is BIG
    monkeypatch.setenv("HIPGEMM_KERNEL", "nothing")
    kernel, reasons = select(problem(1, 1, 1), [BIG, SMALL])
    assert kernel is None
    assert str(reasons[0]) == "HIPGEMM_KERNEL must name a kernel (big, small); got nothing"
    assert reasons[0].kind is ValueError


# ---- can_use, on what is built


def ones(*shape, dtype=BFLOAT16):
    return np.ones(shape, dtype)


def test_can_use_says_yes():
    answer = can_use("matmul", ones(300, 512), ones(384, 512).T)
    assert answer
    assert answer.kernel in load_manifest()["gfx950"].kernels
    assert answer.reasons == answer.copies == ()
    assert answer.costs[0].kernel.name == answer.kernel
    assert str(answer) == f"yes: {answer.kernel}"


def test_can_use_names_copies():
    answer = can_use("matmul", ones(30, 64).T, ones(30, 50), dtype=np.float32, stream=3)
    assert answer.copies == ("a: K not contiguous", "b: K not contiguous")


def test_can_use_gives_all_reasons():
    half = ones(4, 8, dtype=np.float16)
    answer = can_use("matmul", half, half.T)
    assert not answer
    assert [reason.kind for reason in answer.reasons] == [UnsupportedError]
    assert "a and b must be bf16 and bf16; got f16 and f16; convert with .astype" in str(answer)
    answer = can_use("matmul", ones(4, 8, dtype=np.float32), ones(9, 4), alpha="x")
    assert [reason.code for reason in answer.reasons] == ["dtype", "type", "shape"]


def test_can_use_knows_its_operations():
    with pytest.raises(ValueError, match="op must be matmul; got 'attention'"):
        can_use("attention")


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1,), {}, "missing a required argument: 'b'"),
        ((1, 2), {"beta": 1.0}, "got an unexpected keyword argument 'beta'"),
        ((1,), {"b": 2}, "'b' parameter is positional only, but was passed as a keyword"),
    ],
)
def test_can_use_names_itself(args, kwargs, text):
    with pytest.raises(TypeError) as caught:
        can_use("matmul", *args, **kwargs)
    assert str(caught.value).startswith("can_use: matmul: ")
    assert text in str(caught.value) or "b" in kwargs  # Python has had several words for the last


def test_the_manifest_s_architectures_are_those_announced():
    assert set(load_manifest()) == set(manifest.ARCHS)


def test_can_use_names_architectures():
    answer = can_use("matmul", ones(4, 8), ones(8, 4), arch="gfx90a")
    assert not answer
    assert str(answer.reasons[0]) == (
        "no kernels for gfx90a; architectures built: gfx950; "
        "hipgemm has kernels for gfx950 only: make kernels builds no others"
    )


# ---- manifests


def test_missing_manifest(tmp_path, monkeypatch):
    assert load_manifest(tmp_path) == {}
    monkeypatch.setattr(manifest, "KERNEL_DIR", tmp_path)
    answer = can_use("matmul", ones(4, 8), ones(8, 4))
    assert str(answer.reasons[0]) == (
        "no kernels for gfx950; architectures built: none; "
        "run: make kernels (in a source tree; else install hipgemm again)"
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"archs": 3}', '{"archs": {"gfx950": {"file": "x"}}}']
)
def test_damaged_manifest(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(KernelNotFoundError, match="is damaged"):
        load_manifest(tmp_path)


def test_manifest_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"archs": {}}))
    assert load_manifest(tmp_path) == {}
    built = json.loads((manifest.KERNEL_DIR / "manifest.json").read_text())
    path.write_text(json.dumps(built))
    os.utime(path, ns=(1, 1))
    assert "gfx950" in load_manifest(tmp_path)
