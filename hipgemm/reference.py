"""What each public operation computes, in float64: the oracle, and a spec to read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .formats import format_of, round_once

Array = npt.NDArray[Any]


def matmul(
    a: Array,
    b: Array,
    /,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: float = 1.0,
    col_scale: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Return ``a @ b * alpha * col_scale + bias`` in float64, rounded once to `dtype` if one is given.

    `alpha` counts as the float32 number nearest to it, which is what a kernel is handed.

    Examples
    --------
    >>> matmul(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), alpha=2.0, bias=np.array([1.0, 0.0]))
    array([[3., 4.],
           [7., 8.]])
    """
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and Inf are values like any other
        out: Array = a.astype(np.float64) @ b.astype(np.float64)
        out = out * np.float64(np.float32(alpha))
        if col_scale is not None:
            out = out * col_scale.astype(np.float64)
        if bias is not None:
            out = out + bias.astype(np.float64)
    if dtype is None:
        return out
    to = format_of(dtype)
    if to is None:
        raise TypeError(f"reference.matmul: dtype must be bfloat16, float16 or float32; got {dtype!r}")
    return round_once(out, to)
