"""Checks of arguments. All faults of a call are collected before an exception is raised."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Collection, Sequence
from numbers import Real
from typing import Any, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import Reason, fault, raise_reasons, requirement, shown
from .arrays import Array, Resident, array_hint, device_name, is_array
from .elements import (
    BLOCK_SIDE,
    F32,
    FORMATS,
    QUANTIZED,
    ROUNDINGS,
    Format,
    dtype_name,
    dtype_names,
    fnuz_hint,
    format_of,
    nearest_float,
    void_hint,
)
from .philox import MAX_SEED

ARRAYS = "a numpy.ndarray or a hipgemm.DeviceArray"
FP8_BLOCKS = ((1, BLOCK_SIDE), (BLOCK_SIDE, BLOCK_SIDE))
T = TypeVar("T")


class Checks:
    """Collects the faults of a function's arguments in `found`, and returns parsed values of the valid ones.

    >>> checks = Checks("quantize_mxfp8")
    >>> checks.axis(2, 2), checks.flag("hadamard", "no")
    (None, False)
    >>> checks.raise_all()
    Traceback (most recent call last):
    ...
    TypeError: quantize_mxfp8: 2 faults:
      - axis must be from -2 to 1; got 2
      - hadamard must be True or False; got 'no'
    """

    def __init__(self, function: str = "") -> None:
        self.function = function
        self.found: list[Reason] = []

    def raise_all(self) -> None:
        """Raise an exception with all faults, if there are any."""
        raise_reasons(self.function, self.found)

    def add(self, kind: type[Exception], code: str, required: str, got: object, context: str = "") -> None:
        """Add a fault: what is required, what was given, and optional context."""
        self.found.append(Reason(kind, code, requirement(required, got, context)))

    def value_or(self, x: T | Reason, default: T) -> T:
        """Return a parsed value; for a reason, add it and return the default."""
        if not isinstance(x, Reason):
            return x
        self.found.append(x)
        return default

    # ---- arrays ----

    def wrong_type(self, name: str, what: str, x: object, hint: str = "") -> None:
        """Add that an argument has the wrong type."""
        self.add(TypeError, "type", f"{name} must be {what}", type(x).__qualname__, hint)

    def array(self, name: str, x: object, what: str = ARRAYS) -> Array | None:
        """Parse an array."""
        if not is_array(x):
            self.wrong_type(name, what, x, array_hint(x))
            return None
        return x if self.in_memory(name, x) else None

    def in_memory(self, name: str, x: object) -> bool:
        """Check that an array was not freed."""
        freed = bool(getattr(x, "freed", False))  # of a ScaledArray also its scales, of shards any
        if freed:
            self.add(ValueError, "freed", f"{name} must be in memory", "an array that was freed")
        return not freed

    def dtype(
        self, name: str, dtype: npt.DTypeLike, formats: tuple[Format, ...], hint: str = ""
    ) -> Format | None:
        """Parse a dtype that must be one of the given formats."""
        form = format_of(dtype)
        if form in formats:
            return form
        self.add(TypeError, "dtype", f"{name} must be {dtype_names(formats)}", dtype_name(dtype), hint)
        return None

    def floats(self, name: str, x: object) -> int | None:
        """Check an array of the types of products, with one axis or more; return their number."""
        array = self.array(name, x)
        if array is None:
            return None
        dtype = array.dtype
        hint = fnuz_hint(dtype) or void_hint(name, dtype)
        hint = hint or (f"convert with {name}.astype(numpy.float32)" if dtype.kind in "fiu" else "")
        self.dtype(f"{name}.dtype", dtype, tuple(FORMATS.values()), hint)
        return len(array.shape) if self.ndim(name, array.shape, 1) else None

    def ndim(self, name: str, shape: tuple[int, ...], least: int, most: int | None = None) -> bool:
        """Check that an array has at least `least` axes, and at most `most`."""
        valid = least <= len(shape) and (most is None or len(shape) <= most)
        if not valid:
            wanted = least if least == most else f"at least {least}" if most is None else f"{least} to {most}"
            context = f"{name}.shape={shape}" if least > 1 else ""
            self.add(ValueError, "shape", f"{name}.ndim must be {wanted}", len(shape), context)
        return valid

    def same_device(self, name: str, device: int | None, expected: int | None, like: str) -> None:
        """Check that an array is on the same device as another one."""
        if device != expected:
            required = f"{name} must be on {device_name(expected)} like {like}"
            self.add(TypeError, "residency", required, device_name(device))

    def contiguous(self, name: str, x: Array) -> None:
        """Check that a vector on a device is contiguous."""
        if x.shape[0] > 1 and x.strides[0] != x.dtype.itemsize:
            required = f"{name} on a device must be contiguous"
            self.add(ValueError, "stride", required, f"strides={x.strides}")

    def writeable(self, x: object, name: str = "out") -> None:
        """Check that an output is not read-only."""
        if (not x.flags.writeable) if isinstance(x, np.ndarray) else getattr(x, "readonly", False):
            self.add(ValueError, "readonly", f"{name} must be writeable", "a read-only array")

    def no_groups(self, name: str, q: Any) -> None:
        """Check that a ScaledArray has no groups."""
        if q.group_offsets is not None:
            required = f"{name} must be quantized without group_offsets"
            self.add(ValueError, "groups", required, f"{q.group_offsets.shape[0] - 1} groups")

    # ---- options ----

    def option(self, name: str, x: object, among: Collection[str], code: str = "option") -> str | None:
        """Parse one of several names."""
        if isinstance(x, str) and x in among:
            return x
        kind = ValueError if isinstance(x, str) else TypeError
        self.add(kind, code, f"{name} must be one of {', '.join(among)}", shown(x))
        return None

    def format(self, x: object, among: Sequence[str] = tuple(QUANTIZED)) -> Format | None:
        """Look up a format by its name."""
        name = self.option("format", x, among)
        return None if name is None else QUANTIZED[name]

    def flag(self, name: str, x: object) -> bool:
        """Parse True or False."""
        if isinstance(x, (bool, np.bool_)):
            return bool(x)
        self.add(TypeError, "type", f"{name} must be True or False", shown(x))
        return False

    def rounding(self, rounding: object, seed: object) -> int | None:
        """Parse a rounding and its seed; return the seed, or None for rounding to nearest."""
        if self.option("rounding", rounding, ROUNDINGS) is None:
            return None
        if (seed is None) == (rounding == "nearest"):
            return None if seed is None else self.seed("seed", seed)
        required = "None with rounding='nearest'" if seed is not None else "given with rounding='stochastic'"
        self.add(ValueError, "seed", f"seed must be {required}", shown(seed))
        return None

    def signs(self, x: object, hadamard: object) -> int | None:
        """Parse the seed of random signs, which need a Hadamard transform."""
        found = None if x is None else self.seed("signs", x)
        if x is not None and isinstance(hadamard, (bool, np.bool_)) and not hadamard:
            self.add(ValueError, "signs", "signs must be None without the Hadamard transform", shown(x))
        return found

    def block(self, x: object, among: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """Parse the shape of blocks that share a scale."""
        found = None if isinstance(x, (str, Resident)) or not isinstance(x, Sequence) else tuple(x)
        for sides in among:
            if found == sides and not any(isinstance(n, bool) for n in found):
                return sides
        kind = TypeError if found is None else ValueError
        self.add(kind, "block", f"block must be {' or '.join(map(str, among))}", shown(x))
        return None

    def fp8_block(
        self, x: object, shape: tuple[int, ...] | None, axis: object, amax: object
    ) -> tuple[int, int] | None:
        """Parse the `block` of `quantize_fp8` for an array with this shape, if that is known."""
        found = self.block(x, FP8_BLOCKS)
        if shape is not None:
            self.ndim("x", shape, 2)
        for name, value in (("axis", axis), ("amax", amax)):
            if value is not None:
                got = type(value).__qualname__ if is_array(value) else shown(value)
                self.add(ValueError, name, f"{name} must be omitted with block", got)
        return found

    def path(self, x: Any) -> str | None:
        """Parse the path of a file."""
        try:
            found = os.fsdecode(x)
        except TypeError:
            self.wrong_type("path", "a str, bytes or an object with __fspath__", x)
            return None
        if "\0" in found:
            self.add(ValueError, "path", "path must have no null character", shown(found))
            return None
        return found

    def names(self, x: Any) -> list[str] | None:
        """Parse several names of arrays."""
        try:
            found = None if isinstance(x, (str, bytes, Resident)) else list(x)
        except TypeError:
            found = None
        if found is None or not all(isinstance(name, str) for name in found):
            self.add(TypeError, "type", "names must be a sequence of str", shown(x))
            return None
        return found

    # ---- numbers ----

    def seed(self, name: str, x: object) -> int | None:
        """Parse a seed of random numbers."""
        if not is_int(x):
            self.wrong_type(name, "an int", x)
        elif not 0 <= x <= MAX_SEED:
            self.add(ValueError, "range", f"{name} must be from 0 to 2**64 - 1", shown(x))
        else:
            return int(x)
        return None

    def axis(self, x: object, ndim: int | None) -> int | None:
        """Parse an axis and return it counted from the end; without `ndim`, only the type is checked."""
        if not is_int(x):
            self.wrong_type("axis", "an int", x)
        elif ndim is not None and not -ndim <= x < ndim:
            self.add(ValueError, "axis", f"axis must be from {-ndim} to {ndim - 1}", x)
        elif ndim is not None:
            return int(x) - ndim if x >= 0 else int(x)
        return None

    def number(self, name: str, x: Any, what: str = "a real number", hint: str = "") -> float | None:
        """Parse a number; one beyond the range of float becomes an infinity."""
        value = python_number(x)
        if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, Real):
            self.wrong_type(name, what, x, hint)
            return None
        try:
            return nearest_float(value)
        except OverflowError:
            return math.inf if x > 0 else -math.inf

    def magnitude(self, name: str, x: Any, what: str = "a real number", hint: str = "") -> float | None:
        """Parse a number that must be finite in float32 and not negative."""
        found = self.number(name, x, what, hint)
        if found is not None and not 0 <= found <= F32.maximum:
            self.add(ValueError, "range", f"{name} must be finite and not negative", x)
            return None
        return found

    def finite(self, name: str, x: Any) -> float | None:
        """Parse a number that must be finite in float32."""
        found = self.number(name, x)
        if found is not None and not abs(found) <= F32.maximum:
            self.add(ValueError, "range", f"{name} must be finite", x)
            return None
        return found

    def magnitudes(self, name: str, x: Array) -> None:
        """Check the elements of a host array like `magnitude`. Elements on a device are not checked."""
        if isinstance(x, np.ndarray) and x.dtype == F32.dtype:
            wrong = x[~((x >= 0) & (x <= F32.maximum))]
            if wrong.size:
                required = f"all of {name} must be finite and not negative"
                self.add(ValueError, "range", required, wrong.flat[0])

    def seconds(self, x: Any) -> float:
        """Parse a timeout."""
        found = self.number("timeout", x, "a number of seconds")
        if found is not None and not found > 0:
            self.add(ValueError, "range", "timeout must be above 0 s", x)
        return found or 0.0

    def ints(self, name: str, x: Any, what: str = "a sequence of ints") -> tuple[int, ...] | None:
        """Parse several ints."""
        try:
            other = isinstance(x, (str, bytes, bytearray, memoryview, set, frozenset, dict, Resident))
            found = () if other else tuple(x)
            if not other and not any(isinstance(n, bool) for n in found):
                return tuple(map(operator.index, found))
        except TypeError:
            pass
        self.add(TypeError, "type", f"{name} must be {what}", shown(x))
        return None

    def shape(self, x: Any) -> tuple[int, ...] | None:
        """Parse a shape."""
        return self.ints("shape", x if isinstance(x, Sequence) else (x,), "an int or a sequence of ints")


def is_int(x: object) -> TypeGuard[int]:
    """Whether a value is an int, of Python or of NumPy. Truth values and NumPy's durations are none."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, (bool, np.timedelta64))


def python_number(x: Any) -> Any:
    """Convert a scalar of NumPy to Python's; return anything else unchanged.

    Dates, which would become ints, and masked values, which would become 0, are unchanged too.
    """
    if not isinstance(x, (np.ndarray, np.generic)) or isinstance(x, np.ma.MaskedArray):
        return x
    return x.item() if x.shape == () and x.dtype.kind not in "mM" else x


def checked(function: str, check: Callable[[Checks], T | None]) -> T:
    """Make a single check, and raise if it fails."""
    checks = Checks(function)
    found = check(checks)
    checks.raise_all()
    assert found is not None
    return found


def read_shape(function: str, shape: tuple[Any, ...], size: int) -> tuple[int, ...]:
    """Parse the arguments of a `reshape` method; one extent may be -1 and is then computed."""
    if not shape:
        raise fault(TypeError, function, "the new shape must be given", "no argument")
    asked = shape[0] if len(shape) == 1 else shape
    extents = checked(function, lambda checks: checks.shape(asked))
    if extents.count(-1) == 1:
        known = -math.prod(extents)
        left = size // known if known else -1
        extents = tuple(left if n == -1 else n for n in extents)
    if any(n < 0 for n in extents) or math.prod(extents) != size:
        raise fault(ValueError, function, f"shape must hold {size} elements", asked)
    return extents


def require_axes(function: str, ndim: int) -> None:
    """Raise if an array has fewer than two axes to swap."""
    if ndim < 2:
        raise fault(ValueError, function, "ndim must be at least 2", ndim)
