"""The number formats: their parameters, rounding to them exactly once, and packing."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import fault, shown
from .arrays import on_host

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A number format."""

    name: str  # as in kernels, messages and tables
    dtype: np.dtype[Any]  # of an element
    mantissa_bits: int  # stored bits
    min_exponent: int  # of the smallest normal number
    maximum: float  # the largest finite number
    bits: int  # of one element in device memory and in files
    scale_dtype: np.dtype[Any] | None = None  # of a scale, for formats that have scales
    block: int = 0  # elements that share a scale along K; 0: one scale per row or tensor

    @property
    def itemsize(self) -> int:
        """Bytes of one element of a NumPy array, which stores one element of fewer bits per byte."""
        return int(self.dtype.itemsize)

    @property
    def is_packed(self) -> bool:
        """Whether device memory and files hold more elements than bytes. Such elements are never NaN."""
        return self.bits < 8

    def packed_bytes(self, count: int) -> int:
        """Bytes of `count` packed elements."""
        return -(-count * self.bits // 8)

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite number."""
        return math.frexp(self.maximum)[1] - 1

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest: half the spacing at 1."""
        return float(2.0 ** -(self.mantissa_bits + 1))

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return float(2.0 ** (self.min_exponent - self.mantissa_bits))


BLOCK = 32  # elements per MX scale
BLOCK_SIDE = 128  # elements along each side of fp8 blocks, if not 1

_F32, E8M0 = np.dtype(np.float32), np.dtype(ml_dtypes.float8_e8m0fnu)
_E4M3, _E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
_E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)
_E2M3, _E3M2 = np.dtype(ml_dtypes.float6_e2m3fn), np.dtype(ml_dtypes.float6_e3m2fn)

BF16 = Format("bf16", np.dtype(ml_dtypes.bfloat16), 7, -126, (2 - 2.0**-7) * 2.0**127, 16)
F16 = Format("f16", np.dtype(np.float16), 10, -14, 65504.0, 16)
F32 = Format("f32", _F32, 23, -126, (2 - 2.0**-23) * 2.0**127, 32)
FP8_E4M3 = Format("fp8_e4m3", _E4M3, 3, -6, 448.0, 8, _F32)
FP8_E5M2 = Format("fp8_e5m2", _E5M2, 2, -14, 57344.0, 8, _F32)
MXFP8_E4M3 = Format("mxfp8_e4m3", _E4M3, 3, -6, 448.0, 8, E8M0, BLOCK)
MXFP8_E5M2 = Format("mxfp8_e5m2", _E5M2, 2, -14, 57344.0, 8, E8M0, BLOCK)
MXFP4_E2M1 = Format("mxfp4_e2m1", _E2M1, 1, 0, 6.0, 4, E8M0, BLOCK)
MXFP6_E2M3 = Format("mxfp6_e2m3", _E2M3, 3, 0, 7.5, 6, E8M0, BLOCK)
MXFP6_E3M2 = Format("mxfp6_e3m2", _E3M2, 2, -2, 28.0, 6, E8M0, BLOCK)

# Formats that are defined by the dtype alone, and formats that need a scale.
FORMATS: dict[str, Format] = {f.name: f for f in (BF16, F16, F32)}
QUANTIZED: dict[str, Format] = {
    f.name: f for f in (FP8_E4M3, FP8_E5M2, MXFP8_E4M3, MXFP8_E5M2, MXFP4_E2M1, MXFP6_E2M3, MXFP6_E3M2)
}
_BY_DTYPE: dict[np.dtype[Any], Format] = {f.dtype: f for f in FORMATS.values()}


def named_format(name: str) -> Format:
    """Return the format with this name; of fp8 with a scale for each block, that of its elements."""
    return FORMATS.get(name) or QUANTIZED[name.removesuffix("_block")]


# FNUZ types encode other values than the OCP types: no Inf, no -0, and a different exponent bias.
FNUZ = {
    np.dtype(ml_dtypes.float8_e4m3fnuz): _E4M3,
    np.dtype(ml_dtypes.float8_e5m2fnuz): _E5M2,
    np.dtype(ml_dtypes.float8_e4m3b11fnuz): _E4M3,
}


def fnuz_hint(dtype: object) -> str:
    """A hint for FNUZ types, whose bytes encode other values than the OCP types; empty for other types."""
    ocp = FNUZ.get(dtype) if isinstance(dtype, np.dtype) else None
    return f"{dtype} is not the OCP type {ocp}: convert the values, never the bytes" if ocp else ""


def read_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Parse a dtype; raise what NumPy raises. Refuse arrays, of which NumPy would use the dtype."""
    if not isinstance(dtype, type) and hasattr(dtype, "dtype"):
        raise TypeError
    return np.dtype(dtype)


def void_hint(name: str, dtype: object) -> str:
    """A hint for arrays whose type NumPy has lost, as ``numpy.save`` does with bfloat16; else empty."""
    if not isinstance(dtype, np.dtype) or dtype.type is not np.void or dtype.names or dtype.itemsize > 2:
        return ""
    kind = "bfloat16" if dtype.itemsize == 2 else "float8_e4m3fn"
    return f"if its bytes are {kind}, pass {name}.view(ml_dtypes.{kind})"


def dtype_names(formats: tuple[Format, ...]) -> str:
    """Format the dtypes of formats for a message."""
    names = [str(f.dtype) for f in formats]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]


def dtype_name(dtype: npt.DTypeLike) -> str:
    """Format a dtype, or an invalid one, for a message."""
    try:
        return str(read_dtype(dtype))
    except (TypeError, ValueError, SyntaxError):
        return shown(dtype)


# Names of fp8 with a scale for each block, of kernels and on the command line.
BLOCK_FORMATS = ("fp8_e4m3_block", "fp8_e5m2_block")


def full_name(name: str) -> str:
    """Complete the name of a format, as typed on a command line.

    >>> full_name("mxfp8"), full_name("bf16"), full_name("fp8_block")
    ('mxfp8_e4m3', 'bf16', 'fp8_e4m3_block')
    """
    if name == "fp8_block":
        return BLOCK_FORMATS[0]
    for known in QUANTIZED:  # the first of a family is the usual one
        if name == known.split("_")[0]:
            return known
    return name


def format_of(dtype: npt.DTypeLike) -> Format | None:
    """Return the format that a dtype alone defines, or None.

    >>> format_of(np.float16).name
    'f16'
    >>> format_of(np.int8) is None
    True
    """
    try:
        return _BY_DTYPE.get(read_dtype(dtype))
    except (TypeError, ValueError, SyntaxError):  # what NumPy raises for an invalid dtype
        return None


def known_format(dtype: np.dtype[Any]) -> Format:
    """Return the format of a dtype that is known to define one."""
    return _BY_DTYPE[dtype]


def as_unsigned(x: Array) -> Array:
    """View an array as unsigned integers, for bitwise comparison and for the buffer protocol."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


@on_host
def round_once(x: Array, to: Format) -> npt.NDArray[Any]:
    """Round integers or real numbers of any width to a format, to nearest even, once.

    NumPy takes wide integers and float64 to bfloat16 through float32, and long doubles to float16 through
    float64, which rounds twice.

    >>> x = np.float64(1) + 2.0**-8 + 2.0**-40  # just above the tie between 1 and 1 + 2^-7
    >>> float(np.float64(x).astype(ml_dtypes.bfloat16)), float(round_once(np.asarray(x), BF16))
    (1.0, 1.0078125)
    """
    x = _to_float64(np.asarray(x))
    return np.asarray((_to_odd(x, _F32) if to.dtype == BF16.dtype else x).astype(to.dtype))


def _to_float64(x: Array) -> npt.NDArray[np.float64]:
    """Convert to float64, so that rounding the result to 24 bits or less is rounding `x` once."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        low = x.dtype.type(2**11 - 1)  # the bits that may be beyond the 53 of float64
        odd = (x & ~low) | (((x & low) != 0).astype(x.dtype) << 11)
        exact = (x.astype(np.float64) < 2.0**53) & (x.astype(np.float64) > -(2.0**53))
        return np.asarray(np.where(exact, x, odd).astype(np.float64))
    return _to_odd(x, np.dtype(np.float64)) if x.dtype.itemsize > 8 else x.astype(np.float64)


def _to_odd(x: Array, to: np.dtype[Any]) -> Array:
    """Round to float32 or float64 to odd: what is inexact gets an odd last bit.

    The result can be rounded to fewer bits as if it were `x` itself.
    """
    nearest = x.astype(to)
    wide = nearest.astype(x.dtype)
    bits = as_unsigned(nearest)
    bits = bits - (np.abs(wide) > np.abs(x)).astype(bits.dtype)  # toward zero
    inexact = (wide != x) & ~np.isnan(x)
    return np.asarray((bits | inexact.astype(bits.dtype)).view(to))


def nearest_float(x: Any) -> float:
    """Convert a number to float, so that rounding the result to float32 is rounding `x` once.

    Raises OverflowError beyond the range of float.

    >>> float(np.float32(2**60 + 2**36 + 1)) == float(np.float32(nearest_float(2**60 + 2**36 + 1)))
    False
    """
    value = float(x)
    if not math.isfinite(value) or value == x:
        return value
    toward_zero = math.nextafter(value, 0.0) if abs(value) > abs(x) else value
    odd = struct.unpack("<q", struct.pack("<d", toward_zero))[0] & 1
    return toward_zero if odd else math.nextafter(toward_zero, math.copysign(math.inf, value))


# ---- formats of 8 bits and fewer -------------------------------------------------------------------


@on_host
def cast(x: npt.ArrayLike, to: Format) -> Array:
    """Round to a narrow format, to nearest even, once; finite overflow saturates.

    NaN becomes NaN, or 0 if the format has no NaN. Signed zeros and subnormals are preserved. An infinity
    is preserved in e5m2 and saturates in the other formats.

    >>> cast([1000, 464, 465, -1000], FP8_E4M3).astype(np.float32)
    array([ 448.,  448.,  448., -448.], dtype=float32)
    >>> cast([-0.0, 2**-9, 2**-10], FP8_E4M3).view(np.uint8)
    array([128,   1,   0], dtype=uint8)
    """
    given = np.asarray(x)
    narrow = given.dtype.itemsize < 4 or given.dtype == _F32
    x = given.astype(_F32) if narrow else _to_odd(_to_float64(given), _F32)
    clipped = np.clip(x, np.float32(-to.maximum), np.float32(to.maximum))
    if to.dtype == _E5M2:
        clipped = np.where(np.isinf(given), x, clipped)
    if to.is_packed:
        clipped = np.where(np.isnan(x), np.float32(0), clipped)
    return np.asarray(clipped.astype(to.dtype))


ROUNDINGS = ("nearest", "stochastic")


@on_host
def round_stochastic(
    x: npt.NDArray[np.float32], to: Format, words: npt.NDArray[np.uint32]
) -> npt.NDArray[Any]:
    """Round to a narrow format by a random word for each number; overflow saturates.

    A number between two neighbours becomes the larger one with the probability of its distance from the
    smaller one, relative to theirs. That is resolved to the bits of float32, and for subnormals to as many.
    NaN becomes NaN, or 0 if the format has no NaN.

    >>> x, words = np.full(4, 2.25, np.float32), np.array([0, 2**31, 3 * 2**30, 2**32 - 1], np.uint32)
    >>> round_stochastic(x, MXFP4_E2M1, words).astype(np.float32)
    array([2., 2., 3., 3.], dtype=float32)
    """
    dropped = np.uint32(23 - to.mantissa_bits)
    magnitude = np.minimum(np.abs(x), np.float32(to.maximum))
    least = np.asarray(2.0**to.min_exponent, np.float32)  # normal number
    binade = np.uint32(1 << 23)
    # In steps of the last bit of float32: below the least normal number of those that it has itself.
    steps = np.maximum(as_unsigned(magnitude) + binade, as_unsigned(magnitude + least)) - as_unsigned(least)
    codes = (steps + (words >> (np.uint32(32) - dropped))) >> dropped
    codes = np.where(np.isnan(x), np.uint32(0 if to.is_packed else 0x7F), codes)
    negative = np.signbit(x) & ~(np.isnan(x) & to.is_packed)
    codes = codes | negative.astype(np.uint32) << np.uint32(to.bits - 1)
    return np.asarray(codes.astype(np.uint8).view(to.dtype))


SCALE_RULES = ("unit", "floor", "rceil", "even")


def default_rule(form: Format) -> str:
    """Return the rule by which the quantizer of an MX format scales by default."""
    return "unit" if form.bits == 8 else "even"


@on_host
def scale_byte(amax: npt.ArrayLike, rule: str, to: Format) -> npt.NDArray[np.uint8]:
    """Return the e8m0 byte of blocks whose absolute maximum is `amax` (float32, finite).

    With e = byte - 127, all rules use the exponent bits of float32:

    - ``"unit"``: e = floor(log2 amax), so that amax / 2^e is in [1, 2)
    - ``"floor"``: e = floor(log2 amax) - max_exponent, so that it has the format's largest exponent
    - ``"rceil"``: the least e for which amax / 2^e does not exceed the format's maximum
    - ``"even"``: like ``"floor"``, with amax rounded (ties up) to the mantissa bits of the format

    >>> [int(scale_byte(957, rule, MXFP8_E4M3)) for rule in SCALE_RULES]
    [136, 128, 129, 128]
    """
    if rule not in SCALE_RULES:
        raise fault(ValueError, "scale_byte", f"rule must be one of {', '.join(SCALE_RULES)}", shown(rule))
    bits = np.asarray(amax, np.float32).view(np.uint32)
    if rule == "even":
        bits = bits + np.uint32(1 << (22 - to.mantissa_bits))
    # A subnormal has the exponent bits of 2^-127; its byte is clamped to 0 anyway.
    byte = (bits >> 23).astype(np.int32)
    if rule != "unit":
        byte = byte - to.max_exponent
    if rule == "rceil":
        fraction = np.uint32(0x7FFFFF)
        top = np.float32(to.maximum).view(np.uint32)
        byte = byte + ((bits & fraction) > (top & fraction))
    zero = 127 if to.is_packed else 0
    return np.where(np.asarray(amax) == 0, zero, np.clip(byte, 0, 254)).astype(np.uint8)


@on_host
def e8m0_value(byte: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return the value of e8m0 bytes: 2^(byte - 127), and NaN for 255.

    >>> e8m0_value([134, 255]), e8m0_value(0) == 2.0**-127
    (array([128.,  nan], dtype=float32), np.True_)
    """
    bits = np.asarray(byte, np.uint8).astype(np.uint32) << 23
    bits = np.where(bits == 0, np.uint32(1 << 22), bits)  # 2^-127 is subnormal
    bits = np.where(bits == 255 << 23, np.uint32(0x7FC00000), bits)
    return bits.view(np.float32)


@on_host
def pack_mx_scales(scale: Array) -> npt.NDArray[np.uint32]:
    """Pack the four scale bytes of each 128 elements into one word: the host part of the public function."""
    rows, blocks = scale.shape
    padded = np.full((rows, -(-blocks // 4) * 4), 127, np.uint8)
    padded[:, :blocks] = scale.view(np.uint8)
    return np.ascontiguousarray(padded.view("<u4").T).astype(np.uint32, copy=False)


@on_host
def pack_fp4(x: Array) -> npt.NDArray[np.uint8]:
    """Pack two 4-bit elements into each byte, with even indices along the last axis in the low half.

    Parameters
    ----------
    x : numpy.ndarray
        float4_e2m1fn, with an even length of the last axis.

    Returns
    -------
    numpy.ndarray
        uint8, with half the length of the last axis.

    Examples
    --------
    >>> x = np.array([0.5, 6.0, -1.0, 0.0], np.float32).astype(ml_dtypes.float4_e2m1fn)
    >>> [hex(byte) for byte in pack_fp4(x)]
    ['0x71', '0xa']
    """
    _require("pack_fp4", x, _E2M1)
    if x.ndim == 0 or x.shape[-1] % 2:
        raise fault(ValueError, "pack_fp4", "x.shape[-1] must be even", f"x.shape={x.shape}")
    codes = x.view(np.uint8)
    return np.asarray((codes[..., 0::2] & 15) | (codes[..., 1::2] << 4), np.uint8)


@on_host
def unpack_fp4(x: npt.NDArray[np.uint8]) -> Array:
    """The inverse of `pack_fp4`: one 4-bit element per byte, as ml_dtypes stores them.

    Examples
    --------
    >>> unpack_fp4(np.array([0x71, 0x0A], np.uint8)).astype(np.float32)
    array([ 0.5,  6. , -1. ,  0. ], dtype=float32)
    """
    _require("unpack_fp4", x, np.dtype(np.uint8))
    if x.ndim == 0:
        raise fault(ValueError, "unpack_fp4", "x.ndim must be at least 1", 0)
    return np.stack((x & 15, x >> 4), axis=-1).reshape(*x.shape[:-1], 2 * x.shape[-1]).view(_E2M1)


@on_host
def pack_fp6(x: Array) -> npt.NDArray[np.uint8]:
    """Pack four 6-bit elements into three bytes: element i has bits 6i to 6i + 5 of the little-endian row.

    Parameters
    ----------
    x : numpy.ndarray
        float6_e2m3fn or float6_e3m2fn, with a length of the last axis that is a multiple of 4.

    Returns
    -------
    numpy.ndarray
        uint8, with three quarters of the length of the last axis.

    Examples
    --------
    >>> x = np.array([0.125, 7.5, 0.0, -0.125], np.float32).astype(ml_dtypes.float6_e2m3fn)
    >>> [hex(byte) for byte in pack_fp6(x)]
    ['0xc1', '0x7', '0x84']
    """
    _require("pack_fp6", x, _E2M3, _E3M2)
    if x.ndim == 0 or x.shape[-1] % 4:
        raise fault(ValueError, "pack_fp6", "x.shape[-1] must be a multiple of 4", f"x.shape={x.shape}")
    a, b, c, d = (x.view(np.uint8)[..., i::4] & 63 for i in range(4))
    packed = np.stack((a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2), axis=-1)
    return packed.reshape(*x.shape[:-1], x.shape[-1] // 4 * 3)


@on_host
def unpack_fp6(x: npt.NDArray[np.uint8], format: str = "mxfp6_e2m3") -> Array:
    """The inverse of `pack_fp6`: one 6-bit element per byte, as ml_dtypes stores them.

    Parameters
    ----------
    x : numpy.ndarray
        uint8, with a length of the last axis that is a multiple of 3.
    format : str
        The type of the elements: that of ``"mxfp6_e2m3"`` or ``"mxfp6_e3m2"``.

    Returns
    -------
    numpy.ndarray
        float6_e2m3fn or float6_e3m2fn.

    Examples
    --------
    >>> unpack_fp6(np.array([0xC1, 0x07, 0x84], np.uint8)).astype(np.float32)
    array([ 0.125,  7.5  ,  0.   , -0.125], dtype=float32)
    """
    forms = {form.name: form for form in (MXFP6_E2M3, MXFP6_E3M2)}
    if not isinstance(format, str) or format not in forms:
        kind = ValueError if isinstance(format, str) else TypeError
        raise fault(kind, "unpack_fp6", f"format must be {' or '.join(forms)}", shown(format))
    _require("unpack_fp6", x, np.dtype(np.uint8))
    if x.ndim == 0 or x.shape[-1] % 3:
        raise fault(ValueError, "unpack_fp6", "x.shape[-1] must be a multiple of 3", f"x.shape={x.shape}")
    a, b, c = (x[..., i::3] for i in range(3))
    codes = np.stack((a, a >> 6 | b << 2, b >> 4 | c << 4, c >> 2), axis=-1) & 63
    return codes.reshape(*x.shape[:-1], x.shape[-1] // 3 * 4).view(forms[format].dtype)


def _require(function: str, x: object, *dtypes: np.dtype[Any]) -> None:
    got = x.dtype if isinstance(x, np.ndarray) else type(x).__qualname__
    if got not in dtypes:
        allowed = " or ".join(map(str, dtypes))
        raise fault(TypeError, function, f"x must be a numpy.ndarray of {allowed}", got)
