"""Launches whose arguments are packed once: they are those of a launch that packs all of them."""

import struct
import threading

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.formats import arrays
from hipgemm.kernels import launch as _launch
from hipgemm.products.run import plans
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, random_matrix
from hipgemm_benchmarks import overhead

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.float32


@pytest.fixture
def plain(configure):
    configure(kernel="plain")


def given(call):
    """The bytes of arguments of each launch of a call."""
    return [block.buffer.raw for block in overhead.recorded(call).blocks]


def operands(rng, kind, splits):
    """Operands, of few enough tiles that K is split, or not."""
    m, n, k = (16, 64, 4096) if splits else (40, 33, 64)
    a, w = random_matrix((m, k), rng), random_matrix((n, k), rng)
    if kind == "bf16":
        return hg.asarray(a), hg.asarray(w).T
    options = {"axis": -1} if kind == "fp8" else {}
    quantize = {"fp8": hg.quantize_fp8, "mxfp8": hg.quantize_mxfp8, "mxfp4": hg.quantize_mxfp4}[kind]
    return quantize(hg.asarray(a), **options), quantize(hg.asarray(w), **options).T


@pytest.mark.parametrize(("forced", "splits"), [("", False), ("", True), ("plain", False)])
@pytest.mark.parametrize("kind", ["bf16", "fp8", "mxfp8", "mxfp4"])
def test_arguments_are_those_that_would_be_packed(
    kind, forced, splits, matrix_kernels, rng, configure, monkeypatch
):
    """With every alpha, alternating with calls that have vectors."""
    if splits and not matrix_kernels:
        pytest.skip("the plain kernel does not cut K into parts")
    configure(kernel=forced)
    bound, made = {}, []
    bind, launch = _launch.BoundLaunch.__init__, _launch.BoundLaunch.launch
    launch_product = _launch.BoundLaunch.launch_product

    def seen(self, kernel, workgroups, varying, fixed):
        bind(self, kernel, workgroups, varying, fixed)
        bound[self] = kernel, varying, dict(fixed)

    def launched(self, stream, values, served=None):
        made.append((self, values))
        launch(self, stream, values, served)

    def launched_product(self, stream, a, b, c, alpha, served):
        made.append((self, (a, b, c, 0, 0, 0, alpha)))
        launch_product(self, stream, a, b, c, alpha, served)

    a, b = operands(rng, kind, splits)
    hg.matmul(a, b)  # puts scales in order, where quantizers have not
    plans.clear()
    monkeypatch.setattr(_launch.BoundLaunch, "__init__", seen)
    monkeypatch.setattr(_launch.BoundLaunch, "launch", launched)
    monkeypatch.setattr(_launch.BoundLaunch, "launch_product", launched_product)
    n = b.shape[1]
    bias, half = hg.asarray(np.ones(n, F32)), hg.asarray(np.array(0.5, F32))
    out = hg.empty((a.shape[0], n), BF16)
    for options in (
        {},
        {"alpha": 0.5, "bias": bias},
        {"alpha": -0.0},
        {"alpha": 0.0, "col_scale": bias},
        {"alpha": float("nan")},
        {"alpha": half},
        {},
    ):
        made.clear()
        found = given(lambda options=options: hg.matmul(a, b, out, **options))
        assert len(found) == len(made) == 1 + splits
        for data, (one, values) in zip(found, made, strict=True):
            kernel, varying, fixed = bound[one]
            assert data == kernel.pack({**fixed, **dict(zip(varying, values, strict=True))})
        alpha = options.get("alpha", 1.0)
        last = bound[made[-1][0]][0]
        at = {x.name: x.offset for x in last.args}
        (bits,) = struct.unpack_from("<f", found[-1], at["alpha"])
        assert np.array_equal(F32(bits), F32(1.0 if alpha is half else alpha), equal_nan=True)
        assert np.signbit(bits) == (alpha is not half and np.signbit(alpha))
        want = {"alpha_ptr": half.ptr if alpha is half else 0}
        want |= {x: bias.ptr if x in options else 0 for x in ("bias", "col_scale")}
        assert {x: struct.unpack_from("<Q", found[-1], at[x])[0] for x in want} == want


def test_a_launch_within_a_launch_has_arguments_of_its_own(plain, rng, monkeypatch):
    """As in a signal handler that multiplies with the same plan."""
    a, w = random_matrix((20, 24), rng), random_matrix((9, 24), rng)
    other = random_matrix((20, 24), rng)
    x, y, z = hg.asarray(a), hg.asarray(w).T, hg.asarray(other)
    out, out_within = hg.empty((20, 9), F32), hg.empty((20, 9), F32)
    hg.matmul(x, y, out)
    inner, within = _hip.launch, []

    def launch(*arguments):
        if not within:
            within.append(True)
            hg.matmul(z, y, out_within, alpha=2.0)
        inner(*arguments)

    monkeypatch.setattr(_hip, "launch", launch)
    hg.matmul(x, y, out)
    assert within
    assert_gemm_close(out.get(), a, w.T)
    assert_gemm_close(out_within.get(), other, w.T, alpha=2.0)


def test_blocks_are_as_many_as_launches_at_once(rng):
    x, out = hg.asarray(random_matrix((16, 16), rng)), hg.empty((16, 16), BF16)
    plans.clear()
    hg.matmul(x, x, out)
    launch = [plan.launch for plan, _ in plans.values() if plan.shape == (16, 16)][-1]
    for _ in range(5):
        hg.matmul(x, x, out)
    assert len(launch._free) == 1
    threads = [threading.Thread(target=lambda: [hg.matmul(x, x) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(launch._free) <= 5


def test_a_setting_counts_from_the_next_call(rng, configure):
    x, out = hg.asarray(random_matrix((16, 16), rng)), hg.empty((16, 16), BF16)

    def served():
        hg.reset_usage()
        hg.matmul(x, x, out)
        return list(hg.usage().served)

    usual = served()
    with hg.config(kernel="plain"):
        assert served() == ["plain_gemm"]
    assert served() == usual


def test_a_freed_array_is_refused(rng):
    x, y = hg.asarray(random_matrix((16, 16), rng)), hg.asarray(random_matrix((16, 16), rng))
    out = hg.empty((16, 16), BF16)
    hg.matmul(x, y, out)
    launched = sum(hg.usage().kernels.values())
    y.free()
    for call in (lambda: hg.matmul(x, y, out), lambda: hg.matmul(y, x, out), lambda: hg.matmul(x, x, y)):
        with pytest.raises(ValueError, match="array that was freed"):
            call()
    assert sum(hg.usage().kernels.values()) == launched


def test_numbers_of_layouts_are_not_used_again(rng, monkeypatch):
    """The table is emptied when it is full: then arrays keep their numbers, and new ones get others."""
    monkeypatch.setattr(arrays, "_MOST_LAYOUTS", 1)
    w = random_matrix((24, 16), rng)
    y, kept = hg.asarray(w), []
    for rows in (1, 2, 3, 1, 2, 3):
        x = random_matrix((rows, 24), rng)
        kept.append((hg.asarray(x), x))
        for resident, host in kept:
            assert_gemm_close(hg.matmul(resident, y).get(), host, w)
    assert len(arrays._layouts) == 1
    assert len({resident._key for resident, _ in kept}) == len(kept)
