"""What is wrong with the arguments of a call, all of it collected before anything is raised."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import Reason, sentence
from .elements import BF16, F16, F32, FNUZ, QUANTIZED, Format, format_of
from .operand import Operand, Shaped, bytes_of, operand_of, overlap, overlaps_itself
from .scaled import Resident, ScaledArray, array_hint, is_array, place_name

INPUTS = (BF16, F16)
OUTPUTS = (BF16, F16, F32)
_ARRAYS = "a numpy.ndarray or a hipgemm.DeviceArray"


class Faults:
    """Collects what is wrong, and reads what is right."""

    def __init__(self) -> None:
        self.found: list[Reason] = []

    def add(self, kind: type[Exception], code: str, required: str, got: object, context: str = "") -> None:
        """Add a fault: what is required, what came, and what helps."""
        self.found.append(Reason(kind, code, sentence(required, got, context)))

    def matrix(self, name: str, x: object, formats: tuple[Format, ...]) -> Operand | None:
        """Read a matrix argument."""
        if not is_array(x):
            self.add(TypeError, "type", f"{name} must be {_ARRAYS}", type(x).__qualname__, array_hint(x))
            return None
        form = format_of(x.dtype)
        if form not in formats:
            hint = "" if name == "out" else _dtype_hint(name, x.dtype)
            required = f"{name}.dtype must be {dtype_names(formats)}"
            self.add(TypeError, "dtype", required, dtype_name(x.dtype), hint)
            return None
        assert form is not None
        self.two_axes(name, x.shape)
        return operand_of(x, form)

    def two_axes(self, name: str, shape: tuple[int, ...]) -> None:
        """Check that an operand is a matrix, or several."""
        if len(shape) < 2:
            required = f"{name}.ndim must be at least 2"
            self.add(ValueError, "shape", required, len(shape), f"{name}.shape={shape}")

    def scaled(self, name: str, q: ScaledArray, k_axis: int, *, in_groups: bool = False) -> Operand:
        """Read a quantized operand, whose scales must be constant or blocked along K."""
        form = QUANTIZED[q.format]
        self.two_axes(name, q.shape)
        if q.group_offsets is not None and not in_groups:
            required = f"{name} must be quantized without group_offsets"
            self.add(ValueError, "groups", required, f"{q.group_offsets.shape[0] - 1} groups")
        row_scales = not form.block and q.scale.shape[-2:] not in ((), (1, 1))
        if len(q.shape) >= 2 and q.axis != k_axis and (form.block or row_scales):
            function = "quantize_" + form.name.split("_")[0]
            advice = f"quantize with {function}(x, axis={k_axis})"
            if k_axis == -2:
                turned = "T" if len(q.shape) == 2 else "mT"
                advice += f", or {function}(x.{turned}).{turned}"
            what = "blocked" if form.block else "scaled by rows"
            required = f"{name} must be {what} along K, its axis {k_axis}"
            self.add(ValueError, "axis", required, f"axis={q.axis}", advice)
        steps = [0 if n == 1 else s for n, s in zip(q.scale.shape, q.scale.strides, strict=True)]
        steps = [0] * (len(q.shape) - len(steps)) + steps
        return replace(bytes_of(q.data), format=form, row_scales=row_scales, scale_strides=tuple(steps))

    def pair(
        self,
        a: object,
        b: object,
        a_operand: Operand,
        b_operand: Operand,
        named: tuple[str, str] = ("a", "b"),
    ) -> None:
        """Check that the operands can be multiplied with each other."""
        first, second = named
        kinds = [_kind(x.format) for x in (a_operand, b_operand)]
        if kinds[0] != kinds[1]:
            if not (isinstance(a, ScaledArray) or isinstance(b, ScaledArray)):
                names = [str(x.format.dtype) for x in (a_operand, b_operand)]
                required = f"{first}.dtype and {second}.dtype must be the same"
            else:
                names = [x.format.name for x in (a_operand, b_operand)]
                required = f"{first} and {second} must be quantized alike (both fp8, both MX, or neither)"
            self.add(TypeError, "dtype", required, " and ".join(names))
        if isinstance(a, ScaledArray) and isinstance(b, ScaledArray) and a.hadamard != b.hadamard:
            required = (
                f"{first} and {second} must both carry the Hadamard transform, or neither: "
                "it cancels only then"
            )
            got = f"{first}.hadamard={a.hadamard}, {second}.hadamard={b.hadamard}"
            self.add(ValueError, "hadamard", required, got, "quantize_mxfp4 has hadamard=False")

    def shapes(self, a: object, b: object, out: object) -> int | None:
        """Check that the matrices fit each other; return N if it is known."""
        if not (isinstance(b, Shaped) and len(b.shape) >= 2):
            return None
        if isinstance(a, Shaped) and len(a.shape) >= 2:
            shapes = f"a.shape={a.shape}, b.shape={b.shape}"
            if a.shape[-1] != b.shape[-2]:
                required = f"a.shape[{len(a.shape) - 1}] (K) must equal b.shape[{len(b.shape) - 2}] (K)"
                self.add(ValueError, "shape", required, f"{a.shape[-1]} and {b.shape[-2]}", shapes)
            try:
                batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            except ValueError:
                required = "the axes of a and b before the last two must broadcast"
                self.add(ValueError, "shape", required, f"{a.shape[:-2]} and {b.shape[:-2]}", shapes)
            else:
                want = (*batch, a.shape[-2], b.shape[-1])
                if is_array(out) and len(out.shape) >= 2 and out.shape != want:
                    axes = "(batch.., M, N)" if batch else "(M, N)"
                    self.add(ValueError, "shape", f"out.shape must be {axes}={want}", out.shape, shapes)
        return int(b.shape[-1])

    def vector(self, name: str, x: object, formats: tuple[Format, ...], columns: int | None) -> Format | None:
        """Check a per-column argument."""
        if x is None:
            return None
        if not is_array(x):
            self.add(TypeError, "type", f"{name} must be {_ARRAYS}", type(x).__qualname__, array_hint(x))
            return None
        form = format_of(x.dtype)
        if form not in formats:
            self.add(TypeError, "dtype", f"{name}.dtype must be {dtype_names(formats)}", dtype_name(x.dtype))
        if len(x.shape) != 1 or (columns is not None and x.shape[0] != columns):
            want = "(N,)" if columns is None else f"(N,)=({columns},)"
            self.add(ValueError, "shape", f"{name}.shape must be {want}", x.shape)
        elif isinstance(x, Resident) and x.shape[0] > 1 and x.strides[0] != x.dtype.itemsize:
            self.add(ValueError, "stride", f"{name} on a device must be contiguous", f"strides={x.strides}")
        return form

    def alpha(self, alpha: object) -> float | Literal["device"]:
        """Check alpha: a real number, or a 0-d float32 array on the device."""
        if isinstance(alpha, Resident):
            if alpha.dtype != F32.dtype:
                self.add(TypeError, "dtype", "alpha.dtype must be float32", dtype_name(alpha.dtype))
            if alpha.shape != ():
                self.add(ValueError, "shape", "alpha on a device must be 0-d", f"alpha.shape={alpha.shape}")
            return "device"
        value = alpha.item() if isinstance(alpha, np.ndarray) and alpha.shape == () else alpha
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, Real):
            required = "alpha must be a real number or a 0-d float32 DeviceArray"
            self.add(TypeError, "type", required, type(alpha).__qualname__)
            return 1.0
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
            self.add(ValueError, "range", "alpha must fit float32", value)
        else:
            if np.isfinite(number) and abs(number) >= 2.0**128 - 2.0**103:  # rounds to Inf
                self.add(ValueError, "range", "alpha must fit float32", number)
        return number

    def places(self, **operands: Operand | None) -> None:
        """Check that the matrices of one call live in one place."""
        known = {name: x.device for name, x in operands.items() if x is not None}
        if len(set(known.values())) > 1:
            got = ", ".join(f"{name} on {place_name(device)}" for name, device in known.items())
            device = next(device for device in known.values() if device is not None)
            what = "arrays of the host" if None in known.values() else "the others"
            advice = f"move {what} with hipgemm.asarray(x, device={device})"
            self.add(TypeError, "residency", f"{', '.join(known)} must live in one place", got, advice)

    def epilogue_places(self, a: Operand | None, like: str = "a", **arguments: object) -> None:
        """Check that device arguments of the epilogue are on the device of the matrices."""
        if a is None or a.device is None:
            return
        for name, x in arguments.items():
            if isinstance(x, Resident) and x.device != a.device:
                required = f"{name} must be on {place_name(a.device)} like {like}"
                self.add(TypeError, "residency", required, place_name(x.device))

    def output(self, out: object, operand: Operand, **inputs: Operand | None) -> None:
        """Check that `out` can be written without harm."""
        if (not out.flags.writeable) if isinstance(out, np.ndarray) else getattr(out, "readonly", False):
            self.add(ValueError, "readonly", "out must be writeable", "a read-only array")
        if overlaps_itself(operand):
            got = f"shape {operand.shape}, strides {operand.strides}"
            self.add(ValueError, "overlap", "out must not overlap itself", got)
        for name, x in inputs.items():
            if x is not None and x.device == operand.device and overlap(operand, x):
                self.add(ValueError, "overlap", f"out must not overlap {name}", "arrays that share memory")


def _kind(form: Format) -> str:
    """What a format can be multiplied with: others of the same kind."""
    return "mx" if form.block else form.name.split("_")[0]


def _dtype_hint(name: str, dtype: np.dtype[Any]) -> str:
    """Say how to make an operand of an array that is none."""
    if dtype in FNUZ:
        return f"{dtype} is not the OCP type {FNUZ[dtype]}: convert the values, never the bytes"
    if any(dtype == form.dtype for form in QUANTIZED.values()):
        return "such numbers need their scale: wrap both in a hipgemm.ScaledArray"
    return (
        f"convert with {name}.astype(ml_dtypes.bfloat16), or quantize with hipgemm.quantize_fp8, "
        "quantize_mxfp8 or quantize_mxfp4"
    )


def dtype_names(formats: tuple[Format, ...]) -> str:
    """Name the types of formats for a message."""
    names = [str(f.dtype) for f in formats]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]


def dtype_name(dtype: npt.DTypeLike) -> str:
    """Name a type for a message, whatever it is."""
    try:
        return str(np.dtype(dtype))
    except (TypeError, ValueError, SyntaxError):
        return repr(dtype)
