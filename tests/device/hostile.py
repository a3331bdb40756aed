"""Hostile arguments, and the table of public functions that they are passed to.

A new function joins by one row of `ROWS`: a right call, with a factory for each of its parameters.
"""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference, testing
from hipgemm.distributed import sharding
from hipgemm.runtime import hip as _hip

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
E4M3, E2M1 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float4_e2m1fn)
E2M3 = np.dtype(ml_dtypes.float6_e2m3fn)


# ---- hostile arguments


class Refusal(Exception):
    """What hostile objects raise. It may propagate."""


def _raising(*names: str) -> Any:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise Refusal

    return type(f"Raising_{'_'.join(names).strip('_')}", (), dict.fromkeys(names, refuse))()


class Likeness:
    """It has the attributes of an array, but is not one."""

    shape, dtype, ndim, strides, device = (4, 32), BF16, 2, (64, 2), 0


class Other(np.ndarray):
    """A subclass that changes nothing."""


NUMBERS: dict[str, Any] = {
    "minus one": -1,
    "zero": 0,
    "2**31": 2**31,
    "2**63": 2**63,
    "2**64": 2**64,
    "10**400": 10**400,
    "-10**5000": -(10**5000),
    "half": 0.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "1e39": 1e39,
    "complex": 1j,
    "True": True,
    "np.False_": np.False_,
    "Decimal": Decimal(1),
    "Fraction": Fraction(1, 3),
    "np.float32 nan": np.float32("nan"),
    "np.int64": np.int64(-7),
    "np.uint64": np.uint64(2**64 - 1),
    "np.complex64": np.complex64(1),
    "datetime64": np.datetime64(5, "ns"),
    "timedelta64": np.timedelta64(5, "ns"),
    "masked": np.ma.masked,
}
OBJECTS: dict[str, Any] = {
    "object": object(),
    "class": hg.DeviceArray,
    "function": len,
    "ellipsis": ...,
    "slice": slice(None),
    "empty text": "",
    "nan as text": "nan",
    "number as text": "1",
    "bytes": b"1",
    "np.str_": np.str_("1"),
    "empty list": [],
    "list": [1.0, 2.0],
    "nested list": [[1.0] * 32] * 4,
    "dict": {},
    "set": {1},
    "range": range(4),
    "memoryview": memoryview(b"1234"),
    "likeness": Likeness(),
    "huge dtype": "V4294967296",
    "object dtype": object,
    "raising int": _raising("__int__", "__index__", "__float__"),
    "raising array": _raising("__array__", "__len__", "__getitem__", "__iter__"),
    "raising dlpack": _raising("__dlpack__", "__dlpack_device__"),
    "raising eq": _raising("__eq__", "__hash__", "__bool__"),
    "raising repr": _raising("__repr__", "__str__", "__format__"),
    "interface of nothing": types.SimpleNamespace(__cuda_array_interface__={}),
    "interface that is none": types.SimpleNamespace(__cuda_array_interface__=None),
}


def same_values(x: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The values of an array in other layouts: where accepted, the result is the same."""
    yield "reversed in memory", x[(slice(None, None, -1),) * x.ndim].copy()[(slice(None, None, -1),) * x.ndim]
    yield "columns first", np.asfortranarray(x)
    wide = np.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype) if x.ndim else None
    if wide is not None:
        wide[..., ::2] = x
        yield "every other", wide[..., ::2]
    odd = np.ndarray(x.shape, x.dtype, np.zeros(x.nbytes + 1, np.uint8).data, 1)
    odd[...] = x
    yield "between words", odd
    frozen = x.copy()
    frozen.flags.writeable = False
    yield "read-only", frozen
    yield "subclass", x.view(Other)


def other_values(x: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Arrays that differ from an array in one property."""
    yield "without elements", x[..., :0] if x.ndim else np.zeros(0, x.dtype)
    yield "0-d", np.zeros((), x.dtype)
    yield "one axis more", np.broadcast_to(x, (2, 1, 1, *x.shape))
    yield "one row fewer", x[1:] if x.ndim else x
    yield "one column fewer", x[..., 1:] if x.ndim else x
    yield "masked", np.ma.masked_array(x)
    yield "objects", np.full(x.shape, None, object)
    yield "text", np.full(x.shape, "1")
    yield "dates", np.full(x.shape, np.datetime64("2026"))
    yield "structured", np.zeros(x.shape, [("a", "f4"), ("b", "f4")])
    yield "bytes without a type", np.zeros(x.shape, "V2")
    for dtype in (np.bool_, np.int64, np.uint8, np.float64, np.complex64, ml_dtypes.float8_e5m2fnuz):
        if x.dtype != dtype:
            yield str(np.dtype(dtype)), np.zeros(x.shape, dtype)
    if x.dtype.isbuiltin == 1 and x.dtype.itemsize > 1:
        yield "other byte order", x.astype(x.dtype.newbyteorder())


def other_places(x: Any) -> Iterator[tuple[str, Any]]:
    """An array in the wrong memory."""
    there = hg.asarray(x) if isinstance(x, np.ndarray) else hg.asarray(x, copy=True)
    yield ("on a device", there) if isinstance(x, np.ndarray) else ("on the host", x.get())
    freed = hg.asarray(x, copy=None if isinstance(x, np.ndarray) else True)
    freed.free()
    yield "freed", freed
    if _hip.runtime().devices > 1:
        yield "on another device", hg.asarray(there, device=1)
    if there.ndim:
        yield "in parts", hg.shard(there.get(), [0], axis=0)
    yield "quantized", hg.ScaledArray(np.zeros((4, 32), E4M3), 1.0, "fp8_e4m3")


def arrays_in(x: Any) -> dict[str, hg.DeviceArray]:
    """The arrays on devices that an argument is made of, except itself."""
    found: dict[str, Any] = {}
    if isinstance(x, hg.ScaledArray):
        found = {"elements": x.data, "scales": x.scale}
    elif isinstance(x, hg.ShardedArray):
        found = {f"part {i}": part for i, part in enumerate(x.parts)}
    elif isinstance(x, (list, tuple)):
        found = {f"[{i}]": part for i, part in enumerate(x)}
    elif isinstance(x, (hg.LinearSaved, hg.GroupedSaved)):
        found = {name: getattr(x, name) for name in x.arrays}
    elif isinstance(x, hg.AmaxState):
        found = {"values": x.current}
    inside: dict[str, hg.DeviceArray] = {}
    for name, part in found.items():
        if isinstance(part, hg.DeviceArray):
            inside[name] = part
        else:
            inside |= {f"{name}, {deeper}": array for deeper, array in arrays_in(part).items()}
    return inside


def freed_inside(make: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
    """An argument of several arrays, one of which was freed."""
    for name in arrays_in(make()):
        x = make()
        arrays_in(x)[name].free()
        yield f"{name} freed", x


# ---- valid calls


def numbers(*shape: int, dtype: Any = BF16) -> np.ndarray[Any, Any]:
    """The same small integers each time."""
    return (np.arange(int(np.prod(shape))) % 7 - 3).reshape(shape).astype(dtype)


@dataclass(frozen=True)
class OnHost:
    """A factory of arrays on the host; the function accepts any array with these values."""

    make: Callable[[], Any]

    def __call__(self) -> Any:
        return self.make()


def array(*shape: int, dtype: Any = BF16) -> OnHost:
    """A factory of arrays."""
    return OnHost(lambda: numbers(*shape, dtype=dtype))


def just(value: Any) -> Callable[[], Any]:
    """A factory of something that cannot be changed."""
    return lambda: value


def quantized(*shape: int, axis: int = -1) -> OnHost:
    """A factory of quantized arrays."""
    return OnHost(lambda: reference.quantize_mxfp8(numbers(*shape, dtype=F32), axis=axis))


def resident(*shape: int, axis: int = -1, fp8: bool = False) -> Callable[[], Any]:
    """A factory of quantized arrays on the device, with scales in memory of their own."""

    def make() -> Any:
        x = numbers(*shape, dtype=F32)
        q = reference.quantize_fp8(x) if fp8 else reference.quantize_mxfp8(x, axis=axis)
        return hg.asarray(q)

    return make


def shards(*shape: int, axis: int | None) -> Callable[[], Any]:
    """A factory of sharded arrays."""
    return lambda: hg.shard(numbers(*shape), [0, 0], axis=axis)


Accepts = Callable[[Any], bool]


@functools.cache
def parameters(function: Callable[..., Any]) -> list[tuple[str, bool]]:
    """Names of parameters, and whether they must be passed by name."""
    found = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind is parameter.KEYWORD_ONLY) for parameter in found]


@dataclass
class Row:
    """A function, a valid call of it, and what else it accepts.

    `accepts` has, by parameter, which hostile arguments are valid, in addition to `BY_NAME`. `oracle`
    computes what a call with these gives, from the arguments on the host; without it, that is not compared.
    """

    function: Callable[..., Any]
    arguments: dict[str, Callable[[], Any]]
    name: str = ""
    accepts: dict[str, Accepts] = field(default_factory=dict)
    oracle: Callable[..., Any] | None = None
    restore: Callable[[], Any] = lambda: None
    prefix: str = ""  # how messages begin

    def __post_init__(self) -> None:
        self.name = self.name or self.function.__qualname__
        self.prefix = self.prefix or self.name

    def accepted(self, name: str, x: Any) -> bool:
        """Whether a hostile argument is valid here."""
        if name in self.accepts:
            return self.accepts[name](x)
        right = self.arguments[name]()
        if true_or_false(right):
            return true_or_false(x)
        if (an_array(right) or arrays_in(right)) and name != "out" and name not in BY_NAME:
            return an_array(x)
        return name in BY_NAME and BY_NAME[name](x)

    def call(self, values: dict[str, Any]) -> Any:
        """Call the function with arguments by name."""
        places, names = [], {}
        for name, by_name in parameters(self.function):
            if by_name:
                names[name] = values[name]
            else:
                places.append(values[name])
        return self.function(*places, **names)


def row(function: Callable[..., Any], /, **arguments: Any) -> Row:
    """Make a row: a factory for each parameter; fields of `Row` have a trailing underscore."""
    options = {name[:-1]: arguments.pop(name) for name in list(arguments) if name.endswith("_")}
    return Row(function, arguments, **options)


def number(x: Any) -> bool:
    """Numbers except bools, dates and complex."""
    if isinstance(x, (bool, np.bool_, np.timedelta64, np.complexfloating)):
        return False
    return isinstance(x, (int, float, Fraction, np.number))


def real(x: Any) -> bool:
    """Factors: numbers in the range of float32, Inf and NaN, and, as in NumPy, bools."""
    return true_or_false(x) or (number(x) and not 2**127 <= abs(x) < float("inf"))


def magnitude(x: Any) -> bool:
    """Non-negative finite numbers of float32."""
    return number(x) and 0 <= x < 2**127


def finite(x: Any) -> bool:
    """Finite numbers of float32."""
    return number(x) and -(2**127) < x < 2**127


def positive(x: Any) -> bool:
    """Numbers above 0."""
    return number(x) and x > 0


def between(low: int, high: int) -> Accepts:
    """Ints of a range."""
    return lambda x: number(x) and isinstance(x, (int, np.integer)) and low <= x <= high


def extents(x: Any) -> bool:
    """Shapes of a few bytes."""
    return x in ([], range(4)) or between(0, 9)(x)


def an_array(x: Any) -> bool:
    """Any array; the function checks its type."""
    return isinstance(x, (np.ndarray, hg.DeviceArray, hg.ScaledArray, hg.ShardedArray))


def devices(x: Any) -> bool:
    """An iterator over device 0; as many devices as there are."""
    count = _hip.runtime().devices
    return hasattr(x, "__next__") or (isinstance(x, range) and len(x) <= count)


def text(x: Any) -> bool:
    """As in the environment."""
    return isinstance(x, str)


def text_or_number(x: Any) -> bool:
    """As in the environment, where values are text."""
    return isinstance(x, (str, int, np.integer))


def true_or_false(x: Any) -> bool:
    return isinstance(x, (bool, np.bool_))


# What parameters of these names accept.
BY_NAME = {
    "shape": extents,
    "stream": between(0, 1),
    "device": between(0, _hip.runtime().devices - 1),
    "timeout": positive,
    "axis": between(-2, 1),
}
NONE = just(None)


offsets = OnHost(lambda: np.array([0, 3, 3, 8], np.int32))


def device_array() -> Any:
    return hg.asarray(numbers(4, 32, dtype=F32))


def on_device(*shape: int) -> Callable[[], Any]:
    """A factory of arrays on the device."""
    return lambda: hg.asarray(numbers(*shape))


def saved(**options: Any) -> Any:
    return hg.linear(hg.asarray(numbers(4, 32)), hg.asarray(numbers(8, 32)), **options)[1]


def grouped_saved() -> Any:
    return hg.grouped_linear(hg.asarray(numbers(8, 32)), hg.asarray(numbers(3, 16, 32)), offsets())[1]


def few_offsets() -> Any:
    return np.array([0, 1, 1, 4], np.int32)


def recorded() -> Any:
    return hg.Event().record()


def calls() -> Any:
    x = hg.asarray(numbers(4, 32))
    return lambda stream: hg.matmul(x, x.T, stream=stream)


def matmul_oracle(a: Any, b: Any, *, dtype: Any, alpha: Any, col_scale: Any, bias: Any, **_: Any) -> Any:
    made = {"alpha": float(alpha), "col_scale": col_scale, "bias": bias}
    return reference.matmul(a, b, dtype=dtype, **{k: v for k, v in made.items() if v is not None})


def _config(kernel: Any, report: Any, memory_limit: Any) -> None:
    with hg.config(kernel=kernel, report=report):
        pass
    hg.config(memory_limit=memory_limit)


def _can_use(op: Any, a: Any, b: Any, arch: Any) -> Any:
    return hg.can_use(op, a, b, arch=arch)


def _quantize_both(x: Any, format: Any) -> Any:
    return reference.quantize_both(x, format)


def _assert_gemm_close(out: Any, a: Any, b: Any, alpha: Any, col_scale: Any, bias: Any, exact: Any) -> Any:
    """Whether the result is right; wrong values of hostile arguments make it wrong."""
    options = {"alpha": alpha, "col_scale": col_scale, "bias": bias, "exact": exact}
    try:
        testing.assert_gemm_close(out, a, b, **options)
    except AssertionError:
        return False
    return True


def _transpose_quantize(x: Any) -> Any:
    return reference.transpose_quantize_mxfp8(x)


def _transpose_quantize_6(x: Any) -> Any:
    return reference.transpose_quantize_mxfp6(x)


def _quantize(x: Any, format: Any) -> Any:
    return reference.quantize(x, format)


FOLDER = tempfile.TemporaryDirectory()


def a_file() -> str:
    path = os.path.join(FOLDER.name, "loaded.safetensors")
    hg.save(path, {"x": numbers(4, 32), "q": quantized(4, 32)()})
    return path


def _save(path: Any, arrays: Any) -> Any:
    """Save in the folder of the tests, and load again."""
    inside = os.path.join(FOLDER.name, os.fsdecode(path)) if isinstance(path, (str, bytes)) else path
    hg.save(inside, arrays)
    return hg.load(inside)


ON_HOST = {
    "_quantize_both": "reference",
    "_quantize": "reference",
    "_transpose_quantize_6": "reference",
    "_transpose_quantize": "reference",
    "_assert_gemm_close": "testing",
}


def generator() -> Any:
    return np.random.default_rng(0)


A_SEED = between(0, 2**64 - 1)
# What may follow a product: nothing, or most of it.
NO_STAGES: dict[str, Any] = dict.fromkeys(
    ("residual", "activation", "glu", "aux", "out_format", "out_scaling", "out_amax"), NONE
)
NO_STAGES["accumulate"] = just(False)
STAGES = NO_STAGES | {
    "residual": array(4, 4),
    "activation": just("silu"),
    "glu": just("interleaved"),
    "aux": array(4, 8, dtype=F32),
    "out_format": just("mxfp8_e4m3"),
    "out_scaling": just("floor"),
}

SHARDED: dict[str, Any] = dict.fromkeys(("out", "devices", "dtype", "col_scale", "bias", "timeout"), NONE)
SHARDED |= {"alpha": just(1.0), "accepts_": {"alpha": real}}

OF_REFERENCE = {
    "activation": just("silu"),
    "glu": just("interleaved"),
    "out_format": NONE,
    "out_scaling": NONE,
    "out_amax": NONE,
}

ROWS = [
    row(hg.matmul, a=array(4, 32), b=array(32, 8), out=NONE, dtype=just(F32), alpha=just(1.0), stream=NONE,
        col_scale=array(8, dtype=F32), bias=array(8, dtype=F32), oracle_=matmul_oracle,
        accepts_={"alpha": real}, **NO_STAGES),
    row(hg.matmul, name_="matmul with stages", prefix_="matmul", a=array(4, 32), b=array(32, 8), out=NONE,
        dtype=NONE, alpha=just(1.0), col_scale=NONE, bias=array(8, dtype=F32), stream=NONE,
        accepts_={"alpha": real}, **STAGES),
    row(hg.matmul, name_="matmul with out", prefix_="matmul", a=array(4, 32), b=array(32, 8),
        out=array(4, 8, dtype=F32), dtype=NONE, alpha=just(1.0), col_scale=NONE, bias=NONE, stream=NONE,
        accepts_={"alpha": real}, **NO_STAGES),
    row(hg.grouped_matmul, x=array(8, 32), w=array(3, 32, 16), group_offsets=offsets, out=NONE, dtype=NONE,
        alpha=just(1.0), col_scale=NONE, bias=NONE, stream=NONE, accepts_={"alpha": real}, **NO_STAGES),
    row(hg.grouped_matmul, name_="grouped_matmul with stages", prefix_="grouped_matmul", x=array(4, 32),
        w=array(3, 32, 8), group_offsets=few_offsets, out=NONE, dtype=NONE, alpha=just(1.0), col_scale=NONE,
        bias=array(3, 8, dtype=F32), stream=NONE, accepts_={"alpha": real}, **STAGES),
    row(hg.grouped_wgrad, dy=array(8, 16), x=array(8, 32), group_offsets=offsets, out=NONE, dtype=NONE,
        recipe=NONE, accumulate=just(False), stream=NONE),
    row(hg.linear, x=array(4, 32), w=array(8, 32), recipe=just("bf16"), bias=NONE, w_post_scale=NONE,
        x_amax=NONE, w_amax=NONE, scaling=NONE, hadamard=NONE, activation=just("silu"),
        glu=just("interleaved"), dtype=NONE, stream=NONE),
    row(hg.linear, name_="linear fp8", prefix_="linear", x=array(4, 32), w=array(8, 32), recipe=just("fp8"),
        bias=array(8, dtype=F32), w_post_scale=array(8, dtype=F32), x_amax=just(2.0), w_amax=just(2.0),
        scaling=NONE, hadamard=NONE, activation=NONE, glu=NONE, dtype=NONE, stream=NONE,
        accepts_={"x_amax": magnitude, "w_amax": magnitude}),
    row(hg.linear_backward, dy=on_device(4, 8), saved=saved, dy_amax=NONE, format=NONE,
        rounding=just("nearest"), seed=NONE, dtype=NONE, dw_dtype=NONE, dw=on_device(8, 32),
        accumulate=just(True), stream=NONE),
    row(hg.linear_backward, name_="linear_backward of an activation", prefix_="linear_backward",
        dy=on_device(4, 4), saved=lambda: saved(activation="silu", glu="halves"), dy_amax=NONE, format=NONE,
        rounding=just("nearest"), seed=NONE, dtype=NONE, dw_dtype=NONE, dw=NONE, accumulate=just(False),
        stream=NONE),
    row(hg.matmul, name_="matmul, quantized", prefix_="matmul", a=resident(4, 32),
        b=resident(32, 8, axis=0), out=NONE, dtype=NONE, alpha=just(1.0), col_scale=NONE, bias=NONE,
        stream=NONE, accepts_={"alpha": real}, **NO_STAGES),
    row(hg.linear, name_="linear, quantized", prefix_="linear", x=resident(4, 32, fp8=True),
        w=resident(8, 32, fp8=True), recipe=just("fp8"), bias=NONE, w_post_scale=NONE, x_amax=NONE,
        w_amax=NONE, scaling=NONE, hadamard=NONE, activation=NONE, glu=NONE, dtype=NONE, stream=NONE),
    row(hg.linear, name_="linear of pairs", prefix_="linear",
        x=lambda: hg.quantize_both(hg.asarray(numbers(4, 32)), "mxfp8_e4m3"),
        w=lambda: hg.quantize_both(hg.asarray(numbers(8, 32)), "mxfp8_e4m3"),
        recipe=just("mxfp8"), bias=NONE, w_post_scale=NONE, x_amax=NONE, w_amax=NONE, scaling=NONE,
        hadamard=NONE, activation=NONE, glu=NONE, dtype=NONE, stream=NONE),
    row(hg.linear_backward, name_="linear_backward, mxfp8", prefix_="linear_backward", dy=on_device(4, 8),
        saved=lambda: saved(recipe="mxfp8", w_post_scale=hg.asarray(np.full(8, 2, F32))), dy_amax=NONE,
        format=NONE, rounding=just("stochastic"), seed=just(7), dtype=NONE, dw_dtype=NONE, dw=NONE,
        accumulate=just(False), stream=NONE, accepts_={"seed": A_SEED}),
    row(hg.quantize_fp8, name_="quantize_fp8 with a state", prefix_="quantize_fp8", x=on_device(4, 32),
        amax=lambda: hg.AmaxState(3.0), axis=NONE, block=NONE, eps=just(0.5), format=just("fp8_e4m3"),
        rounding=just("nearest"), seed=NONE, stream=NONE, accepts_={"amax": magnitude, "eps": magnitude}),
    row(hg.dequantize, name_="dequantize on the device", prefix_="dequantize", q=resident(4, 32),
        dtype=just(F32), stream=NONE),
    row(hg.sharded_matmul, name_="sharded_matmul of parts", prefix_="sharded_matmul",
        a=shards(4, 32, axis=0), b=shards(32, 8, axis=None), split=just("m"), **SHARDED | NO_STAGES),
    row(hg.sharded_matmul, name_="sharded_matmul of parts of K", prefix_="sharded_matmul",
        a=shards(4, 32, axis=1), b=shards(32, 8, axis=0), split=just("k"), **SHARDED | NO_STAGES),
    row(hg.sharded_matmul, name_="sharded_matmul with stages", prefix_="sharded_matmul",
        a=shards(4, 32, axis=1), b=shards(32, 8, axis=0), split=just("k"), **SHARDED | NO_STAGES | {
            "out": shards(4, 8, axis=0), "accumulate": just(True), "residual": shards(4, 8, axis=0),
            "activation": just("silu"), "aux": shards(4, 8, axis=0)}),
    row(hg.sharded_matmul, name_="sharded_matmul to fp8", prefix_="sharded_matmul", a=shards(4, 32, axis=0),
        b=shards(32, 8, axis=None), split=just("m"), **SHARDED | NO_STAGES | {
            "residual": shards(4, 8, axis=0), "out_format": just("fp8_e4m3"),
            "out_amax": lambda: hg.AmaxState(3.0)}),
    row(hg.grouped_linear, x=array(8, 32), w=array(3, 16, 32), group_offsets=offsets, recipe=just("bf16"),
        bias=array(3, 16, dtype=F32), x_amax=NONE, w_amax=NONE, scaling=NONE, hadamard=NONE,
        activation=just("silu"), glu=just("interleaved"), dtype=NONE, stream=NONE),
    row(hg.grouped_linear_backward, dy=on_device(8, 16), saved=grouped_saved, dy_amax=NONE, format=NONE,
        rounding=just("nearest"), seed=NONE, dtype=NONE, dw_dtype=NONE, dw=on_device(3, 16, 32),
        accumulate=just(True), stream=NONE),
    row(hg.quantize_fp8, x=array(4, 32), amax=just(3.0), axis=NONE, block=NONE, eps=just(0.5),
        format=just("fp8_e4m3"), rounding=just("stochastic"), seed=just(7), stream=NONE,
        accepts_={"amax": magnitude, "eps": magnitude, "seed": A_SEED},
        oracle_=lambda stream, amax, eps, **given: reference.quantize_fp8(
            **given, amax=None if amax is None else float(amax), eps=float(eps))),
    row(hg.quantize_mxfp8, x=array(4, 32), axis=just(-1), scaling=just("unit"), format=just("mxfp8_e4m3"),
        group_offsets=NONE, rounding=just("stochastic"), seed=just(7), stream=NONE,
        accepts_={"seed": A_SEED}, oracle_=lambda stream, **given: reference.quantize_mxfp8(**given)),
    row(hg.quantize_mxfp8, name_="quantize_mxfp8 by groups", prefix_="quantize_mxfp8", x=array(8, 32),
        axis=just(0), scaling=just("unit"), format=just("mxfp8_e4m3"), group_offsets=offsets,
        rounding=just("nearest"), seed=NONE, stream=NONE, accepts_={"axis": between(-2, 0)}),
    row(hg.quantize_mxfp6, x=array(4, 32), axis=just(-1), scaling=just("even"), format=just("mxfp6_e2m3"),
        rounding=just("nearest"), seed=NONE, stream=NONE,
        oracle_=lambda stream, **given: reference.quantize_mxfp6(**given)),
    row(hg.quantize_mxfp4, x=array(16, 32), axis=just(-1), scaling=just("even"), hadamard=just(True),
        signs=just(5), rounding=just("stochastic"), seed=just(7), stream=NONE,
        accepts_={"signs": A_SEED, "seed": A_SEED},
        oracle_=lambda stream, **given: reference.quantize_mxfp4(**given)),
    row(hg.quantize_both, x=array(4, 32), format=just("mxfp8_e4m3"), scaling=NONE, hadamard=NONE, signs=NONE,
        rounding=just("nearest"), seed=NONE, stream=NONE,
        oracle_=lambda x, format, **_: reference.quantize_both(x, format)),
    row(hg.transpose_quantize_mxfp8, x=array(32, 4), scaling=just("unit"), format=just("mxfp8_e4m3"),
        rounding=just("nearest"), seed=NONE, stream=NONE,
        oracle_=lambda x, **_: reference.transpose_quantize_mxfp8(x)),
    row(hg.transpose_quantize_mxfp6, x=array(32, 4), scaling=just("even"), format=just("mxfp6_e2m3"),
        rounding=just("nearest"), seed=NONE, stream=NONE,
        oracle_=lambda x, **_: reference.transpose_quantize_mxfp6(x)),
    row(hg.dequantize, q=quantized(4, 32), dtype=just(F32), stream=NONE),
    row(hg.rms_norm, x=array(4, 32), weight=array(32, dtype=F32), eps=just(0.5), residual=array(4, 32),
        out_format=NONE, out_amax=NONE, stream=NONE, accepts_={"eps": magnitude}),
    row(hg.rms_norm, name_="rms_norm to fp8", prefix_="rms_norm", x=on_device(4, 32),
        weight=array(32, dtype=F32), eps=just(0.5), residual=on_device(4, 32), out_format=just("fp8_e4m3"),
        out_amax=lambda: hg.AmaxState(3.0), stream=NONE, accepts_={"eps": magnitude}),
    row(hg.softmax, x=array(4, 32), axis=just(-1), scale=just(0.5), causal=just(True), stream=NONE,
        accepts_={"scale": finite}),
    row(hg.pack_mx_scales, scale=array(4, 8, dtype=np.uint8), stream=NONE),
    row(hg.pack_fp4, x=array(4, 32, dtype=E2M1)),
    row(hg.unpack_fp4, x=array(4, 32, dtype=np.uint8)),
    row(hg.pack_fp6, x=array(4, 32, dtype=E2M3)),
    row(hg.unpack_fp6, x=array(4, 33, dtype=np.uint8), format=just("mxfp6_e2m3")),
    row(hg.asarray, x=array(4, 32), dtype=NONE, device=NONE, copy=NONE, stream=NONE, oracle_=lambda x, **_: x,
        accepts_={"x": lambda x: an_array(x) or isinstance(x, np.generic), "copy": lambda x: x is True}),
    row(hg.empty, shape=just((4, 32)), dtype=just(F32), device=NONE, stream=NONE),
    row(hg.zeros, shape=just((4, 32)), dtype=just(F32), device=NONE, stream=NONE),
    row(hg.shard, x=array(4, 32), devices=just([0, 0]), axis=just(0), sizes=NONE, timeout=just(9.0),
        accepts_={"devices": devices}),
    row(hg.sharded_matmul, a=array(4, 32), b=array(32, 8), split=just("m"), **SHARDED | NO_STAGES | {
            "devices": just([0, 0]), "dtype": just(F32), "activation": just("silu"),
            "glu": just("interleaved"), "timeout": just(9.0),
            "accepts_": {"alpha": real, "devices": devices}}),
    row(sharding.assemble, parts=lambda: [device_array(), device_array()], axis=just(0), comm=NONE,
        timeout=just(9.0)),
    row(_can_use, name_="can_use", op=just("matmul"), a=array(4, 32), b=array(32, 8), arch=NONE),
    row(_config, name_="config", kernel=NONE, report=just(False), memory_limit=NONE,
        accepts_={"report": text_or_number, "kernel": text, "memory_limit": text_or_number},
        restore_=lambda: hg.config(memory_limit=None)),
    row(_save, name_="save", path=just("saved"), arrays=lambda: {"x": numbers(4, 32), "q": resident(4, 32)()},
        accepts_={"path": lambda x: isinstance(x, (str, bytes)), "arrays": lambda x: isinstance(x, dict)}),
    row(hg.load, path=a_file, names=just(["q", "x"]), device=just(0),
        accepts_={"names": lambda x: isinstance(x, (list, dict)) and not x}),
    row(hg.memory_stats, device=NONE),
    row(hg.trim, device=NONE),
    row(hg.synchronize, device=NONE),
    row(hg.limit_memory, limit=NONE, cache=NONE, device=NONE, restore_=hg.limit_memory,
        accepts_={"limit": between(0, 10**400), "cache": between(0, 10**400)}),
    row(hg.usage),
    row(hg.reset_usage),
    row(hg.info),
    row(hg.ScaledArray, data=array(4, 32, dtype=E4M3), scale=just(0.5), format=just("fp8_e4m3"),
        axis=just(-1), hadamard=just(False), signs=NONE, block=NONE,
        accepts_={"scale": lambda x: real(x) and not true_or_false(x)}),
    row(hg.ScaledArray.get, self=quantized(4, 32)),
    row(hg.ScaledArray.reshape, self=quantized(4, 32), shape=just((2, 2, 32))),
    row(hg.DeviceArray.get, self=device_array, out=array(4, 32, dtype=F32), prefix_="get"),
    row(hg.DeviceArray.free, self=device_array),
    row(hg.DeviceArray.reshape, self=device_array, shape=just((2, 64)),
        accepts_={"shape": between(-1, -1)}),
    row(hg.DeviceArray.view, self=device_array, dtype=just(np.uint8)),
    row(hg.DeviceArray.astype, self=device_array, dtype=just(F32), prefix_="astype"),
    row(hg.DeviceArray.__getitem__, self=device_array, index=just(1), prefix_="DeviceArray",
        accepts_={"index": lambda x: between(-4, 3)(x) or x is ... or isinstance(x, slice)}),
    row(hg.ShardedArray.get, self=lambda: hg.shard(numbers(4, 32), [0, 0], axis=0)),
    row(hg.AmaxState, value=just(1.0), device=NONE, accepts_={"value": magnitude}),
    row(hg.AmaxState.step, self=hg.AmaxState, stream=NONE),
    row(hg.Stream, device=NONE),
    row(hg.Stream.query, self=hg.Stream),
    row(hg.Stream.synchronize, self=hg.Stream),
    row(hg.Stream.record, self=hg.Stream, event=NONE),
    row(hg.Stream.wait, self=hg.Stream, other=recorded),
    row(hg.Event, device=NONE, timing=just(True)),
    row(hg.Event.query, self=recorded),
    row(hg.Event.synchronize, self=recorded),
    row(hg.Event.record, self=hg.Event, stream=NONE),
    row(hg.Event.wait, self=recorded, stream=NONE),
    row(hg.Event.elapsed, self=recorded, end=recorded),
    row(hg.Graph, function=calls, device=NONE),
    row(hg.Graph.launch, self=lambda: hg.Graph(calls()), stream=NONE),
]  # fmt: skip
ROWS += [
    row(reference.matmul, a=array(4, 32), b=array(32, 8), dtype=just(F32), alpha=just(1.0),
        col_scale=array(8, dtype=F32), bias=array(8, dtype=F32), accepts_={"alpha": real},
        onto=array(4, 4, dtype=F32), **OF_REFERENCE, residual=array(4, 4, dtype=F32)),
    row(reference.grouped_matmul, x=array(8, 32), w=array(3, 32, 16), group_offsets=offsets, dtype=NONE,
        alpha=just(1.0), col_scale=NONE, bias=array(3, 16, dtype=F32), accepts_={"alpha": real},
        onto=NONE, **OF_REFERENCE, residual=array(8, 8, dtype=F32)),
    row(reference.grouped_wgrad, dy=array(8, 16), x=array(8, 32), group_offsets=offsets, dtype=NONE,
        onto=array(3, 16, 32, dtype=F32)),
    row(reference.values, x=array(4, 32)),
    row(reference.dequantize, q=quantized(4, 32), dtype=just(F32)),
    row(reference.quantize_fp8, x=array(4, 32), amax=just(3.0), axis=NONE, block=NONE, eps=just(0.5),
        format=just("fp8_e4m3"), rounding=just("nearest"), seed=NONE,
        accepts_={"amax": magnitude, "eps": magnitude, "axis": between(-2, 1)}),
    row(reference.quantize_mxfp8, x=array(8, 32), axis=just(0), scaling=just("unit"),
        format=just("mxfp8_e4m3"), group_offsets=offsets, rounding=just("nearest"), seed=NONE,
        accepts_={"axis": between(-2, 0)}),
    row(reference.quantize_mxfp4, x=array(16, 32), axis=just(-1), scaling=just("even"), hadamard=just(True),
        signs=just(5), rounding=just("stochastic"), seed=just(7), accepts_={"signs": A_SEED, "seed": A_SEED}),
    row(reference.quantize_mxfp6, x=array(4, 32), axis=just(-1), scaling=just("even"),
        format=just("mxfp6_e2m3"), rounding=just("stochastic"), seed=just(7), accepts_={"seed": A_SEED}),
    row(_quantize, name_="quantize", x=array(4, 32), format=just("mxfp6_e2m3")),
    row(_transpose_quantize_6, name_="transpose_quantize_mxfp6", x=array(32, 4)),
    row(_quantize_both, name_="quantize_both", x=array(4, 32), format=just("mxfp8_e4m3")),
    row(reference.rms_norm, x=array(4, 32), weight=array(32, dtype=F32), eps=just(0.5),
        residual=array(4, 32), accepts_={"eps": magnitude}),
    row(reference.softmax, x=array(4, 32), axis=just(-1), scale=just(0.5), causal=just(True),
        accepts_={"scale": finite}),
    row(_transpose_quantize, name_="transpose_quantize_mxfp8", x=array(32, 4)),
    row(reference.hadamard, x=array(4, 32, dtype=F32)),
    row(reference.linear_products, x=array(4, 32), w=array(8, 32), dy=array(4, 8), recipe=just("fp8"),
        bias=array(8, dtype=F32), w_post_scale=array(8, dtype=F32), activation=just("silu"), glu=NONE,
        amax=just((2.0, None, 3.0)), format=NONE,
        scaling=NONE, hadamard=NONE, rounding=just("nearest"), seed=NONE,
        accepts_={"hadamard": true_or_false}),
    row(reference.grouped_linear_products, x=array(8, 32), w=array(3, 16, 32), dy=array(8, 16),
        group_offsets=offsets, recipe=just("mxfp8"), amax=just((None, None, None)), format=NONE,
        scaling=NONE, hadamard=NONE, rounding=just("stochastic"), seed=just(7),
        accepts_={"hadamard": true_or_false, "seed": A_SEED}),
    row(testing.gamma, n=just(3), accepts_={"n": between(0, 2**31 - 1)}),
    row(testing.gemm_bound, a=array(4, 32), b=array(32, 8), dtype=just(F32), alpha=just(1.0),
        col_scale=array(8, dtype=F32), bias=array(8, dtype=F32), accepts_={"alpha": real}),
    row(testing.exact_grid, shape=just((4, 32)), rng=generator, dtype=just(F32), bits=just(3),
        accepts_={"bits": between(0, 24)}),
    row(testing.exact_scaled, shape=just((4, 32)), rng=generator, format=just("mxfp8_e4m3"), block=NONE),
    row(testing.random_matrix, shape=just((4, 32)), rng=generator, dtype=just(F32)),
    row(testing.poison, x=array(4, 32)),
    row(testing.surround, x=array(4, 32), rows=just(2), columns=just(8),
        accepts_={"rows": between(0, 99), "columns": between(0, 99)}),
    row(_assert_gemm_close, name_="assert_gemm_close",
        out=lambda: reference.matmul(numbers(4, 32), numbers(32, 8), dtype=F32), a=array(4, 32),
        b=array(32, 8), alpha=just(1.0), col_scale=NONE, bias=NONE, exact=just(False),
        accepts_={"alpha": real, "out": an_array}),
]  # fmt: skip
for each in ROWS:
    module = each.function.__module__.removeprefix("hipgemm.")
    module = ON_HOST.get(each.function.__name__, module)
    if module in ("reference", "testing"):
        each.name = f"{module}.{each.name}"
if _hip.runtime().emulator is not None:
    ROWS.append(row(hg.emulator_counters, reset=just(False), addresses=NONE,
                    accepts_={"addresses": true_or_false}))  # fmt: skip

# Their results differ from call to call.
UNSTEADY = {"Event.elapsed", "Event.query", "Stream.query", "trim", "empty"}
# Public names that are not called: results, errors, and what other functions return.
RESULTS = (hg.EmulatorCounters, hg.EmulatorLaunch, hg.GroupedSaved, hg.Info, hg.LinearGrads, hg.LinearSaved,
           hg.MemoryStats, hg.Reason, hg.Support, hg.Usage)  # fmt: skip
MADE = (hg.DeviceArray, hg.ShardedArray)  # by asarray, shard, ..; their methods have rows


def public() -> Iterator[str]:
    """The names of everything that users can call."""
    for name in hg.__all__:
        x = getattr(hg, name)
        if x is hg.emulator_counters and _hip.runtime().emulator is None:
            continue
        if isinstance(x, types.ModuleType):
            yield from (
                f for f in x.__all__ if callable(getattr(x, f)) and not isinstance(getattr(x, f), type)
            )
        elif not isinstance(x, type):
            yield name
        elif not issubclass(x, Exception) and x not in RESULTS:
            if x not in MADE:
                yield name
            for method, f in vars(x).items():
                if isinstance(f, types.FunctionType) and not method.startswith("_"):
                    yield f"{name}.{method}"
    for module in (reference, testing):
        for name, f in vars(module).items():
            if isinstance(f, types.FunctionType) and f.__module__ == module.__name__ and name[0] != "_":
                yield f"{module.__name__.rpartition('.')[2]}.{name}"


def hostile(make: Callable[[], Any]) -> Iterator[tuple[str, str, Any]]:
    """Hostile arguments instead of a valid one, each with its kind and its name."""
    right = make()
    for name, x in freed_inside(make):
        yield "freed", name, x
    for name, x in NUMBERS.items():
        yield "number", name, x
    for name, x in OBJECTS.items():
        yield "object", name, x
    yield "object", "iterator", iter([0])
    if isinstance(right, np.ndarray):
        for name, x in same_values(right):
            yield "same", name, x
        for name, x in other_values(right):
            yield "other", name, x
    plain = right if isinstance(right, (np.ndarray, hg.DeviceArray)) else numbers(4, 32, dtype=F32)
    for name, x in other_places(plain):
        yield "place", name, x


def value(x: Any) -> Any:
    """The result of a call, in a form that can be compared."""
    if isinstance(x, hg.ShardedArray):
        return value(x.parts)
    if isinstance(x, hg.DeviceArray):
        x = x.get()
    if isinstance(x, hg.ScaledArray):
        q = x.get() if x.device is not None else x
        return "quantized", q.format, q.axis, q.shape, q.data.tobytes(), np.asarray(q.scale).tobytes()
    if isinstance(x, (np.ndarray, np.generic)):
        return x.shape, x.dtype, x.tobytes()
    if isinstance(x, (tuple, list, hg.LinearGrads)):
        return [value(part) for part in x]
    if isinstance(x, dict):
        return {name: value(part) for name, part in x.items()}
    if isinstance(x, (hg.LinearSaved, hg.GroupedSaved)):
        return [value(getattr(x, name)) for name in x.arrays]
    if isinstance(x, hg.AmaxState):
        return value(x.current), value(x.next)
    if isinstance(x, hg.Support):
        return bool(x)
    return x if isinstance(x, (bool, int, type(None))) else type(x).__name__


def case(row: Row, *values: str) -> Any:
    """A case of a test; groups need kernels with matrix instructions."""
    groups = row.name.startswith("grouped") or "by groups" in row.name
    return pytest.param(row, *values, id="-".join((row.name, *values)), marks=[pytest.mark.matrix] * groups)


def path(function: str, name: str, **changed: Callable[[], Any]) -> Row:
    """A row of a function with other arguments."""
    of = next(x for x in ROWS if x.name == function)
    return replace(of, name=f"{function}, {name}", arguments=of.arguments | changed)
