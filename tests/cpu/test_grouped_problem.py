"""Products of groups of rows: the message of every fault, can_use, and the choice of kernel."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from describing import describe_grouped_matmul, describe_grouped_wgrad

import hipgemm as hg
from hipgemm import reference
from hipgemm.kernels.manifest import load_manifest
from hipgemm.products.choose import choices, workgroups

BF16 = np.dtype(ml_dtypes.bfloat16)
can_use = partial(hg.can_use, arch="gfx950")
KERNELS = list(load_manifest()["gfx950"].kernels.values())


def ones(*shape, dtype=BF16):
    return np.ones(shape, dtype)


def offsets(*values):
    return np.array(values, np.int32)


def mx(*shape, axis=0, o=None):
    return reference.quantize_mxfp8(ones(*shape), axis=axis, group_offsets=o)


X, W, DY, AT = ones(6, 16), ones(2, 16, 8), ones(6, 8), offsets(0, 2, 6)
FORWARD = [
    ((ones(6, 17), W, AT), {}, ValueError,
     "x.shape[1] (K) must equal w.shape[1] (K); got 17 and 16; x.shape=(6, 17), w.shape=(2, 16, 8)"),
    ((X, ones(16, 8), AT), {}, ValueError, "w.ndim must be 3; got 2; w.shape=(16, 8)"),
    ((ones(1, 6, 16), W, AT), {}, ValueError, "x.ndim must be 2; got 3; x.shape=(1, 6, 16)"),
    ((X.astype(np.float16), W, AT), {}, TypeError,
     "x.dtype and w.dtype must be the same; got float16 and bfloat16"),
    ((X, W, offsets(0, 2, 4, 6)), {}, ValueError,
     "group_offsets.shape must be (G+1,)=(3,); got (4,)"),
    ((X, W, offsets(0, 3, 2)), {}, ValueError,
     "group_offsets must not decrease; got group_offsets[2]=2 after group_offsets[1]=3"),
    ((X, W, AT), {"out": ones(6, 9)}, ValueError, "out.shape must be (M, N)=(6, 8); got (6, 9)"),
    ((X, W, AT), {"dtype": np.int8}, TypeError, "dtype must be bfloat16, float16 or float32; got int8"),
    ((X, W, AT), {"out": ones(6, 8), "dtype": np.float32}, TypeError,
     "out.dtype must be dtype=float32; got bfloat16"),
    ((X, W, AT), {"out": X[:, :8]}, ValueError, "out must not overlap x; got arrays that share memory"),
    ((mx(6, 16, axis=-1), mx(2, 16, 8, axis=-1), AT), {}, ValueError,
     "w must be blocked along K, its axis -2; got axis=-1; quantize with quantize_mxfp8(x, axis=-2), "
     "or quantize_mxfp8(x.mT).mT"),
]  # fmt: skip
WGRAD = [
    ((DY, ones(7, 16), AT), {}, ValueError,
     "dy.shape[0] (M) must equal x.shape[0] (M); got 6 and 7; dy.shape=(6, 8), x.shape=(7, 16)"),
    ((DY, X, offsets(0, 9)), {}, ValueError,
     "group_offsets must be at most 6, the number of rows; got group_offsets[1]=9"),
    ((DY, X, AT), {"accumulate": True}, ValueError,
     "accumulate=True needs an array out; got out=None"),
    ((DY, X, AT), {"accumulate": 1}, TypeError, "accumulate must be True or False; got int"),
    ((DY, X, AT), {"recipe": "fp8"}, ValueError, "recipe must be 'bf16' or 'mxfp8'; got 'fp8'"),
    ((DY, X, AT), {"out": ones(3, 8, 16)}, ValueError,
     "out.shape must be (G, N, K)=(2, 8, 16); got (3, 8, 16)"),
    ((mx(6, 8, o=AT), mx(6, 16, o=AT), AT), {"recipe": "mxfp8"}, ValueError,
     "recipe must be omitted for quantized operands; got recipe='mxfp8', dy in mxfp8_e4m3"),
    ((mx(6, 8, o=AT), mx(6, 16, o=AT), offsets(0, 3, 6)), {}, ValueError,
     "group_offsets must be the offsets that dy was quantized with; got other offsets; on a device, pass "
     "the same array"),
    ((mx(64, 8), mx(64, 16), offsets(0, 33, 64)), {}, ValueError,
     "group_offsets must be multiples of 32 if dy was quantized without them; got group_offsets[1]=33; "
     "quantize with quantize_mxfp8(x, axis=0, group_offsets=group_offsets)"),
    ((mx(6, 8, axis=-1), mx(6, 16, o=AT), AT), {}, ValueError,
     "dy must be blocked along K, its axis -2; got axis=-1; quantize with quantize_mxfp8(x, axis=-2), "
     "or quantize_mxfp8(x.T).T"),
]  # fmt: skip


def name_of(x):
    return x if isinstance(x, str) else ""


@pytest.mark.parametrize(("args", "kwargs", "kind", "text"), FORWARD, ids=name_of)
def test_faults_of_matmul(args, kwargs, kind, text):
    check("grouped_matmul", describe_grouped_matmul, args, kwargs, kind, text)


@pytest.mark.parametrize(("args", "kwargs", "kind", "text"), WGRAD, ids=name_of)
def test_faults_of_wgrad(args, kwargs, kind, text):
    check("grouped_wgrad", describe_grouped_wgrad, args, kwargs, kind, text)


def check(op, describe, args, kwargs, kind, text):
    _, reasons = describe(*args, **kwargs)
    assert (kind, text) in [(reason.kind, reason.text) for reason in reasons]
    answer = can_use(op, *args, **kwargs)
    assert not answer
    assert text in [reason.text for reason in answer.reasons]
    with pytest.raises(kind) as caught:
        getattr(hg, op)(*args, **kwargs)
    assert text in str(caught.value)


def test_every_fault_is_reported():
    _, reasons = describe_grouped_wgrad(DY, ones(7, 16), offsets(1, 9), dtype=np.int8, recipe=3)
    assert {reason.code for reason in reasons} == {"shape", "offsets", "dtype", "recipe"}


def test_can_use_says_what_would_run():
    answer = can_use("grouped_matmul", X, W.swapaxes(1, 2).copy().swapaxes(1, 2), AT)
    assert answer.kernel.startswith("grouped_matmul_bf16_nt_")
    assert not answer.copies
    assert answer.costs[0].kernel.name == answer.kernel
    assert can_use("grouped_matmul", X, W, AT).kernel.startswith("grouped_matmul_bf16_nn_")
    answer = can_use("grouped_wgrad", DY, X, AT, recipe="mxfp8")
    assert answer.kernel.startswith("grouped_wgrad_mxfp8_e4m3_tn_")
    narrow = [reference.quantize_mxfp4(ones(64, n), axis=0, hadamard=False) for n in (8, 16)]
    answer = can_use("grouped_wgrad", *narrow, offsets(0, 32, 64))
    assert [reason.code for reason in answer.reasons] == ["format"]


@pytest.mark.parametrize("arch", ["gfx90a"])
def test_where_nothing_serves_groups(arch):
    assert not can_use("grouped_matmul", X, W, AT, arch=arch)


def test_forced_kernels(configure):
    configure(kernel="grouped_matmul_bf16_nn_64x64x64")
    assert can_use("grouped_matmul", X, W, AT).kernel == "grouped_matmul_bf16_nn_64x64x64"
    (reason,) = can_use("grouped_wgrad", DY, X, AT).reasons
    assert str(reason).startswith(
        "HIPGEMM_KERNEL must be a kernel for grouped_wgrad; got grouped_matmul_bf16_nn_64x64x64; "
        "those for bf16 and bf16: grouped_wgrad_bf16_tn_256x256x64, "
    )
    configure(kernel="plain")
    assert [reason.kind for reason in can_use("grouped_matmul", X, W, AT).reasons] == [hg.UnsupportedError]


def chosen(rows, groups, n, k):
    """The tile for a forward product, on the device."""
    problem, _ = describe_grouped_matmul(
        np.lib.stride_tricks.as_strided(ones(1), (rows, k), (k * 2, 2)),
        np.lib.stride_tricks.as_strided(ones(1), (groups, k, n), (n * k * 2, 2, k * 2)),
        np.linspace(0, rows, groups + 1).astype(np.int32),
    )
    return choices(problem, KERNELS)[0][0].kernel.tile


def test_tiles_go_by_the_average_group():
    """Small experts get small tiles, which fill more units; large ones large tiles."""
    assert chosen(128 * 1024, 8, 4096, 4096)[:2] == (256, 256)
    assert chosen(16 * 8, 8, 1024, 1024)[0] <= 64
    areas = [np.prod(chosen(rows, 64, 2048, 2048)[:2]) for rows in (64, 64 * 64, 64 * 512, 64 * 2048)]
    assert areas == sorted(areas)


def test_grid_covers_any_offsets(rng):
    """Each group has enough slots, wherever groups begin, and those of different groups are apart."""
    problem, _ = describe_grouped_matmul(ones(1000, 16), ones(7, 16, 8), offsets(*[0] * 8))
    kernel = next(k for k in KERNELS if k.name == "grouped_matmul_bf16_nn_64x64x64")
    slots = workgroups(problem, kernel)  # for one column of tiles
    for _ in range(200):
        o = np.concatenate(([0], np.sort(rng.integers(0, 1001, 7))))
        first = [begin // 64 + g for g, begin in enumerate(o)]
        ends = [*o[1:], 1000]
        for g, (begin, end) in enumerate(zip(o, ends, strict=True)):
            needed = -(-(end - begin) // 64)
            assert first[g] + needed <= (first[g + 1] if g < 7 else slots)
            down = begin // 16 * 16  # where tiles with scales begin
            assert first[g] + (-(-(end - down) // 64) if end > begin else 0) <= (
                first[g + 1] if g < 7 else slots
            )
