"""The public `matmul`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, overload

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray
from ..formats.scaled import ScaledArray
from ..quantize.amax import AmaxState
from .operation import MATMUL
from .run import run

if TYPE_CHECKING:
    from typing_extensions import Unpack

Host = npt.NDArray[Any]
Vector = Host | DeviceArray
Number = float | np.floating[Any] | DeviceArray  # alpha


class _Options(TypedDict, total=False):
    """The other arguments of `matmul`."""

    dtype: npt.DTypeLike | None
    alpha: Number
    col_scale: Vector | None
    bias: Vector | None
    accumulate: bool
    residual: Vector | None
    activation: str | None
    glu: str | None
    aux: Vector | None
    stream: Any


class _QuantizedOptions(_Options, total=False):
    """Those of a quantized result."""

    out_scaling: str | None
    out_amax: AmaxState | None


@overload
def matmul(
    a: Vector | ScaledArray,
    b: Vector | ScaledArray,
    /,
    *,
    out_format: str,
    **options: Unpack[_QuantizedOptions],
) -> ScaledArray: ...
@overload
def matmul(
    a: Any, b: Any, /, out: None = None, *, out_format: str, **options: Unpack[_QuantizedOptions]
) -> ScaledArray: ...
@overload
def matmul(
    a: Host, b: Host | ScaledArray, /, out: Host | None = None, **options: Unpack[_Options]
) -> Host: ...
@overload
def matmul(
    a: DeviceArray,
    b: DeviceArray | ScaledArray,
    /,
    out: DeviceArray | None = None,
    **options: Unpack[_Options],
) -> DeviceArray: ...
@overload
def matmul(
    a: ScaledArray, b: ScaledArray, /, out: Vector | None = None, **options: Unpack[_Options]
) -> Any: ...
# These raise a TypeError. They are declared so that operands of a union type can be checked.
@overload
def matmul(
    a: Host, b: DeviceArray, /, out: Vector | None = None, **options: Unpack[_Options]
) -> NoReturn: ...
@overload
def matmul(
    a: DeviceArray, b: Host, /, out: Vector | None = None, **options: Unpack[_Options]
) -> NoReturn: ...


def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    accumulate: bool = False,
    residual: Vector | None = None,
    activation: str | None = None,
    glu: str | None = None,
    aux: Vector | None = None,
    out_format: str | None = None,
    out_scaling: str | None = None,
    out_amax: AmaxState | None = None,
    stream: Any = None,
) -> Any:
    """Multiply matrices: ``out = (a @ b) * alpha * col_scale + bias``, and what a layer does with that.

    Sums are accumulated in float32, and the result is rounded once. With ``t`` for the result above, `aux`
    gets ``t``, and the result is ``activation(t) + residual``, plus what `out` held with `accumulate`.

    Parameters
    ----------
    a, b : numpy.ndarray, DeviceArray or ScaledArray
        Matrices (.., M, K) and (.., K, N); both on the host or both on the same device. Both are bfloat16,
        both float16, both in an fp8 format, or both in an MX format, which may be another one; or `a` is
        bfloat16 and `b` quantized in any format (weight-only). Leading axes broadcast as in `numpy.matmul`.
        MX operands must be blocked along K; their scales are applied before the sum is rounded.
    out : array, optional
        The destination (.., M, N), with any strides, on the device of `a`. It must not overlap an input.
    dtype : dtype, optional
        bfloat16, float16 or float32. Default: that of `out`, else float16 for float16 operands, else
        bfloat16.
    alpha : float or 0-d float32 DeviceArray
        A scalar factor.
    col_scale : float32 array (N,), optional
        A factor per column, on the host or the device.
    bias : array (N,), optional
        Added last; bfloat16, float16 or float32, on the host or the device.
    accumulate : bool
        Add to the values in `out`, in float32 before rounding.
    residual : array (.., M, N), optional
        Added after the activation; bfloat16, float16 or float32. It may be `out` itself.
    activation : str, optional
        ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
    glu : str, optional
        The columns of ``t`` are gates and ups in turn (``"interleaved"``), or the gates come first
        (``"halves"``): the result is ``activation(gate) * up``, and has N/2 columns. With a GLU, `activation`
        may also be ``"swiglu_oss"``, the clamped one of gpt-oss.
    aux : array (.., M, N), optional
        Gets ``t`` rounded to its type: bfloat16, float16 or float32.
    out_format : str, optional
        Quantize the result to this format, from its float32 values: ``"fp8_e4m3"``, ``"fp8_e5m2"``, or an MX
        format in blocks along N.
    out_scaling : str, optional
        The rule of an MX format's scales, with the quantizer's default.
    out_amax : AmaxState, optional
        For fp8: scales by its `current`, and collects the amax of the result as `quantize_fp8` does.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray, DeviceArray or ScaledArray
        Of the same kind as the inputs; a ScaledArray with `out_format`. A DeviceArray is returned before the
        work is complete; `get` waits.

    Raises
    ------
    TypeError, ValueError
        For invalid arguments, such as one-dimensional operands. The message lists all faults.
    UnsupportedError
        For valid arguments that no kernel supports: an extent of 2**31 or more, a result with too many
        tiles for a grid, or a float16 `a` with a quantized `b`. Its `reasons` give every reason.

    Notes
    -----
    bfloat16, float16 and fp8 operands are read in place in all four layouts (nn, nt, tn, tt), so ``x @ w.T``
    and ``a.T @ b`` need no copy. Neither does an output with contiguous rows or columns. MX operands, and
    both operands of a weight-only product, must be contiguous along K. An operand that a kernel cannot read
    in place, for example with a pitch that is not a multiple of 16 bytes, is copied on the device first.
    `can_use` reports such a copy in advance, and `usage` counts it.

    Elements of two MX formats are multiplied as they are, whatever their bits. In a weight-only product the
    elements of `b` are widened to bfloat16 in registers: memory holds and moves their few bits only.

    One launch serves all leading axes that can be merged into two strides; each entry of other axes needs its
    own launch. If all products share `b` and the rows of `a` are equally spaced, they run as one product with
    more rows. Operands and strides may be larger than 4 GiB.

    A cost model chooses the tile, and splits K if there are too few tiles. The parts are added in a fixed
    order, so equal calls give equal bits. The plain kernel serves calls that no faster kernel supports, and
    it is slow; `usage` and `can_use` give the reason. HIPGEMM_KERNEL selects one kernel by its name, or the
    plain kernel by ``plain``.

    What follows the bias is applied by the kernel of the product while the result is on the chip; or by a
    second kernel, ``split_reduce``, from float32 values, if K is split, with ``glu="halves"`` and after the
    plain kernel. `can_use` says so. The functions are accurate to 4 units in the last place of float32.

    To sum over the batch too, as for weight gradients, flatten both operands:
    ``dy.reshape(-1, N).T @ x.reshape(-1, K)``.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> x = np.ones((2, 3), ml_dtypes.bfloat16)
    >>> w = np.full((4, 3), 2, ml_dtypes.bfloat16)
    >>> hg.matmul(x, w.T, dtype=np.float32, bias=np.arange(4, dtype=np.float32))
    array([[6., 7., 8., 9.],
           [6., 7., 8., 9.]], dtype=float32)
    >>> hg.matmul(hg.quantize_mxfp8(x), hg.quantize_mxfp8(w).T, dtype=np.float32)
    array([[6., 6., 6., 6.],
           [6., 6., 6., 6.]], dtype=float32)
    >>> hg.matmul(x, hg.quantize_mxfp6(w).T, dtype=np.float32)
    array([[6., 6., 6., 6.],
           [6., 6., 6., 6.]], dtype=float32)
    >>> hg.matmul(x, w.T, activation="silu", glu="interleaved", dtype=np.float32).shape
    (2, 2)
    >>> hg.matmul(x, w.T, out_format="mxfp8_e4m3").format
    'mxfp8_e4m3'
    >>> hg.matmul(hg.zeros((5, 2, 3), np.float16), hg.zeros((3, 4), np.float16))
    DeviceArray(shape=(5, 2, 4), dtype=float16, device=0)
    """
    stages: tuple[Any, ...] | None = None
    ordinary = residual is None and activation is None and glu is None and aux is None
    if not ordinary or out_format is not None or out_scaling is not None or out_amax is not None:
        stages = residual, activation, glu, aux, out_format, out_scaling, out_amax
    if accumulate is False and stages is None:
        return run(MATMUL, a, b, out, dtype, alpha, col_scale, bias, stream)
    return run(MATMUL, a, b, out, dtype, alpha, col_scale, bias, stream, accumulate=accumulate, stages=stages)
