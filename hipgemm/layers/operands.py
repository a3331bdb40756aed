"""Operands of a layer's products: in the format of its recipe, blocked along the contraction axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..array.device_array import DeviceArray, asarray, new, new_padded, upload_async
from ..array.rows import as_rows
from ..formats.checks import FP8_BLOCKS
from ..formats.elements import BF16, BLOCK, BLOCK_SIDE, F32, QUANTIZED
from ..formats.scaled import ScaledArray, blocked_along
from ..kernels.manifest import code_object
from ..products.matmul import matmul
from ..quantize.amax import AmaxState
from ..quantize.gradient import Gradient
from ..quantize.plan import amax_plan, block_plan, mx_plan, quantize_groups
from ..quantize.quantizers import dequantize, quantize_both, quantize_fp8, quantize_mxfp4, quantize_mxfp8
from ..runtime import hip as _hip
from .elementwise import elementwise
from .passes import activation_gradient, as_type, flat, rescale, sum_groups, sum_rows
from .problem import Layer, first, parts
from .saved import Saved, SavedArray

Options = Mapping[str, Any]  # of a quantizer
NEAREST: Options = {}  # the default rounding
AMAX_EPS = 1e-8  # the default of quantize_fp8


def seed_of(rounding: Options) -> int | None:
    """The seed of stochastic rounding; None to round to nearest."""
    return rounding["seed"] if rounding["rounding"] == "stochastic" else None


class OperandMaker:
    """Makes the operands of a call, on the current device.

    Quantized arguments are used unchanged. They are requantized only if a product sums over the other axis.
    """

    def __init__(self, function: str, layer: Layer, device: int, stream: int) -> None:
        self.function, self.layer, self.device, self.stream = function, layer, device, stream
        self.recipe, self.scaling = layer.recipe, layer.scaling or layer.recipe.scaling

    # ---- upload ---

    def upload(self, x: Any) -> Any:
        """Upload an operand; of a pair, both parts."""
        if isinstance(x, tuple):
            return tuple(map(self.upload, x))
        on_device = isinstance(x, ScaledArray) and x.device is not None
        return x if on_device else asarray(x, device=self.device, stream=self.stream)

    def flat(self, x: DeviceArray) -> DeviceArray:
        """View an array (.., K) as a matrix, or copy it to one."""
        return flat(self.function, x, self.stream)

    def matrix(self, x: Any) -> Any:
        """Return an operand (.., K) as a matrix on the device."""
        x = self.upload(x)
        if isinstance(x, DeviceArray):
            return self.flat(x)
        if isinstance(x, tuple) or x.ndim == 2:
            return x
        shape = math.prod(x.shape[:-1]), x.shape[-1]
        data, scale = self.flat(x.data), self.flat(x.scale) if x.scale.shape else x.scale
        return x._with(data, scale, -1, shape)

    def vector(self, x: Any) -> DeviceArray:
        """Return factors on the device."""
        return x if isinstance(x, DeviceArray) else upload_async(x, self.device, self.stream)

    # ---- operands of each pass ----

    def forward(
        self, x: Any, w: Any, x_amax: Any, w_amax: Any
    ) -> tuple[tuple[Any, SavedArray], tuple[Any, SavedArray]]:
        """Return x and w for the forward pass, each with what the backward pass will need of it."""
        recipe = self.recipe
        flags = [q.hadamard for q in (*parts(x)[:1], *parts(w)[:1])]
        along_k = flags[0] if flags else recipe.transforms(self.layer.k, self.layer.hadamard)
        x_both = recipe.both_axes and self.layer.wgrad is recipe
        return self._forward_operand(x, x_amax, along_k, x_both), self._forward_operand(
            w, w_amax, along_k, recipe.both_axes, weights=True
        )

    def _forward_operand(
        self, x: Any, amax: Any, along_k: bool, both: bool, weights: bool = False
    ) -> tuple[Any, SavedArray]:
        """Return x (or w) for the forward pass, and the array to save for the backward pass."""
        if isinstance(x, tuple):
            return x
        form = self.recipe.form.name
        if both and not isinstance(x, ScaledArray):
            return self.both(x, form, along_k, self.recipe.transforms(x.shape[-2], self.layer.hadamard))
        made = (
            self.blocked(x, -1, form, along_k, weights=weights)
            if self.recipe.in_blocks
            else self.unblocked(x, form, amax)
        )
        return made, made

    def backward(
        self, g: Any, saved: Saved, amax: Any, format: str | None, rounding: Options
    ) -> tuple[Any, Any, Any, Any]:
        """Return g for dx, g for dw, w and x, each quantized along the contraction axis of its product.

        `rounding`: options of the quantizers for g.
        """
        x: Any = saved.x
        w: Any = saved.w
        format, offsets = format or self.recipe.form.name, saved.group_offsets
        if not self.recipe.in_blocks:
            quantize = self.gradient_by_amax if isinstance(g, Gradient) else self.unblocked
            g = quantize(g, format, amax, rounding)
            return g, g, w, x
        # Both operands of a product must be transformed, or neither.
        along_n, along_m = self.transformed(g, -1, w), self.transformed(g, -2, x)
        if isinstance(g, Gradient):
            g_rows, g_columns = self.gradient_in_blocks(g, format, along_n, along_m, offsets, rounding)
        elif isinstance(g, tuple):
            g_rows, g_columns = g
        elif isinstance(g, DeviceArray) and offsets is None:
            g_rows, g_columns = self.both(g, format, along_n, along_m, rounding)
        else:
            rounding = rounding if isinstance(g, DeviceArray) else {}
            g_rows = self.blocked(g, -1, format, along_n, rounding)
            g_columns = self.blocked_along_m(g, format, along_m, offsets, rounding)
        w = self.blocked(w, -2, format, along_n, weights=True)
        return g_rows, g_columns, w, self.blocked_along_m(x, format, along_m, offsets)

    def transformed(self, g: Any, axis: int, other: ScaledArray) -> bool:
        """Whether the operands of the product that sums over an axis of g are transformed."""
        if other.axis == -2:
            return other.hadamard
        for part in parts(g):
            if part.axis == axis:
                return part.hadamard
        return self.recipe.transforms(first(g).shape[axis], self.layer.hadamard)

    # ---- conversion ---

    def unblocked(self, x: Any, format: str, amax: Any, rounding: Options = NEAREST) -> Any:
        """Return x in bfloat16 or fp8, which have no blocks and can be summed over either axis."""
        if isinstance(x, ScaledArray):
            return x
        if self.recipe.amax:
            return quantize_fp8(x, amax, format=format, **rounding, stream=self.stream)
        return as_type(self.function, x, BF16, self.stream)

    def blocked_along_m(
        self, x: Any, format: str, hadamard: bool, offsets: Any, rounding: Options = NEAREST
    ) -> ScaledArray:
        """Return x blocked along M, within each group."""
        if offsets is None:
            return self.blocked(x, -2, format, hadamard, rounding)
        if isinstance(x, ScaledArray):
            format, x = x.format, self.as_bfloat16(x)
        format, rule = self.group_format(format)
        return quantize_mxfp8(
            x, axis=0, scaling=rule, format=format, group_offsets=offsets, **rounding, stream=self.stream
        )

    def group_format(self, format: str) -> tuple[str, str]:
        """Return format and scale rule of blocks along M within groups, for operands of a format."""
        wgrad = self.layer.wgrad
        if format not in wgrad.formats:  # the format with the same elements, if there is one
            format = f"mx{format}" if f"mx{format}" in wgrad.formats else wgrad.form.name
        return format, self.layer.scaling or wgrad.scaling

    def blocked(
        self,
        x: Any,
        axis: int,
        format: str,
        hadamard: bool,
        rounding: Options = NEAREST,
        *,
        weights: bool = False,
    ) -> ScaledArray:
        """Return x blocked along an axis, requantized if it is blocked along the other one."""
        if isinstance(x, ScaledArray):
            if blocked_along(x, axis):
                return x
            format, x = x.format, self.as_bfloat16(x)
        if self.recipe.blocks:
            block = (BLOCK_SIDE if weights else 1), BLOCK_SIDE
            rows = x if axis == -1 or weights else x.mT
            made = quantize_fp8(rows, block=block, format=format, **rounding, stream=self.stream)
            return made if rows is x else made.mT
        if axis == -2 and one_matrix(x):
            return stacked(self.blocked(self.flat(x), axis, format, hadamard), x.shape)
        options = {"axis": axis, "scaling": self.scaling, "stream": self.stream, **rounding}
        if self.recipe.hadamard:
            return quantize_mxfp4(x, hadamard=hadamard, **options)
        return quantize_mxfp8(x, format=format, **options)

    def both(
        self, x: DeviceArray, format: str, along: bool, across: bool, rounding: Options = NEAREST
    ) -> tuple[ScaledArray, ScaledArray]:
        """Quantize along both axes: in one pass, unless only one of them is transformed."""
        if one_matrix(x):
            rows, columns = self.both(self.flat(x), format, along, across)
            return stacked(rows, x.shape), stacked(columns, x.shape)
        if x.ndim == 3 or along != across or self.recipe.blocks:
            rows = self.blocked(x, -1, format, along, rounding)
            return rows, self.blocked(x, -2, format, across, rounding)
        options = {"scaling": self.scaling, "stream": self.stream, **rounding}
        return quantize_both(x, format, hadamard=along if self.recipe.hadamard else None, **options)

    def as_bfloat16(self, q: ScaledArray) -> Any:
        """Dequantize to bfloat16."""
        return dequantize(q, dtype=BF16.dtype, stream=self.stream)

    # ---- a gradient that quantizers form as they read it ----

    def gradient_by_amax(self, g: Gradient, format: str, amax: Any, rounding: Options) -> ScaledArray:
        """Quantize to fp8 with one scale."""
        if not (amax is None or isinstance(amax, (AmaxState, DeviceArray))):
            amax = np.asarray(amax, F32.dtype)
        x = g.described()
        seed = seed_of(rounding)
        plan = amax_plan(x, as_rows(x, -1, self.stream), QUANTIZED[format], None, seed is not None, g)
        return plan.run(x, self.stream, AMAX_EPS, amax, seed, g.begin_read(self.stream))

    def gradient_in_blocks(
        self, g: Gradient, format: str, along: bool, across: bool, offsets: Any, rounding: Options
    ) -> tuple[ScaledArray, ScaledArray]:
        """Quantize along both axes, and along M within each group: in one pass if one kernel does both."""
        if offsets is not None:
            rows = self.gradient_rows(g, -1, format, along, rounding)
            form, rule = self.group_format(format)
            g.begin_read(self.stream)
            x, seed = g.described(), seed_of(rounding)
            return rows, quantize_groups(x, self.stream, QUANTIZED[form], rule, offsets, seed, g)
        if along != across or self.recipe.blocks:
            rows = self.gradient_rows(g, -1, format, along, rounding)
            return rows, self.gradient_rows(g, -2, format, across, rounding)
        rows, columns = self.gradient_mx(g, (-1, -2), format, along, rounding)
        return rows, columns

    def gradient_rows(
        self, g: Gradient, axis: int, format: str, hadamard: bool, rounding: Options
    ) -> ScaledArray:
        """Quantize along one axis."""
        if not self.recipe.blocks:
            (made,) = self.gradient_mx(g, (axis,), format, hadamard, rounding)
            return made
        x, seed = g.described() if axis == -1 else g.described().mT, seed_of(rounding)
        rows = as_rows(x, -1, self.stream)
        plan = block_plan(rows, QUANTIZED[format], FP8_BLOCKS[0], seed is not None, g)
        made = plan.run(x, self.stream, AMAX_EPS, seed, g.begin_read(self.stream))
        return made if axis == -1 else made.mT

    def gradient_mx(
        self, g: Gradient, axes: tuple[int, ...], format: str, hadamard: bool, rounding: Options
    ) -> tuple[ScaledArray, ...]:
        """Quantize in MX blocks."""
        x, form = g.described(), QUANTIZED[format]
        first_axis, *other = (as_rows(x, axis, self.stream) for axis in axes)
        transforms = hadamard and self.recipe.hadamard
        name = f"quantize_{form.name.split('_')[0]}" if len(axes) == 1 else "quantize_both"
        across, seed = other[0] if other else None, seed_of(rounding)
        how = "nearest" if seed is None else "stochastic"
        plan = mx_plan(name, first_axis, across, form, self.scaling, transforms, how, None, g)
        return plan.run(x, self.stream, seed, g.begin_read(self.stream))

    # ---- gradients of what follows the products ---

    def before_activation(
        self, dy: DeviceArray, aux: DeviceArray, factors: DeviceArray | None, rounding: Options
    ) -> tuple[DeviceArray | Gradient, DeviceArray | Gradient]:
        """Return the gradient before the activation, for the products and for the bias.

        Where it is only quantized and summed, kernels form it as they read it. Else a pass does: in float32,
        unless it is only multiplied next.
        """
        layer, quantized = self.layer, bool(self.recipe.formats)
        formed = Gradient(dy, aux, layer.activation, layer.glu)
        times_factors = replace(formed, factors=factors)
        kernels = code_object(_hip.arch(self.device)).kernels
        rounds = seed_of(rounding) is None or "quantize_fp8_random_gradient" in kernels
        if quantized and rounds and times_factors.fits():
            return times_factors, formed
        fits = factors is None and formed.fits()
        alone = fits or not layer.biased
        to = F32 if quantized or factors is not None or not alone else BF16
        made = activation_gradient(self.function, dy, aux, to, self.stream, layer.activation, layer.glu)
        return made, formed if fits and not quantized else made

    def scaled(self, dy: DeviceArray, factors: DeviceArray) -> DeviceArray:
        """Return dy times factors of its columns, in float32 if it is quantized next."""
        to = F32 if self.recipe.formats else BF16
        out = new_padded(dy.shape, to.dtype, self.device, self.stream)
        return rescale(self.function, dy, out, self.stream, columns=factors)

    def weight_grad(
        self, g: Any, x: Any, factors: DeviceArray, out: DeviceArray | None, dtype: Any, accumulate: bool
    ) -> DeviceArray:
        """Return dw, divided by the factors of its rows; in `out` if there is one, added if asked for."""
        divisors = factors
        if self.recipe.form.scale_dtype == F32.dtype:  # scales times sums may leave float32's range
            inverse, divisors = self.powers_of_two(factors)
            dw = matmul(x.T, g, dtype=F32.dtype, col_scale=inverse, stream=self.stream).T
        else:
            dw = matmul(g.T, x, dtype=F32.dtype, stream=self.stream)
        if out is None:
            to = BF16.dtype if dtype is None else np.dtype(dtype)
            out = new(self.layer.dw_shape, to, self.device, self.stream)
        if not accumulate:
            return rescale(self.function, dw, out, self.stream, rows=divisors, divide=True)
        quotients = new(self.layer.dw_shape, F32.dtype, self.device, self.stream)
        rescale(self.function, dw, quotients, self.stream, rows=divisors, divide=True)
        return elementwise(self.function, quotients, out, self.stream, "+", out)

    def powers_of_two(self, factors: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Return the inverse powers of two of factors, and the factors times these, from 1/2 to 1.

        A sum times the one and then divided by the other, which is exact but for the division, stays in
        float32's range if the quotient by the factor does. The power is what `quantize_mxfp8` chooses for
        a block of one element.
        """
        column = factors[:, None]
        halves = upload_async(np.full(column.shape, 0.5, np.float32), self.device, self.stream)
        q, ones = (quantize_mxfp8(x, stream=self.stream) for x in (column, halves))  # but for their scales
        divisors = dequantize(q._with(ones.data, q.scale), stream=self.stream)[:, 0]
        inverse, rest = (new(column.shape, F32.dtype, self.device, self.stream) for _ in range(2))
        rescale(self.function, halves, inverse, self.stream, rows=divisors, divide=True)
        rescale(self.function, column, rest, self.stream, rows=inverse[:, 0])
        return inverse[:, 0], rest[:, 0]

    def bias_grad(self, dy: Any, factors: DeviceArray | None, offsets: Any) -> DeviceArray:
        """Sum dy over its rows. A quantized dy includes the factors, so the sums are divided by them."""
        dy = first(dy)
        source = dequantize(dy, stream=self.stream) if isinstance(dy, ScaledArray) else dy
        total: DeviceArray = source
        if self.layer.groups is not None:
            total = sum_groups(self.function, total, self.vector(offsets), self.layer.groups, self.stream)
        if not self.layer.bias_by_group:
            total = sum_rows(self.function, total, self.stream)
        if not isinstance(dy, ScaledArray) or factors is None:
            return total
        out = new((1, total.shape[0]), F32.dtype, self.device, self.stream)
        return rescale(self.function, total[None], out, self.stream, columns=factors, divide=True)[0]


def one_matrix(x: DeviceArray) -> bool:
    """Whether a batch can be quantized along its rows as one matrix: no block spans two matrices."""
    return x.ndim == 3 and x.shape[0] > 0 and x.shape[1] % BLOCK == 0


def stacked(q: ScaledArray, shape: tuple[int, ...]) -> ScaledArray:
    """View a quantized matrix as a batch of matrices."""

    def view(x: DeviceArray) -> DeviceArray:
        (rows, columns), (row, column), count = x.shape, x.strides, shape[0]
        rows //= count
        return x._view(x._address, (count, rows, columns), (rows * row, row, column), x.padded)

    return q._with(view(q.data), view(q.scale), shape=shape)
