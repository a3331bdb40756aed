"""The number formats: what a format is made of, and rounding into it exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Format:
    """A number format.

    Attributes
    ----------
    name : str
        The name used in kernels, messages and tables.
    dtype : numpy.dtype
        The element type.
    mantissa_bits : int
        Stored mantissa bits.
    min_exponent : int
        Exponent of the smallest normal number.
    block : int
        Elements that share one scale along the contraction axis; 0 where there is no scale.
    scale_dtype : numpy.dtype or None
        The type of a scale, for formats that carry one.
    """

    name: str
    dtype: np.dtype[Any]
    mantissa_bits: int
    min_exponent: int
    block: int = 0
    scale_dtype: np.dtype[Any] | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.dtype.itemsize)

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest: half the spacing at 1."""
        return float(2.0 ** -(self.mantissa_bits + 1))

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return float(2.0 ** (self.min_exponent - self.mantissa_bits))


BF16 = Format("bf16", np.dtype(ml_dtypes.bfloat16), mantissa_bits=7, min_exponent=-126)
F16 = Format("f16", np.dtype(np.float16), mantissa_bits=10, min_exponent=-14)
F32 = Format("f32", np.dtype(np.float32), mantissa_bits=23, min_exponent=-126)

FORMATS: dict[str, Format] = {f.name: f for f in (BF16, F16, F32)}
_BY_DTYPE: dict[np.dtype[Any], Format] = {f.dtype: f for f in FORMATS.values()}


def format_of(dtype: npt.DTypeLike) -> Format | None:
    """Return the format of an element type, or None.

    Examples
    --------
    >>> format_of(np.float16).name
    'f16'
    >>> format_of(np.int8) is None
    True
    """
    try:
        return _BY_DTYPE.get(np.dtype(dtype))
    except (TypeError, ValueError, SyntaxError):  # whatever NumPy makes of what is no dtype
        return None


def as_unsigned(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View an array as unsigned integers: ml_dtypes arrays have no buffer protocol, and NaNs have bits."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def round_once(x: npt.NDArray[np.float64], to: Format) -> npt.NDArray[Any]:
    """Round float64 to a format, to nearest even, once.

    NumPy takes float64 to bfloat16 through float32, which rounds twice. Going to float32 by
    rounding to odd keeps the information that the second rounding needs.

    Examples
    --------
    >>> x = np.float64(1) + 2.0**-8 + 2.0**-40  # just above the tie between 1 and 1 + 2^-7
    >>> float(np.float64(x).astype(ml_dtypes.bfloat16)), float(round_once(np.asarray(x), BF16))
    (1.0, 1.0078125)
    """
    x = np.asarray(x, np.float64)
    if to.dtype != BF16.dtype:
        with np.errstate(over="ignore", under="ignore"):
            return x.astype(to.dtype)
    with np.errstate(over="ignore", under="ignore"):
        nearest = x.astype(np.float32)
    wide = nearest.astype(np.float64)
    bits = nearest.view(np.uint32) - (np.abs(wide) > np.abs(x)).astype(np.uint32)  # toward zero
    inexact = (wide != x) & ~np.isnan(x)
    odd: npt.NDArray[np.float32] = (bits | inexact.astype(np.uint32)).view(np.float32)
    return odd.astype(BF16.dtype)
