"""From arguments to one description of the product, with every fault in them named. Pure: no device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import Reason, sentence
from ..formats.elements import BF16, F16, F32, FNUZ, QUANTIZED, Format, format_of
from ..formats.scaled import Resident, ScaledArray, array_hint, is_array, place_name
from ..formats.strides import byte_range

INPUTS = (BF16, F16)
_BYTE = QUANTIZED["fp8_e4m3"]
OUTPUTS = (BF16, F16, F32)
_ARRAYS = "a numpy.ndarray or a hipgemm.DeviceArray"


@dataclass(frozen=True)
class Operand:
    """Where an array lies and how: matrices, one behind the other along any leading axes.

    Strides count bytes; `device` is None on the host. In a `padded` one, the bytes behind each row's
    end (or each column's, after a transposition) are zero up to a multiple of 16. Numbers of 4 bits count
    as what they are packed into: one byte for two along K. A broadcast axis has a stride of 0.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: Format
    address: int
    device: int | None
    padded: bool = False
    row_scales: bool = False  # fp8 with a scale for each row, or for each column of the second operand
    scale_strides: tuple[int, ...] = ()  # bytes from scale to scale along the same axes, 0 where it is one
    tight: bool = False  # in memory that may end inside a word of 4 bytes
    widens: bool = False  # 4-bit numbers that are yet to become the 8-bit ones described here

    @property
    def transposed(self) -> Operand:
        """The same with the last two axes exchanged."""
        return replace(
            self,
            shape=_exchange(self.shape),
            strides=_exchange(self.strides),
            scale_strides=_exchange(self.scale_strides),
        )

    @property
    def rows_contiguous(self) -> bool:
        """Whether each row is one run of bytes, rows apart by a pitch that cannot overlap them."""
        rows, columns = self.shape[-2:]
        row, column = self.strides[-2:]
        item = self.format.itemsize
        return (columns <= 1 or column == item) and (rows <= 1 or row >= columns * item)

    @property
    def pitch(self) -> int:
        """Elements from one row to the next, for an operand whose rows are contiguous."""
        rows, columns = self.shape[-2:]
        return columns if rows <= 1 else self.strides[-2] // self.format.itemsize


def _exchange(axes: tuple[int, ...]) -> tuple[int, ...]:
    return (*axes[:-2], *axes[:-3:-1])


@dataclass(frozen=True)
class GemmProblem:
    """Products: ``out[.., m, n] = (a[.., m, k] @ b[.., k, n]) * alpha * col_scale[n] + bias[n]``.

    M, N and K count numbers, whatever these are packed into. All operands have the leading axes `batch`.
    """

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    out: Operand | None
    out_format: Format
    alpha: float | Literal["device"] = 1.0
    col_scale: bool = False
    bias: Format | None = None
    batch: tuple[int, ...] = ()

    @property
    def batches(self) -> int:
        """How many products there are."""
        return math.prod(self.batch)

    @property
    def transposed(self) -> GemmProblem:
        """The same product as one of the exchanged operands. Without vectors, which go with columns."""
        out = None if self.out is None else self.out.transposed
        return replace(self, m=self.n, n=self.m, a=self.b.transposed, b=self.a.transposed, out=out)

    @property
    def device(self) -> int | None:
        """The device that holds the matrices; None when they are on the host."""
        return self.a.device

    def __str__(self) -> str:
        a, b = self.a.format.name, self.b.format.name
        formats = a if a == b else f"{a} @ {b}"
        times = "".join(f"{n} x " for n in self.batch)
        return f"{times}({self.m}, {self.k}) @ ({self.k}, {self.n}) {formats} -> {self.out_format.name}"


def describe_matmul(
    a: object,
    b: object,
    /,
    out: object = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: object = 1.0,
    col_scale: object = None,
    bias: object = None,
) -> tuple[GemmProblem | None, list[Reason]]:
    """Describe one call of `matmul`.

    Returns
    -------
    problem : GemmProblem or None
        None where the faults leave nothing to describe.
    reasons : list of Reason
        Every fault found.

    Examples
    --------
    >>> import ml_dtypes
    >>> x = np.zeros((2, 8), ml_dtypes.bfloat16)
    >>> print(describe_matmul(x, x.T)[0])
    (2, 8) @ (8, 2) bf16 -> bf16
    >>> print(*describe_matmul(x, x)[1])
    a.shape[1] (K) must equal b.shape[0] (K); got 8 and 2; a.shape=(2, 8), b.shape=(2, 8)
    """
    faults = _Faults()
    a_operand = faults.scaled("a", a, -1) if isinstance(a, ScaledArray) else faults.matrix("a", a, INPUTS)
    b_operand = faults.scaled("b", b, -2) if isinstance(b, ScaledArray) else faults.matrix("b", b, INPUTS)
    out_operand = None if out is None else faults.matrix("out", out, OUTPUTS)
    alpha_value = faults.alpha(alpha)

    out_format = None
    if dtype is not None:
        out_format = format_of(dtype)
        if out_format is None:
            faults.add(TypeError, "dtype", f"dtype must be {_names(OUTPUTS)}", dtype_name(dtype))
        elif out_operand is not None and out_operand.format != out_format:
            required = f"out.dtype must be dtype={out_format.dtype}"
            faults.add(TypeError, "dtype", required, out_operand.format.dtype)
    elif out_operand is not None:
        out_format = out_operand.format
    elif a_operand is not None:
        out_format = F16 if a_operand.format == F16 else BF16

    if a_operand and b_operand:
        faults.pair(a, b, a_operand, b_operand)
    columns = faults.shapes(a, b, out)
    faults.vector("col_scale", col_scale, (F32,), columns)
    bias_format = faults.vector("bias", bias, OUTPUTS, columns)
    faults.places(a=a_operand, b=b_operand, out=out_operand)
    faults.epilogue_places(a_operand, alpha=alpha, col_scale=col_scale, bias=bias)
    if out_operand is not None:
        vectors = {"alpha": alpha, "col_scale": col_scale, "bias": bias}
        others = {name: _operand(x, format_of(x.dtype) or F32) for name, x in vectors.items() if is_array(x)}
        for name, q in (("a", a), ("b", b)):
            if isinstance(q, ScaledArray):
                others[f"{name}.scale"] = _bytes_of(q.scale)
        faults.output(out, out_operand, a=a_operand, b=b_operand, **others)

    if a_operand is None or b_operand is None or out_format is None:
        return None, faults.found
    if any(r.code == "shape" for r in faults.found):
        return None, faults.found
    assert isinstance(a, Shaped)
    assert isinstance(b, Shaped)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    problem = GemmProblem(
        m=a.shape[-2],
        n=b.shape[-1],
        k=a.shape[-1],
        a=_broadcast(_beside(a, a_operand, b_operand, -1), batch),
        b=_broadcast(_beside(b, b_operand, a_operand, -2), batch),
        out=out_operand,
        out_format=out_format,
        alpha=alpha_value,
        col_scale=col_scale is not None,
        bias=bias_format,
        batch=batch,
    )
    return problem, faults.found


class _Faults:
    """Collects what is wrong, and reads what is right."""

    def __init__(self) -> None:
        self.found: list[Reason] = []

    def add(self, kind: type[Exception], code: str, required: str, got: object, context: str = "") -> None:
        self.found.append(Reason(kind, code, sentence(required, got, context)))

    def matrix(self, name: str, x: object, formats: tuple[Format, ...]) -> Operand | None:
        """Read a matrix argument."""
        if not is_array(x):
            self.add(TypeError, "type", f"{name} must be {_ARRAYS}", type(x).__qualname__, array_hint(x))
            return None
        form = format_of(x.dtype)
        if form not in formats:
            hint = "" if name == "out" else _dtype_hint(name, x.dtype)
            required = f"{name}.dtype must be {_names(formats)}"
            self.add(TypeError, "dtype", required, dtype_name(x.dtype), hint)
            return None
        assert form is not None
        self.two_axes(name, x.shape)
        return _operand(x, form)

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
        return replace(_bytes_of(q.data), format=form, row_scales=row_scales, scale_strides=tuple(steps))

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
            self.add(TypeError, "dtype", f"{name}.dtype must be {_names(formats)}", dtype_name(x.dtype))
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
        if _overlaps_itself(operand):
            got = f"shape {operand.shape}, strides {operand.strides}"
            self.add(ValueError, "overlap", "out must not overlap itself", got)
        for name, x in inputs.items():
            if x is not None and x.device == operand.device and overlap(operand, x):
                self.add(ValueError, "overlap", f"out must not overlap {name}", "arrays that share memory")


Shaped = (np.ndarray, Resident, ScaledArray)


def _beside(q: Any, x: Operand, other: Operand, k_axis: int) -> Operand:
    """Describe 4-bit numbers beside 8-bit ones: widened to e4m3, which holds them all."""
    if not (x.format.bits == 4 and other.format.bits == 8):
        return x
    shape = q.shape
    pitch = -(-shape[k_axis] // 16) * 16
    matrix = pitch * shape[-3 - k_axis]
    lead = [matrix * math.prod(shape[i + 1 : -2]) for i in range(len(shape) - 2)]
    strides = (*lead, *((pitch, 1) if k_axis == -1 else (1, pitch)))
    return replace(
        x,
        shape=shape,
        strides=strides,
        format=QUANTIZED["mxfp8_e4m3"],
        address=0,
        padded=True,
        widens="mxfp8" not in q._kernel_scales,
    )


def _broadcast(x: Operand, batch: tuple[int, ...]) -> Operand:
    """Give an operand the leading axes of the product, those that it lacks with a stride of 0."""
    missing = len(batch) + 2 - len(x.shape)

    def widened(strides: tuple[int, ...]) -> tuple[int, ...]:
        own = (0 if n == 1 else s for n, s in zip(x.shape[:-2], strides[:-2], strict=True))
        return (*(0,) * missing, *own, *strides[-2:])

    return replace(
        x,
        shape=(*batch, *x.shape[-2:]),
        strides=widened(x.strides),
        scale_strides=widened(x.scale_strides) if x.scale_strides else (),
    )


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


def _bytes_of(x: Any) -> Operand:
    """Describe an array by its bytes alone; 4-bit numbers on the host as they will be packed."""
    item = x.dtype.itemsize
    if isinstance(x, np.ndarray):
        return Operand(
            x.shape, x.strides, F32 if item == 4 else _BYTE, int(x.__array_interface__["data"][0]), None
        )
    return Operand(x.shape, x.strides, F32 if item == 4 else _BYTE, x.ptr, x.device, x.padded, tight=x.tight)


def _operand(x: npt.NDArray[Any] | Resident, form: Format) -> Operand:
    if isinstance(x, np.ndarray):
        return Operand(x.shape, x.strides, form, int(x.__array_interface__["data"][0]), None)
    return Operand(x.shape, x.strides, form, x.ptr, x.device, x.padded, tight=x.tight)


def overlap(x: Operand, y: Operand) -> bool:
    """Whether two arrays have a byte in common. Interleaved views need not."""
    x_low, x_high = byte_range(x.shape, x.strides, x.format.itemsize, x.address)
    y_low, y_high = byte_range(y.shape, y.strides, y.format.itemsize, y.address)
    if x_low >= y_high or y_low >= x_high:
        return False
    effort: Any = 10_000  # deciding is NP-hard in general, instant for two axes
    try:
        return bool(np.shares_memory(_phantom(x), _phantom(y), max_work=effort))
    except np.exceptions.TooHardError:  # undecided: assume the worst
        return True


def _phantom(x: Operand) -> npt.NDArray[np.void]:
    """An array for NumPy to reason about; its bytes are never touched."""
    interface = {
        "shape": x.shape,
        "strides": x.strides,
        "typestr": f"|V{x.format.itemsize}",
        "data": (x.address, True),
        "version": 3,
    }
    return np.asarray(type("Phantom", (), {"__array_interface__": interface})())


def _overlaps_itself(x: Operand) -> bool:
    """Whether two elements share memory, taking strides to nest as those of a sliced array do."""
    reach = 0 if 0 in x.shape else x.format.itemsize  # nothing to overlap
    for stride, n in sorted((abs(s), n) for n, s in zip(x.shape, x.strides, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (n - 1)
    return False


def _names(formats: tuple[Format, ...]) -> str:
    names = [str(f.dtype) for f in formats]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]


def dtype_name(dtype: npt.DTypeLike) -> str:
    """Name a type for a message, whatever it is."""
    try:
        return str(np.dtype(dtype))
    except (TypeError, ValueError, SyntaxError):
        return repr(dtype)
