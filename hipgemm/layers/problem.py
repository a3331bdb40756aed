"""Descriptions and checks of a layer's arguments, forward and backward. Uses no device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ..errors import Reason, shown
from ..formats.activations import GLUS
from ..formats.arrays import Resident, device_name, is_array
from ..formats.checks import FP8_BLOCKS
from ..formats.elements import (
    BF16,
    BLOCK_SIDE,
    F32,
    QUANTIZED,
    SCALE_RULES,
    dtype_names,
    fnuz_hint,
    format_of,
    void_hint,
)
from ..formats.groups import offset_reasons, same_offsets
from ..formats.operand import Operand, memory_of, operand_of, overlaps_itself
from ..formats.operand_checks import OUTPUTS, OperandChecks
from ..formats.scaled import HADAMARD, ScaledArray, blocked_along
from ..formats.strides import contiguous_strides, padded_pitch
from ..products.operation import GROUPED_MATMUL, MATMUL
from ..products.problem import Problem
from ..products.stages import Stages, activations
from .recipe import ANY, RECIPES, Recipe

Shape = tuple[int, ...]
Axes = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """The differences between `linear` and `grouped_linear`, besides their products.

    Grouped layers have no w_post_scale.
    """

    grouped: bool  # fp8 weights may have one scale per matrix; columns of a pair are blocked by groups
    x_ndim: int | None  # None: two or more
    w_ndim: int
    dy_axes: Axes  # along which a single quantized dy may be blocked
    hadamard_axes: str  # that hadamard=True transforms; M of groups is never transformed


KINDS = {
    "linear": Kind(False, None, 2, (-1, -2), "MNK"),
    "grouped_linear": Kind(True, 2, 3, (-1,), "NK"),
}


@dataclass(frozen=True)
class Layer:
    """A call: ``y (lead.., N) = x (lead.., K) @ w.T`` with w (N, K), or (G, N, K) for groups."""

    recipe: Recipe
    lead: Shape
    n: int
    k: int
    device: int | None = None
    groups: int | None = None
    scaling: str | None = None
    hadamard: bool | None = None
    biased: bool = False
    activation: str | None = None
    glu: str | None = None
    bias_by_group: bool = False

    @property
    def activated(self) -> bool:
        """Whether y is not the product itself, so that the backward pass needs that."""
        return self.activation is not None or self.glu is not None

    @property
    def columns(self) -> int:
        """The columns of y."""
        return self.n // 2 if self.glu else self.n

    @property
    def dw_shape(self) -> Shape:
        """The shape of w and its gradient."""
        return (*(() if self.groups is None else (self.groups,)), self.n, self.k)

    @property
    def m(self) -> int:
        """Rows of x, with its leading axes merged."""
        return math.prod(self.lead)

    @property
    def kind(self) -> Kind:
        """The kind of the layer: linear or grouped."""
        return KINDS["linear" if self.groups is None else "grouped_linear"]

    @property
    def wgrad(self) -> Recipe:
        """The recipe of dw."""
        other = self.recipe.group_wgrad
        return self.recipe if self.groups is None or not other else RECIPES[other]


def describe_layer(
    function: str,
    x: Any,
    w: Any,
    group_offsets: Any = None,
    *,
    recipe: object = "bf16",
    bias: object = None,
    w_post_scale: object = None,
    x_amax: object = None,
    w_amax: object = None,
    scaling: Any = None,
    hadamard: Any = None,
    activation: object = None,
    glu: object = None,
    dtype: npt.DTypeLike | None = None,
) -> tuple[Layer | None, list[Reason]]:
    """Describe a call of `linear` or `grouped_linear`: the layer, or None if it is invalid, and every fault.

    >>> import numpy as np
    >>> x, w = np.ones((2, 5, 64), np.float32), np.ones((2, 3, 64), np.float32)
    >>> layer, _ = describe_layer("linear", x, w[0], recipe="mxfp8")
    >>> layer.recipe.name, layer.m, layer.n, layer.k
    ('mxfp8', 10, 3, 64)
    >>> print(*describe_layer("linear", x, w)[1])
    w.ndim must be 2; got 3; w.shape=(2, 3, 64)
    >>> describe_layer("grouped_linear", x[0], w, np.array([0, 2, 5]))[0].groups
    2
    """
    kind = KINDS[function]
    faults = LayerChecks(RECIPES.get(recipe, ANY) if isinstance(recipe, str) else ANY, kind)
    if faults.recipe is ANY:
        faults.option("recipe", recipe, RECIPES, "recipe")
    x_shape, w_shape = faults.operand("x", x, (-1,), kind.x_ndim), faults.operand("w", w, (-1,), kind.w_ndim)
    if x_shape and w_shape and x_shape[-1] != w_shape[-1]:
        x_axis = -1 if kind.x_ndim is None else kind.x_ndim - 1
        required = f"x.shape[{x_axis}] (K) must equal w.shape[{kind.w_ndim - 1}] (K)"
        shapes = f"x.shape={x_shape}, w.shape={w_shape}"
        faults.add(ValueError, "shape", required, f"{x_shape[-1]} and {w_shape[-1]}", shapes)
    n = w_shape[-2] if w_shape else None
    faults.vector("w_post_scale", w_post_scale, (F32,), n)
    by_group = kind.grouped and is_array(bias) and len(bias.shape) == 2
    if w_shape or not by_group:
        faults.vector("bias", bias, OUTPUTS, n, w_shape[0] if w_shape and by_group else None)
    faults.amax("x_amax", x_amax, x)
    faults.amax("w_amax", w_amax, w)
    faults.options(scaling, hadamard, x_shape, w_shape)
    gate, function_of_t = faults.activation(activation, glu, n)
    faults.output_dtype("dtype", dtype)
    faults.cancel(x, w)
    device, groups = faults.devices_of(x, w, w_post_scale=w_post_scale, bias=bias), None
    if kind.grouped:
        rows, groups = (x_shape[0], w_shape[0]) if x_shape and w_shape else (None, None)
        faults.found += offset_reasons(group_offsets, rows, groups, device)
    if not (x_shape and w_shape) or faults.found:
        return None, faults.found
    lead, (n, k) = x_shape[:-1], w_shape[-2:]
    more = bias is not None, function_of_t, gate, by_group
    return Layer(faults.recipe, lead, n, k, device, groups, scaling, hadamard, *more), []


def forward_problem(
    function: str, x: Any, w: Any, group_offsets: Any = None, **options: Any
) -> tuple[Any, list[Reason]]:
    """Describe the product of a call of `linear` or `grouped_linear`.

    >>> import numpy as np
    >>> x = np.ones((2, 5, 64), np.float32)
    >>> print(forward_problem("linear", x, x[0], recipe="mxfp8")[0])
    (10, 64) @ (64, 5) mxfp8_e4m3 -> bf16
    >>> print(forward_problem("grouped_linear", x[0], x, np.array([0, 2, 5]), recipe="mxfp8")[0])
    (5, 64) @ (2, 64, 5) mxfp8_e4m3 -> bf16
    """
    layer, reasons = describe_layer(function, x, w, group_offsets, **options)
    if layer is None:
        return None, reasons
    m, n, k, groups = layer.m, layer.n, layer.k, layer.groups
    a = converted(x, (m, k), layer)
    b = converted(w, layer.dw_shape, layer, BLOCK_SIDE)
    dtype = options.get("dtype")
    out, bias = BF16 if dtype is None else format_of(dtype) or BF16, options.get("bias")
    op = MATMUL if groups is None else GROUPED_MATMUL
    scaled, added = options.get("w_post_scale") is not None, None if bias is None else format_of(bias.dtype)
    stages = Stages(layer.activation, layer.glu) if layer.activated else None
    more: dict[str, Any] = {"groups": groups or 0, "stages": stages, "bias_by_group": layer.bias_by_group}
    return Problem(op, m, n, k, a, b, None, out, col_scale=scaled, bias=added, **more), reasons


def converted(q: Any, shape: Shape, layer: Layer, block_rows: int = 1) -> Operand:
    """Describe an operand (.., rows, K) of the forward product, after its conversion.

    `block_rows`: of the blocks that fp8 gets, if the recipe has such.
    """
    q = first(q)
    form = QUANTIZED[q.format] if isinstance(q, ScaledArray) else layer.recipe.form
    if form is BF16 and isinstance(q, Resident) and q.dtype == BF16.dtype and q.shape == shape:
        return operand_of(q, BF16)
    *lead, k = shape
    columns = -(-k * form.bits // (8 * form.itemsize))
    strides = (*contiguous_strides(lead, padded_pitch(columns, form.itemsize)), form.itemsize)
    block, powers = (block_rows, BLOCK_SIDE) if layer.recipe.blocks else None, False
    if isinstance(q, ScaledArray) and q.block is not None:
        block, powers = q.block, q.scale.dtype != F32.dtype
    device = layer.device or 0
    return Operand((*lead, columns), strides, form, 0, device, padded=True, block=block, e8m0=powers)


def describe_backward(
    dy: Any,
    layer: Layer,
    saved: tuple[Any, Any] = (None, None),
    group_offsets: Any = None,
    *,
    dy_amax: object = None,
    format: object = None,
    rounding: object = "nearest",
    seed: object = None,
    dtype: npt.DTypeLike | None = None,
    dw_dtype: npt.DTypeLike | None = None,
    dw: object = None,
    accumulate: object = False,
) -> list[Reason]:
    """Find every fault of a call of the backward pass of `layer`, which saved its `x` and `w`.

    >>> import numpy as np
    >>> print(*describe_backward(np.ones((2, 3), np.float32), Layer(RECIPES["fp8"], (2,), 4, 8)))
    dy.shape must be (2, 4), the shape of y; got (2, 3)
    """
    faults = LayerChecks(layer.recipe, layer.kind)
    shape = faults.operand("dy", dy, layer.kind.dy_axes)
    y_shape = (*layer.lead, layer.columns)
    if shape is not None and shape != y_shape and not (parts(dy) and shape == (layer.m, layer.columns)):
        faults.add(ValueError, "shape", f"dy.shape must be {y_shape}, the shape of y", shape)
    if layer.activated and parts(dy):
        required = "dy must not be quantized for a layer with an activation, whose derivative comes first"
        faults.add(TypeError, "type", required, first(dy).format)
    given = dy[1].group_offsets if is_pair(dy) else None
    if given is not None and layer.kind.grouped and not same_offsets(given, group_offsets):
        faults.add(
            ValueError, "groups", "dy[1].group_offsets must be those of the forward pass", "other offsets"
        )
    faults.amax("dy_amax", dy_amax, dy)
    faults.grad_format(format, dy)
    faults.grad_rounding(rounding, seed, dy)
    faults.output_dtype("dtype", dtype)
    faults.output_dtype("dw_dtype", dw_dtype)
    if shape is not None:
        faults.same_device("dy", array_device(dy), layer.device, "x and w")
    faults.weight_grad(dw, accumulate, dw_dtype, layer, dy=dy, **dict(zip(_SAVED, saved, strict=True)))
    faults.transforms(dy, *saved)
    return faults.found


_SAVED = "saved.x", "saved.w"


def is_pair(x: object) -> bool:
    """Whether `x` is a pair: an array quantized along both axes."""
    return isinstance(x, tuple) and len(x) == 2 and all(isinstance(q, ScaledArray) for q in x)


def first(x: Any) -> Any:
    """The first array of a pair, which is blocked along rows; anything else unchanged."""
    return x[0] if is_pair(x) else x


def parts(x: Any) -> tuple[ScaledArray, ...]:
    """The quantized arrays of an operand; none if it is not quantized."""
    return x if is_pair(x) else (x,) if isinstance(x, ScaledArray) else ()


def array_device(x: Any) -> int | None:
    """The device that holds an operand; None for the host."""
    x = first(x)
    return x.device if isinstance(x, (Resident, ScaledArray)) else None


class LayerChecks(OperandChecks):
    """Checks of a layer's arguments."""

    def __init__(self, recipe: Recipe, kind: Kind) -> None:
        super().__init__()
        self.recipe, self.kind, self.what = recipe, kind, f"for recipe {recipe.name}"

    # ---- operands ----

    def operand(self, name: str, x: Any, axes: Axes, ndim: int | None = None) -> Shape | None:
        """Check x, w or dy, which may be blocked along `axes`; return its shape."""
        if is_pair(x):
            if not self._pair(name, *x):
                return None
        elif isinstance(x, ScaledArray):
            self._quantized(name, x, axes)
        elif self.array(name, x, "a numpy.ndarray, a hipgemm.DeviceArray or a hipgemm.ScaledArray") is None:
            return None
        else:
            self.dtype(f"{name}.dtype", x.dtype, OUTPUTS, fnuz_hint(x.dtype) or void_hint(name, x.dtype))
        shape = tuple(first(x).shape)
        if len(shape) >= 2 and ndim in (None, len(shape)):
            return shape
        required = f"{name}.ndim must be {'at least 2' if len(shape) < 2 else ndim}"
        self.add(ValueError, "shape", required, len(shape), f"{name}.shape={shape}")
        return None

    def _pair(self, name: str, rows: ScaledArray, columns: ScaledArray) -> bool:
        """Check a pair; return whether the recipe allows one and both arrays are matrices of one shape."""
        hint, other = "", self.recipe.group_wgrad
        if not self.recipe.in_blocks:
            hint = "only formats with blocks need them along both axes"
        elif other and self.kind.grouped:
            hint = f"weight gradients are computed in {other}"
        if hint:
            self.add(TypeError, "type", f"{name} must not be a pair {self.what}", "one", hint)
            return False
        if rows.shape != columns.shape or rows.ndim != 2:
            required = f"{name} must be a pair of matrices of one shape"
            self.add(ValueError, "shape", required, f"{rows.shape} and {columns.shape}")
            return False
        if rows.device != columns.device:
            got = f"{device_name(rows.device)} and {device_name(columns.device)}"
            self.add(TypeError, "residency", f"both parts of {name} must be on the same device", got)
        self._quantized(f"{name}[0]", rows, (-1,))
        self._quantized(f"{name}[1]", columns, (-2,), in_groups=self.kind.grouped)
        return True

    def _quantized(self, name: str, q: ScaledArray, axes: Axes, *, in_groups: bool = False) -> None:
        self.in_memory(name, q)
        mx = QUANTIZED[q.format].block > 0
        one_each = self.kind.grouped and q.ndim == 3 and tuple(q.scale.shape) == (q.shape[0], 1, 1)
        if q.format not in self.recipe.formats:
            known = " or ".join(self.recipe.formats) or dtype_names(OUTPUTS)
            advice = (
                ""
                if self.recipe.formats or name != "w"
                else "matmul takes bfloat16 times any quantized array"
            )
            self.add(TypeError, "format", f"{name} must be {known} {self.what}", q.format, advice)
        elif q.group_offsets is not None and not in_groups:
            required = f"{name} must not be quantized by groups of rows"
            self.add(ValueError, "groups", required, "group_offsets")
        elif self.recipe.blocks and not mx:
            self._fp8_blocks(name, q, axes)
        elif not mx and q.scale.shape != () and not one_each:
            hint = "a product of the backward pass sums over rows: quantize_fp8(x) without axis"
            hint = hint if q.block is None else "recipe fp8_block takes blocks"
            got = f"scale.shape={tuple(q.scale.shape)}"
            self.add(ValueError, "axis", f"{name} must have one scale for the tensor", got, hint)
        # An array with more axes is flattened, so blocks along its rows are not possible.
        elif mx and q.axis not in (axes if q.ndim == 2 else axes[:1]):
            required = f"{name} must be blocked along axis {axes[0]}"
            advice = f"quantize with quantize_{q.format.split('_')[0]}({name}, axis={axes[0]})"
            self.add(ValueError, "axis", required, f"axis={q.axis}", advice)

    def _fp8_blocks(self, name: str, q: ScaledArray, axes: Axes) -> None:
        """Check that fp8 has blocks along one of the axes."""
        if q.block is None or not any(blocked_along(q, axis) for axis in (axes if q.ndim == 2 else axes[:1])):
            required = f"{name} must have blocks of {BLOCK_SIDE} along axis {axes[0]}"
            got = f"block={q.block}"
            along = f"{name}" if axes[0] == -1 else f"{name}.T"
            advice = f"quantize with quantize_fp8({along}, block={FP8_BLOCKS[0]}){along[len(name) :]}"
            self.add(ValueError, "block", required, got, advice)

    def cancel(self, x: Any, w: Any) -> None:
        """Check that both operands of the forward pass are transformed, or neither."""
        if parts(x) and parts(w) and first(x).hadamard != first(w).hadamard:
            required = (
                "x and w must both have the Hadamard transform, or neither: otherwise it does not cancel"
            )
            got = f"x.hadamard={first(x).hadamard}, w.hadamard={first(w).hadamard}"
            self.add(ValueError, "hadamard", required, got)

    def transforms(self, dy: Any, x: Any, w: Any) -> None:
        """Check that Hadamard transforms of a quantized dy cancel with those of the saved operands."""
        for part in parts(dy):
            name, other = ("w", w) if part.axis == -1 else ("x", x)
            if isinstance(other, ScaledArray) and other.axis == -2 and other.hadamard != part.hadamard:
                required = f"dy must have the Hadamard transform like saved.{name}: else it does not cancel"
                got = f"{part.hadamard} and {other.hadamard}, dy along axis {part.axis}"
                self.add(ValueError, "hadamard", required, got)

    def devices_of(self, x: Any, w: Any, **vectors: Any) -> int | None:
        """Check that all operands are on the same device; return it."""
        known = {
            name: Operand((), (), F32, 0, array_device(operand))
            for name, operand in (("x", x), ("w", w))
            if is_array(operand) or parts(operand)
        }
        self.same_devices(**known)
        like = next(iter(known.values()), None)
        self.epilogue_devices(like, like="x", **vectors)
        return None if like is None else like.device

    # ---- options ----

    def amax(self, name: str, value: Any, x: Any) -> None:
        """Check an amax: a number, an array or a state."""
        if value is None:
            return
        got = type(value).__qualname__
        if not self.recipe.amax:
            required = f"{name} must be None {self.what}, which has block scales or none"
            self.add(ValueError, "amax", required, got)
        elif parts(x):
            self.add(ValueError, "amax", f"{name} must be None for a quantized operand", got)
        elif is_array(value):
            self.in_memory(name, value)
            self.dtype(f"{name}.dtype", value.dtype, (F32,))
            if value.shape != ():
                self.add(ValueError, "shape", f"{name}.shape must be ()", value.shape)
            self.magnitudes(name, value)
        elif not (hasattr(type(value), "current") and hasattr(type(value), "step")):
            self.magnitude(name, value, "a number, a float32 array or an AmaxState")
            return
        else:
            self.in_memory(name, value)
        device, expected = getattr(value, "device", None), array_device(x)
        if isinstance(device, int) and expected is not None and device != expected:
            self.add(TypeError, "residency", f"{name} must be on device {expected}", device_name(device))

    def options(self, scaling: object, hadamard: object, x: Shape | None, w: Shape | None) -> None:
        """Check the options of MX quantization for operands of these shapes."""
        if scaling is not None and not self.recipe.scaling:
            self.add(ValueError, "scaling", f"scaling must be None {self.what}", scaling)
        elif scaling is not None:
            self.option("scaling", scaling, SCALE_RULES, "scaling")
        if hadamard is not None and not isinstance(hadamard, bool):
            self.add(TypeError, "hadamard", "hadamard must be True, False or None", shown(hadamard))
        elif hadamard is not None and not self.recipe.hadamard:
            self.add(ValueError, "hadamard", f"hadamard must be None {self.what}", hadamard)
        if hadamard is not True or not (x and w):
            return
        for axis, length in zip("MNK", (math.prod(x[:-1]), *w[-2:]), strict=True):
            if axis in self.kind.hadamard_axes and length % HADAMARD:
                required = f"{axis} must be a multiple of {HADAMARD} for the Hadamard transform"
                hint = "omit hadamard to transform the axes that allow it"
                self.add(ValueError, "hadamard", required, length, hint)

    def activation(self, activation: object, glu: object, n: int | None) -> tuple[str | None, str | None]:
        """Parse a GLU and an activation of N columns."""
        gate = None if glu is None else self.option("glu", glu, GLUS)
        if glu is not None and n is not None and n % 2:
            self.add(ValueError, "shape", "N must be even with glu", n)
        if activation is None:
            return gate, None
        return gate, self.option("activation", activation, activations(glu))

    def weight_grad(self, dw: Any, accumulate: object, dw_dtype: Any, layer: Layer, **inputs: Any) -> None:
        """Check the array that gets dw."""
        adds = self.flag("accumulate", accumulate)
        if dw is None:
            if adds:
                self.add(ValueError, "accumulate", "accumulate=True needs an array dw", "dw=None")
            return
        found = self.matrix("dw", dw, OUTPUTS)
        if found is None or not self.in_memory("dw", dw):
            return
        if found.shape != layer.dw_shape:
            self.add(ValueError, "shape", f"dw.shape must be {layer.dw_shape}, the shape of w", found.shape)
        if dw_dtype is not None and format_of(dw_dtype) not in (None, found.format):
            self.add(TypeError, "dtype", "dw.dtype must be dw_dtype", found.format.dtype)
        self.same_device("dw", found.device, layer.device, "x and w")
        self.writeable(dw, "dw")
        if overlaps_itself(found):
            got = f"shape {found.shape}, strides {found.strides}"
            self.add(ValueError, "overlap", "dw must not overlap itself", got)
        for name, x in inputs.items():
            for operand in [y for q in parts(x) or (x,) for y in memory_of(q)]:
                self.disjoint("dw", found, **{name: operand})

    def grad_format(self, format: object, dy: Any) -> None:
        """Check the format of dy."""
        if format is not None and parts(dy):
            self.add(ValueError, "format", "format must be None for a quantized dy", format)
        elif format is not None and not (isinstance(format, str) and format in self.recipe.formats):
            among = " or ".join(self.recipe.formats) or "None"
            kind = ValueError if isinstance(format, str) else TypeError
            self.add(kind, "format", f"format must be {among} {self.what}", shown(format))

    def grad_rounding(self, rounding: object, seed: object, dy: Any) -> None:
        """Check how dy is rounded."""
        self.rounding(rounding, seed)
        stochastic = isinstance(rounding, str) and rounding == "stochastic"
        if stochastic and parts(dy):
            self.add(ValueError, "rounding", "rounding must be 'nearest' for a quantized dy", rounding)
        elif stochastic and not self.recipe.formats:
            self.add(ValueError, "rounding", f"rounding must be 'nearest' {self.what}", rounding)

    def output_dtype(self, name: str, dtype: Any) -> None:
        """Check the type of a result."""
        if dtype is not None:
            self.dtype(name, dtype, OUTPUTS)
