"""The public grouped products: one launch for all groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np  # noqa: F401  (in examples)
import numpy.typing as npt

from ..array.device_array import DeviceArray
from ..quantize.amax import AmaxState
from .operation import GROUPED_MATMUL, GROUPED_WGRAD
from .run import run

Host = npt.NDArray[Any]


def grouped_matmul(
    x: Any,
    w: Any,
    group_offsets: Host | DeviceArray,
    /,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: float | DeviceArray = 1.0,
    col_scale: Host | DeviceArray | None = None,
    bias: Host | DeviceArray | None = None,
    accumulate: bool = False,
    residual: Host | DeviceArray | None = None,
    activation: str | None = None,
    glu: str | None = None,
    aux: Host | DeviceArray | None = None,
    out_format: str | None = None,
    out_scaling: str | None = None,
    out_amax: AmaxState | None = None,
    stream: Any = None,
) -> Any:
    """Multiply each group of rows by its own matrix: ``out[o[g]:o[g+1]] = x[o[g]:o[g+1]] @ w[g]``.

    One launch serves all groups. Offsets on the device are not copied to the host. Sums are accumulated in
    float32, and the result is rounded once. What may follow the product is as in `matmul`.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray or ScaledArray
        Rows (M, K) of bfloat16 or float16, or quantized along K.
    w : numpy.ndarray, DeviceArray or ScaledArray
        Matrices (G, K, N), in a format that `matmul` multiplies with that of `x` (fp8 with one scale, one per
        matrix, or one per column). ``w.mT`` of an array (G, N, K) is read in place; an array (G, K, N) too,
        except in MX formats and in a weight-only product.
    group_offsets : int32 array (G+1,)
        The first row of each group, and the end of the last one: from 0, not decreasing, at most M; on the
        host or the device. The rows from the last offset on become 0.
    out : array, optional
        The destination (M, N), on the device of `x`. It must not overlap an input.
    dtype : dtype, optional
        bfloat16 (the default; float16 for such inputs), float16 or float32.
    alpha, col_scale, accumulate, residual, activation, glu, aux, out_format, out_scaling, out_amax
        As for `matmul`. Rows from the last offset on stay what they are with `accumulate`; `aux` is not
        written there.
    bias : array (N,) or (G, N), optional
        Of all groups, or of each.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray, DeviceArray or ScaledArray
        (M, N), or (M, N/2) with `glu`; of the same kind as the inputs. A DeviceArray is returned before the
        work is complete; `get` waits.

    Raises
    ------
    TypeError, ValueError
        For invalid arguments. The message lists all faults, of offsets the index.
    UnsupportedError
        For valid arguments that no kernel supports. Its `reasons` give every reason.
    HipError
        At the next wait, for invalid offsets on the device. No memory outside the arrays is accessed.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> x = np.ones((4, 2), ml_dtypes.bfloat16)
    >>> w = np.arange(12).reshape(2, 3, 2).astype(ml_dtypes.bfloat16)
    >>> hg.grouped_matmul(x, w.swapaxes(1, 2), np.array([0, 1, 3], np.int32), dtype=np.float32)
    array([[ 1.,  5.,  9.],
           [13., 17., 21.],
           [13., 17., 21.],
           [ 0.,  0.,  0.]], dtype=float32)
    """
    stages: tuple[Any, ...] | None = None
    ordinary = residual is None and activation is None and glu is None and aux is None
    if not ordinary or out_format is not None or out_scaling is not None or out_amax is not None:
        stages = residual, activation, glu, aux, out_format, out_scaling, out_amax
    more: dict[str, Any] = {"offsets": group_offsets, "accumulate": accumulate, "stages": stages}
    return run(GROUPED_MATMUL, x, w, out, dtype, alpha, col_scale, bias, stream, **more)


def grouped_wgrad(
    dy: Any,
    x: Any,
    group_offsets: Host | DeviceArray,
    /,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    recipe: str | None = None,
    accumulate: bool = False,
    stream: Any = None,
) -> Any:
    """Sum over the rows of each group: ``out[g] = dy[o[g]:o[g+1]].T @ x[o[g]:o[g+1]]``.

    This is the gradient of `grouped_matmul` with respect to weights that are stored as (G, N, K). One launch
    serves all groups. Sums are accumulated in float32, and the result is rounded once.

    Parameters
    ----------
    dy, x : numpy.ndarray, DeviceArray or ScaledArray
        Rows (M, N) and (M, K) of bfloat16 or float16, or both quantized along their first axis by
        `quantize_mxfp8` with ``axis=0, group_offsets=group_offsets``. If all offsets are multiples of 32,
        they may be quantized without `group_offsets`. Or both fp8 with one scale for the tensor or for each
        column, or with blocks of 128 rows: ``quantize_fp8(x.T, block=(1, 128)).T``, for any offsets.
    group_offsets : int32 array (G+1,)
        As for `grouped_matmul`.
    out : array, optional
        The destination (G, N, K), on the device of `x`. It must not overlap an input.
    dtype : dtype, optional
        bfloat16 (the default; float16 for such inputs), float16 or float32.
    recipe : str, optional
        ``"mxfp8"`` quantizes bfloat16 and float16 operands by groups first. ``"bf16"``, the default,
        multiplies them without quantization.
    accumulate : bool
        Add to the values in `out`, in float32 before rounding.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        (G, N, K), of the same kind as the inputs. The matrix of an empty group is 0, or unchanged with
        `accumulate`.

    Raises
    ------
    TypeError, ValueError, UnsupportedError, HipError
        As `grouped_matmul`.

    Notes
    -----
    For fp8 with blocks no kernel serves all groups at once: each is a product of its own, and offsets on a
    device are copied to the host, which waits for them.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> dy, x = np.ones((4, 1), ml_dtypes.bfloat16), np.ones((4, 2), ml_dtypes.bfloat16)
    >>> hg.grouped_wgrad(dy, x, np.array([0, 3, 3, 4], np.int32), dtype=np.float32)[:, 0]
    array([[3., 3.],
           [0., 0.],
           [1., 1.]], dtype=float32)
    """
    rest: dict[str, Any] = {"offsets": group_offsets, "recipe": recipe, "accumulate": accumulate}
    return run(GROUPED_WGRAD, dy, x, out, dtype, stream=stream, **rest)
