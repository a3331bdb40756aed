"""Checks of the arguments of functions that compute on the host: a kind for each parameter."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..errors import shown
from .arrays import Resident, array_hint, on_host
from .checks import FP8_BLOCKS, Checks, is_int
from .elements import FORMATS, fnuz_hint, void_hint
from .operand_checks import OperandChecks
from .scaled import ScaledArray

P = ParamSpec("P")
T = TypeVar("T")
Kind = Callable[[OperandChecks, str, Any], object]
MATRIX = "a numpy.ndarray or a ScaledArray on the host"


def checked_arguments(**kinds: Kind) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check the arguments that are given, each by its kind, before the call; see `on_host` too."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            checks = OperandChecks(function.__name__)
            for name, x in signature.bind(*args, **kwargs).arguments.items():
                if name in kinds:
                    kinds[name](checks, name, x)
            checks.raise_all()
            return function(*args, **kwargs)

        return on_host(call)

    return decorate


def optional(kind: Kind) -> Kind:
    """A kind, or None."""
    return lambda checks, name, x: None if x is None else kind(checks, name, x)


def numbers(least: int = 0, most: int | None = None) -> Kind:
    """An array of real numbers with so many axes, quantized or not."""

    def check(checks: OperandChecks, name: str, x: Any) -> None:
        if isinstance(x, ScaledArray):
            checks.in_memory(name, x)
            checks.same_device(name, x.device, None, "all arrays here")
        elif is_plain(checks, name, x, MATRIX):
            has_real_numbers(checks, name, x)
        else:
            return
        checks.ndim(name, x.shape, least, most)

    return check


def is_plain(checks: OperandChecks, name: str, x: Any, what: str = "a numpy.ndarray") -> bool:
    """Check that an argument is a NumPy array without a mask."""
    plain = isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray)
    if not plain:
        checks.wrong_type(name, what, x, array_hint(x))
    return plain


def has_real_numbers(checks: OperandChecks, name: str, x: np.ndarray[Any, Any]) -> bool:
    """Check the type of an array's elements."""
    if not real(x.dtype):
        hint = void_hint(name, x.dtype)
        checks.add(TypeError, "dtype", f"{name}.dtype must be of real numbers", str(x.dtype), hint)
    return real(x.dtype)


def real(dtype: np.dtype[Any]) -> bool:
    """Whether elements are real numbers, also of the types of ml_dtypes."""
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.type is not np.void)


def pair_of(kind: Kind) -> Kind:
    """A kind, or a pair of such."""

    def check(checks: OperandChecks, name: str, x: Any) -> None:
        pair = isinstance(x, tuple) and len(x) == 2
        for i, part in enumerate(x if pair else (x,)):
            kind(checks, f"{name}[{i}]" if pair else name, part)

    return check


def floats(least: int = 1, most: int | None = None, *, wide: bool = False) -> Kind:
    """An array to quantize; `wide` ones may also be float64."""

    def check(checks: OperandChecks, name: str, x: Any) -> None:
        if not is_plain(checks, name, x):
            return
        hint = fnuz_hint(x.dtype) or void_hint(name, x.dtype)
        if not (wide and x.dtype == np.float64):
            checks.dtype(f"{name}.dtype", x.dtype, tuple(FORMATS.values()), hint)
        checks.ndim(name, x.shape, least, most)

    return check


def operand(ndim: int) -> Kind:
    """An operand of a layer: an array to quantize, or a quantized one."""
    plain, known = floats(ndim, ndim), numbers(ndim, ndim)
    return lambda checks, name, x: (known if isinstance(x, ScaledArray) else plain)(checks, name, x)


def vector(checks: OperandChecks, name: str, x: Any) -> None:
    """A number for each column."""
    if is_plain(checks, name, x) and has_real_numbers(checks, name, x):
        checks.ndim(name, x.shape, 1, 1)


def quantized(checks: OperandChecks, name: str, x: Any) -> None:
    """A ScaledArray on the host."""
    if not isinstance(x, ScaledArray):
        checks.wrong_type(name, "a ScaledArray", x)
    else:
        numbers()(checks, name, x)


def dtype(checks: OperandChecks, name: str, x: Any) -> None:
    """bfloat16, float16 or float32."""
    checks.dtype(name, x, tuple(FORMATS.values()))


def any_dtype(checks: OperandChecks, name: str, x: Any) -> None:
    """A type of real numbers."""
    try:
        known = isinstance(x, (type, str, np.dtype)) and real(np.dtype(x))
    except (TypeError, ValueError, SyntaxError):
        known = False
    if not known:
        checks.add(TypeError, "dtype", f"{name} must be a dtype of real numbers", shown(x))


def alpha(checks: OperandChecks, name: str, x: Any) -> None:
    """A factor."""
    if isinstance(x, Resident):
        checks.wrong_type(name, "a real number", x)
    else:
        checks.alpha(x)


magnitude: Kind = OperandChecks.magnitude  # a number that is finite in float32 and not negative
finite: Kind = OperandChecks.finite  # a number that is finite in float32
flag: Kind = OperandChecks.flag  # True or False


def one_of(*among: str) -> Kind:
    """One of several names."""
    return lambda checks, name, x: checks.option(name, x, among)


def fp8_block(checks: OperandChecks, name: str, x: Any) -> None:
    """A shape of blocks of fp8, whose rows may be along either axis."""
    checks.block(x, (*FP8_BLOCKS, FP8_BLOCKS[0][::-1]))


def axis(checks: OperandChecks, name: str, x: Any) -> None:
    """An axis; whether the array has it is checked where it is used."""
    checks.axis(x, None)


def count(checks: OperandChecks, name: str, x: Any) -> None:
    """A number of things."""
    if not is_int(x):
        checks.wrong_type(name, "an int", x)
    elif not 0 <= x < 2**31:
        checks.add(ValueError, "range", f"{name} must be 0 or more, and below 2**31", x)


def shape(checks: OperandChecks, name: str, x: Any) -> None:
    """A shape with an axis or more."""
    if not isinstance(x, (tuple, list, range)):
        checks.wrong_type(name, "a sequence of ints", x)
        return
    found = checks.ints(name, x)
    if found == ():
        checks.add(ValueError, "shape", f"{name} must have an axis or more", x)
    if found is not None and (any(n < 0 for n in found) or math.prod(found) >= 2**31):
        checks.add(ValueError, "shape", f"{name} must have lengths of 0 or more, and below 2**31 elements", x)


def instance(what: type) -> Kind:
    """An instance of a class."""

    def check(checks: Checks, name: str, x: Any) -> None:
        if not isinstance(x, what):
            checks.wrong_type(name, f"a {what.__name__}", x)

    return check


def require_product(function: str, a: Any, b: Any, col_scale: Any = None, bias: Any = None) -> None:
    """Check that the shapes of a product match."""
    checks = OperandChecks(function)
    checks.contraction(a.shape, b.shape)
    checks.batch(a.shape, b.shape)
    for name, x in (("col_scale", col_scale), ("bias", bias)):
        if x is not None and x.shape != b.shape[-1:]:
            checks.add(ValueError, "shape", f"{name}.shape must be (N,)=({b.shape[-1]},)", x.shape)
    checks.raise_all()
