"""From arguments to one description of a product, with every fault in them named. Pure: no device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..errors import Reason, shown
from ..formats.arrays import Resident, is_array
from ..formats.elements import (
    BF16,
    F16,
    F32,
    QUANTIZED,
    SCALE_RULES,
    Format,
    dtype_name,
    dtype_names,
    format_of,
)
from ..formats.groups import offset_reasons, same_offsets, straddling
from ..formats.operand import Operand, Shaped, memory_of
from ..formats.operand_checks import INPUTS, OUTPUTS, OperandChecks, shapes_named
from ..formats.scaled import ScaledArray
from ..formats.strides import padded_pitch
from ..quantize.amax import check_out_amax
from .operation import MATMUL, Arguments, Operation
from .stages import GLUS, OUT_FORMATS, Stages, activations, scale_rule

Described = tuple["Problem | None", list[Reason]]
RECIPES = ("bf16", "mxfp8")  # of grouped_wgrad


@dataclass(frozen=True)
class Problem:
    """Products ``out[.., m, n] = sum over k of a[.., m, k] * b[.., n, k]``, scaled, plus a bias.

    M, N and K count elements, even if these are packed. Operands have the leading axes `batch`. With groups
    of rows, which divide M or K, the only leading axis is that of the groups.
    """

    op: Operation
    m: int
    n: int
    k: int
    a: Operand  # (batch.., M, K)
    b: Operand  # (batch.., N, K); (groups, N, K) if groups divide M
    out: Operand | None  # (batch.., M, N); (groups, M, N) if groups divide K
    out_format: Format
    alpha: float | Literal["device"] = 1.0
    col_scale: bool = False
    bias: Format | None = None
    batch: tuple[int, ...] = ()
    groups: int = 0
    accumulate: bool = False
    given: tuple[Operand, Operand] | None = None  # the arguments, before they are quantized
    stages: Stages | None = None
    bias_by_group: bool = False

    @property
    def batches(self) -> int:
        """The number of products in the batch."""
        return math.prod(self.batch)

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.stages.columns(self.n) if self.stages else self.n

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*((self.groups,) if self.op.ragged == "k" else self.batch), self.m, self.columns)

    @property
    def staged(self) -> bool:
        """Whether anything follows the bias."""
        return self.accumulate or self.stages is not None

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The arguments of the call for what follows the bias."""
        return (self.stages.names if self.stages else ()) + (("accumulate",) if self.accumulate else ())

    @property
    def empty(self) -> bool:
        """Whether nothing is multiplied: an empty result, or groups without rows or columns."""
        if not self.op.ragged:
            return 0 in self.shape
        return 0 in (self.m, self.n, self.k, self.groups)

    @property
    def transposed(self) -> Problem:
        """The transposed product, with swapped operands. Only for products with no more than alpha."""
        out = None if self.out is None else self.out.transposed
        return replace(self, m=self.n, n=self.m, a=self.b, b=self.a, out=out)

    @property
    def device(self) -> int | None:
        """The device that holds the matrices; None when they are on the host."""
        return (self.given or (self.a,))[0].device

    @property
    def powers_of_two(self) -> bool:
        """Whether both operands have blocks whose scales are e8m0, which the matrix instruction applies."""
        return all(x.block and x.e8m0 for x in (self.a, self.b))

    @property
    def kernel_formats(self) -> tuple[str, str]:
        """The kernels' names of the operands' formats."""
        a, b = self.a.kind, self.b.kind
        blocks = a.endswith("_block"), b.endswith("_block")
        if self.powers_of_two:
            return f"mx{self.a.format.name}", f"mx{self.b.format.name}"
        if any(blocks) and self.a.format.scale_dtype == self.b.format.scale_dtype:
            return f"{self.a.format.name}_block", f"{self.b.format.name}_block"
        return a, b

    def named(self) -> zip[tuple[str, Operand]]:
        """The operands with their names in messages."""
        return zip(self.op.operands, (self.a, self.b), strict=True)

    def __str__(self) -> str:
        a, b = self.a.format.name, self.b.format.name
        formats = a if a == b else f"{a} @ {b}"
        times = "".join(f"{n} x " for n in self.batch)
        product = f"{times}({self.m}, {self.k}) @ ({self.k}, {self.n})"
        if self.op.ragged == "m":
            product = f"({self.m}, {self.k}) @ ({self.groups}, {self.k}, {self.n})"
        if self.op.ragged == "k":
            product = f"({self.k}, {self.m}).T @ ({self.k}, {self.n}) in {self.groups} groups"
        return f"{product} {formats} -> {self.out_format.name}"


def describe(op: Operation, call: Arguments) -> Described:
    """Describe a call: the problem, or None if it is not defined, and every fault.

    >>> import ml_dtypes
    >>> from hipgemm.products.operation import GROUPED_MATMUL
    >>> x, w = np.zeros((5, 8), ml_dtypes.bfloat16), np.zeros((2, 8, 3), ml_dtypes.bfloat16)
    >>> print(describe(GROUPED_MATMUL, Arguments(x, w, offsets=np.array([0, 2, 5])))[0])
    (5, 8) @ (2, 8, 3) bf16 -> bf16
    >>> print(*describe(MATMUL, Arguments(x, x))[1])
    a.shape[1] (K) must equal b.shape[0] (K); got 8 and 5; a.shape=(5, 8), b.shape=(5, 8)
    """
    a, b, out = call.a, call.b, call.out
    first, second = op.operands
    faults = ProductChecks()
    operands = [faults.operand(op, i, x, call.offsets) for i, x in enumerate((a, b))]
    out_operand = None if out is None else faults.matrix("out", out, OUTPUTS)
    alpha = faults.alpha(call.alpha)
    if op.ragged == "k":
        faults.recipe(call.recipe, a, b)
    faults.accumulation(call.accumulate, out)
    out_format = faults.out_format(call.dtype, out_operand, operands[0])
    x, y = operands
    if x and y:
        faults.pair(a, b, x, y, op.operands, weights=op.ragged != "k")
    gated = isinstance(call.glu, str) and call.glu in GLUS
    shapes = faults.extents(op, a, b, call.offsets, out_operand, gated)
    columns = shapes.n if shapes else None
    if columns is None and not op.ragged and isinstance(b, Shaped) and len(b.shape) >= 2:
        columns = int(b.shape[-1])
    faults.vector("col_scale", call.col_scale, (F32,), columns)
    by_group = op.ragged == "m" and is_array(call.bias) and len(call.bias.shape) == 2
    bias = faults.vector("bias", call.bias, OUTPUTS, columns, shapes.groups if shapes and by_group else None)
    stages = faults.stages(op, call, shapes, x) if any(z is not None for z in call.stages) else None
    if stages and stages.quantized:
        out_format = stages.quantized
    if op.ragged:
        rows = a.shape[0] if isinstance(a, Shaped) and len(a.shape) == 2 else None
        groups = b.shape[0] if op.ragged == "m" and isinstance(b, Shaped) and len(b.shape) == 3 else None
        faults.found += offset_reasons(call.offsets, rows, groups, x.device if x else None)
    faults.same_devices(**{first: x, second: y, "out": out_operand})
    vectors = {"alpha": call.alpha, "col_scale": call.col_scale, "bias": call.bias}
    faults.epilogue_devices(x, first, **vectors)
    if out_operand is not None:
        faults.output(out, out_operand, **_inputs(op, call))
    if not (x and y and out_format and shapes) or any(r.code == "shape" for r in faults.found):
        return None, faults.found
    batch: tuple[int, ...] = ()
    given = [x, y]
    if op is MATMUL:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if isinstance(call.recipe, str) and call.recipe == "mxfp8":
        x, y = _quantized(x), _quantized(y)
    if op is MATMUL:
        x, y, *given = (_broadcast(z, batch) for z in (x, y, *given))

    def k_last(z: Operand) -> Operand:
        return z.transposed if op.k_axes[0] == -2 else z

    problem = Problem(
        op,
        shapes.m,
        shapes.n,
        shapes.k,
        k_last(x),
        y.transposed,
        out_operand,
        out_format,
        alpha,
        call.col_scale is not None,
        bias,
        batch,
        shapes.groups,
        isinstance(call.accumulate, (bool, np.bool_)) and bool(call.accumulate),
        (k_last(given[0]), given[1].transposed),
        stages,
        by_group,
    )
    return problem, faults.found


@dataclass(frozen=True)
class _Extents:
    m: int
    n: int
    k: int
    groups: int
    lead: tuple[int, ...]  # of the result


class ProductChecks(OperandChecks):
    """The faults of a product's arguments."""

    def operand(self, op: Operation, side: int, x: Any, offsets: Any) -> Operand | None:
        """Parse an operand, with the axes of the argument."""
        name, k_axis = op.operands[side], op.k_axes[side]
        found: Operand | None
        if isinstance(x, ScaledArray):
            found = self.scaled(name, x, k_axis, in_groups=op.ragged == "k")
            if op.ragged == "k":
                self._blocks(name, x, offsets)
        else:
            found = self.matrix(name, x, INPUTS)
        if op.ndims and isinstance(x, Shaped) and 2 <= len(x.shape) != op.ndims[side]:
            required = f"{name}.ndim must be {op.ndims[side]}"
            self.add(ValueError, "shape", required, len(x.shape), f"{name}.shape={x.shape}")
        return found

    def extents(
        self, op: Operation, a: Any, b: Any, offsets: Any, out: Operand | None, gated: bool
    ) -> _Extents | None:
        """Check that the shapes match; return M, N, K and the number of groups. `gated`: whether N halves."""
        ndims = op.ndims or (0, 0)
        for x, ndim in zip((a, b), ndims, strict=True):
            if not isinstance(x, Shaped) or len(x.shape) < 2 or (ndim and len(x.shape) != ndim):
                return None
        self.contraction(a.shape, b.shape, op.operands, op.k_axes, op.k_name)
        m, n = a.shape[-3 - op.k_axes[0]], b.shape[-1]
        lead: tuple[int, ...] = ()
        groups = b.shape[0] if op.ragged == "m" else 0
        if op.ragged == "k":
            if not (is_array(offsets) and len(offsets.shape) == 1 and offsets.shape[0] >= 1):
                return None
            groups = offsets.shape[0] - 1
            lead = (groups,)
        elif not op.ragged:
            batch = self.batch(a.shape, b.shape)
            if batch is None:
                return None
            lead = batch
        if gated and n % 2:
            self.add(ValueError, "shape", "N must be even with glu", n, f"{op.operands[1]}.shape={b.shape}")
        want = (*lead, m, n // 2 if gated else n)
        if out is not None and len(out.shape) >= 2 and out.shape != want:
            axes = "(batch.., M, N)" if lead and not op.ragged else op.out_name
            axes = axes.replace("N)", "N/2)") if gated else axes
            context = "" if op.ragged else shapes_named(op.operands, a.shape, b.shape)
            self.add(ValueError, "shape", f"out.shape must be {axes}={want}", out.shape, context)
        return _Extents(m, n, a.shape[op.k_axes[0]], groups, lead)

    def out_format(self, dtype: Any, out: Operand | None, like: Operand | None) -> Format | None:
        """Parse the type of the result."""
        if dtype is None:
            if out is not None:
                return out.format
            return None if like is None else F16 if like.format == F16 else BF16
        form = format_of(dtype)
        if form not in OUTPUTS:
            self.add(TypeError, "dtype", f"dtype must be {dtype_names(OUTPUTS)}", dtype_name(dtype))
        elif out is not None and out.format != form:
            self.add(TypeError, "dtype", f"out.dtype must be dtype={form.dtype}", out.format.dtype)
        return form

    def accumulation(self, accumulate: Any, out: Any) -> None:
        """Check `accumulate`, which needs an output."""
        if not isinstance(accumulate, (bool, np.bool_)):
            required = "accumulate must be True or False"
            self.add(TypeError, "type", required, type(accumulate).__qualname__)
        elif accumulate and out is None:
            self.add(ValueError, "accumulate", "accumulate=True needs an array out", "out=None")

    def stages(self, op: Operation, call: Arguments, shapes: _Extents | None, like: Operand | None) -> Stages:
        """Check what follows the bias. `like`: the first operand, on whose device all arrays must be."""
        out = call.out
        form = self.stage_options(call, like)
        shape = None if shapes is None else (*shapes.lead, shapes.m, shapes.n)
        aux = self._stage_array("aux", call.aux, shape, like)
        if shape is not None and isinstance(call.glu, str) and call.glu in GLUS:
            shape = (*shape[:-1], shape[-1] // 2)
        residual = self._stage_array("residual", call.residual, shape, like)
        written = memory_of(out)
        if aux is not None:
            self.writeable(call.aux, "aux")
            others = {"residual": residual, "out": written[0] if written else None}
            self.disjoint("aux", aux, **_inputs(op, call), **others)
        if residual is not None and written:
            result = written[0]
            same = residual.address == result.address and residual.strides == result.strides
            if not (same and residual.format == result.format):
                self.disjoint("out", result, residual=residual)
        return Stages(call.activation, call.glu, aux, residual, form, scale_rule(form, call.out_scaling))

    def stage_options(self, call: Arguments, like: Operand | None) -> Format | None:
        """Check what follows the bias, but for arrays; return the format of a quantized result."""
        if call.activation is not None:
            self.option("activation", call.activation, activations(call.glu))
        if call.glu is not None:
            self.option("glu", call.glu, GLUS)
        quantized = (
            None if call.out_format is None else self.option("out_format", call.out_format, OUT_FORMATS)
        )
        if quantized is not None:
            for name, x in (("out", call.out), ("dtype", call.dtype)):
                if x is not None:
                    self.add(ValueError, name, f"{name} must be omitted with out_format", shown(x))
        form = None if quantized is None else QUANTIZED[quantized]
        if form is None or not form.block:
            if call.out_scaling is not None:
                required = "out_scaling must be omitted but for MX formats"
                self.add(ValueError, "out_scaling", required, shown(call.out_scaling))
        elif call.out_scaling is not None:
            self.option("out_scaling", call.out_scaling, SCALE_RULES)
        check_out_amax(self, call.out_amax, form, like.device if like else None, "the operands")
        return form

    def _stage_array(
        self, name: str, x: Any, shape: tuple[int, ...] | None, like: Operand | None
    ) -> Operand | None:
        """Check an array of the result's or the product's shape."""
        if x is None:
            return None
        found = self.matrix(name, x, OUTPUTS)
        if found is None:
            return None
        if shape is not None:
            self.same_shape(name, found.shape, shape)
        if like is not None and found.device != like.device:
            self.same_device(name, found.device, like.device, "the operands")
        if found.device is not None and not found.rows_contiguous:
            required = f"{name} on a device must have contiguous rows"
            self.add(ValueError, "stride", required, f"strides={found.strides}")
        return found

    def recipe(self, recipe: Any, dy: Any, x: Any) -> None:
        """Check the recipe, the format to quantize operands to."""
        if recipe is None:
            return
        if not isinstance(recipe, str) or recipe not in RECIPES:
            kind = ValueError if isinstance(recipe, str) else TypeError
            required = f"recipe must be {' or '.join(map(repr, RECIPES))}"
            self.add(kind, "recipe", required, shown(recipe))
        for name, y in (("dy", dy), ("x", x)):
            if isinstance(y, ScaledArray):
                required = "recipe must be omitted for quantized operands"
                self.add(ValueError, "recipe", required, f"recipe={recipe!r}, {name} in {y.format}")

    def _blocks(self, name: str, q: ScaledArray, offsets: Any) -> None:
        """Check that the blocks of an operand match the groups."""
        if q.group_offsets is not None:
            if not same_offsets(q.group_offsets, offsets):
                required = f"group_offsets must be the offsets that {name} was quantized with"
                one, other = (isinstance(o, Resident) for o in (q.group_offsets, offsets))
                got = "other offsets" if one == other else f"{_kind(offsets)}, not {_kind(q.group_offsets)}"
                self.add(ValueError, "groups", required, got, "on a device, pass the same array")
        elif QUANTIZED[q.format].block and isinstance(offsets, np.ndarray) and offsets.dtype.kind in "iu":
            inside = straddling(offsets) if offsets.ndim == 1 else None
            if inside is not None:
                required = f"group_offsets must be multiples of 32 if {name} was quantized without them"
                got = f"group_offsets[{inside}]={offsets[inside]}"
                advice = "quantize with quantize_mxfp8(x, axis=0, group_offsets=group_offsets)"
                self.add(ValueError, "groups", required, got, advice)


def _kind(offsets: Any) -> str:
    return "an array on the device" if isinstance(offsets, Resident) else "one on the host"


def _inputs(op: Operation, call: Arguments) -> dict[str, Operand | None]:
    """The inputs, which the output must not overlap."""
    parts: dict[str, Operand | None] = {}
    for name, x in zip(op.operands, (call.a, call.b), strict=True):
        parts |= dict(zip((name, f"{name}.scale"), memory_of(x), strict=False))
    offsets = call.offsets if isinstance(call.offsets, Resident) else None
    given = {"alpha": call.alpha, "col_scale": call.col_scale, "bias": call.bias, "group_offsets": offsets}
    return parts | {name: found[0] for name, x in given.items() if (found := memory_of(x))}


def _broadcast(x: Operand, batch: tuple[int, ...]) -> Operand:
    """Broadcast an operand to the leading axes of the product, with strides of 0."""
    missing = len(batch) + 2 - len(x.shape)

    def spread(strides: tuple[int, ...]) -> tuple[int, ...]:
        own = (0 if n == 1 else s for n, s in zip(x.shape[:-2], strides[:-2], strict=True))
        return (*(0,) * missing, *own, *strides[-2:])

    return replace(
        x,
        shape=(*batch, *x.shape[-2:]),
        strides=spread(x.strides),
        scale_strides=spread(x.scale_strides) if x.scale_strides else (),
    )


def _quantized(x: Operand) -> Operand:
    """Describe the result of `quantize_mxfp8` for a matrix with groups of rows."""
    if x.format.block:
        return x  # an invalid argument
    form = QUANTIZED["mxfp8_e4m3"]
    pitch = padded_pitch(x.shape[-1], 1)
    scales = x.shape[-1], 1
    return Operand(x.shape, (pitch, 1), form, 0, x.device or 0, padded=True, scale_strides=scales)
