"""Every public function of arrays: by NumPy's error state, warnings, and subclasses of arrays. A row each."""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hostile import ROWS, public

import hipgemm as hg
from hipgemm import reference, testing
from hipgemm.array.device_array import DeviceArray
from hipgemm.formats.elements import QUANTIZED

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
M, N, K = 32, 48, 64
Given = Callable[[Any], Any]  # makes of an array what is passed


def hostile(*shape: int, dtype: Any = F32) -> Any:
    """Numbers of all magnitudes, NaN and Inf among them."""
    top, least = np.finfo(F32).max, np.float32(2.0**-149)
    special = np.array([np.nan, np.inf, -np.inf, top, -top, least, -least, 0, -0.0, 1e30, 1e-30], F32)
    x = np.random.default_rng(len(shape)).standard_normal(shape).astype(F32)
    x.reshape(-1)[: 3 * special.size : 3] = special
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def scaled(shape: tuple[int, int], format: str = "fp8_e4m3", given: Given = np.asarray) -> Any:
    """Elements and scales of all kinds; fp8 by rows."""
    data = np.arange(shape[0] * shape[1], dtype=np.uint8).reshape(shape)
    form = QUANTIZED[format]
    if form.is_packed:
        blocks = -(-(shape[1] * 8 // form.bits) // 32)
        scale = np.arange(shape[0] * blocks, dtype=np.uint8).reshape(shape[0], -1)
        return hg.ScaledArray(given(data), given(scale), format, hadamard=form.bits == 4)
    return hg.ScaledArray(given(data.view(E4M3)), given(hostile(shape[0], 1)), format)


def _saved(arrays: dict[str, Any]) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        hg.save(os.path.join(folder, "x"), arrays)
        return list(hg.load(os.path.join(folder, "x")).values())


def supported(answer: hg.Support) -> bool:
    """Raise the faults that `can_use` returns, as a call does."""
    if not answer:
        raise TypeError(str(answer))
    return True


OFFSETS = np.array([0, 7, M], np.int32)
X, W, DY = hostile(M, K), hostile(N, K), hostile(M, N)
EXPERTS = hostile(2, N, K)
LINEAR = {"recipe": "mxfp8"}
CALLS: dict[str, Callable[[Given], Any]] = {
    "AmaxState": lambda g: hg.AmaxState(1e-44).current,
    "ScaledArray": lambda g: scaled((M, K), given=g),
    "asarray": lambda g: [hg.asarray(g(hostile(8, 8, dtype=d)), t) for d in "fdg" for t in (BF16, "e", "f")],
    "can_use": lambda g: supported(hg.can_use("matmul", g(X.astype(BF16)), g(X.astype(BF16)).T)),
    "dequantize": lambda g: [
        hg.dequantize(scaled(shape, form, given=g), dtype=d)
        for shape, form in (((M, K), "fp8_e4m3"), ((M, K), "mxfp6_e3m2"), ((M, K), "mxfp4_e2m1"))
        for d in (BF16, np.float16, F32)
    ],
    "empty": lambda g: hg.empty((2, 3), F32).shape,
    "grouped_linear": lambda g: hg.grouped_linear(g(X), g(EXPERTS), g(OFFSETS), **LINEAR)[0],
    "grouped_linear_backward": lambda g: hg.grouped_linear_backward(
        g(DY), hg.grouped_linear(X, EXPERTS, OFFSETS, **LINEAR)[1]
    ),
    "grouped_matmul": lambda g: hg.grouped_matmul(
        g(X.astype(BF16)), g(EXPERTS.astype(BF16)).swapaxes(1, 2), g(OFFSETS)
    ),
    "grouped_wgrad": lambda g: hg.grouped_wgrad(g(DY.astype(BF16)), g(X.astype(BF16)), g(OFFSETS)),
    "linear": lambda g: hg.linear(g(X), g(W), w_post_scale=g(hostile(N)), bias=g(hostile(N)), **LINEAR)[0],
    "linear_backward": lambda g: hg.linear_backward(
        g(DY), hg.linear(X, W, w_post_scale=hostile(N), bias=hostile(N), **LINEAR)[1]
    ),
    "matmul": lambda g: [
        hg.matmul(
            g(hostile(M, K, dtype=d)),
            g(hostile(N, K, dtype=d)).T,
            g(np.empty((M, N), t)),
            alpha=1e-30,
            col_scale=g(hostile(N)),
            bias=g(hostile(N)),
        )
        for d in (BF16, np.float16)
        for t in (BF16, np.float16, F32)
    ],
    "pack_fp4": lambda g: hg.pack_fp4(g(np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn))),
    "pack_fp6": lambda g: hg.pack_fp6(g(np.arange(64, dtype=np.uint8).view(ml_dtypes.float6_e3m2fn))),
    "pack_mx_scales": lambda g: hg.pack_mx_scales(g(np.arange(64, dtype=np.uint8).reshape(8, 8))),
    "quantize_both": lambda g: hg.quantize_both(g(X), "mxfp4_e2m1"),
    "quantize_fp8": lambda g: [
        hg.quantize_fp8(g(X), eps=0.0),
        hg.quantize_fp8(g(X), g(np.full((M, 1), 1e-44, F32)), eps=0.0, axis=-1),
    ],
    "quantize_mxfp4": lambda g: hg.quantize_mxfp4(g(X)),
    "quantize_mxfp6": lambda g: hg.quantize_mxfp6(g(X)),
    "quantize_mxfp8": lambda g: [
        hg.quantize_mxfp8(g(X), scaling="rceil"),
        hg.quantize_mxfp8(g(X), axis=0, group_offsets=g(OFFSETS)),
    ],
    "save": lambda g: _saved({"x": g(X), "row scales": scaled((M, K), given=g)}),
    "shard": lambda g: hg.shard(g(X), axis=0, devices=[0, 0]).get(),
    "sharded_matmul": lambda g: [
        hg.sharded_matmul(
            g(X.astype(BF16)),
            g(W.astype(BF16)).T,
            split="k",
            devices=[0, 0],
            alpha=1e-30,
            col_scale=g(hostile(N)),
        ),
        hg.sharded_matmul(
            scaled((M, K)), scaled((N, K)).T, split="k", devices=[0, 0], col_scale=g(hostile(N))
        ),
    ],
    "transpose_quantize_mxfp8": lambda g: hg.transpose_quantize_mxfp8(g(X)),
    "transpose_quantize_mxfp6": lambda g: hg.transpose_quantize_mxfp6(g(X)),
    "unpack_fp4": lambda g: hg.unpack_fp4(g(np.arange(16, dtype=np.uint8))),
    "unpack_fp6": lambda g: hg.unpack_fp6(g(np.arange(48, dtype=np.uint8))),
    "zeros": lambda g: hg.zeros((2, 3), F32),
    "reference.dequantize": lambda g: [
        reference.dequantize(scaled((M, K), given=g), dtype=np.float16),
        reference.dequantize(scaled((M, K), "mxfp4_e2m1", given=g)),
    ],
    "reference.grouped_linear_products": lambda g: reference.grouped_linear_products(
        g(X), g(EXPERTS), g(DY), g(OFFSETS), recipe="fp8"
    )["y"],
    "reference.grouped_matmul": lambda g: reference.grouped_matmul(
        g(X), g(EXPERTS).swapaxes(1, 2), g(OFFSETS), dtype=np.float16
    ),
    "reference.grouped_wgrad": lambda g: reference.grouped_wgrad(g(DY), g(X), g(OFFSETS), dtype=BF16),
    "reference.hadamard": lambda g: reference.hadamard(g(X)),
    "reference.linear_products": lambda g: reference.linear_products(
        g(X), g(W), g(DY), recipe="mxfp4", w_post_scale=g(hostile(N))
    )["dx"],
    "reference.matmul": lambda g: reference.matmul(
        g(X), g(W).T, alpha=1e-44, col_scale=g(hostile(N)), bias=g(hostile(N)), dtype=np.float16
    ),
    "reference.quantize": lambda g: reference.quantize(g(X), "mxfp6_e3m2"),
    "reference.quantize_both": lambda g: reference.quantize_both(g(X), "mxfp8_e5m2"),
    "reference.quantize_fp8": lambda g: reference.quantize_fp8(g(X), 1e-44, eps=0.0),
    "reference.quantize_mxfp4": lambda g: reference.quantize_mxfp4(g(X)),
    "reference.quantize_mxfp6": lambda g: reference.quantize_mxfp6(g(X)),
    "reference.quantize_mxfp8": lambda g: reference.quantize_mxfp8(g(X), scaling="even"),
    "reference.transpose_quantize_mxfp6": lambda g: reference.transpose_quantize_mxfp6(g(X)),
    "reference.transpose_quantize_mxfp8": lambda g: reference.transpose_quantize_mxfp8(g(X)),
    "reference.values": lambda g: [reference.values(g(X)), reference.values(scaled((M, K), given=g))],
    "testing.assert_gemm_close": lambda g: testing.assert_gemm_close(
        g(reference.matmul(X, W.T, dtype=F32)), g(X), g(W).T
    ),
    "testing.exact_grid": lambda g: testing.exact_grid((4, 4), np.random.default_rng(0)),
    "testing.exact_scaled": lambda g: testing.exact_scaled((4, 64), np.random.default_rng(0)),
    "testing.gamma": lambda g: testing.gamma(3),
    "testing.gemm_bound": lambda g: testing.gemm_bound(g(X), g(W).T, dtype=F32, col_scale=g(hostile(N))),
    "testing.poison": lambda g: testing.poison(g(np.zeros(4, F32))),
    "testing.random_matrix": lambda g: testing.random_matrix((4, 4), np.random.default_rng(0), dtype="e"),
    "testing.surround": lambda g: testing.surround(g(X)),
}
ARRAYLESS = ("AmaxState", "empty", "zeros", "testing.exact", "testing.gamma", "testing.random")


def test_every_public_function_of_arrays_is_called() -> None:
    """The rows of the hostile-use suite are the list of public functions."""
    takes_arrays = {
        row.name
        for row in ROWS
        if any(isinstance(make(), (np.ndarray, hg.ScaledArray)) for make in row.arguments.values())
    }
    methods = {name for name in takes_arrays if name.split(".")[0] in hg.__all__ and "." in name}
    assert (takes_arrays & set(public())) - methods <= set(CALLS) <= set(public())


def plain(x: Any) -> list[Any]:
    """The arrays of a result, as unsigned integers."""
    if isinstance(x, (list, tuple)):
        return [part for y in x for part in plain(y)]
    if isinstance(x, hg.ScaledArray):
        return plain([x.data, x.scale])
    if isinstance(x, hg.LinearGrads):
        return plain([x.dx, x.dw, x.dbias])
    if isinstance(x, DeviceArray):
        x = x.get()
    return [x.view(f"u{x.dtype.itemsize}") if isinstance(x, np.ndarray) and x.dtype.itemsize <= 8 else x]


def same(x: Any, y: Any) -> None:
    for one, other in zip(plain(x), plain(y), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.matrix
@pytest.mark.parametrize("name", CALLS)
def test_the_error_state_of_the_caller_does_not_matter(name):
    want = CALLS[name](lambda x: x)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        same(CALLS[name](lambda x: x), want)


class Own(np.ndarray):
    """A subclass that computes otherwise."""

    def __mul__(self, other: Any) -> Any:
        return self @ other

    __add__ = __sub__ = __rmul__ = __mul__


WITH_ARRAYS = [name for name in CALLS if not name.startswith(ARRAYLESS)]


def each_argument(name: str, make: Given) -> Iterator[Given]:
    """For each argument of a call that is an array, what makes that one."""
    seen = 0

    def count(x: Any) -> Any:
        nonlocal seen
        seen += 1
        return x

    CALLS[name](count)
    for which in range(seen):
        at = iter(range(seen))
        yield lambda x, at=at, which=which: make(x) if next(at) == which else x


@pytest.mark.matrix
@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_masked_arrays_are_refused(name):
    for given in each_argument(name, np.ma.array):
        with pytest.raises(TypeError, match=r"must (be|have) .*got .*MaskedArray; masks are not supported"):
            CALLS[name](given)


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", [np.matrix, np.recarray, Own])
@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_subclasses_count_as_arrays(name, kind):
    want = CALLS[name](lambda x: x)
    for given in each_argument(name, lambda x: x.view(kind if kind is not np.matrix or x.ndim == 2 else Own)):
        same(CALLS[name](given), want)


@pytest.mark.matrix
@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_a_memmap_is_an_array(name, tmp_path):
    def mapped(x: Any) -> Any:
        made = np.memmap(tmp_path / str(len(list(tmp_path.iterdir()))), np.uint8, "w+", shape=x.nbytes)
        made[:] = np.frombuffer(x.tobytes(), np.uint8)
        return np.ndarray.view(made, x.dtype).reshape(x.shape)

    want = CALLS[name](lambda x: x)
    got = CALLS[name](mapped)
    same(got, want)


@pytest.mark.parametrize("name", ["alpha", "eps", "amax", "value", "scale"])
def test_masked_numbers_are_refused(name):
    x = np.ones((32, 32), BF16)
    with pytest.raises(TypeError, match=f"{name} must be"):
        {
            "alpha": lambda: hg.matmul(x, x, alpha=np.ma.masked),
            "eps": lambda: hg.quantize_fp8(x, eps=np.ma.masked),
            "amax": lambda: hg.quantize_fp8(x, np.ma.masked),
            "value": lambda: hg.AmaxState(np.ma.masked),
            "scale": lambda: hg.ScaledArray(x.view(np.uint8).view(E4M3), np.ma.masked, "fp8_e4m3"),
        }[name]()
