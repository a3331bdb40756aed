"""The choice of kernel: constraints, copies, and manifests that are missing or damaged."""

import json
import os
import re
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from describing import describe_matmul

import hipgemm as hg
from hipgemm import reference
from hipgemm.errors import KernelNotFoundError, Reason, UnsupportedError
from hipgemm.formats.elements import BF16, QUANTIZED
from hipgemm.formats.operand import Operand
from hipgemm.formats.scaled import ScaledArray
from hipgemm.kernels import manifest
from hipgemm.kernels.manifest import Kernel, load_manifest
from hipgemm.products.choose import (
    CONSTRAINTS,
    PLAIN_CONSTRAINTS,
    choices,
    copy_reason,
    leading_dimension,
    tiles,
)
from hipgemm.products.layout import on_device
from hipgemm.products.operation import MATMUL
from hipgemm.products.problem import Problem
from hipgemm.runtime.hip import parse_stream

can_use = partial(hg.can_use, arch="gfx950")
BFLOAT16 = ml_dtypes.bfloat16


def gemm(name, tile, layout="nt", op="gemm", form="bf16", threads=256):
    return Kernel(name, op, "gfx950", threads, tile, (), form, form, layout, workgroups_per_cu=512 // threads)


BIG, SMALL = gemm("big", (256, 256, 64), threads=512), gemm("small", (64, 64, 64))
TRANSPOSED = gemm("transposed", (64, 64, 64), "tn")
COPY = Kernel("copy", "copy", "gfx950", 256, (64, 64), (), element_bytes=2)
PLAIN = Kernel("plain_gemm", "plain", "gfx950", 256, (64, 64), ())


def select(p, kernels):
    """The best choice, or why there is none."""
    found, reasons = choices(p, kernels)
    return (found[0] if found else None), reasons


def operand(rows, columns, *, strides=None, address=0, device=0, padded=False, lead=(), format=BF16):
    item = format.itemsize
    shape = (*lead, rows, columns)
    inner = strides or (item * columns, item)
    while len(inner) < len(shape):
        inner = (inner[0] * shape[-len(inner)], *inner)
    return Operand(shape, inner, format, address, device, padded)


def problem(m, n, k, out_format=BF16):
    """A product (M, K) @ (K, N) in place for layout nt."""
    pitch = -(-k // 8) * 8
    a, b = (operand(rows, k, strides=(2 * pitch, 2), padded=True) for rows in (m, n))
    return Problem(MATMUL, m, n, k, a, b, None, out_format)


# ---- what is read in place


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
        (operand(4, 0, strides=(16, 2)), None),
        (operand(4, 0, strides=(16, 2), padded=True), None),
        (operand(4, 8, strides=(2**24, 2)), "row pitch too large"),
        (operand(4, 8, strides=(2**23 - 16, 2)), None),
        (operand(4, 64, lead=(5,)), None),
        (operand(4, 64, lead=(5,), strides=(0, 128, 2)), None),
        (operand(4, 64, lead=(5,), strides=(520, 128, 2)), "batch stride not a multiple of 16 bytes"),
    ],
)
def test_copy_reason(x, reason):
    assert copy_reason(x, BIG, 0) == reason
    assert copy_reason(x, BIG, 1) == reason


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (operand(64, 4, strides=(2, 128)), None),
        (operand(63, 5, strides=(2, 128)), None),  # nothing must be a multiple of 16 bytes
        (operand(64, 1, strides=(2, 6)), None),
        (replace(operand(63, 4, strides=(2, 128)), no_tail_padding=True), "ends inside a word"),
        (replace(operand(63, 1, strides=(2, 6)), no_tail_padding=True), "ends inside a word"),
        (replace(operand(62, 4, strides=(2, 128)), no_tail_padding=True), None),
        (operand(1, 64, strides=(6, 16)), None),
        (operand(64, 4, strides=(8, 2)), "M not contiguous"),
        (operand(64, 4, strides=(-2, 128)), "M not contiguous"),
        (operand(64, 4, strides=(2, -128)), "rows reversed or overlapping"),
        (operand(64, 4, strides=(2, 126)), "rows reversed or overlapping"),
        (operand(64, 4, strides=(2, 136)), "row pitch not a multiple of 16 bytes"),
        (operand(64, 4, strides=(2, 128), address=8), "base not 16-byte aligned"),
        (operand(64, 0, strides=(2, 128)), None),
        (operand(64, 4, strides=(2, 2**25)), "row pitch too large"),
        (operand(64, 4, strides=(2, 2**25 - 16)), None),
        (operand(64, 4, lead=(5,), strides=(24, 2, 128)), "batch stride not a multiple of 16 bytes"),
    ],
)
def test_copy_reason_where_k_is_the_outer_axis(x, reason):
    assert copy_reason(x, TRANSPOSED, 0) == reason
    assert copy_reason(x, TRANSPOSED, 1) == (reason and reason.replace("M not", "N not"))


def test_leading():
    assert leading_dimension(operand(4, 64, strides=(256, 2)), BIG) == 128
    assert leading_dimension(operand(1, 60), BIG) == 64
    assert leading_dimension(operand(60, 4, strides=(2, 256)), TRANSPOSED, 1) == 128
    assert leading_dimension(operand(60, 1, strides=(2, 0)), TRANSPOSED, 1) == 64
    four = gemm("four", (64, 64, 256), op="scaled_gemm", form="mxfp4_e2m1")
    assert leading_dimension(operand(4, 32, format=QUANTIZED["mxfp4_e2m1"]), four) == 64


@pytest.mark.parametrize(("m", "n", "count"), [(1, 1, 1), (256, 256, 1), (257, 256, 2), (257, 513, 6)])
def test_tiles(m, n, count):
    assert tiles(problem(m, n, 8), BIG) == count


# ---- the choice


def test_small_problems_take_the_small_tile():
    for m, n, k in ((1, 1, 1), (64, 64, 64), (512, 512, 4096), (16, 4096, 4096)):
        assert select(problem(m, n, k), [BIG, SMALL, COPY])[0].kernel is SMALL


def test_large_problems_take_the_big_tile():
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 512), (16384, 1024, 1024)):
        assert select(problem(m, n, k), [SMALL, COPY, BIG])[0].kernel is BIG


LAYOUTS = {layout: gemm(layout, (64, 64, 64), layout) for layout in ("nt", "nn", "tn", "tt")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_in_place(layout):
    p = problem(64, 128, 256)
    if layout[0] == "t":
        p = replace(p, a=operand(64, 256, strides=(2, 128)))
    if layout[1] == "n":
        p = replace(p, b=operand(256, 128).transposed)
    choice, reasons = select(p, LAYOUTS.values())
    assert not reasons
    assert (choice.kernel.name, choice.copies, choice.swapped) == (layout, (), False)
    for other in set(LAYOUTS) - {layout}:
        names = {name for name, _ in select(p, [LAYOUTS[other]])[0].copies}
        assert names == {"ab"[i] for i in (0, 1) if layout[i] != other[i]}


def test_nothing_is_copied_that_need_not_be():
    # Contiguous rows of 63 elements can only be read as columns.
    p = replace(problem(64, 64, 64), a=operand(64, 63, strides=(2, 128)), k=63)
    p = replace(p, b=operand(63, 64, strides=(2, 128), padded=True).transposed)
    choice, _ = select(p, LAYOUTS.values())
    assert (choice.kernel.name, choice.copies) == ("tt", ())


def test_an_output_of_columns_exchanges_the_operands():
    out = operand(64, 128, strides=(2, 128))
    p = replace(problem(64, 128, 256), out=out)
    choice, _ = select(p, LAYOUTS.values())
    assert choice.swapped
    assert (choice.kernel.name, choice.copies) == ("nt", ())
    assert (choice.problem.m, choice.problem.n) == (128, 64)
    p = replace(p, a=operand(64, 256, strides=(2, 128)))  # now a is the second operand, of rows of K
    choice, _ = select(p, LAYOUTS.values())
    assert (choice.kernel.name, choice.copies) == ("nn", ())
    choice, _ = select(replace(p, col_scale=True), LAYOUTS.values())  # vectors go with columns
    assert not choice.swapped
    assert choice.copies == (("out", "rows not contiguous"),)


BATCH = {
    "two axes become one": ((6, 5), (4, 64), (6, 5), (3, 64), (30,), 4),
    "axes that one operand lacks stay": ((6, 5), (4, 64), (5,), (3, 64), (6, 5), 4),
    "a shared operand makes rows of a batch": ((6, 5), (4, 64), (), (3, 64), (), 120),
    "an axis of one is none": ((6, 1), (4, 64), (6, 1), (3, 64), (6,), 4),
}


@pytest.mark.parametrize("case", BATCH.values(), ids=BATCH)
def test_batches_collapse(case):
    a_lead, a, b_lead, b, batch, m = case

    x = np.zeros((*a_lead, *a), BFLOAT16)
    y = np.zeros((*b_lead, *b), BFLOAT16)
    p = on_device(describe_matmul(x, y.swapaxes(-1, -2))[0])
    assert (p.batch, p.m) == (batch, m)
    assert p.a.shape == (*batch, m, 64)
    assert p.out.shape == (*batch, m, 3)


def test_rows_that_do_not_follow_stay_a_batch():
    p = replace(problem(4, 8, 64), batch=(5,))
    shared = operand(64, 8, lead=(5,), strides=(0, 2, 128))
    apart = replace(p, a=operand(4, 64, lead=(5,), strides=(1024, 128, 2)), b=shared)
    assert on_device(apart).batch == (5,)
    follow = replace(apart, a=operand(4, 64, lead=(5,)))
    assert (on_device(follow).batch, on_device(follow).m) == ((), 20)
    out = operand(4, 8, lead=(5,), strides=(128, 16, 2))
    assert on_device(replace(follow, out=out)).batch == (5,)
    scales = replace(follow.a, scale_strides=(4, 0, 0))  # one for each matrix
    assert on_device(replace(follow, a=scales)).batch == (5,)


# ---- constraints, each broken once

HUGE = 2**31
COLUMNS = operand(8, HUGE, strides=(2, 16))  # read in place with K as the outer axis
FAR = operand(8, 8, strides=(2**40, 2**20))  # no layout that is read in place
BROKEN = {
    "size": (
        replace(problem(8, 8, HUGE), a=COLUMNS, b=COLUMNS),
        "M, N, K and the batch must be below 2**31; got (8, 2147483648) @ (2147483648, 8) bf16 -> bf16",
    ),
    "pitch": (
        replace(problem(8, 8, 2**24), a=operand(8, 2**24, strides=(2**40, 4))),
        "K must be below 16777216 for a copy of a; got M=8, N=8, K=16777216",
    ),
    "output": (problem(8, 2**24, 8), "N must be below 16777216 for bf16 output; got 16777216"),
    "grid": (problem(HUGE - 1, 65 * 64, 8), "the grid must be below 2**32 threads; got "),
}


def test_every_constraint_has_its_case():
    assert [c.code for c in CONSTRAINTS] == list(BROKEN)
    assert {c.code for c in PLAIN_CONSTRAINTS} <= set(BROKEN)


@pytest.mark.parametrize("code", BROKEN)
def test_constraints(code):
    p, text = BROKEN[code]
    kernel = TRANSPOSED if code == "size" else SMALL
    choice, reasons = select(p, [kernel, COPY])
    assert choice is None
    assert [(r.code, r.kind) for r in reasons] == [(code, UnsupportedError)]
    assert str(reasons[0]).startswith(text)
    # An error without the plain kernel; with it, the fallback reasons. A limit of both is reported once.
    choice, reasons = select(p, [kernel, PLAIN])
    if code in {c.code for c in PLAIN_CONSTRAINTS}:
        assert choice is None
        assert [r.code for r in reasons] == [code]
    else:
        assert choice.kernel is PLAIN
        assert [r.code for r in choice.why] == [code]
        assert not choice.copies


@pytest.mark.parametrize("p", [problem(8, 2**24 - 8, 8), problem(8, 8, 2**24 - 8), problem(8, 8, 0)])
def test_just_inside_the_constraints(p):
    assert select(p, [SMALL, PLAIN])[0].kernel is SMALL


def test_the_loosest_limit_is_reported():
    p = problem(8, 2**24, 8)
    for kernels in ([BIG, SMALL], [SMALL, BIG]):
        assert str(select(p, kernels)[1][0]).startswith("N must be below 16777216")


def test_all_reasons_are_given():
    p = replace(problem(8, 2**24, 2**24), a=FAR)
    assert {reason.code for reason in select(p, [BIG, SMALL])[1]} == {"pitch", "output"}


def test_formats_without_a_kernel():
    five = QUANTIZED["fp8_e5m2"]
    p = replace(problem(8, 8, 8), a=operand(8, 8, format=five), b=operand(8, 8, format=five))
    fp8 = gemm("fp8", (64, 64, 128), op="scaled_gemm", form="fp8_e4m3")
    text = "a and b must be fp8_e4m3 and fp8_e4m3; got fp8_e5m2 and fp8_e5m2"
    assert [str(r) for r in select(p, [SMALL, fp8])[1]] == [text]
    choice, _ = select(p, [SMALL, fp8, PLAIN])
    assert (choice.kernel, [str(r) for r in choice.why]) == (PLAIN, [text])


def test_of_many_pairs_those_alike_are_named():
    """The pairs of grouped_matmul with the same first operand, or with the most similar one."""
    offsets = np.array([0, 0, 32], np.int32)
    w = hg.quantize_mxfp8(np.ones((2, 8, 64), np.float32)).mT
    answer = hg.can_use("grouped_matmul", np.ones((32, 64), np.float16), w, offsets, arch="gfx950")
    assert [str(r) for r in answer.reasons] == [
        "x.dtype must be bfloat16 if w alone is quantized; got float16; "
        "convert it: x.astype(ml_dtypes.bfloat16)",
        "x and w must be f16 and f16; got f16 and mxfp8_e4m3",
    ]
    q = hg.quantize_mxfp6(np.ones((32, 64), np.float32), axis=0)
    (reason,) = hg.can_use("grouped_wgrad", q, q, offsets, arch="gfx950").reasons
    assert re.fullmatch(
        r"dy and x must be (mxfp8_\w+ and mxfp8_\w+( or |; )){4}got mxfp6_e2m3 and mxfp6_e2m3", str(reason)
    )


def test_no_gemm_kernel_at_all():
    choice, reasons = select(problem(8, 8, 8), [COPY])
    assert choice is None
    assert [reason.code for reason in reasons] == ["kernel"]
    choice, _ = select(problem(8, 8, 8), [COPY, PLAIN])
    assert [str(r) for r in choice.why] == ["a gemm kernel for gfx950 must be built; got the plain one only"]


def test_forced_kernel(configure):
    configure(kernel="big")
    assert select(problem(1, 1, 1), [BIG, SMALL, PLAIN])[0].kernel is BIG
    configure(kernel="plain")
    choice, _ = select(problem(1, 1, 1), [BIG, SMALL, PLAIN])
    assert (choice.kernel, [str(r) for r in choice.why]) == (PLAIN, ["HIPGEMM_KERNEL=plain"])
    configure(kernel="nothing")
    choice, reasons = select(problem(1, 1, 1), [BIG, SMALL])
    assert choice is None
    assert str(reasons[0]) == (
        "HIPGEMM_KERNEL must be plain or a kernel for matmul; got nothing; "
        "those for bf16 and bf16: big, small"
    )
    assert reasons[0].kind is ValueError


def test_choices_are_ranked():
    found, _ = choices(problem(64, 64, 64), [BIG, SMALL, *LAYOUTS.values(), PLAIN])
    assert {c.kernel.name for c in found} == {"big", "small", "nt"}
    assert not any(c.copies for c in found)
    clocks = [c.cost.clocks for c in found]
    assert clocks == sorted(clocks)
    odd = replace(problem(64, 64, 64), a=operand(64, 64, address=8))
    found, _ = choices(odd, LAYOUTS.values())
    assert {c.kernel.name for c in found} == set(LAYOUTS)
    clocks = [c.cost.clocks + c.copy_clocks for c in found]
    assert clocks == sorted(clocks)
    assert found[0].copy_clocks > 0


# ---- can_use, on what is built


def ones(*shape, dtype=BFLOAT16):
    return np.ones(shape, dtype)


def test_can_use_says_yes():
    answer = can_use("matmul", ones(300, 64), ones(384, 64).T)
    assert answer
    assert answer.kernel in load_manifest()["gfx950"].kernels
    assert answer.reasons == answer.copies == ()
    assert answer.costs[0].kernel.name == answer.kernel
    assert (answer.splits, answer.why) == (1, ())
    assert str(answer) == f"yes: {answer.kernel}"


def test_can_use_reports_parts_of_k():
    answer = can_use("matmul", ones(16, 8192), ones(64, 8192).T)
    assert answer.splits == answer.costs[0].splits > 1
    assert str(answer) == f"yes: {answer.kernel}, K in {answer.splits} parts"


def test_can_use_knows_batches_and_float16():
    for dtype in (BFLOAT16, np.float16):
        x, w = ones(5, 30, 64, dtype=dtype), ones(40, 64, dtype=dtype)
        assert can_use("matmul", x, w.T).kernel == can_use("matmul", x.reshape(150, 64), w.T).kernel
        assert can_use("matmul", x, x.swapaxes(-1, -2))
    assert not can_use("matmul", ones(2, 3, 8), ones(3, 8, 4))


def test_nothing_to_compute_is_never_too_much():
    x = np.broadcast_to(ones(1, 1), (2**31, 8))
    assert can_use("matmul", x, ones(8, 0))
    assert can_use("matmul", x[None][:0], ones(8, 4))


def test_can_use_says_why_the_plain_kernel_serves(configure):
    configure(kernel="plain")
    assert str(can_use("matmul", ones(4, 8), ones(8, 4))) == (
        "yes: plain_gemm\n  no faster kernel: HIPGEMM_KERNEL=plain"
    )


def test_can_use_names_copies():
    assert can_use("matmul", ones(30, 64).T, ones(30, 50), dtype=np.float32, stream=3).copies == ()
    answer = can_use("matmul", ones(30, 64)[:, ::2], ones(4, 32, 50)[:, ::2].repeat(2, 1))
    assert answer.copies == ("a: no axis contiguous; copied on the host",)
    answer = can_use("matmul", ones(4, 30, 32), ones(4, 64, 50)[:, :32])
    assert answer.copies == ("b: matrices not contiguous; copied on the host",)
    x = reference.quantize_mxfp8(np.ones((30, 64), np.float32))
    transposed = ScaledArray(np.asfortranarray(x.data), x.scale, x.format)
    answer = can_use("matmul", transposed, x.T)
    assert answer.copies == ("a: K not contiguous",)  # MX is read along K alone
    assert str(answer).endswith("\n  copies a: K not contiguous")


def test_can_use_gives_all_reasons():
    answer = can_use("matmul", ones(4, 8, dtype=np.float32), ones(9, 4), alpha="x")
    assert [reason.code for reason in answer.reasons] == ["dtype", "type", "shape"]


def test_can_use_knows_its_operations():
    with pytest.raises(ValueError, match=r"op must be matmul or .*; got 'attention'"):
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
    assert text in str(caught.value) or "b" in kwargs  # its text depends on Python's version


@pytest.mark.packaging
def test_the_manifest_s_architectures_are_those_announced():
    assert set(load_manifest()) == set(manifest.ARCHS)


@pytest.mark.parametrize("arch", [arch for arch in manifest.ARCHS if arch not in manifest.MATRIX_ARCHS])
def test_can_use_on_other_architectures(arch):
    fp8 = reference.quantize_fp8(np.ones((4, 8), np.float32))
    for args in ((ones(5, 4, 8), ones(8, 4)), (fp8, fp8.T)):
        answer = can_use("matmul", *args, arch=arch)
        assert answer.kernel == "plain_gemm"
        required = "the GPU must have matrix kernels: gfx950 or gfx942"
        assert [(r.code, str(r)) for r in answer.why] == [("kernel", f"{required}; got {arch}")]


@pytest.mark.packaging
def test_can_use_names_architectures():
    answer = can_use("matmul", ones(4, 8), ones(8, 4), arch="gfx906")
    assert not answer
    assert str(answer.reasons[0]) == (
        "no kernels for gfx906; architectures built: gfx950, gfx942, gfx90a, gfx1100, gfx1201; hipgemm has "
        "kernels for gfx950, gfx942, gfx90a, gfx1100, gfx1201 only"
    )


@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_can_use_reads_the_stream_as_the_call_does(op):
    x, w = ones(4, 8), ones(8, 4) if op == "matmul" else ones(4, 8)
    for stream in (None, 0, 1, 1 << 40):
        assert can_use(op, x, w, stream=stream)
    for stream in ("x", -1, 2):
        reason = parse_stream(stream)  # whose texts tests/device/test_messages.py has
        assert isinstance(reason, Reason)
        answer = can_use(op, x, w, stream=stream)
        assert not answer
        assert answer.reasons == (reason,)
    assert [r.code for r in can_use(op, x, w, stream=2, dtype=np.int8).reasons] == ["stream", "dtype"]


def test_can_use_names_what_the_bridge_serves():
    answer = can_use("matmul", ones(4, 8), ones(8, 4), arch="sm_80")
    assert re.fullmatch(
        r"no kernels for sm_80; built for the bridge: (none|sm_90a); "
        r"the bridge has kernels for sm_90a \(H100, H200\) only",
        str(answer.reasons[0]),
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


def test_missing_manifest_of_the_bridge(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "KERNEL_DIR", tmp_path)
    answer = can_use("matmul", ones(4, 8), ones(8, 4), arch="sm_90a")
    assert str(answer.reasons[0]) == (
        "no kernels for sm_90a; built for the bridge: none; "
        "run: make bridge (in a source tree; an installed package has no bridge)"
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
