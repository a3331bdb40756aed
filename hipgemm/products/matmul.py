"""The public `matmul`."""

from __future__ import annotations

from typing import Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray
from ..formats.scaled import ScaledArray
from .operation import MATMUL
from .run import run

Host = npt.NDArray[Any]
Vector = Host | DeviceArray
Number = float | np.floating[Any] | DeviceArray  # alpha


@overload
def matmul(
    a: Host,
    b: Host,
    /,
    out: Host | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> Host: ...


@overload
def matmul(
    a: DeviceArray,
    b: DeviceArray,
    /,
    out: DeviceArray | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> DeviceArray: ...


# A TypeError. Yet with these, operands that may be either have a type.
@overload
def matmul(
    a: Host,
    b: DeviceArray,
    /,
    out: Vector | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> NoReturn: ...


@overload
def matmul(
    a: DeviceArray,
    b: Host,
    /,
    out: Vector | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> NoReturn: ...


@overload
def matmul(
    a: ScaledArray,
    b: ScaledArray,
    /,
    out: Host | DeviceArray | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> Any: ...


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
    stream: Any = None,
) -> Any:
    """Multiply matrices: ``out = (a @ b) * alpha * col_scale + bias``.

    Sums are kept in float32, and the result is rounded once.

    Parameters
    ----------
    a, b : numpy.ndarray, DeviceArray or ScaledArray
        Matrices (.., M, K) and (.., K, N) of bfloat16, of float16, or quantized alike, both on the host or
        both on one device. Leading axes broadcast as those of `numpy.matmul`. Blocks of quantized ones lie
        along K, whose scales are applied before the sum is rounded.
    out : array, optional
        Where to put the result: (.., M, N), any strides, in the same place as `a`; not overlapping an input.
    dtype : dtype, optional
        bfloat16, float16 or float32. Default: that of `out`, else float16 for float16 operands, else
        bfloat16.
    alpha : float or 0-d float32 DeviceArray
        A factor.
    col_scale : float32 array (N,), optional
        A factor for each column, on the host or the device.
    bias : array (N,), optional
        bfloat16, float16 or float32; added last, on the host or the device.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        Like the inputs. A DeviceArray comes back at once; `get` waits for it.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed. One-dimensional operands are.
    UnsupportedError
        For arguments that are right but have no kernel: extents of 2**31 and more, and results of so many
        tiles that no grid holds them. Its `reasons` say why.

    Notes
    -----
    bfloat16, float16 and fp8 operands are read in place in all four layouts, so ``x @ w.T`` and ``a.T @ b``
    copy nothing, nor does an output whose columns are contiguous; MX operands are read along K. What a
    kernel cannot read so (a base or a pitch that is no multiple of 16 bytes, say) is laid out anew on the
    device first, which `usage` counts and `can_use` foretells.

    Leading axes take one launch as long as they come down to two strides, and one for each entry of any
    other. Where all share `b` and the rows of `a` follow each other, they are one product of more rows.
    Operands may be larger than 4 GiB, as may strides.

    A model of the device chooses the tile, and cuts K into parts where there are too few tiles; parts are
    summed in order, so the same call gives the same bits. The plain kernel serves what no other can, slowly;
    `usage` and `can_use` say why. HIPGEMM_KERNEL=plain forces it, the name of another one that one.

    To sum over a batch as well as its rows, as for gradients of weights, flatten both:
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
    >>> hg.matmul(hg.zeros((5, 2, 3), np.float16), hg.zeros((3, 4), np.float16))
    DeviceArray(shape=(5, 2, 4), dtype=float16, device=0)
    """
    return run(MATMUL, a, b, out, dtype, alpha, col_scale, bias, stream=stream)
