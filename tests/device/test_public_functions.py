"""Every public function of arrays: by NumPy's error state, warnings, and subclasses of arrays.

The table is that of the hostile-use suite, and further paths to its functions.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hostile import NONE, ROWS, UNSTEADY, OnHost, Row, array, case, just, numbers, path, value

import hipgemm as hg
from hipgemm.formats.elements import QUANTIZED

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
TOP, LEAST = np.finfo(F32).max, np.float32(2.0**-149)
SPECIAL = np.array([np.nan, np.inf, -np.inf, TOP, -TOP, LEAST, -LEAST, 0, -0.0, 1e30, 1e-30], F32)
Given = Callable[[Any], Any]  # makes of an array what is passed


def extreme(x: Any) -> Any:
    """An argument of the same type and shape, with numbers of all magnitudes, NaN and Inf among them."""
    if not isinstance(x, np.ndarray) or x.dtype not in (BF16, F16, F32, np.float64, np.longdouble):
        return x
    made = np.random.default_rng(x.ndim).standard_normal(x.shape).astype(F32)
    made.reshape(-1)[::3] = np.resize(SPECIAL, made.reshape(-1)[::3].size)
    with np.errstate(all="ignore"):
        return made.astype(x.dtype)


def scaled(format: str, *shape: int) -> OnHost:
    """Elements and scales of all kinds; fp8 by rows."""
    data, form = np.arange(shape[0] * shape[1], dtype=np.uint8).reshape(shape), QUANTIZED[format]
    if form.is_packed:
        blocks = -(-(shape[1] * 8 // form.bits) // 32)
        scale = np.arange(shape[0] * blocks, dtype=np.uint8).reshape(shape[0], -1)
        return OnHost(lambda: hg.ScaledArray(data, scale, format, hadamard=form.bits == 4))
    rows = extreme(np.ones((shape[0], 1), F32))
    return OnHost(lambda: hg.ScaledArray(data.view(E4M3), rows, format))


PATHS = [
    *(
        path("matmul with out", f"{of} to {to}", a=array(4, 32, dtype=of), b=array(32, 8, dtype=of),
             out=array(4, 8, dtype=to), col_scale=array(8, dtype=F32), bias=array(8, dtype=of),
             alpha=just(1e-30))
        for of in (BF16, F16) for to in (BF16, F16, F32)
    ),
    *(path("asarray", f"{of} to {to}", x=array(8, 8, dtype=of), dtype=just(to))
      for of in "fdg" for to in (BF16, F16, F32)),
    *(path("dequantize", f"{form} to {to}", q=scaled(form, 32, 48), dtype=just(to))
      for form in ("fp8_e4m3", "mxfp6_e3m2", "mxfp4_e2m1") for to in (BF16, F16, F32)),
    path("reference.dequantize", "mxfp4", q=scaled("mxfp4_e2m1", 32, 48), dtype=just(F16)),
    path("reference.values", "quantized", x=scaled("fp8_e4m3", 32, 48)),
    path("quantize_fp8", "eps=0", amax=NONE, eps=just(0.0)),
    path("quantize_fp8", "amax of rows", amax=OnHost(lambda: np.full((4, 1), 1e-44, F32)), axis=just(-1)),
    path("quantize_mxfp8", "rceil", scaling=just("rceil"), rounding=just("nearest"), seed=NONE),
    path("reference.quantize_fp8", "a tiny amax", amax=just(1e-44), eps=just(0.0)),
    path("sharded_matmul", "ranges of K", split=just("k"), alpha=just(1e-30), col_scale=array(8, dtype=F32)),
    path("sharded_matmul", "ranges of K, fp8", split=just("k"), a=scaled("fp8_e4m3", 4, 32),
         b=OnHost(lambda: scaled("fp8_e4m3", 8, 32)().T)),
    *(path("rms_norm", f"{of} to {to}", x=array(4, 32, dtype=of), weight=array(32, dtype=of),
           residual=NONE, out_format=just(to)) for of in (BF16, F16, F32) for to in (None, "mxfp4_e2m1")),
    *(path("softmax", str(of), x=array(4, 32, dtype=of)) for of in (F16, F32)),
    path("save", "from the host", arrays=OnHost(
        lambda: {"x": numbers(4, 32, dtype=F32), "rows": scaled("fp8_e4m3", 32, 48)()})),
    path("linear fp8", "mxfp8", recipe=just("mxfp8"), x_amax=NONE, w_amax=NONE),
]  # fmt: skip
TAKEN = [*ROWS, *PATHS]
OF_ARRAYS = [x for x in TAKEN if any(isinstance(make, OnHost) for make in x.arguments.values())]


def passed(x: Any, given: Given) -> Any:
    """What is passed instead of an argument that is an array, or is made of arrays."""
    if isinstance(x, dict):
        return {name: passed(part, given) for name, part in x.items()}
    if isinstance(x, np.ndarray):
        return given(x)
    options = {name: getattr(x, name) for name in ("axis", "hadamard", "signs", "block")}
    return hg.ScaledArray(given(x.data), given(x.scale), x.format, **options)


def call(row: Row, given: Given) -> Any:
    """Call a function with extreme numbers, and with what is made of each array on the host."""
    values = {}
    for name, make in row.arguments.items():
        x = make()
        if row.name != "testing.assert_gemm_close" and name != "amax":  # which require what others are
            x = extreme(x)
        values[name] = passed(x, given) if isinstance(make, OnHost) else x
    made = row.call(values)
    row.restore()
    if isinstance(made, hg.Support) and not made:
        raise TypeError(str(made))
    return made


@pytest.mark.parametrize("row", [case(row) for row in TAKEN])
def test_the_error_state_of_the_caller_does_not_matter(row):
    want = call(row, lambda x: x)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = call(row, lambda x: x)
    assert row.name in UNSTEADY or value(got) == value(want)


class Own(np.ndarray):
    """A subclass that computes otherwise."""

    def __mul__(self, other: Any) -> Any:
        return self @ other

    __add__ = __sub__ = __rmul__ = __mul__


with_arrays = pytest.mark.parametrize("row", [case(row) for row in OF_ARRAYS])


def each_argument(row: Row, make: Given) -> Iterator[Given]:
    """For each argument of a call that is an array, what makes that one."""
    seen = 0

    def count(x: Any) -> Any:
        nonlocal seen
        seen += 1
        return x

    call(row, count)
    assert seen
    for which in range(seen):
        at = iter(range(seen))
        yield lambda x, at=at, which=which: make(x) if next(at) == which else x


@with_arrays
def test_masked_arrays_are_refused(row):
    for given in each_argument(row, np.ma.array):
        with pytest.raises(TypeError, match=r"must (be|have) .*got .*MaskedArray; masks are not supported"):
            call(row, given)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", [np.matrix, np.recarray, Own])
@with_arrays
def test_subclasses_count_as_arrays(row, kind):
    want = value(call(row, lambda x: x))
    for given in each_argument(row, lambda x: x.view(kind if kind is not np.matrix or x.ndim == 2 else Own)):
        assert value(call(row, given)) == want


@with_arrays
def test_a_memmap_is_an_array(row, tmp_path):
    def mapped(x: Any) -> Any:
        made = np.memmap(tmp_path / str(len(list(tmp_path.iterdir()))), np.uint8, "w+", shape=x.nbytes)
        made[:] = np.frombuffer(x.tobytes(), np.uint8)
        return np.ndarray.view(made, x.dtype).reshape(x.shape)

    assert value(call(row, mapped)) == value(call(row, lambda x: x))


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
