"""The reference: the definition of each public operation in NumPy, for tests and readers."""

from __future__ import annotations

import itertools
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import fault, raise_reasons, shown
from .formats import host_checks as check
from .formats.activations import ACTIVATIONS, GLU_ACTIVATIONS, GLUS
from .formats.arrays import array_hint
from .formats.checks import Checks, checked
from .formats.elements import (
    BLOCK,
    FORMATS,
    MXFP4_E2M1,
    QUANTIZED,
    SCALE_RULES,
    Format,
    cast,
    e8m0_value,
    nearest_float,
    round_once,
    round_stochastic,
    scale_byte,
)
from .formats.groups import offset_reasons
from .formats.philox import Words, random_signs, random_words
from .formats.scaled import HADAMARD, ScaledArray, blocked_along, group_blocks, unpack_along

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Matrix = Array | ScaledArray

FP8 = ("fp8_e4m3", "fp8_e5m2")
MXFP8 = ("mxfp8_e4m3", "mxfp8_e5m2")
MXFP6 = ("mxfp6_e2m3", "mxfp6_e3m2")
MXFP4 = ("mxfp4_e2m1",)


# ---- products --------------------------------------------------------------------------------------


@check.checked_arguments(
    a=check.numbers(2),
    b=check.numbers(2),
    dtype=check.optional(check.dtype),
    alpha=check.alpha,
    col_scale=check.optional(check.vector),
    bias=check.optional(check.vector),
    residual=check.optional(check.floats(2, wide=True)),
    onto=check.optional(check.floats(2, wide=True)),
)
def matmul(
    a: Matrix,
    b: Matrix,
    /,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: float = 1.0,
    col_scale: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    onto: Array | None = None,
    activation: str | None = None,
    glu: str | None = None,
    out_format: str | None = None,
    out_scaling: str | None = None,
    out_amax: float | None = None,
) -> Any:
    """Return ``activation(a @ b * alpha * col_scale + bias) + residual + onto`` in float64.

    It is rounded once to `dtype` if one is given, or quantized to `out_format` from float32 values; with the
    amax `out_amax` for fp8. `alpha` is rounded to float32 first, as for a kernel. The value of a quantized
    element is element times scale.

    Examples
    --------
    >>> matmul(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), alpha=2.0, bias=np.array([1.0, 0.0]))
    array([[3., 4.],
           [7., 8.]])
    >>> matmul(np.eye(2), np.array([[1.0, -2.0], [3.0, 4.0]]), activation="relu", glu="halves")
    array([[-2.],
           [12.]])
    """
    check.require_product("matmul", a, b, col_scale, bias)
    out: Array = values(a) @ values(b)
    out = out * np.float64(_float32(alpha))
    if col_scale is not None:
        out = out * col_scale.astype(np.float64)
    if bias is not None:
        out = out + bias.astype(np.float64)
    y = _added("matmul", _activated("matmul", out, activation, glu), residual=residual, onto=onto)
    return _finished("matmul", y, dtype, out_format, out_scaling, out_amax)


@check.checked_arguments(
    x=check.numbers(2, 2),
    w=check.numbers(3, 3),
    dtype=check.optional(check.dtype),
    alpha=check.alpha,
    col_scale=check.optional(check.vector),
    bias=check.optional(check.floats(1, 2, wide=True)),
    residual=check.optional(check.floats(2, 2, wide=True)),
    onto=check.optional(check.floats(2, 2, wide=True)),
)
def grouped_matmul(
    x: Matrix,
    w: Matrix,
    group_offsets: Array,
    /,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: float = 1.0,
    col_scale: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    onto: Array | None = None,
    activation: str | None = None,
    glu: str | None = None,
    out_format: str | None = None,
    out_scaling: str | None = None,
    out_amax: float | None = None,
) -> Any:
    """Return rows ``x[o[g]:o[g + 1]] @ w[g]`` for each group g; after the last one zeros, or those of `onto`.

    What follows a product is as in `matmul`; `bias` is (N,), or (G, N).

    Examples
    --------
    >>> w = np.array([[[2.0]], [[3.0]]])
    >>> grouped_matmul(np.ones((4, 1)), w, np.array([0, 1, 3])).ravel()
    array([2., 3., 3., 0.])
    """
    _require_groups("grouped_matmul", group_offsets, x, w.shape[0])
    if x.shape[1] != w.shape[1]:
        got = f"{x.shape[1]} and {w.shape[1]}"
        raise fault(ValueError, "grouped_matmul", "x.shape[1] (K) must equal w.shape[1] (K)", got)
    rows, weights = values(x), values(w)
    out = np.zeros((rows.shape[0], weights.shape[2]))
    groups = _groups(group_offsets)
    for name, v in (("col_scale", col_scale), ("bias", bias)):
        shapes = [(out.shape[1],)] + [(len(groups), out.shape[1])] * (name == "bias")
        if v is not None and v.shape not in shapes:
            required = f"{name}.shape must be {' or '.join(map(str, shapes))}"
            raise fault(ValueError, "grouped_matmul", required, v.shape)
    factors = np.float64(_float32(alpha)) * (1.0 if col_scale is None else col_scale.astype(np.float64))
    added = np.broadcast_to(0.0 if bias is None else bias.astype(np.float64), (len(groups), out.shape[1]))
    for g, (begin, end) in enumerate(groups):
        out[begin:end] = (rows[begin:end] @ weights[g]) * factors + added[g]
    y = _added("grouped_matmul", _activated("grouped_matmul", out, activation, glu), residual=residual)
    y[int(group_offsets[-1]) :] = 0
    y = _added("grouped_matmul", y, onto=onto)
    return _finished("grouped_matmul", y, dtype, out_format, out_scaling, out_amax)


def _activated(function: str, t: Array, activation: str | None, glu: str | None) -> Array:
    """Apply an activation, and a GLU."""
    _require_activation(function, activation, glu, t.shape[-1])
    one = (lambda x: x) if activation is None else ACTIVATIONS[activation].function
    if glu is None:
        return np.asarray(one(t))
    columns = t.shape[-1]
    halves = t[..., ::2], t[..., 1::2]
    gate, up = halves if glu == "interleaved" else (t[..., : columns // 2], t[..., columns // 2 :])
    if activation in GLU_ACTIVATIONS:
        return np.asarray(GLU_ACTIVATIONS[activation].function(gate, up))
    return np.asarray(one(gate) * up)


def _require_activation(function: str, activation: str | None, glu: str | None, columns: int) -> None:
    known = (*ACTIVATIONS, *GLU_ACTIVATIONS) if glu is not None else tuple(ACTIVATIONS)
    if activation is not None:
        checked(function, lambda checks: checks.option("activation", activation, known))
    if glu is not None:
        checked(function, lambda checks: checks.option("glu", glu, GLUS))
        if columns % 2:
            raise fault(ValueError, function, "N must be even with glu", columns)


def _added(function: str, y: Array, **terms: Array | None) -> Array:
    for name, x in terms.items():
        if x is None:
            continue
        if x.shape != y.shape:
            raise fault(ValueError, function, f"{name}.shape must be {y.shape}", x.shape)
        y = y + x.astype(np.float64)
    return y


def _finished(
    function: str,
    y: Array,
    dtype: npt.DTypeLike | None,
    out_format: str | None,
    scaling: str | None,
    amax: float | None,
) -> Any:
    """Round once, or quantize."""
    named = (
        None
        if out_format is None
        else checked(function, lambda checks: checks.option("out_format", out_format, tuple(QUANTIZED)))
    )
    form = None if named is None else QUANTIZED[named]
    checks = Checks(function)
    if form is not None and dtype is not None:
        checks.add(ValueError, "dtype", "dtype must be omitted with out_format", shown(dtype))
    if scaling is not None and (form is None or not form.block):
        required = "out_scaling must be omitted but for MX formats"
        checks.add(ValueError, "out_scaling", required, shown(scaling))
    elif scaling is not None:
        checks.option("out_scaling", scaling, SCALE_RULES)
    if (amax is not None) != (form is not None and not form.block):
        checks.add(ValueError, "out_amax", "out_amax must be given for fp8, and else omitted", shown(amax))
    checks.raise_all()
    if form is None:
        return _rounded(y, dtype)
    options: dict[str, Any] = {} if form.block else {"amax": amax}
    options |= {} if scaling is None else {"scaling": scaling}
    return quantize(y.astype(np.float32), form.name, **options)


@check.checked_arguments(
    dy=check.numbers(2, 2),
    x=check.numbers(2, 2),
    dtype=check.optional(check.dtype),
    onto=check.optional(check.numbers(3, 3)),
)
def grouped_wgrad(
    dy: Matrix,
    x: Matrix,
    group_offsets: Array,
    /,
    *,
    dtype: npt.DTypeLike | None = None,
    onto: Array | None = None,
) -> Array:
    """Return ``dy[o[g]:o[g + 1]].T @ x[o[g]:o[g + 1]]`` for each group g; zeros for an empty group.

    In float64, added to `onto` if it is given, then rounded once to `dtype` if one is given.

    Examples
    --------
    >>> grouped_wgrad(np.ones((3, 1)), np.ones((3, 1)), np.array([0, 2, 2, 3])).ravel()
    array([2., 0., 1.])
    """
    _require_groups("grouped_wgrad", group_offsets, x, None)
    if dy.shape[0] != x.shape[0]:
        got = f"{dy.shape[0]} and {x.shape[0]}"
        raise fault(ValueError, "grouped_wgrad", "dy.shape[0] (M) must equal x.shape[0] (M)", got)
    left, right = values(dy), values(x)
    groups = _groups(group_offsets)
    shape = (len(groups), left.shape[1], right.shape[1])
    if onto is not None and onto.shape != shape:
        raise fault(ValueError, "grouped_wgrad", f"onto.shape must be (G, N, K)={shape}", onto.shape)
    out = np.zeros(shape) if onto is None else onto.astype(np.float64)
    for g, (begin, end) in enumerate(groups):
        if begin < end:
            out[g] += left[begin:end].T @ right[begin:end]
    return _rounded(out, dtype)


def _require_groups(function: str, offsets: Any, x: Matrix, groups: int | None) -> None:
    raise_reasons(function, offset_reasons(offsets, x.shape[0], groups))
    if not isinstance(offsets, np.ndarray):
        raise fault(TypeError, function, "group_offsets must be a numpy.ndarray", type(offsets).__qualname__)


def _amax_of_each(checks: Checks, name: str, x: Any) -> None:
    """The amax of x, w and dy."""
    if not isinstance(x, tuple) or len(x) != 3:
        checks.wrong_type(name, "a tuple of three", x)
        return
    for i, each in enumerate(x):
        _given_amax(checks, f"{name}[{i}]", each)


def _given_amax(checks: Checks, name: str, x: Any) -> None:
    """A number, None, or an array of floats: of any values, as these may be on a device."""
    if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        checks.dtype(f"{name}.dtype", x.dtype, tuple(FORMATS.values()))
    elif x is not None:
        checks.magnitude(name, x, "a number, an array of floats or None", array_hint(x))


def _groups(offsets: Array) -> list[tuple[int, int]]:
    return [(int(begin), int(end)) for begin, end in itertools.pairwise(offsets)]


def _rounded(out: Array, dtype: npt.DTypeLike | None) -> Array:
    if dtype is None:
        return out
    return round_once(out, _format("reference", "dtype", dtype))


def _format(function: str, name: str, dtype: npt.DTypeLike) -> Format:
    return checked(function, lambda checks: checks.dtype(name, dtype, tuple(FORMATS.values())))


@check.checked_arguments(x=check.numbers())
def values(x: Matrix) -> npt.NDArray[np.float64]:
    """Return an operand's values in float64: element times scale. A Hadamard transform is not inverted.

    Examples
    --------
    >>> values(quantize_fp8(np.array([[448.0, 1.0]], np.float32), eps=0.0))
    array([[448.,   1.]])
    """
    if not isinstance(x, ScaledArray):
        return np.asarray(x).astype(np.float64)
    elements, scale = _decoded(x)
    return np.asarray(elements.astype(np.float64) * scale.astype(np.float64))


@check.checked_arguments(q=check.quantized, dtype=check.dtype)
def dequantize(q: ScaledArray, *, dtype: npt.DTypeLike = np.float32) -> Array:
    """Return element times scale in float32, with the Hadamard transform inverted, rounded to `dtype`.

    Examples
    --------
    >>> dequantize(quantize_mxfp8(np.array([0.0, 3.0, -0.3], np.float32)))
    array([ 0.    ,  3.    , -0.3125], dtype=float32)
    """
    to = _format("dequantize", "dtype", dtype)
    elements, scale = _decoded(q)
    if q.hadamard:  # of the elements, which is exact
        elements = _transformed(np.moveaxis(elements, q.axis, -1))
        if q.signs is not None:
            elements = elements * random_signs(q.shape[q.axis], q.signs, q.signs_start)
        elements = np.moveaxis(elements, -1, q.axis)
    return np.asarray((elements * scale).astype(to.dtype))


def _decoded(q: ScaledArray) -> tuple[Floats, Floats]:
    """Elements and scales in float32; scales are repeated over their blocks."""
    data, scale = q.data, q.scale
    if data.dtype == np.uint8:
        data = unpack_along(data, QUANTIZED[q.format], q.axis, q.shape[q.axis])
    if q.block is not None:
        scale = scale if scale.dtype == np.float32 else e8m0_value(scale.view(np.uint8))
        scale = _spread_blocks(scale, q.block, q.shape)
    elif QUANTIZED[q.format].block and q.group_offsets is not None:
        scale = _spread_groups(q)
    elif QUANTIZED[q.format].block:
        scale = np.repeat(e8m0_value(scale.view(np.uint8)), BLOCK, axis=q.axis)
        scale = np.moveaxis(np.moveaxis(scale, q.axis, -1)[..., : q.shape[q.axis]], -1, q.axis)
    return data.astype(np.float32), scale


def _block_amax(x: Floats, block: tuple[int, int]) -> Floats:
    """The maxima of blocks of the last two axes; no element is negative."""
    short = [-n % side for n, side in zip(x.shape[-2:], block, strict=True)]
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, n) for n in short])
    rows, columns = (n // side for n, side in zip(x.shape[-2:], block, strict=True))
    x = x.reshape(*x.shape[:-2], rows, block[0], columns, block[1])
    return np.asarray(x.max(axis=(-3, -1), initial=np.float32(0)))


def _spread_blocks(x: Floats, block: tuple[int, int], shape: tuple[int, ...]) -> Floats:
    """Values of blocks of the last two axes, repeated over the elements of an array with this shape."""
    rows, columns = shape[-2:]
    return x.repeat(block[0], axis=-2)[..., :rows, :].repeat(block[1], axis=-1)[..., :columns]


def _spread_groups(q: ScaledArray) -> Floats:
    """Scales repeated over the blocks of each group; 1 for rows outside of all groups."""
    bytes_ = q.scale.view(np.uint8) if q.axis == -2 else q.scale.T.view(np.uint8)
    scale = e8m0_value(bytes_)
    spread = np.ones((q.shape[q.axis], scale.shape[1]), np.float32)
    blocks = group_blocks(q.group_offsets)
    for g, (begin, end) in enumerate(_groups(q.group_offsets)):
        spread[begin:end] = np.repeat(scale[blocks[g] : blocks[g + 1]], BLOCK, axis=0)[: end - begin]
    return spread if q.axis == -2 else spread.T


# ---- quantizers ------------------------------------------------------------------------------------


@check.checked_arguments(
    x=check.floats(0),
    amax=_given_amax,
    axis=check.optional(check.axis),
    eps=check.magnitude,
    format=check.one_of(*FP8),
)
def quantize_fp8(
    x: Array,
    amax: Any = None,
    *,
    axis: int | None = None,
    block: tuple[int, int] | None = None,
    eps: float = 1e-8,
    format: str = "fp8_e4m3",
    rounding: str = "nearest",
    seed: int | None = None,
) -> ScaledArray:
    """Quantize with one float32 scale for the tensor, per row along `axis`, or per block.

    Examples
    --------
    >>> q = quantize_fp8(np.array([1.0, -0.5, 0.001], np.float32), eps=0.0)
    >>> q.data.astype(float).tolist(), bool(q.scale == np.float32(1 / 448))
    ([448.0, -224.0, 0.4375], True)
    """
    function = "quantize_fp8"
    form = checked(function, lambda checks: checks.format(format, FP8))
    top = np.float32(form.maximum)
    x, words = _widened(function, x), _words(function, x.shape, rounding, seed)
    axis = None if axis is None else checked(function, lambda checks: checks.axis(axis, x.ndim))
    if block is None:
        own = np.max(np.abs(x), axis=axis, keepdims=axis is not None, initial=np.float32(0))
        own = np.asarray(own, np.float32)
    else:
        block = checked(function, lambda checks: checks.fp8_block(block, x.shape, axis, amax))
        own = _block_amax(np.abs(x), block)

    def spread(y: Floats) -> Floats:
        return y if block is None else _spread_blocks(y, block, x.shape)

    used = own if amax is None else _float32(amax)
    if used.shape not in ((), own.shape):
        raise fault(ValueError, function, f"amax.shape must be {own.shape} or ()", used.shape)
    total = used + _float32(eps)
    scale = total / top
    divisor = spread(total)
    # If it is so small that top / divisor would overflow, divide by it first.
    scaled = np.where(divisor < np.float32(2.0**-100), (x / divisor) * top, x * (top / divisor))
    scaled = np.where(spread(scale) == 0, x * np.float32(0), scaled)  # underflow: zeros with the signs of x
    scaled = np.where(np.isfinite(divisor), scaled, np.float32(np.nan))
    scale = np.where(scale == 0, np.float32(1), scale)
    scale = np.where(np.isfinite(total), scale, np.float32(np.nan))
    elements = _elements(scaled, form, words)
    scale = np.broadcast_to(scale, own.shape).copy()
    along = -1 if axis is None else axis
    return ScaledArray._make(elements, scale, form, along, x.shape, block=block, amax=own)


@check.checked_arguments(
    x=check.floats(), axis=check.axis, scaling=check.one_of(*SCALE_RULES), format=check.one_of(*MXFP8)
)
def quantize_mxfp8(
    x: Array,
    *,
    axis: int = -1,
    scaling: str = "unit",
    format: str = "mxfp8_e4m3",
    group_offsets: Array | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
) -> ScaledArray:
    """Quantize with one power-of-two scale per 32 elements along `axis`.

    With `group_offsets` and ``axis=0`` a new block begins at each offset; rows after the last one are zeros.

    Examples
    --------
    >>> q = quantize_mxfp8(np.array([1000.0, 2.0, 0.0], np.float32), scaling="floor")
    >>> q.data.astype(np.float32), q.scale.view(np.uint8)
    (array([448.,   1.,   0.], dtype=float32), array([128], dtype=uint8))
    """
    function = "quantize_mxfp8"
    form = checked(function, lambda checks: checks.format(format, MXFP8))
    if group_offsets is None:
        return _quantize_mx(function, x, axis, scaling, form, rounding, seed)
    if not isinstance(group_offsets, np.ndarray):
        raise fault(
            TypeError, function, "group_offsets must be a numpy.ndarray", type(group_offsets).__name__
        )
    if x.ndim != 2 or axis not in (0, -2):
        raise fault(ValueError, function, "group_offsets needs a matrix and axis=0", f"axis={shown(axis)}")
    raise_reasons(function, offset_reasons(group_offsets, x.shape[0]))
    offsets = group_offsets.astype(np.int32)
    assert form.scale_dtype is not None
    data = np.zeros(x.shape, form.dtype)
    blocks, words = group_blocks(offsets), _words(function, x.shape, rounding, seed)
    scale = np.zeros((int(blocks[-1]), x.shape[1]), form.scale_dtype)
    for g, (begin, end) in enumerate(_groups(offsets)):
        own = None if words is None else words[begin:end]
        part = _quantize_mx(function, x[begin:end], 0, scaling, form, words=own)
        data[begin:end], scale[blocks[g] : blocks[g + 1]] = part.data, part.scale
    return ScaledArray._make(data, scale, form, -2, x.shape, group_offsets=offsets)


@check.checked_arguments(
    x=check.floats(), axis=check.axis, scaling=check.one_of(*SCALE_RULES), hadamard=check.flag
)
def quantize_mxfp4(
    x: Array,
    *,
    axis: int = -1,
    scaling: str = "even",
    hadamard: bool = True,
    signs: int | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
) -> ScaledArray:
    """Quantize to 4 bits with one power-of-two scale per 32 elements, by default after a Hadamard transform.

    Examples
    --------
    >>> q = quantize_mxfp4(np.array([12.0, 5.0, -1.0], np.float32), hadamard=False)
    >>> q.data.astype(np.float32), q.scale.view(np.uint8)
    (array([ 6. ,  2. , -0.5], dtype=float32), array([128], dtype=uint8))
    """
    function = "quantize_mxfp4"
    if signs is not None:
        checked(function, lambda checks: checks.signs(signs, hadamard))
    return _quantize_mx(function, x, axis, scaling, MXFP4_E2M1, rounding, seed, hadamard, signs)


@check.checked_arguments(
    x=check.floats(), axis=check.axis, scaling=check.one_of(*SCALE_RULES), format=check.one_of(*MXFP6)
)
def quantize_mxfp6(
    x: Array,
    *,
    axis: int = -1,
    scaling: str = "even",
    format: str = "mxfp6_e2m3",
    rounding: str = "nearest",
    seed: int | None = None,
) -> ScaledArray:
    """Quantize to 6 bits with one power-of-two scale per 32 elements along `axis`.

    Examples
    --------
    >>> q = quantize_mxfp6(np.array([7.8, 5.2, -1.0], np.float32))
    >>> q.data.astype(np.float32), q.scale.view(np.uint8)
    (array([ 4. ,  2.5, -0.5], dtype=float32), array([128], dtype=uint8))
    """
    function = "quantize_mxfp6"
    form = checked(function, lambda checks: checks.format(format, MXFP6))
    return _quantize_mx(function, x, axis, scaling, form, rounding, seed)


def _quantize_mx(
    function: str,
    x: Array,
    axis: int,
    scaling: str,
    form: Format,
    rounding: str = "nearest",
    seed: int | None = None,
    transform: bool = False,
    signs: int | None = None,
    words: Words | None = None,
) -> ScaledArray:
    x = _widened(function, x)
    words = _words(function, x.shape, rounding, seed) if words is None else words
    shape, axis = x.shape, checked(function, lambda checks: checks.axis(axis, x.ndim))
    checked(function, lambda checks: checks.option("scaling", scaling, SCALE_RULES))
    x = np.moveaxis(x, axis, -1)
    if transform and x.shape[-1] % HADAMARD:
        required = f"the length along axis must be a multiple of {HADAMARD} for the Hadamard transform"
        raise fault(ValueError, function, required, x.shape[-1], "pass hadamard=False")
    if signs is not None:
        x = x * random_signs(shape[axis], signs)
    if transform:
        x = _transformed(x)
    blocks = _in_blocks(x)  # padded with zeros, which never change a block's maximum
    amax = np.max(np.abs(blocks), axis=-1, initial=np.float32(0))
    not_finite = ~np.isfinite(amax)
    byte = scale_byte(np.where(not_finite, np.float32(0), amax), scaling, form)
    byte = np.where(not_finite, np.uint8(255), byte)
    # 2^-e has the byte 254 - byte; 255 (NaN) stays 255.
    up = e8m0_value(np.where(not_finite, byte, 254 - byte))[..., None]
    scaled = np.where(np.isnan(up), up, blocks * up)
    elements = _elements(scaled, form, None if words is None else _in_blocks(np.moveaxis(words, axis, -1)))
    elements = elements.reshape(*x.shape[:-1], byte.shape[-1] * BLOCK)[..., : shape[axis]]
    assert form.scale_dtype is not None
    return ScaledArray._make(
        np.moveaxis(elements, -1, axis),
        np.moveaxis(byte.view(form.scale_dtype), -1, axis),
        form,
        axis,
        shape,
        hadamard=transform,
        signs=signs,
    )


def _words(function: str, shape: tuple[int, ...], rounding: str, seed: int | None) -> Words | None:
    """Return the random words of an array's elements; None for rounding to nearest."""
    _require_rounding(function, rounding, seed)
    return None if seed is None else random_words(shape, seed)


def _require_rounding(function: str, rounding: str, seed: int | None) -> None:
    checks = Checks(function)
    checks.rounding(rounding, seed)
    checks.raise_all()


def _elements(x: Floats, form: Format, words: Words | None) -> Array:
    """Round to nearest, or by random words; overflow saturates."""
    if words is not None:
        return round_stochastic(x, form, words)
    return cast(np.clip(x, -form.maximum, form.maximum), form)


def _in_blocks(x: Array) -> Array:
    """Split the last axis into blocks, and pad it with zeros."""
    count = -(-x.shape[-1] // BLOCK)
    pad = count * BLOCK - x.shape[-1]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)]).reshape(*x.shape[:-1], count, BLOCK)


@check.checked_arguments(x=check.floats(), format=check.one_of(*QUANTIZED))
def quantize(x: Array, format: str, **options: Any) -> ScaledArray:
    """Quantize by the quantizer of a format; to mxfp4 without the Hadamard transform by default.

    Examples
    --------
    >>> quantize(np.ones((2, 64), np.float32), "mxfp6_e3m2", axis=0)
    ScaledArray(shape=(2, 64), format='mxfp6_e3m2', block=32, axis=-2, host)
    """
    form = checked("quantize", lambda checks: checks.format(format))
    if form is MXFP4_E2M1:
        return quantize_mxfp4(x, **{"hadamard": False, **options})
    for names, call in ((FP8, quantize_fp8), (MXFP8, quantize_mxfp8), (MXFP6, quantize_mxfp6)):
        if format in names:
            return call(x, format=format, **options)
    raise AssertionError(format)


@check.checked_arguments(x=check.floats(), format=check.one_of(*MXFP8, *MXFP6, *MXFP4))
def quantize_both(x: Array, format: str, **options: Any) -> tuple[ScaledArray, ScaledArray]:
    """Return `x` quantized along its last axis, and along its first axis.

    Examples
    --------
    >>> rows, columns = quantize_both(np.ones((2, 64), np.float32), "mxfp8_e4m3")
    >>> rows.scale.shape, columns.scale.shape
    ((2, 2), (1, 64))
    """
    form = checked("quantize_both", lambda checks: checks.format(format, (*MXFP8, *MXFP6, *MXFP4)))
    options = {"hadamard": True, **options} if form is MXFP4_E2M1 else options
    return quantize(x, format, axis=-1, **options), quantize(x, format, axis=0, **options)


@check.checked_arguments(x=check.floats())
def transpose_quantize_mxfp8(x: Array, **options: Any) -> ScaledArray:
    """Return the transpose of `x`, quantized along its last axis.

    Examples
    --------
    >>> transpose_quantize_mxfp8(np.ones((64, 3), np.float32)).scale.shape
    (3, 2)
    """
    return quantize_mxfp8(x.T, axis=-1, **options)


@check.checked_arguments(x=check.floats())
def transpose_quantize_mxfp6(x: Array, **options: Any) -> ScaledArray:
    """Return the transpose of `x`, quantized along its last axis.

    Examples
    --------
    >>> transpose_quantize_mxfp6(np.ones((64, 3), np.float32)).scale.shape
    (3, 2)
    """
    return quantize_mxfp6(x.T, axis=-1, **options)


@check.checked_arguments(
    x=check.floats(wide=True),
    weight=check.vector,
    eps=check.magnitude,
    residual=check.optional(check.floats(wide=True)),
)
def rms_norm(x: Array, weight: Array, *, eps: float = 1e-6, residual: Array | None = None) -> Array:
    """Return ``s / sqrt(mean(s**2) + eps) * weight`` along the last axis in float64, with s = x + residual.

    Examples
    --------
    >>> rms_norm(np.array([[3.0, 4.0]]), np.array([5.0, 10.0]), eps=0.5).round(4)
    array([[ 4.1603, 11.094 ]])
    """
    checks = Checks("rms_norm")
    if weight.shape != x.shape[-1:]:
        checks.add(ValueError, "shape", f"weight.shape must be {x.shape[-1:]}", weight.shape)
    if residual is not None and residual.shape != x.shape:
        checks.add(ValueError, "shape", f"residual.shape must be {x.shape}", residual.shape)
    checks.raise_all()
    s = x.astype(np.float64)
    if residual is not None:
        s = s + residual.astype(np.float64)
    mean = np.square(s).sum(-1, keepdims=True) / max(1, s.shape[-1])
    return np.asarray(s / np.sqrt(mean + np.float64(_float32(eps))) * weight.astype(np.float64))


@check.checked_arguments(x=check.floats(wide=True), axis=check.axis, scale=check.finite, causal=check.flag)
def softmax(x: Array, *, axis: int = -1, scale: float = 1.0, causal: bool = False) -> Array:
    """Return ``exp(x * scale)`` over its sum along an axis, in float64. See `hipgemm.softmax`.

    Examples
    --------
    >>> softmax(np.zeros((2, 2)), causal=True)
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    checks = Checks("softmax")
    along = checks.axis(axis, x.ndim)
    if causal:
        checks.ndim("x", x.shape, 2)
        if along is not None and along != -1:
            checks.add(ValueError, "axis", "axis must be the last one with causal", axis)
    checks.raise_all()
    assert along is not None
    s = x.astype(np.float64) * np.float64(_float32(scale))
    if causal:
        rows, columns = s.shape[-2:]
        hidden = np.arange(columns) > np.arange(rows)[:, None] + columns - rows
        s = np.where(hidden, -np.inf, s)
    e = np.exp(s - s.max(along, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(along, keepdims=True))


@check.checked_arguments(x=check.floats(wide=True))
def hadamard(x: Floats) -> Floats:
    """Multiply each 16 consecutive elements of the last axis by Sylvester's H16 / 4, its own inverse.

    Examples
    --------
    >>> x = np.zeros(16, np.float32)
    >>> x[1] = 4
    >>> hadamard(x)[:4], bool((hadamard(hadamard(x)) == x).all())
    (array([ 1., -1.,  1., -1.], dtype=float32), True)
    """
    if x.shape[-1] % HADAMARD:
        required = f"x.shape[-1] must be a multiple of {HADAMARD} for the Hadamard transform"
        raise fault(ValueError, "hadamard", required, x.shape[-1])
    return _transformed(x)


def _transformed(x: Floats) -> Floats:
    groups = x.reshape(-1, HADAMARD)
    sums = _butterflies(groups)
    # Sums overflow before the result does: not those of smaller numbers.
    smaller = _butterflies(groups * np.float32(1 / HADAMARD))
    finite = np.isfinite(sums).all(axis=-1, keepdims=True)
    y = np.where(finite, sums * np.float32(0.25), smaller * np.float32(0.25 * HADAMARD))
    return np.asarray(y.reshape(x.shape))


def _butterflies(x: Floats) -> Floats:
    y = x
    for stride in (1, 2, 4, 8):
        pairs = y.reshape(x.shape[0], HADAMARD // (2 * stride), 2, stride)
        even, odd = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack((even + odd, even - odd), axis=-2)
    return y.reshape(x.shape)


def _float32(x: Any) -> Floats:
    """A number or an array in float32, rounded once."""
    return np.asarray(nearest_float(x) if isinstance(x, Real) else x, np.float32)


def _widened(function: str, x: Array) -> Floats:
    _format(function, "x.dtype", x.dtype)
    return x.astype(np.float32)


# ---- linear layers ---------------------------------------------------------------------------------

# Recipes whose scales belong to blocks, and their formats.
_IN_BLOCKS = {"fp8_block": "fp8_e4m3", "mxfp8": "mxfp8_e4m3", "mxfp4": "mxfp4_e2m1"}
_OF_LAYER = {
    "amax": _amax_of_each,
    "recipe": check.one_of("bf16", "fp8", *_IN_BLOCKS),
    "format": check.optional(check.one_of(*FP8, *MXFP8, "mxfp4_e2m1")),
    "scaling": check.optional(check.one_of(*SCALE_RULES)),
    "hadamard": check.optional(check.flag),
}


@check.checked_arguments(
    x=check.pair_of(check.operand(2)),
    w=check.pair_of(check.operand(2)),
    dy=check.pair_of(check.operand(2)),
    bias=check.optional(check.vector),
    w_post_scale=check.optional(check.floats(1, 1)),
    **_OF_LAYER,
)
def linear_products(
    x: Any,
    w: Any,
    dy: Any,
    *,
    recipe: str,
    bias: Array | None = None,
    w_post_scale: Array | None = None,
    activation: str | None = None,
    glu: str | None = None,
    amax: tuple[Any, Any, Any] = (None, None, None),
    format: str | None = None,
    scaling: str | None = None,
    hadamard: bool | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
) -> dict[str, tuple[Matrix, Matrix, dict[str, Any]]]:
    """Return the three products of a linear layer, each as ``a, b, epilogue`` for `matmul`.

    They are ``y`` (M, N), ``dx`` (M, K), and ``dw.T`` (K, N), whose columns are divided by w_post_scale. x
    (M, K), w (N, K) and dy (M, N) may be quantized, or pairs that are quantized along both axes. `amax` gives
    their amax for fp8; `rounding` and `seed` are of dy. A quantized dy is used as ``dy * w_post_scale``.
    With an activation, y is its result, and dy the gradient before it.

    Examples
    --------
    >>> x, w = np.ones((2, 32), np.float32), np.ones((3, 32), np.float32)
    >>> products = linear_products(x, w, np.ones((2, 3), np.float32), recipe="mxfp8")
    >>> {name: float(matmul(a, b, **epilogue)[0, 0]) for name, (a, b, epilogue) in products.items()}
    {'y': 32.0, 'dx': 3.0, 'dw.T': 2.0}
    """
    _require_layer("linear_products", x, w, dy, bias, w_post_scale)
    _require_rounding("linear_products", rounding, seed)
    _require_activation("linear_products", activation, glu, (w[0] if isinstance(w, tuple) else w).shape[-2])
    forward: dict[str, Any] = {"col_scale": w_post_scale, "bias": bias}
    if activation is not None or glu is not None:
        forward |= {"activation": activation, "glu": glu}
    weights: dict[str, Any] = {}
    g = dy
    if w_post_scale is not None:
        weights["col_scale"] = 1 / w_post_scale.astype(np.float64)
        if isinstance(dy, np.ndarray):
            g = dy.astype(np.float32) * w_post_scale
    make = _blocked_operands if recipe in _IN_BLOCKS else _plain_operands
    options = {"rounding": rounding, "seed": seed}
    rows, columns = make((x, w, g), recipe, amax, format, scaling, hadamard, options)
    return {
        "y": (rows[0], rows[1].T, forward),
        "dx": (rows[2], columns[1], {}),
        "dw.T": (columns[0].T, columns[2], weights),
    }


def _require_layer(function: str, x: Any, w: Any, dy: Any, *vectors: Array | None) -> None:
    """Check that the shapes of a layer match."""
    x, w, dy = ((q[0] if isinstance(q, tuple) else q).shape for q in (x, w, dy))
    shapes = f"x.shape={x}, w.shape={w}, dy.shape={dy}"
    if x[-1] != w[-1] or dy != (x[0], w[-2]):
        raise fault(ValueError, function, "x, w and dy must be (M, K), (N, K) and (M, N)", shapes)
    if any(v is not None and v.shape != w[-2:-1] for v in vectors):
        raise fault(ValueError, function, f"bias and w_post_scale must be (N,)=({w[-2]},)", "other shapes")


def _plain_operands(
    operands: tuple[Any, Any, Any],
    recipe: str,
    amax: Any,
    format: str | None,
    _scaling: str | None,
    _hadamard: bool | None,
    of_dy: dict[str, Any],
    _offsets: Array | None = None,
) -> tuple[list[Any], list[Any]]:
    """Return x, w and g in bfloat16 or fp8, twice, since they can be summed over either axis."""
    made: list[Any] = []
    for x, given, form, options in zip(operands, amax, (None, None, format), ({}, {}, of_dy), strict=True):
        if isinstance(x, ScaledArray):
            made.append(x)
        elif recipe == "bf16":
            made.append(round_once(x.astype(np.float64), FORMATS["bf16"]))
        else:
            made.append(quantize_fp8(x, given, format=form or "fp8_e4m3", **options))
    return made, made


def _blocked_operands(
    operands: tuple[Any, Any, Any],
    recipe: str,
    amax: Any,
    format: str | None,
    scaling: str | None,
    hadamard: bool | None,
    of_dy: dict[str, Any],
    offsets: Array | None = None,
) -> tuple[list[Any], list[Any]]:
    """Return x, w and g blocked along their rows, and along their columns, of x and g within each group."""
    x, w, g = operands
    (m, k), (n, _) = ((q[0] if isinstance(q, tuple) else q).shape[-2:] for q in (x, w))
    hadamard = hadamard if recipe == "mxfp4" else False
    transform = {
        "k": _transform(k, hadamard, (x, -1), (w, -1)),
        "n": _transform(n, hadamard, (w, -2), (g, -1)),
        "m": _transform(m, hadamard, (x, -2), (g, -2)),
    }
    usual = _IN_BLOCKS[recipe]
    rows, columns = [], []
    for operand, along, across, form in ((x, "k", "m", None), (w, "k", "n", None), (g, "n", "m", format)):
        options = of_dy if operand is g and isinstance(g, np.ndarray) else {}
        if recipe == "fp8_block":
            options = {**options, "block": (128, 128) if operand is w else (1, 128)}
        one = _blocked(operand, -1, form or usual, scaling, transform[along], options)
        rows.append(one)
        if offsets is not None and operand is not w:
            columns.append(_in_groups(one if operand is x else g, offsets, form, scaling, options))
            continue
        # Operands of the forward pass are quantized again; those of mxfp4 and dy along both axes at once.
        again = recipe != "mxfp4" and operand is not g and isinstance(operand, np.ndarray)
        source = one if again else operand
        columns.append(_blocked(source, -2, form or usual, scaling, transform[across], options))
    return rows, columns


def _transform(length: int, wanted: bool | None, *operands: tuple[Any, int]) -> bool:
    """Whether to transform the operands of a product: like its quantized operands, else as requested."""
    for operand, axis in operands:
        for part in operand if isinstance(operand, tuple) else (operand,):
            if isinstance(part, ScaledArray) and part.axis == axis:
                return part.hadamard
    return length % HADAMARD == 0 if wanted is None else wanted


def _blocked(
    x: Any, axis: int, format: str, scaling: str | None, hadamard: bool, options: dict[str, Any]
) -> ScaledArray:
    """Return x blocked along an axis; quantized or requantized if needed."""
    for part in x if isinstance(x, tuple) else (x,):
        if isinstance(part, ScaledArray):
            if blocked_along(part, axis):
                return part
            x, format = dequantize(part, dtype=FORMATS["bf16"].dtype), part.format
    options = options if scaling is None else {**options, "scaling": scaling}
    if "block" in options:
        made = quantize_fp8(x if axis == -1 else np.swapaxes(x, -1, -2), format=format, **options)
        return made if axis == -1 else made.mT
    if format == "mxfp4_e2m1":
        options = {**options, "hadamard": hadamard}
    return quantize(x, format, axis=axis, **options)


@check.checked_arguments(
    x=check.operand(2),
    w=check.operand(3),
    dy=check.pair_of(check.operand(2)),
    **_OF_LAYER,
)
def grouped_linear_products(
    x: Any,
    w: Any,
    dy: Any,
    group_offsets: Array,
    *,
    recipe: str,
    amax: tuple[Any, Any, Any] = (None, None, None),
    format: str | None = None,
    scaling: str | None = None,
    hadamard: bool | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
) -> dict[str, tuple[Matrix, Matrix]]:
    """Return the three products of grouped linear layers as operands of the functions above.

    They are ``y`` and ``dx`` for `grouped_matmul`, and ``dw`` for `grouped_wgrad`. x (M, K), w (G, N, K) and
    dy (M, N) are as for `linear_products`, but only dy may be a pair.

    Examples
    --------
    >>> x, w, dy = np.ones((3, 32), np.float32), np.ones((2, 4, 32), np.float32), np.ones((3, 4), np.float32)
    >>> products = grouped_linear_products(x, w, dy, np.array([0, 1, 3]), recipe="mxfp8")
    >>> float(grouped_wgrad(*products["dw"], np.array([0, 1, 3]))[1, 0, 0])
    2.0
    """
    _require_layer("grouped_linear_products", x, w, dy)
    _require_groups("grouped_linear_products", group_offsets, x, w.shape[0])
    _require_rounding("grouped_linear_products", rounding, seed)
    make = _blocked_operands if recipe in _IN_BLOCKS else _plain_operands
    options = {"rounding": rounding, "seed": seed}
    rows, columns = make((x, w, dy), recipe, amax, format, scaling, hadamard, options, group_offsets)
    w = rows[1]
    transposed = np.swapaxes(w, 1, 2) if isinstance(w, np.ndarray) else w.mT
    return {"y": (rows[0], transposed), "dx": (rows[2], columns[1]), "dw": (columns[2], columns[0])}


def _in_groups(
    x: Any, offsets: Array, format: str | None, scaling: str | None, options: dict[str, Any]
) -> ScaledArray:
    """Return x in mxfp8, blocked along the columns of each group; quantized or requantized if needed."""
    if isinstance(x, tuple):
        columns: ScaledArray = x[1]
        return columns
    form = format or "mxfp8_e4m3"
    if isinstance(x, ScaledArray):
        form = x.format
        x = dequantize(x, dtype=FORMATS["bf16"].dtype)
    form = form if form.startswith("mx") else f"mx{form}"
    form = form if form in MXFP8 else "mxfp8_e4m3"
    options = {name: value for name, value in options.items() if name != "block"}
    options = options if scaling is None else {**options, "scaling": scaling}
    return quantize_mxfp8(x, axis=0, format=form, group_offsets=offsets, **options)
