"""The public products of groups of rows: one launch for all groups, wherever these begin."""

from __future__ import annotations

from typing import Any

import numpy as np  # noqa: F401  (in examples)
import numpy.typing as npt

from ..array.device_array import DeviceArray
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
    stream: Any = None,
) -> Any:
    """Multiply each group of rows with a matrix of its own: ``out[o[g]:o[g+1]] = x[o[g]:o[g+1]] @ w[g]``.

    One launch serves all groups. Offsets on the device are not read back. Sums are kept in float32, and
    the result is rounded once.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray or ScaledArray
        Rows (M, K) of bfloat16 or float16, or quantized along K.
    w : numpy.ndarray, DeviceArray or ScaledArray
        Matrices (G, K, N), of the type of `x` or quantized alike (fp8 with one scale, one for each matrix
        or one for each column); ``w.mT`` of (G, N, K) and, but for MX, (G, K, N) itself are read in place.
    group_offsets : int32 array (G+1,)
        Where groups begin, from 0 on, not decreasing, at most M; on the host or the device. Rows at and
        behind the last one become 0.
    out : array, optional
        Where to put the result: (M, N), in the same place as `x`; not overlapping an input.
    dtype : dtype, optional
        bfloat16 (the default; float16 for such inputs), float16 or float32.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        (M, N), like the inputs. A DeviceArray comes back at once; `get` waits for it.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed; of offsets the index.
    UnsupportedError
        For arguments that are right but have no kernel; its `reasons` say why.
    HipError
        At the next wait, for wrong offsets on the device; nothing outside the arrays is touched.

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
    return run(GROUPED_MATMUL, x, w, out, dtype, offsets=group_offsets, stream=stream)


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

    The gradient of `grouped_matmul` with respect to the (G, N, K) storage of its weights. One launch serves
    all groups. Sums are kept in float32, and the result is rounded once.

    Parameters
    ----------
    dy, x : numpy.ndarray, DeviceArray or ScaledArray
        Rows (M, N) and (M, K) of bfloat16 or float16, or quantized alike along their first axis:
        `quantize_mxfp8` with ``axis=0, group_offsets=group_offsets`` for any offsets, without
        `group_offsets` for multiples of 32.
    group_offsets : int32 array (G+1,)
        As for `grouped_matmul`.
    out : array, optional
        Where to put the result: (G, N, K), in the same place as `x`; not overlapping an input.
    dtype : dtype, optional
        bfloat16 (the default; float16 for such inputs), float16 or float32.
    recipe : str, optional
        ``"mxfp8"`` quantizes bfloat16 and float16 operands in groups first; ``"bf16"`` multiplies them as
        they are, as does the default.
    accumulate : bool
        Add to what `out` holds, in float32 before rounding.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        (G, N, K), like the inputs: zeros for an empty group, or with `accumulate` what was there.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed; of offsets the index.
    UnsupportedError
        For arguments that are right but have no kernel; its `reasons` say why.
    HipError
        At the next wait, for wrong offsets on the device; nothing outside the arrays is touched.

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
    return run(
        GROUPED_WGRAD,
        dy,
        x,
        out,
        dtype,
        offsets=group_offsets,
        recipe=recipe,
        accumulate=accumulate,
        stream=stream,
    )
