"""Tools for tests: error bounds, inputs with exact results, poisoned outputs, and comparisons.

A global score such as cosine similarity can pass with rows of zeros, so every element has its own bound.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from . import reference
from .errors import fault
from .formats import host_checks as check
from .formats.elements import BLOCK_SIDE, QUANTIZED, Format, as_unsigned, format_of
from .formats.scaled import ScaledArray, block_scale_shape, scale_shape
from .reference import Array, Matrix


@check.checked_arguments(n=check.count)
def gamma(n: int) -> float:
    """Bound on the relative error of `n` successive float32 roundings."""
    return n * 2.0**-24 / (1 - n * 2.0**-24)


@check.checked_arguments(
    a=check.numbers(2),
    b=check.numbers(2),
    dtype=check.dtype,
    alpha=check.alpha,
    col_scale=check.optional(check.vector),
    bias=check.optional(check.vector),
)
def gemm_bound(
    a: Matrix,
    b: Matrix,
    /,
    *,
    dtype: npt.DTypeLike,
    alpha: float = 1.0,
    col_scale: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Return the error bound of each element of `matmul` against `reference.matmul`, in any summation order.

    Operands may be quantized, and have leading axes. The bound is
    ``g (P + |bias|) + u (|ref| + g (P + |bias|)) + eta``. P is the product of absolute values, u the unit
    roundoff of the output, g the factor for K products, each epilogue factor in float32 and two for each
    block of 128 along K that has its own float32 scales, and eta half the smallest subnormal.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> float(gemm_bound(one, one, dtype=np.float32)[0, 0]) < 2e-7
    True
    """
    to = _known(dtype)
    check.require_product("gemm_bound", a, b, col_scale, bias)
    factors = 1 if alpha != 1.0 else 0
    factors += col_scale is not None
    # The float32 scale of an fp8 operand is one more; MX scales are powers of two.
    factors += sum(isinstance(x, ScaledArray) and not QUANTIZED[x.format].block for x in (a, b))
    if any(isinstance(x, ScaledArray) and x.block for x in (a, b)):
        factors += 2 * -(-a.shape[-1] // BLOCK_SIDE)
    a, b = reference.values(a), reference.values(b)
    magnitude = reference.matmul(
        np.abs(a),
        np.abs(b),
        alpha=abs(alpha),
        col_scale=None if col_scale is None else np.abs(col_scale),
        bias=None if bias is None else np.abs(bias),
    )
    ref = reference.matmul(a, b, alpha=alpha, col_scale=col_scale, bias=bias)
    summed = gamma(a.shape[-1] + factors) * magnitude
    bound: Array = summed + to.unit_roundoff * (np.abs(ref) + summed) + to.smallest_subnormal / 2
    return bound


@check.checked_arguments(
    shape=check.shape, rng=check.instance(np.random.Generator), dtype=check.any_dtype, bits=check.count
)
def exact_grid(
    shape: tuple[int, ...],
    rng: np.random.Generator,
    *,
    dtype: npt.DTypeLike = ml_dtypes.bfloat16,
    bits: int = 3,
) -> Array:
    """Return small integers whose products sum exactly in float32 in any order.

    Two such matrices with entries below ``2**bits`` give exact results up to ``K = 2**(24 - 2*bits)``,
    so kernel and reference must agree bit by bit.

    Examples
    --------
    >>> x = exact_grid((2, 4), np.random.default_rng(0))
    >>> x.dtype.name, bool(np.abs(x.astype(int)).max() < 8)
    ('bfloat16', True)
    """
    if bits > 24:
        raise fault(ValueError, "exact_grid", "bits must be at most 24", bits)
    return rng.integers(1 - 2**bits, 2**bits, size=shape).astype(np.float32).astype(dtype)


@check.checked_arguments(
    shape=check.shape,
    rng=check.instance(np.random.Generator),
    format=check.one_of(*QUANTIZED),
    block=check.optional(check.fp8_block),
)
def exact_scaled(
    shape: tuple[int, int],
    rng: np.random.Generator,
    format: str = "mxfp8_e4m3",
    *,
    block: tuple[int, int] | None = None,
) -> ScaledArray:
    """Return a quantized matrix of small integers with power-of-two scales.

    The product of two, blocked along K, is exact in float32 in any order up to K = 2**14.

    Examples
    --------
    >>> exact_scaled((2, 40), np.random.default_rng(0), "mxfp4_e2m1")
    ScaledArray(shape=(2, 40), format='mxfp4_e2m1', block=32, axis=-1, host)
    """
    form = QUANTIZED[format]
    data = exact_grid(shape, rng, dtype=form.dtype, bits=min(3, form.mantissa_bits + 1))
    scales = scale_shape(shape, -1, form.block) if block is None else block_scale_shape(shape, block)
    scale = np.exp2(rng.integers(-1, 2, scales)).astype(np.float32)
    if form.block:
        scale = (127 + np.log2(scale)).astype(np.uint8)
    return ScaledArray(data, scale, format, block=block)


@check.checked_arguments(shape=check.shape, rng=check.instance(np.random.Generator), dtype=check.any_dtype)
def random_matrix(
    shape: tuple[int, ...], rng: np.random.Generator, *, dtype: npt.DTypeLike = ml_dtypes.bfloat16
) -> Array:
    """Return normally distributed numbers with a different scale in each row, rounded to `dtype`.

    Examples
    --------
    >>> random_matrix((2, 3), np.random.default_rng(0)).shape
    (2, 3)
    """
    x = rng.standard_normal(shape, dtype=np.float32)
    if len(shape) > 1:
        x *= np.exp2(rng.integers(-3, 4, size=(*shape[:-1], 1)).astype(np.float32))
    return x.astype(dtype)


@check.checked_arguments(x=check.floats(0))
def poison(x: Array) -> Array:
    """Fill an array with NaN in place and return it. For outputs before a launch.

    Examples
    --------
    >>> poison(np.zeros(2, np.float32))
    array([nan, nan], dtype=float32)
    """
    _known(x.dtype)
    if not x.flags.writeable:
        raise fault(ValueError, "poison", "x must be writeable", "a read-only array")
    x[...] = np.nan
    return x


@check.checked_arguments(x=check.floats(2, 2), rows=check.count, columns=check.count)
def surround(x: Array, *, rows: int = 2, columns: int = 8) -> Array:
    """Return a copy of a matrix inside a larger matrix of NaN.

    A kernel that reads out of bounds returns NaN; one that writes out of bounds changes ``result.base``.

    Examples
    --------
    >>> x = surround(np.ones((2, 2), np.float32))
    >>> x.shape, int(np.isnan(x.base).sum())
    ((2, 2), 104)
    """
    outer = np.full((x.shape[0] + 2 * rows, x.shape[1] + 2 * columns), np.nan, dtype=x.dtype)
    inner = outer[rows : rows + x.shape[0], columns : columns + x.shape[1]]
    inner[...] = x
    return inner


@check.checked_arguments(
    out=check.floats(2),
    a=check.numbers(2),
    b=check.numbers(2),
    alpha=check.alpha,
    col_scale=check.optional(check.vector),
    bias=check.optional(check.vector),
    exact=check.flag,
)
def assert_gemm_close(
    out: Array,
    a: Matrix,
    b: Matrix,
    /,
    *,
    alpha: float = 1.0,
    col_scale: Array | None = None,
    bias: Array | None = None,
    exact: bool = False,
) -> None:
    """Check every element of `out` against ``a @ b`` with its epilogue.

    Parameters
    ----------
    out : numpy.ndarray
        The result.
    a, b : numpy.ndarray or ScaledArray
        The operands, on the host.
    alpha, col_scale, bias
        The arguments of the epilogue.
    exact : bool
        Require the same bits as the reference; for inputs of `exact_grid`.

    Raises
    ------
    AssertionError
        With the number of wrong elements, the worst one, and the rows and columns of the wrong ones.

    Examples
    --------
    >>> a, b = np.eye(2, dtype=np.float32), np.ones((2, 2), np.float32)
    >>> assert_gemm_close(a @ b, a, b)
    >>> assert_gemm_close(a, a, b)
    Traceback (most recent call last):
    ...
    AssertionError: 2 of 4 elements are wrong (float32, K=2, bound)
      worst out[0, 1] = 0.0, expected 1.0: off by 1, bound 1.79e-07 (5.59e+06 bounds)
      rows 0..1, columns 0..1; wrong by row: {0: 1, 1: 1}
    """
    epilogue: dict[str, Any] = {"alpha": alpha, "col_scale": col_scale, "bias": bias}
    check.require_product("assert_gemm_close", a, b, col_scale, bias)
    to = _known(out.dtype)
    bound = None if exact else gemm_bound(a, b, dtype=to.dtype, **epilogue)
    a, b = reference.values(a), reference.values(b)
    ref = reference.matmul(a, b, **epilogue)
    if out.shape != ref.shape:
        raise AssertionError(f"out.shape must be {ref.shape}; got {out.shape}")
    if out.size == 0:
        return
    rounded = reference.matmul(a, b, dtype=to.dtype, **epilogue)
    got = out.astype(np.float64)
    bound = np.zeros_like(ref) if bound is None else bound
    error = np.abs(got - (rounded.astype(np.float64) if exact else ref))
    # If the reference has no bound (NaN, Inf), only the same value is correct.
    good = np.where(np.isfinite(ref) & np.isfinite(bound), error <= bound, False)
    good |= _same(out, rounded)
    if exact:
        good &= (as_unsigned(out) == as_unsigned(rounded)) | np.isnan(ref)
    if good.all():
        return
    raise AssertionError(_explain(out, ref, error, bound, ~good, to, a.shape[-1], exact))


def _same(x: Array, y: Array) -> Array:
    same: Array = (x == y) | (np.isnan(x) & np.isnan(y))
    return same


def _explain(
    out: Array, ref: Array, error: Array, bound: Array, bad: Array, to: Format, k: int, exact: bool
) -> str:
    size = np.where(np.isnan(error), np.inf, error)  # NaN counts as an infinite error
    excess = np.where(bad, size / np.where(bound > 0, bound, 1.0), -1.0)
    excess[np.isnan(excess)] = np.inf
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), out.shape))
    where = ", ".join(map(str, at))
    *lead, rows, columns = np.nonzero(bad)
    by_row = {int(r): int((rows == r).sum()) for r in np.unique(rows)[:6]}
    batch = "" if not lead else f"products {_distinct(lead)}, "
    limit = "" if exact else f", bound {bound[at]:.3g} ({excess[at]:.3g} bounds)"
    return (
        f"{int(bad.sum())} of {out.size} elements are wrong "
        f"({to.dtype.name}, K={k}, {'exact' if exact else 'bound'})\n"
        f"  worst out[{where}] = {float(out[at])}, expected {float(ref[at])}: off by {error[at]:.3g}{limit}\n"
        f"  {batch}rows {rows.min()}..{rows.max()}, columns {columns.min()}..{columns.max()}; "
        f"wrong by row: {by_row}"
    )


def _distinct(lead: list[Array]) -> str:
    """Format the first few indices along the leading axes, and their number."""
    found = sorted({tuple(int(i) for i in index) for index in zip(*lead, strict=True)})
    some = ", ".join(str(index if len(index) > 1 else index[0]) for index in found[:6])
    return some if len(found) <= 6 else f"{some}, .. ({len(found)})"


def _known(dtype: npt.DTypeLike) -> Format:
    found = format_of(dtype)
    if found is None:
        raise TypeError(f"dtype must be bfloat16, float16 or float32; got {dtype!r}")
    return found
