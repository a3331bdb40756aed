"""Misuse: a clear error or the correct result, and no corruption."""

import copy
import gc
import pickle
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from gemm_launch import LARGE_AND_SMALL, examples

import hipgemm as hg
from hipgemm import reference
from hipgemm.kernels import launch as _launch
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, exact_grid

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


# ---- copy, pickle and alike: memory never has two owners


def test_copies_of_arrays(rng, free_bytes):
    x = exact_grid((8, 48), rng)
    ours = hg.asarray(x)[:, ::2]
    shallow, deep = copy.copy(ours), copy.deepcopy(ours)
    assert (shallow.ptr, shallow.strides) == (ours.ptr, ours.strides)
    assert deep.ptr != ours.ptr
    both = copy.deepcopy([deep, deep])
    assert both[0] is both[1]
    np.testing.assert_array_equal(deep.get(), x[:, ::2])
    with pytest.raises(TypeError, match=r"DeviceArray: device memory cannot be pickled; use \.get\(\)"):
        pickle.dumps(ours)
    del shallow, deep, both
    gc.collect()
    for _ in range(5):  # memory freed by the copies may be reused
        hg.asarray(np.full(x.size, np.nan, BF16))
    np.testing.assert_array_equal(ours.get(), x[:, ::2])


@pytest.mark.parametrize(
    "quantize", [hg.quantize_fp8, hg.quantize_mxfp8, hg.quantize_mxfp6, hg.quantize_mxfp4]
)
def test_copies_of_quantized_arrays(quantize, rng):
    x = rng.standard_normal((24, 64)).astype(BF16)
    for q in (quantize(x), quantize(hg.asarray(x))):
        hg.matmul(q, q.T)  # now scales in GEMM order are cached in it
        twice = copy.deepcopy(q)
        assert (twice.format, twice.axis, twice.hadamard) == (q.format, q.axis, q.hadamard)
        np.testing.assert_array_equal(
            np.asarray(hg.dequantize(twice) if q.device is None else hg.dequantize(twice).get()),
            hg.dequantize(q) if q.device is None else hg.dequantize(q).get(),
        )
        if q.device is None:
            again = pickle.loads(pickle.dumps(q))
            np.testing.assert_array_equal(hg.dequantize(again), hg.dequantize(q))
        else:
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(q)
        expected = hg.matmul(q, q.T, dtype=F32)
        del q
        got = hg.matmul(twice, twice.T, dtype=F32)
        for out in (expected, got):
            assert_gemm_close(out if isinstance(out, np.ndarray) else out.get(), twice.get(), twice.get().T)


def test_copies_of_what_holds_memory(rng):
    state = hg.AmaxState(2.0)
    other = copy.deepcopy(state)
    hg.quantize_fp8(np.full((4, 4), 3, F32), other)
    assert (state.next.get(), other.next.get()) == (0, 3)
    _, saved = hg.linear(
        hg.asarray(exact_grid((4, 32), rng)), hg.asarray(exact_grid((4, 32), rng)), recipe="mxfp8"
    )
    grads = hg.linear_backward(hg.zeros((4, 4), BF16), copy.deepcopy(saved))
    np.testing.assert_array_equal(grads.dw.get(), np.zeros((4, 32)))
    for made in (hg.Stream(), hg.Event()):
        with pytest.raises(TypeError, match=f"{type(made).__name__}: .* cannot be copied"):
            copy.copy(made)


# ---- arguments of the wrong kind


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: hg.quantize_mxfp4(x, hadamard="yes"),
            TypeError,
            "hadamard must be True or False; got 'yes'",
        ),
        (lambda x: hg.quantize_mxfp8(x, scaling=[]), TypeError, "scaling must be one of"),
        (
            lambda x: hg.ScaledArray(x.astype("u1").view(E4M3), 1e39, "fp8_e4m3"),
            ValueError,
            "scale must fit float32",
        ),
        (lambda x: hg.AmaxState(device=7), ValueError, "AmaxState: device must be 0 to"),
        (lambda x: hg.can_use("matmul", x, x.T, arch=[]), TypeError, "arch must be a name"),
        (lambda x: hg.can_use([], x, x.T), ValueError, r"op must be matmul or .*; got \[\]"),
    ],
)
def test_wrong_kinds(call, error, text):
    with pytest.raises(error, match=text):
        call(np.ones((16, 16), BF16))


# ---- outputs that overlap inputs, with a cached plan


@pytest.mark.parametrize("name", ["a", "b", "alpha", "col_scale", "bias"])
def test_output_over_an_input_of_a_planned_call(name):
    memory = hg.zeros(2**16, np.uint8)

    def at(offset, shape, dtype):
        return memory[offset : offset + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)

    def call(**places):
        at_0 = {"a": 0, "b": 4096, "out": 8192, "alpha": 12288, "col_scale": 16384, "bias": 20480} | places
        shapes = {
            "a": (16, 32),
            "b": (32, 16),
            "out": (16, 16),
            "alpha": (),
            "col_scale": (16,),
            "bias": (16,),
        }
        x = {n: at(at_0[n], shapes[n], BF16 if n in "ab" else F32) for n in shapes}
        return hg.matmul(x.pop("a"), x.pop("b"), x.pop("out"), **x)

    call()
    with pytest.raises(ValueError, match=f"out must not overlap {name}; got arrays that share memory"):
        call(**{name: 8192 + 512})


@pytest.mark.parametrize("imported", ["none", "the input", "out"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_output_in_the_memory_of_an_input_of_a_planned_call(name, imported):
    """The same array, or two that share memory: imported by DLPack, one of them is another block."""

    def foreign(x):
        capsule = {"__dlpack_device__": x.__dlpack_device__, "__dlpack__": x.__dlpack__}
        return hg.asarray(type("Foreign", (), {n: staticmethod(f) for n, f in capsule.items()})())

    x = {n: hg.zeros((16, 16), BF16) for n in ("a", "b", "out")}
    hg.matmul(*x.values())
    if imported == "the input":
        x[name] = foreign(x["out"])
    else:
        x["out"] = x[name] if imported == "none" else foreign(x[name])
    with pytest.raises(ValueError, match=f"out must not overlap {name}; got arrays that share memory"):
        hg.matmul(*x.values())


@pytest.mark.matrix
def test_planned_calls_are_checked_like_new_ones(rng):
    """Similar, but invalid: masked vectors, scales of groups."""
    a, b, bias = hg.zeros((4, 8), BF16), hg.zeros((8, 4), BF16), np.ones(4, F32)
    hg.matmul(a, b, bias=bias, col_scale=bias)
    for name in ("bias", "col_scale"):
        with pytest.raises(TypeError, match=f"{name} must be .*; got MaskedArray; masks are not supported"):
            hg.matmul(a, b, **{"bias": bias, "col_scale": bias, name: np.ma.masked_array(bias, [1, 0, 0, 0])})

    class Likeness:
        shape, dtype = bias.shape, bias.dtype

    with pytest.raises(TypeError, match=r"bias must be .*Likeness"):
        hg.matmul(a, b, bias=Likeness(), col_scale=bias)

    x = hg.asarray(rng.standard_normal((100, 32)).astype(BF16))
    whole, offsets = hg.quantize_mxfp8(x, axis=0), np.array([0, 50, 100], np.int32)
    groups = hg.quantize_mxfp8(x, axis=0, group_offsets=offsets)
    assert whole.scale.shape == groups.scale.shape
    hg.matmul(whole.T, whole)
    with pytest.raises(ValueError, match="b must be quantized without group_offsets; got 2 groups"):
        hg.matmul(whole.T, groups)
    with pytest.raises(ValueError, match="a must be quantized without group_offsets; got 2 groups"):
        hg.matmul(groups.T, whole)


# ---- memory that kernels cannot read


def test_numbers_between_their_places(rng):
    """Misaligned by a byte: kernels would read other bytes."""
    memory = hg.asarray(np.zeros((4, 72), np.uint8))
    assert memory[:, 1:].view(E4M3).shape == (4, 71)
    assert memory[:1, 4:].view(F32).shape == (1, 17)
    for view, dtype in ((memory[0, 1:65], BF16), (memory[0, 2:66], F32), (memory[:, 2:66], np.float64)):
        with pytest.raises(ValueError, match=r"DeviceArray\.view: .* aligned to"):
            view.view(dtype)
    odd = hg.asarray(np.zeros((4, 66), np.uint8))
    assert odd[:, :64].view(BF16).strides == (66, 2)
    with pytest.raises(ValueError, match=r"view: float32 elements must be aligned to 4 bytes; .*\(66, 4\)"):
        odd[:, :64].view(F32)

    class Shifted:
        def __init__(self, x):
            interface = {"shape": (8,), "typestr": "<f4", "data": (x.ptr + 2, False)}
            self.__cuda_array_interface__ = {**x.__cuda_array_interface__, **interface}

    with pytest.raises(BufferError, match="asarray: float32 elements must be aligned to 4 bytes"):
        hg.asarray(Shifted(memory))
    x = np.ndarray(
        (3, 8), np.float16, np.zeros(99, np.uint8).data, 1, (27, 2)
    )  # NumPy's may: they are copied
    x[...] = rng.integers(-3, 4, (3, 8))
    out = np.ndarray((3, 3), F32, np.zeros(99, np.uint8).data, 1, (21, 4))
    assert_gemm_close(hg.matmul(x, x.T, out), x, x.T, exact=True)
    np.testing.assert_array_equal(hg.asarray(x).get(), x)


@pytest.mark.matrix
def test_groups_cannot_be_sharded(rng):
    x = rng.standard_normal((64, 32)).astype(BF16)
    q = hg.quantize_mxfp8(x, axis=0, group_offsets=np.array([0, 3, 64], np.int32))
    with pytest.raises(ValueError, match="shard: x must be quantized without group_offsets; got 2 groups"):
        hg.shard(q, [0], axis=1)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: hg.sharded_matmul(x, x, split=[]),
            ValueError,
            r"split must be m, n, k or batch; got \[\]",
        ),
        (
            lambda x: hg.sharded_matmul(x, x, split="m", devices=[0.5]),
            TypeError,
            "devices must be a sequence of int",
        ),
        (
            lambda x: hg.shard(x, [0, 0], axis=0, sizes=16),
            TypeError,
            "shard: sizes must be a sequence of ints; got 16",
        ),
        (
            lambda x: hg.shard(x, [0, 0], axis=0, sizes=[7.5, 8.5]),
            TypeError,
            "sizes must be a sequence of ints",
        ),
        (lambda x: np.asarray(hg.shard(x, [0, 0], axis=0)), TypeError, r"ShardedArray: .*; use \.get\(\)"),
        *(
            (
                lambda x, split=split: hg.sharded_matmul(
                    x, x, split=split, devices=[0, 0], bias=hg.zeros(16, F32)
                ),
                TypeError,
                "sharded_matmul: bias must be on the host; got an array",
            )
            for split in "mnk"
        ),
    ],
)
def test_wrong_kinds_for_shards(call, error, text):
    with pytest.raises(error, match=text):
        call(np.ones((16, 16), BF16))


def test_kernel_forced_between_calls(rng, configure):
    """A notebook sets HIPGEMM_KERNEL after the first product, and unsets it."""
    x, w = exact_grid((16, 32), rng), exact_grid((8, 32), rng)
    a, b = hg.asarray(x), hg.asarray(w).T
    usual = hg.can_use("matmul", a, b, arch=_hip.arch(0)).kernel
    for forced, served in ((None, usual), ("plain", "plain_gemm"), (None, usual)):
        if forced:
            configure(kernel=forced)
        else:
            configure(kernel=None)
        hg.reset_usage()
        assert_gemm_close(hg.matmul(a, b, dtype=F32).get(), x, w.T, exact=True)
        assert hg.usage().kernels == {served: 1}
    configure(kernel="nonsense")
    with pytest.raises(
        ValueError, match="HIPGEMM_KERNEL must be plain or a kernel for matmul; got nonsense; those for bf16"
    ):
        hg.matmul(a, b, dtype=F32)


@pytest.mark.matrix("f16")
def test_forced_kernel_that_does_not_serve(use_kernel):
    x = hg.zeros((4, 64), BF16)
    name = examples(["f16"], LARGE_AND_SMALL)[-1]
    use_kernel(name)
    with pytest.raises(hg.UnsupportedError, match=f"got bf16 and bf16; HIPGEMM_KERNEL={name}$"):
        hg.matmul(x, x.T)
    use_kernel("plain_gemm")
    assert [str(reason) for reason in hg.can_use("matmul", x, x.T).why] == ["HIPGEMM_KERNEL=plain"]


def test_pool_neither_on_nor_off(run_python):
    code = "import hipgemm as hg\ntry:\n    hg.zeros(3, 'f4')\nexcept ValueError as error:\n    print(error)"
    assert (
        run_python(code, HIPGEMM_POOL="maybe").stdout.strip() == "HIPGEMM_POOL must be on or off; got 'maybe'"
    )


def test_kernels_built_meanwhile(monkeypatch):
    """The manifest is read again when it changes; loaded modules stay loaded."""
    hg.matmul(hg.zeros((2, 8), BF16), hg.zeros((8, 2), BF16))
    built, module = _launch._modules[0]
    name = next(name for name in built.kernels if name.startswith("copy_"))
    fewer = replace(built, kernels={n: k for n, k in built.kernels.items() if n != name})
    monkeypatch.setitem(_launch._modules, 0, (fewer, module))
    monkeypatch.delitem(_launch._functions, (0, name), raising=False)
    with pytest.raises(
        hg.KernelNotFoundError, match=f"{name} was built after this process had loaded kernels"
    ):
        _launch.function(0, name)


@pytest.mark.parametrize("shape", [(2**32 + 5,), (1, 2**31 + 1), (2**31 + 1, 1), (2**30, 2)])
def test_more_than_a_launch_can_count(shape):
    base = hg.zeros(64, BF16)
    x = hg.DeviceArray(base._block, base.ptr, shape, (0,) * len(shape), BF16)
    calls = {
        "quantize_fp8": lambda: hg.quantize_fp8(x, 1.0, axis=-1),
        "quantize_mxfp8": lambda: hg.quantize_mxfp8(x),
        "quantize_mxfp6": lambda: hg.quantize_mxfp6(x),
        "quantize_mxfp4": lambda: hg.quantize_mxfp4(x, hadamard=False),
    }
    for function, call in calls.items():
        with pytest.raises(hg.UnsupportedError, match=f"^{function}: x must have at most 2147483648 rows"):
            call()


@pytest.mark.matrix
def test_scales_that_one_byte_serves_many_of(rng):
    """From the host: scales of one column for all, of one matrix for all, reversed."""
    x, w = (np.exp2(rng.integers(-2, 3, shape)).astype(F32) for shape in ((40, 96), (3, 70, 96)))
    q, p = reference.quantize_mxfp8(x), reference.quantize_mxfp8(w)
    base = rng.integers(120, 134, (3, 70, 3)).astype(np.uint8).view(p.scale.dtype)
    offsets = np.array([0, 7, 21, 40], np.int32)
    for scale in (
        np.broadcast_to(base[:, :1], base.shape),
        np.broadcast_to(base[:1], base.shape),
        np.broadcast_to(base[..., :1], base.shape),
        base[:, ::-1, ::-1],
    ):
        r = hg.ScaledArray(p.data, scale, p.format)
        out = hg.grouped_matmul(q, r.mT, offsets, dtype=F32)
        for g in range(3):
            rows = slice(offsets[g], offsets[g + 1])
            part = hg.ScaledArray(q.data[rows], q.scale[rows], q.format)
            one = hg.ScaledArray(p.data[g], scale[g], p.format)
            assert_gemm_close(out[rows], part, one.T)
            assert_gemm_close(hg.matmul(part, one.T, dtype=F32), part, one.T)
