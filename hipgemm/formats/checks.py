"""Checks of arguments: each is written once, and all that is wrong is collected before anything is raised."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import Reason, fault, raise_reasons, requirement
from .arrays import Array, array_hint, is_array, place_name
from .elements import F32, QUANTIZED, Format, dtype_name, dtype_names, format_of

ARRAYS = "a numpy.ndarray or a hipgemm.DeviceArray"
T = TypeVar("T")


class Checks:
    """Collects in `found` what is wrong with the arguments of a function, and returns the others as read.

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
        """Raise what was found, if anything was."""
        raise_reasons(self.function, self.found)

    def add(self, kind: type[Exception], code: str, required: str, got: object, context: str = "") -> None:
        """Add a fault: what is required, what came, and what helps."""
        self.found.append(Reason(kind, code, requirement(required, got, context)))

    def take(self, x: T | Reason, otherwise: T) -> T:
        """Return what was read; where a reason came instead, add that and return something else."""
        if not isinstance(x, Reason):
            return x
        self.found.append(x)
        return otherwise

    # ---- arrays ----

    def wrong_type(self, name: str, what: str, x: object, hint: str = "") -> None:
        """Add that an argument is of another type than it must be."""
        self.add(TypeError, "type", f"{name} must be {what}", type(x).__qualname__, hint)

    def array(self, name: str, x: object, what: str = ARRAYS) -> Array | None:
        """Read an array."""
        if is_array(x):
            return x
        self.wrong_type(name, what, x, array_hint(x))
        return None

    def dtype(
        self, name: str, dtype: npt.DTypeLike, formats: tuple[Format, ...], hint: str = ""
    ) -> Format | None:
        """Read a dtype that must be one of some formats."""
        form = format_of(dtype)
        if form in formats:
            return form
        self.add(TypeError, "dtype", f"{name} must be {dtype_names(formats)}", dtype_name(dtype), hint)
        return None

    def ndim(self, name: str, shape: tuple[int, ...], least: int) -> bool:
        """Check that an array has enough axes."""
        if len(shape) < least:
            context = f"{name}.shape={shape}" if least > 1 else ""
            self.add(ValueError, "shape", f"{name}.ndim must be at least {least}", len(shape), context)
        return len(shape) >= least

    def place(self, name: str, device: int | None, place: int | None, like: str) -> None:
        """Check that an array is on a device, where another one is."""
        if device != place:
            required = f"{name} must be on {place_name(place)} like {like}"
            self.add(TypeError, "residency", required, place_name(device))

    def contiguous(self, name: str, x: Array) -> None:
        """Check that the elements of a vector on a device are neighbours."""
        if x.shape[0] > 1 and x.strides[0] != x.dtype.itemsize:
            required = f"{name} on a device must be contiguous"
            self.add(ValueError, "stride", required, f"strides={x.strides}")

    def writeable(self, x: object) -> None:
        """Check that `out` is no read-only array."""
        if (not x.flags.writeable) if isinstance(x, np.ndarray) else getattr(x, "readonly", False):
            self.add(ValueError, "readonly", "out must be writeable", "a read-only array")

    def no_groups(self, name: str, q: Any) -> None:
        """Check that a ScaledArray has blocks that no groups interrupt."""
        if q.group_offsets is not None:
            required = f"{name} must be quantized without group_offsets"
            self.add(ValueError, "groups", required, f"{q.group_offsets.shape[0] - 1} groups")

    # ---- options ----

    def option(self, name: str, x: object, among: Collection[str], code: str = "option") -> str | None:
        """Read one of several names."""
        if isinstance(x, str) and x in among:
            return x
        kind = ValueError if isinstance(x, str) else TypeError
        self.add(kind, code, f"{name} must be one of {', '.join(among)}", repr(x))
        return None

    def format(self, x: object, among: Sequence[str] = tuple(QUANTIZED)) -> Format | None:
        """Look up a format by its name."""
        name = self.option("format", x, among)
        return None if name is None else QUANTIZED[name]

    def flag(self, name: str, x: object) -> bool:
        """Read True or False."""
        if isinstance(x, (bool, np.bool_)):
            return bool(x)
        self.add(TypeError, "type", f"{name} must be True or False", repr(x))
        return False

    # ---- numbers ----

    def axis(self, x: object, ndim: int | None) -> int | None:
        """Read an axis and count it from the end; of an array that is none only the type is checked."""
        if isinstance(x, bool) or not isinstance(x, (int, np.integer)):
            self.wrong_type("axis", "an int", x)
        elif ndim is not None and not -ndim <= x < ndim:
            self.add(ValueError, "axis", f"axis must be from {-ndim} to {ndim - 1}", x)
        elif ndim is not None:
            return int(x) - ndim if x >= 0 else int(x)
        return None

    def number(self, name: str, x: Any, what: str = "a real number", hint: str = "") -> float | None:
        """Read a number; one beyond all floats as an infinity."""
        value = x.item() if isinstance(x, np.generic) else x
        if isinstance(value, bool) or not isinstance(value, Real):
            self.wrong_type(name, what, x, hint)
            return None
        try:
            return float(value)
        except OverflowError:
            return math.inf if x > 0 else -math.inf

    def magnitude(self, name: str, x: Any, what: str = "a real number") -> float | None:
        """Read a number that is none below 0 and fits float32."""
        found = self.number(name, x, what)
        if found is not None and not 0 <= found <= F32.maximum:
            self.add(ValueError, "range", f"{name} must be finite and not negative", x)
        return found

    def seconds(self, x: Any) -> float:
        """Read a timeout."""
        found = self.number("timeout", x, "a number of seconds")
        if found is not None and not found > 0:
            self.add(ValueError, "range", "timeout must be above 0 s", x)
        return found or 0.0

    def ints(self, name: str, x: Any, what: str = "a sequence of ints") -> tuple[int, ...] | None:
        """Read several whole numbers."""
        try:
            return tuple(map(operator.index, x))
        except TypeError:
            self.add(TypeError, "type", f"{name} must be {what}", repr(x))
            return None

    def shape(self, x: Any) -> tuple[int, ...] | None:
        """Read a shape."""
        return self.ints("shape", x if isinstance(x, Sequence) else (x,), "an int or a sequence of ints")


def checked(function: str, check: Callable[[Checks], T | None]) -> T:
    """Make a single check, and raise what is wrong."""
    checks = Checks(function)
    found = check(checks)
    checks.raise_all()
    assert found is not None
    return found


def read_shape(function: str, shape: tuple[Any, ...], size: int) -> tuple[int, ...]:
    """Read the arguments of a method `reshape`; one extent may be -1, for what is left of the size."""
    asked = shape[0] if len(shape) == 1 else shape
    extents = checked(function, lambda checks: checks.shape(asked))
    if extents.count(-1) == 1:
        known = -math.prod(extents)
        left = size // known if known else 0
        extents = tuple(left if n == -1 else n for n in extents)
    if any(n < 0 for n in extents) or math.prod(extents) != size:
        raise fault(ValueError, function, f"shape must hold {size} elements", asked)
    return extents


def require_axes(function: str, ndim: int) -> None:
    """Refuse to exchange the last two axes of an array that has fewer."""
    if ndim < 2:
        raise fault(ValueError, function, "ndim must be at least 2", ndim)
