"""What a linear layer is given, forward and backward, with every fault in it named. Pure: no device."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import Reason
from ..formats.elements import BF16, F32, QUANTIZED, SCALE_RULES, format_of
from ..formats.faults import OUTPUTS, Faults, dtype_name, dtype_names
from ..formats.groups import offset_reasons, same_offsets
from ..formats.operand import Operand
from ..formats.scaled import HADAMARD, Resident, ScaledArray, array_hint, fnuz_hint, is_array, place_name
from ..products.operation import GROUPED_MATMUL, MATMUL
from ..products.problem import Problem

# What each recipe multiplies, pre-quantized operands included; nothing for bf16.
RECIPES: dict[str, tuple[str, ...]] = {
    "bf16": (),
    "fp8": ("fp8_e4m3", "fp8_e5m2"),
    "mxfp8": ("mxfp8_e4m3", "mxfp8_e5m2"),
    "mxfp4": ("mxfp4_e2m1",),
}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One call: ``y (lead.., N) = x (lead.., K) @ w.T``, w (N, K)."""

    recipe: str
    lead: Shape
    n: int
    k: int
    device: int | None

    @property
    def m(self) -> int:
        """Rows of x, its leading axes made one."""
        return int(np.prod(self.lead, dtype=np.int64))


@dataclass(frozen=True)
class GroupedLayer:
    """One call: ``y (M, N) = x (M, K) @ w[group of the row].T``, w (G, N, K)."""

    recipe: str
    m: int
    groups: int
    n: int
    k: int
    device: int | None


def is_pair(x: object) -> bool:
    """Whether `x` is meant as an array quantized along both of its axes."""
    return isinstance(x, tuple) and len(x) == 2 and all(isinstance(q, ScaledArray) for q in x)


def describe_linear(
    x: Any,
    w: Any,
    *,
    recipe: object = "bf16",
    bias: object = None,
    w_post_scale: object = None,
    x_amax: object = None,
    w_amax: object = None,
    scaling: object = None,
    hadamard: object = None,
    dtype: npt.DTypeLike | None = None,
) -> tuple[Layer | None, list[Reason]]:
    """Describe one call of `linear`: the layer, None where faults leave none, and every fault.

    Examples
    --------
    >>> x = np.ones((2, 5, 64), np.float32)
    >>> describe_linear(x, x[0], recipe="mxfp8")[0]
    Layer(recipe='mxfp8', lead=(2, 5), n=5, k=64, device=None)
    >>> print(*describe_linear(x, x)[1])
    w.ndim must be 2; got 3; w.shape=(2, 5, 64)
    """
    faults = LinearFaults(recipe)
    x_shape, w_shape = faults.operand("x", x, -1), faults.operand("w", w, -1)
    if w_shape is not None and len(w_shape) != 2:
        faults.add(ValueError, "shape", "w.ndim must be 2", len(w_shape), f"w.shape={w_shape}")
        w_shape = None
    if x_shape and w_shape and x_shape[-1] != w_shape[1]:
        got = f"{x_shape[-1]} and {w_shape[1]}"
        context = f"x.shape={x_shape}, w.shape={w_shape}"
        faults.add(ValueError, "shape", "x.shape[-1] (K) must equal w.shape[1] (K)", got, context)
        x_shape = None
    n = w_shape[0] if w_shape else None
    faults.vector("w_post_scale", w_post_scale, (F32,), n)
    faults.vector("bias", bias, OUTPUTS, n)
    faults.amax("x_amax", x_amax, x)
    faults.amax("w_amax", w_amax, w)
    faults.options(scaling, hadamard)
    if hadamard is True and x_shape and w_shape:
        m = int(np.prod(x_shape[:-1], dtype=np.int64))
        faults.transformable(M=m, N=w_shape[0], K=w_shape[1])
    faults.output_dtype("dtype", dtype)
    faults.cancel(x, w)
    device = faults.places_of({"x": x, "w": w}, w_post_scale=w_post_scale, bias=bias)
    if not (x_shape and w_shape) or faults.found:
        return None, faults.found
    return Layer(faults.recipe, x_shape[:-1], w_shape[0], w_shape[1], device), faults.found


def describe_forward(
    x: Any,
    w: Any,
    *,
    recipe: object = "bf16",
    bias: object = None,
    w_post_scale: object = None,
    x_amax: object = None,
    w_amax: object = None,
    scaling: object = None,
    hadamard: object = None,
    dtype: npt.DTypeLike | None = None,
) -> tuple[Problem | None, list[Reason]]:
    """Describe the product of a call of `linear`: what a kernel has to do.

    Examples
    --------
    >>> x = np.ones((2, 5, 64), np.float32)
    >>> print(describe_forward(x, x[0], recipe="mxfp8")[0])
    (10, 64) @ (64, 5) mxfp8_e4m3 -> bf16
    """
    layer, reasons = describe_linear(
        x,
        w,
        recipe=recipe,
        bias=bias,
        w_post_scale=w_post_scale,
        x_amax=x_amax,
        w_amax=w_amax,
        scaling=scaling,
        hadamard=hadamard,
        dtype=dtype,
    )
    if layer is None:
        return None, reasons

    problem = Problem(
        MATMUL,
        m=layer.m,
        n=layer.n,
        k=layer.k,
        a=prepared(x, (layer.m, layer.k), layer),
        b=prepared(w, (layer.n, layer.k), layer),
        out=None,
        out_format=format_of(dtype) or BF16 if dtype is not None else BF16,
        col_scale=w_post_scale is not None,
        bias=format_of(bias.dtype) if is_array(bias) else None,
    )
    return problem, reasons


def prepared(q: Any, shape: Shape, layer: Layer | GroupedLayer) -> Operand:
    """An operand (.., rows, K) of the forward product: as it is, or as it will be once quantized or cast."""
    q = first(q)
    if isinstance(q, Resident) and q.dtype == BF16.dtype and q.shape == shape and layer.recipe == "bf16":
        return Operand(q.shape, q.strides, BF16, q.ptr, q.device, q.padded, tight=q.tight)
    names = (q.format,) if isinstance(q, ScaledArray) else RECIPES[layer.recipe]
    form = QUANTIZED[names[0]] if names else BF16
    *lead, rows, k = shape
    columns = -(-k * form.bits // (8 * form.itemsize))
    pitch = -(-columns * form.itemsize // 16) * 16
    strides = (*(rows * pitch for _ in lead), pitch, form.itemsize)
    return Operand((*lead, rows, columns), strides, form, 0, layer.device or 0, padded=True)


def describe_backward(
    dy: Any,
    layer: Layer,
    kept: tuple[Any, Any] = (None, None),
    *,
    dy_amax: object = None,
    format: object = None,
    dtype: npt.DTypeLike | None = None,
    dw_dtype: npt.DTypeLike | None = None,
) -> list[Reason]:
    """Find every fault of a call of `linear_backward` after `layer`, which kept its `x` and `w`.

    Examples
    --------
    >>> print(*describe_backward(np.ones((2, 3), np.float32), Layer("fp8", (2,), 4, 8, None)))
    dy.shape must be (2, 4), that of y; got (2, 3)
    """
    faults = LinearFaults(layer.recipe)
    shape = faults.operand("dy", dy, None)
    y_shape = (*layer.lead, layer.n)
    flat = (layer.m, layer.n)
    if shape is not None and shape != y_shape and not (is_quantized(dy) and shape == flat):
        faults.add(ValueError, "shape", f"dy.shape must be {y_shape}, that of y", shape)
    faults.gradient(dy, shape, layer.device, dy_amax, format, dtype, dw_dtype)
    if is_quantized(dy):
        faults.transforms(dy if is_pair(dy) else (dy,), *kept)
    return faults.found


def describe_grouped(
    x: Any,
    w: Any,
    group_offsets: Any,
    *,
    recipe: object = "bf16",
    x_amax: object = None,
    w_amax: object = None,
    scaling: object = None,
    hadamard: object = None,
    dtype: npt.DTypeLike | None = None,
) -> tuple[GroupedLayer | None, list[Reason]]:
    """Describe one call of `grouped_linear`: the layers, None where faults leave none, and every fault.

    Examples
    --------
    >>> x, w = np.ones((5, 64), np.float32), np.ones((2, 3, 64), np.float32)
    >>> describe_grouped(x, w, np.array([0, 2, 5]), recipe="fp8")[0]
    GroupedLayer(recipe='fp8', m=5, groups=2, n=3, k=64, device=None)
    """
    faults = LinearFaults(recipe, grouped=True)
    x_shape, w_shape = faults.operand("x", x, -1), faults.operand("w", w, -1)
    for name, shape, ndim in (("x", x_shape, 2), ("w", w_shape, 3)):
        if shape is not None and len(shape) != ndim:
            faults.add(
                ValueError, "shape", f"{name}.ndim must be {ndim}", len(shape), f"{name}.shape={shape}"
            )
            x_shape = w_shape = None
    if x_shape and w_shape and x_shape[1] != w_shape[2]:
        got = f"{x_shape[1]} and {w_shape[2]}"
        context = f"x.shape={x_shape}, w.shape={w_shape}"
        faults.add(ValueError, "shape", "x.shape[1] (K) must equal w.shape[2] (K)", got, context)
    faults.amax("x_amax", x_amax, x)
    faults.amax("w_amax", w_amax, w)
    faults.options(scaling, hadamard)
    faults.output_dtype("dtype", dtype)
    if hadamard is True and x_shape and w_shape:
        faults.transformable(N=w_shape[1], K=w_shape[2])
    faults.cancel(x, w)
    device = faults.places_of({"x": x, "w": w})
    groups, rows = (w_shape[0], x_shape[0]) if x_shape and w_shape else (None, None)
    faults.found += offset_reasons(group_offsets, rows, groups, device)
    if not (x_shape and w_shape) or faults.found:
        return None, faults.found
    _, n, k = w_shape
    return GroupedLayer(faults.recipe, x_shape[0], w_shape[0], n, k, device), faults.found


def describe_grouped_backward(
    dy: Any,
    layer: GroupedLayer,
    group_offsets: Any,
    kept: tuple[Any, Any] = (None, None),
    *,
    dy_amax: object = None,
    format: object = None,
    dtype: npt.DTypeLike | None = None,
    dw_dtype: npt.DTypeLike | None = None,
) -> list[Reason]:
    """Find every fault of a call of `grouped_linear_backward` after `layer`.

    Examples
    --------
    >>> layer = GroupedLayer("bf16", 5, 2, 3, 64, None)
    >>> print(*describe_grouped_backward(np.ones((5, 4), np.float32), layer, np.array([0, 2, 5])))
    dy.shape must be (5, 3), that of y; got (5, 4)
    """
    faults = LinearFaults(layer.recipe, grouped=True)
    shape = faults.operand("dy", dy, None if is_pair(dy) else -1)
    if shape is not None and shape != (layer.m, layer.n):
        required = f"dy.shape must be {(layer.m, layer.n)}, that of y"
        faults.add(ValueError, "shape", required, shape)
    if (
        is_pair(dy)
        and dy[1].group_offsets is not None
        and not same_offsets(dy[1].group_offsets, group_offsets)
    ):
        required = "dy[1].group_offsets must be those of the forward pass"
        faults.add(ValueError, "groups", required, "others")
    faults.gradient(dy, shape, layer.device, dy_amax, format, dtype, dw_dtype)
    if is_quantized(dy):
        faults.transforms((first(dy),), *kept)
    return faults.found


def describe_grouped_forward(
    x: Any,
    w: Any,
    group_offsets: Any,
    *,
    recipe: object = "bf16",
    x_amax: object = None,
    w_amax: object = None,
    scaling: object = None,
    hadamard: object = None,
    dtype: npt.DTypeLike | None = None,
) -> tuple[Problem | None, list[Reason]]:
    """Describe the product of a call of `grouped_linear`: what a kernel has to do.

    Examples
    --------
    >>> x, w = np.ones((5, 64), np.float32), np.ones((2, 3, 64), np.float32)
    >>> print(describe_grouped_forward(x, w, np.array([0, 2, 5]), recipe="mxfp8")[0])
    (5, 64) @ (2, 64, 3) mxfp8_e4m3 -> bf16
    """
    layer, reasons = describe_grouped(
        x,
        w,
        group_offsets,
        recipe=recipe,
        x_amax=x_amax,
        w_amax=w_amax,
        scaling=scaling,
        hadamard=hadamard,
        dtype=dtype,
    )
    if layer is None:
        return None, reasons
    problem = Problem(
        GROUPED_MATMUL,
        m=layer.m,
        n=layer.n,
        k=layer.k,
        a=prepared(x, (layer.m, layer.k), layer),
        b=prepared(w, (layer.groups, layer.n, layer.k), layer),
        out=None,
        out_format=format_of(dtype) or BF16 if dtype is not None else BF16,
        groups=layer.groups,
    )
    return problem, reasons


def is_quantized(x: object) -> bool:
    """Whether `x` is quantized, in one way or both."""
    return isinstance(x, ScaledArray) or is_pair(x)


def first(x: Any) -> Any:
    """The one of a pair that is blocked along rows; anything else as it is."""
    return x[0] if is_pair(x) else x


def place_of(x: Any) -> int | None:
    """The device that holds an operand; None for the host."""
    x = first(x)
    return x.device if isinstance(x, (Resident, ScaledArray)) else None


class LinearFaults(Faults):
    """The faults of a layer's arguments."""

    def __init__(self, recipe: object, *, grouped: bool = False) -> None:
        super().__init__()
        self.grouped = grouped
        self.recipe = recipe if isinstance(recipe, str) and recipe in RECIPES else ""
        if not self.recipe:
            kind = ValueError if isinstance(recipe, str) else TypeError
            self.add(kind, "recipe", f"recipe must be one of {', '.join(RECIPES)}", repr(recipe))

    def operand(self, name: str, x: Any, k_axis: int | None) -> Shape | None:
        """Check x, w or dy; return its shape. Blocks lie along `k_axis`, or None: along either."""
        if is_pair(x):
            return self._pair(name, x)
        if isinstance(x, ScaledArray):
            self._quantized(name, x, k_axis)
            return self._ndim(name, x.shape)
        if not is_array(x):
            required = f"{name} must be a numpy.ndarray, a hipgemm.DeviceArray or a hipgemm.ScaledArray"
            self.add(TypeError, "type", required, type(x).__qualname__, array_hint(x))
            return None
        if format_of(x.dtype) is None:
            required = f"{name}.dtype must be {dtype_names(OUTPUTS)}"
            self.add(TypeError, "dtype", required, dtype_name(x.dtype), fnuz_hint(x.dtype))
        return self._ndim(name, x.shape)

    def _ndim(self, name: str, shape: Shape) -> Shape | None:
        if len(shape) >= 2:
            return tuple(shape)
        self.add(ValueError, "shape", f"{name}.ndim must be at least 2", len(shape), f"{name}.shape={shape}")
        return None

    def _pair(self, name: str, x: tuple[ScaledArray, ScaledArray]) -> Shape | None:
        rows, columns = x
        if not self.recipe.startswith("mx"):
            required = f"{name} must not be a pair for recipe {self.recipe or '?'}"
            self.add(TypeError, "type", required, "one", "only MX formats need blocks along both axes")
            return None
        if self.recipe == "mxfp4" and self.grouped:
            required = f"{name} must not be a pair for recipe mxfp4"
            self.add(TypeError, "type", required, "one", "weights' gradients are products in mxfp8")
            return None
        if rows.shape != columns.shape or rows.ndim != 2:
            required = f"{name} must be a pair of matrices of one shape"
            self.add(ValueError, "shape", required, f"{rows.shape} and {columns.shape}")
            return None
        if place_of(rows) != place_of(columns):
            got = f"{place_name(rows.device)} and {place_name(columns.device)}"
            self.add(TypeError, "residency", f"both parts of {name} must live in one place", got)
        self._quantized(f"{name}[0]", rows, -1)
        self._quantized(f"{name}[1]", columns, -2, in_groups=self.grouped)
        return rows.shape

    def _quantized(self, name: str, q: ScaledArray, k_axis: int | None, *, in_groups: bool = False) -> None:
        form = QUANTIZED[q.format]
        known = RECIPES.get(self.recipe, tuple(QUANTIZED))
        if q.format not in known:
            what = " or ".join(known) if known else "bfloat16, float16 or float32"
            required = f"{name} must be {what} for recipe {self.recipe}"
            self.add(TypeError, "format", required, q.format)
        elif q.group_offsets is not None and not in_groups:
            required = f"{name} must not be quantized in groups of rows"
            self.add(ValueError, "groups", required, "group_offsets")
        elif not form.block and q.scale.shape != () and not self._one_each(q):
            hint = "a product of the backward pass sums over rows: quantize_fp8(x) without axis"
            required = f"{name} must have one scale for all of it"
            self.add(ValueError, "axis", required, f"scale.shape={tuple(q.scale.shape)}", hint)
        elif form.block and q.axis not in self._axes(q, k_axis):
            axis = -1 if k_axis is None else k_axis
            advice = f"quantize with quantize_{self.recipe}({name}, axis={axis})"
            required = f"{name} must be blocked along axis {axis}"
            self.add(ValueError, "axis", required, f"axis={q.axis}", advice)

    def _one_each(self, q: ScaledArray) -> bool:
        """Whether each matrix of grouped weights has one scale."""
        return self.grouped and q.ndim == 3 and tuple(q.scale.shape) == (q.shape[0], 1, 1)

    @staticmethod
    def _axes(q: ScaledArray, k_axis: int | None) -> tuple[int, ...]:
        if k_axis is not None:
            return (k_axis,)
        return (-1, -2) if q.ndim == 2 else (-1,)  # rows of a flattened array are in no block of one axis

    def amax(self, name: str, value: Any, x: Any) -> None:
        """Check what to take for the greatest magnitude: a number, an array or a state."""
        if value is None:
            return
        if self.recipe and self.recipe != "fp8":
            required = f"{name} must be None for recipe {self.recipe}, which scales by blocks or not at all"
            self.add(ValueError, "amax", required, type(value).__qualname__)
        elif is_quantized(x):
            required = f"{name} must be None for what is quantized already"
            self.add(ValueError, "amax", required, type(value).__qualname__)
        elif isinstance(value, (Real, np.generic)) and not isinstance(value, bool):
            if not float(value) >= 0:
                self.add(ValueError, "amax", f"{name} must not be negative", value)
        elif is_array(value):
            if value.dtype != F32.dtype:
                self.add(TypeError, "dtype", f"{name}.dtype must be float32", dtype_name(value.dtype))
            if value.shape != ():
                self.add(ValueError, "shape", f"{name}.shape must be ()", value.shape)
        elif not (hasattr(value, "current") and hasattr(value, "step")):
            required = f"{name} must be a number, a float32 array or an AmaxState"
            self.add(TypeError, "type", required, type(value).__qualname__)
            return
        device, place = getattr(value, "device", None), place_of(x)
        if isinstance(device, int) and place is not None and device != place:
            self.add(TypeError, "residency", f"{name} must be on device {place}", place_name(device))

    def options(self, scaling: object, hadamard: object) -> None:
        """Check how MX formats are to be made."""
        if scaling is not None:
            if not self.recipe.startswith("mx"):
                self.add(ValueError, "scaling", f"scaling must be None for recipe {self.recipe}", scaling)
            elif scaling not in SCALE_RULES:
                kind = ValueError if isinstance(scaling, str) else TypeError
                rules = ", ".join(SCALE_RULES)
                self.add(kind, "scaling", f"scaling must be one of {rules}", repr(scaling))
        if hadamard is not None and not isinstance(hadamard, bool):
            self.add(TypeError, "hadamard", "hadamard must be True, False or None", repr(hadamard))
        elif hadamard is not None and self.recipe != "mxfp4":
            required = f"hadamard must be None for recipe {self.recipe}"
            self.add(ValueError, "hadamard", required, hadamard)

    def transformable(self, **lengths: int) -> None:
        """Check that all axes can be transformed."""
        for name, length in lengths.items():
            if length % HADAMARD:
                required = f"{name} must be a multiple of {HADAMARD} for the Hadamard transform"
                hint = "leave hadamard out to transform the axes that allow it"
                self.add(ValueError, "hadamard", required, length, hint)

    def grad_format(self, format: object, dy: Any) -> None:
        """Check the format that dy is to be brought to."""
        if format is None:
            return
        known = RECIPES.get(self.recipe, ())
        if is_quantized(dy):
            self.add(ValueError, "format", "format must be None for a dy that is quantized already", format)
        elif format not in known:
            kind = ValueError if isinstance(format, str) else TypeError
            required = f"format must be {' or '.join(known) or None} for recipe {self.recipe}"
            self.add(kind, "format", required, repr(format))

    def cancel(self, x: Any, w: Any) -> None:
        """Check that both operands of the forward pass are transformed, or neither."""
        a, b = first(x), first(w)
        if isinstance(a, ScaledArray) and isinstance(b, ScaledArray) and a.hadamard != b.hadamard:
            required = "x and w must both carry the Hadamard transform, or neither: it cancels only then"
            got = f"x.hadamard={a.hadamard}, w.hadamard={b.hadamard}"
            self.add(ValueError, "hadamard", required, got)

    def gradient(
        self,
        dy: Any,
        shape: Shape | None,
        device: int | None,
        dy_amax: object,
        format: object,
        dtype: Any,
        dw_dtype: Any,
    ) -> None:
        """Check what comes with a gradient, and where that is."""
        self.amax("dy_amax", dy_amax, dy)
        self.grad_format(format, dy)
        self.output_dtype("dtype", dtype)
        self.output_dtype("dw_dtype", dw_dtype)
        if shape is not None and (place := place_of(dy)) != device:
            required = f"dy must be on {place_name(device)} like x and w"
            self.add(TypeError, "residency", required, place_name(place))

    def transforms(self, dy: tuple[ScaledArray, ...], x: Any, w: Any) -> None:
        """Check that Hadamard transforms of a quantized dy cancel with those of what was kept."""
        for part in dy:
            name, kept = ("w", w) if part.axis == -1 else ("x", x)
            if isinstance(kept, ScaledArray) and kept.axis == -2 and kept.hadamard != part.hadamard:
                required = f"dy must carry the Hadamard transform as saved.{name} does: it cancels only then"
                got = f"{part.hadamard} and {kept.hadamard}, dy along axis {part.axis}"
                self.add(ValueError, "hadamard", required, got)

    def output_dtype(self, name: str, dtype: Any) -> None:
        """Check the type of a result."""
        if dtype is not None and format_of(dtype) is None:
            self.add(TypeError, "dtype", f"{name} must be {dtype_names(OUTPUTS)}", dtype_name(dtype))

    def places_of(self, operands: dict[str, Any], **vectors: Any) -> int | None:
        """Check that everything lives where it should; return that place."""
        known = {
            name: Operand((), (), F32, 0, place_of(x))
            for name, x in operands.items()
            if is_array(x) or is_quantized(x)
        }
        self.places(**known)
        first_known = next(iter(known.values()), None)
        self.epilogue_places(first_known, like="x", **vectors)
        return None if first_known is None else first_known.device


def hadamard_along(length: int, wanted: bool | None) -> bool:
    """Whether to transform along an axis: where its length allows it, unless the caller decided.

    Examples
    --------
    >>> hadamard_along(64, None), hadamard_along(10, None), hadamard_along(64, False)
    (True, False, False)
    """
    return length % HADAMARD == 0 if wanted is None else wanted
