"""Checks of the operands of products: each becomes an `Operand`, or a reason why it is invalid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..errors import UnsupportedError
from .arrays import Resident, device_name
from .checks import FP8_BLOCKS, Checks, python_number
from .elements import BF16, BLOCK_SIDE, F16, F32, QUANTIZED, Format, fnuz_hint, void_hint
from .operand import Operand, bytes_of, operand_of, overlap, overlaps_itself
from .scaled import ScaledArray
from .strides import rows_contiguous

INPUTS = (BF16, F16)
OUTPUTS = (BF16, F16, F32)


class OperandChecks(Checks):
    """Collects the faults of a product's operands, and returns descriptions of the valid ones."""

    def matrix(self, name: str, x: object, formats: tuple[Format, ...]) -> Operand | None:
        """Parse a matrix argument."""
        array = self.array(name, x)
        if array is None:
            return None
        hint = "" if name == "out" else _dtype_hint(name, array.dtype)
        form = self.dtype(f"{name}.dtype", array.dtype, formats, hint)
        if form is None:
            return None
        self.ndim(name, array.shape, 2)
        return operand_of(array, form)

    def scaled(self, name: str, q: ScaledArray, k_axis: int, *, in_groups: bool = False) -> Operand | None:
        """Parse a quantized operand, whose scales must be constant or blocked along K."""
        if not self.in_memory(name, q):
            return None
        form = QUANTIZED[q.format]
        self.ndim(name, q.shape, 2)
        if not in_groups:
            self.no_groups(name, q)
        row_scales = not (form.block or q.block) and q.scale.shape[-2:] not in ((), (1, 1))
        transposed = "T" if len(q.shape) == 2 else "mT"
        if q.block is not None and q.block[k_axis] == 1:
            view = "" if k_axis == -1 else f".{transposed}"
            required = f"{name} must have blocks of {BLOCK_SIDE} along K, its axis {k_axis}"
            advice = f"quantize with quantize_fp8(x{view}, block={FP8_BLOCKS[0]}){view}"
            self.add(ValueError, "block", required, f"block={q.block}", advice)
        if len(q.shape) >= 2 and q.axis != k_axis and (form.block or row_scales):
            function = "quantize_" + form.name.split("_")[0]
            advice = f"quantize with {function}(x, axis={k_axis})"
            if k_axis == -2:
                advice += f", or {function}(x.{transposed}).{transposed}"
            what = "blocked" if form.block else "scaled by rows"
            required = f"{name} must be {what} along K, its axis {k_axis}"
            self.add(ValueError, "axis", required, f"axis={q.axis}", advice)
        steps = [0 if n == 1 else s for n, s in zip(q.scale.shape, q.scale.strides, strict=True)]
        steps = [0] * (len(q.shape) - len(steps)) + steps
        return replace(
            bytes_of(q.data),
            format=form,
            row_scales=row_scales,
            scale_strides=tuple(steps),
            block=q.block,
            e8m0=q.block is not None and q.scale.dtype != F32.dtype,
        )

    def pair(
        self,
        a: object,
        b: object,
        a_operand: Operand,
        b_operand: Operand,
        named: tuple[str, str] = ("a", "b"),
        weights: bool = True,
    ) -> None:
        """Check that the operands can be multiplied; `weights`: also if `b` alone is quantized."""
        first, second = named
        kinds = [_kind(x.format) for x in (a_operand, b_operand)]
        if weights and not isinstance(a, ScaledArray) and isinstance(b, ScaledArray):
            if a_operand.format != BF16:
                required = f"{first}.dtype must be bfloat16 if {second} alone is quantized"
                advice = f"convert it: {first}.astype(ml_dtypes.bfloat16)"
                self.add(UnsupportedError, "dtype", required, a_operand.format.dtype, advice)
            if b.hadamard:
                required = f"{second} must not have the Hadamard transform if {first} is not quantized"
                got, advice = f"{second}.hadamard=True", "quantize_mxfp4 has hadamard=False"
                self.add(ValueError, "hadamard", required, got, advice)
        elif kinds[0] != kinds[1]:
            if not (isinstance(a, ScaledArray) or isinstance(b, ScaledArray)):
                names = [str(x.format.dtype) for x in (a_operand, b_operand)]
                required = f"{first}.dtype and {second}.dtype must be the same"
            else:
                names = [x.format.name for x in (a_operand, b_operand)]
                allowed = "both fp8, both MX, or neither"
                if weights:
                    allowed += f"; {second} alone may be quantized"
                required = f"{first} and {second} must have the same kind of format ({allowed})"
            self.add(TypeError, "dtype", required, " and ".join(names))
        if isinstance(a, ScaledArray) and isinstance(b, ScaledArray) and a.hadamard != b.hadamard:
            required = (
                f"{first} and {second} must both have the Hadamard transform, or neither: "
                "otherwise it does not cancel"
            )
            got = f"{first}.hadamard={a.hadamard}, {second}.hadamard={b.hadamard}"
            self.add(ValueError, "hadamard", required, got, "quantize_mxfp4 has hadamard=False")
        elif isinstance(a, ScaledArray) and isinstance(b, ScaledArray) and a.signs != b.signs:
            required = f"{first} and {second} must have the same random signs: otherwise they do not cancel"
            self.add(ValueError, "signs", required, f"{first}.signs={a.signs}, {second}.signs={b.signs}")
        elif isinstance(a, ScaledArray) and isinstance(b, ScaledArray) and a.signs_start != b.signs_start:
            required = f"{first} and {second} must begin at the same element of the arrays with random signs"
            self.add(ValueError, "signs", required, f"{a.signs_start} and {b.signs_start}")

    def contraction(
        self,
        a: tuple[int, ...],
        b: tuple[int, ...],
        named: tuple[str, str] = ("a", "b"),
        axes: tuple[int, int] = (-1, -2),
        extent: str = "K",
    ) -> None:
        """Check that operands of these shapes have the same extent along the contraction axes."""
        if a[axes[0]] != b[axes[1]]:
            i, j = len(a) + axes[0], len(b) + axes[1]
            required = f"{named[0]}.shape[{i}] ({extent}) must equal {named[1]}.shape[{j}] ({extent})"
            self.add(ValueError, "shape", required, f"{a[i]} and {b[j]}", shapes_named(named, a, b))

    def batch(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the leading axes of a product of operands of these shapes."""
        try:
            return np.broadcast_shapes(a[:-2], b[:-2])
        except ValueError:
            required = "the axes of a and b before the last two must broadcast"
            got = f"{a[:-2]} and {b[:-2]}"
            self.add(ValueError, "shape", required, got, shapes_named(("a", "b"), a, b))
            return None

    def vector(
        self,
        name: str,
        x: object,
        formats: tuple[Format, ...],
        columns: int | None,
        groups: int | None = None,
    ) -> Format | None:
        """Check a per-column argument, or (groups, columns)."""
        array = None if x is None else self.array(name, x)
        if array is None:
            return None
        shape = array.shape
        form = self.dtype(f"{name}.dtype", array.dtype, formats)
        if groups is not None and columns is not None:
            if shape != (groups, columns):
                self.add(ValueError, "shape", f"{name}.shape must be (G, N)={groups, columns}", shape)
            elif isinstance(array, Resident) and not rows_contiguous(
                shape, array.strides, array.dtype.itemsize
            ):
                required = f"{name} on a device must have contiguous rows"
                self.add(ValueError, "stride", required, f"strides={array.strides}")
        elif len(shape) != 1 or (columns is not None and shape[0] != columns):
            self.same_shape(name, shape, (columns,), "(N,)" if columns is None else f"(N,)=({columns},)")
        elif isinstance(array, Resident):
            self.contiguous(name, array)
        return form

    def same_shape(self, name: str, shape: tuple[int, ...], want: object, text: str = "") -> None:
        """Check the shape of an array; `text` names it in the message."""
        if shape != want:
            self.add(ValueError, "shape", f"{name}.shape must be {text or want}", shape)

    def alpha(self, alpha: object) -> float | Literal["device"]:
        """Check alpha: a real number, or a 0-d float32 array on the device."""
        if isinstance(alpha, Resident):
            self.in_memory("alpha", alpha)
            self.dtype("alpha.dtype", alpha.dtype, (F32,))
            if alpha.shape != ():
                self.add(ValueError, "shape", "alpha on a device must be 0-d", f"alpha.shape={alpha.shape}")
            return "device"
        value = python_number(alpha)
        value = float(value) if isinstance(value, bool) else value
        number = self.number("alpha", value, "a real number or a 0-d float32 DeviceArray")
        if number is None:
            return 1.0
        if abs(number) >= 2.0**128 - 2.0**103 and not (isinstance(value, float) and math.isinf(value)):
            self.add(ValueError, "range", "alpha must fit float32", value)  # it rounds to Inf
        return number

    def same_devices(self, **operands: Operand | None) -> None:
        """Check that the matrices of a call are on the same device."""
        known = {name: x.device for name, x in operands.items() if x is not None}
        if len(set(known.values())) > 1:
            got = ", ".join(f"{name} on {device_name(device)}" for name, device in known.items())
            device = next(device for device in known.values() if device is not None)
            what = "host arrays" if None in known.values() else "the others"
            advice = f"copy {what} with hipgemm.asarray(x, device={device})"
            self.add(TypeError, "residency", f"{', '.join(known)} must be on the same device", got, advice)

    def epilogue_devices(self, a: Operand | None, like: str = "a", **arguments: object) -> None:
        """Check that device arrays of the epilogue are on the device of the matrices."""
        if a is None or a.device is None:
            return
        for name, x in arguments.items():
            if isinstance(x, Resident):
                self.same_device(name, x.device, a.device, like)

    def output(self, out: object, operand: Operand, **inputs: Operand | None) -> None:
        """Check that `out` is writeable and overlaps no input."""
        self.writeable(out)
        if overlaps_itself(operand):
            got = f"shape {operand.shape}, strides {operand.strides}"
            self.add(ValueError, "overlap", "out must not overlap itself", got)
        self.disjoint("out", operand, **inputs)

    def disjoint(self, written: str, operand: Operand, **others: Operand | None) -> None:
        """Check that an array that is written overlaps no other."""
        for name, x in others.items():
            if x is not None and x.device == operand.device and overlap(operand, x):
                required = f"{written} must not overlap {name}"
                self.add(ValueError, "overlap", required, "arrays that share memory")


def shapes_named(named: tuple[str, str], a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Format the shapes of two operands for a message."""
    return f"{named[0]}.shape={a}, {named[1]}.shape={b}"


def _kind(form: Format) -> str:
    """The kind of a format. Only formats of the same kind can be multiplied."""
    return "mx" if form.block else form.name.split("_")[0]


def _dtype_hint(name: str, dtype: np.dtype[Any]) -> str:
    """A hint how to convert an array of an unsupported dtype."""
    if hint := fnuz_hint(dtype) or void_hint(name, dtype):
        return hint
    if any(dtype == form.dtype for form in QUANTIZED.values()):
        return "quantized elements need a scale: wrap both in a hipgemm.ScaledArray"
    return (
        f"convert with {name}.astype(ml_dtypes.bfloat16), or quantize with hipgemm.quantize_fp8, "
        "quantize_mxfp8, quantize_mxfp6 or quantize_mxfp4"
    )
