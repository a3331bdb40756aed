"""What a product of groups of rows is given, every fault in it named, and which kernel serves it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import config
from ..errors import Reason, UnsupportedError, sentence
from ..formats.elements import BF16, F16, QUANTIZED, Format, format_of
from ..formats.faults import INPUTS, OUTPUTS, Faults, dtype_name, dtype_names
from ..formats.groups import group_slots, offset_reasons, same_offsets, straddling
from ..formats.operand import Operand, bytes_of, operand_of
from ..formats.scaled import Resident, ScaledArray, is_array
from ..formats.strides import line_pitch
from ..kernels.manifest import Kernel, load_manifest
from ..layers.problem import describe_grouped, prepared
from .choose import CHOOSE, DESCRIBE, PLAIN, REACH, copy_pitch, copy_reason, scales_reason
from .cost import Cost, Load, Product, copy_clocks
from .layout import uploaded

RECIPES = ("bf16", "mxfp8")


@dataclass(frozen=True)
class GroupedProblem:
    """A product over groups of rows, with operands as kernels take them: (.., rows, K).

    For ``grouped_matmul`` that is x (M, K) with w turned to (G, N, K); for ``grouped_wgrad`` dy turned to
    (N, M) with x turned to (K, M).
    """

    op: str
    rows: int  # M
    groups: int
    n: int
    k: int
    a: Operand
    b: Operand
    out: Operand | None
    out_format: Format
    device: int | None  # that holds the matrices; None when they are on the host
    accumulate: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (self.rows, self.n) if self.op == "grouped_matmul" else (self.groups, self.n, self.k)

    def __str__(self) -> str:
        forward = f"({self.rows}, {self.k}) @ ({self.groups}, {self.k}, {self.n})"
        backward = f"({self.rows}, {self.n}).T @ ({self.rows}, {self.k}) in {self.groups} groups"
        a, b = self.a.format.name, self.b.format.name
        formats = a if a == b else f"{a} @ {b}"
        product = forward if self.op == "grouped_matmul" else backward
        return f"{product} {formats} -> {self.out_format.name}"


def describe_grouped_matmul(
    x: Any, w: Any, group_offsets: Any, /, out: Any = None, *, dtype: npt.DTypeLike | None = None
) -> tuple[GroupedProblem | None, list[Reason]]:
    """Describe one call of `grouped_matmul`: the problem, None where faults leave none, and every fault.

    Examples
    --------
    >>> import ml_dtypes
    >>> x, w = np.zeros((5, 8), ml_dtypes.bfloat16), np.zeros((2, 8, 3), ml_dtypes.bfloat16)
    >>> print(describe_grouped_matmul(x, w, np.array([0, 2, 5]))[0])
    (5, 8) @ (2, 8, 3) bf16 -> bf16
    >>> print(*describe_grouped_matmul(x, w, np.array([0, 2, 6]))[1])
    group_offsets must be at most 5, the number of rows; got group_offsets[2]=6
    """
    faults = Faults()
    x_operand = faults.scaled("x", x, -1) if isinstance(x, ScaledArray) else faults.matrix("x", x, INPUTS)
    w_operand = faults.scaled("w", w, -2) if isinstance(w, ScaledArray) else faults.matrix("w", w, INPUTS)
    x_shape, w_shape = _shape(faults, "x", x, 2), _shape(faults, "w", w, 3)
    if x_shape and w_shape and x_shape[1] != w_shape[1]:
        required = "x.shape[1] (K) must equal w.shape[1] (K)"
        shapes = f"x.shape={x_shape}, w.shape={w_shape}"
        faults.add(ValueError, "shape", required, f"{x_shape[1]} and {w_shape[1]}", shapes)
    want = ("(M, N)", (x_shape[0], w_shape[2])) if x_shape and w_shape else None
    out_operand, out_format = _output(faults, out, dtype, x_operand, want)
    if x_operand and w_operand:
        faults.pair(x, w, x_operand, w_operand, ("x", "w"))
    rows, groups = x_shape[0] if x_shape else None, w_shape[0] if w_shape else None
    faults.found += offset_reasons(group_offsets, rows, groups, x_operand.device if x_operand else None)
    faults.places(x=x_operand, w=w_operand, out=out_operand)
    _overlaps(faults, out, out_operand, group_offsets, x=x, w=w)
    if not (x_operand and w_operand and out_format and x_shape and w_shape) or _misshapen(faults):
        return None, faults.found
    problem = GroupedProblem(
        "grouped_matmul",
        x_shape[0],
        w_shape[0],
        w_shape[2],
        x_shape[1],
        x_operand,
        w_operand.transposed,
        out_operand,
        out_format,
        x_operand.device,
    )
    return problem, faults.found


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
) -> tuple[GroupedProblem | None, list[Reason]]:
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
    form = format_of(dtype) if dtype is not None else BF16
    assert form is not None
    problem = GroupedProblem(
        "grouped_matmul",
        layer.m,
        layer.groups,
        layer.n,
        layer.k,
        prepared(x, (layer.m, layer.k), layer),
        prepared(w, (layer.groups, layer.n, layer.k), layer),
        None,
        form,
        layer.device or 0,  # where operands are brought
    )
    return problem, reasons


def describe_grouped_wgrad(
    dy: Any,
    x: Any,
    group_offsets: Any,
    /,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    recipe: Any = None,
    accumulate: Any = False,
) -> tuple[GroupedProblem | None, list[Reason]]:
    """Describe one call of `grouped_wgrad`: the problem, None where faults leave none, and every fault.

    Examples
    --------
    >>> import ml_dtypes
    >>> dy, x = np.zeros((5, 3), ml_dtypes.bfloat16), np.zeros((5, 8), ml_dtypes.bfloat16)
    >>> print(describe_grouped_wgrad(dy, x, np.array([0, 2, 5]))[0])
    (5, 3).T @ (5, 8) in 2 groups bf16 -> bf16
    """
    faults = Faults()
    operands: list[Operand | None] = []
    shapes = []
    for name, y in (("dy", dy), ("x", x)):
        if isinstance(y, ScaledArray):
            operands.append(faults.scaled(name, y, -2, in_groups=True))
            _blocks(faults, name, y, group_offsets)
        else:
            operands.append(faults.matrix(name, y, INPUTS))
        shapes.append(_shape(faults, name, y, 2))
    (dy_operand, x_operand), (dy_shape, x_shape) = operands, shapes
    if dy_shape and x_shape and dy_shape[0] != x_shape[0]:
        required = "dy.shape[0] (M) must equal x.shape[0] (M)"
        got = f"{dy_shape[0]} and {x_shape[0]}"
        faults.add(ValueError, "shape", required, got, f"dy.shape={dy_shape}, x.shape={x_shape}")
    _recipe(faults, recipe, dy, x)
    if not isinstance(accumulate, (bool, np.bool_)):
        required = "accumulate must be True or False"
        faults.add(TypeError, "type", required, type(accumulate).__qualname__)
    elif accumulate and out is None:
        faults.add(ValueError, "accumulate", "accumulate=True must come with out to add to", "out=None")
    place = dy_operand.device if dy_operand else None
    faults.found += offset_reasons(group_offsets, dy_shape[0] if dy_shape else None, None, place)
    groups = group_offsets.shape[0] - 1 if is_array(group_offsets) and group_offsets.shape else -1
    want = None
    if dy_shape and x_shape and groups >= 0:
        want = ("(G, N, K)", (groups, dy_shape[1], x_shape[1]))
    out_operand, out_format = _output(faults, out, dtype, dy_operand, want)
    if dy_operand and x_operand:
        faults.pair(dy, x, dy_operand, x_operand, ("dy", "x"))
    faults.places(dy=dy_operand, x=x_operand, out=out_operand)
    _overlaps(faults, out, out_operand, group_offsets, dy=dy, x=x)
    if not (dy_operand and x_operand and out_format and want and dy_shape) or _misshapen(faults):
        return None, faults.found
    _, n, k = want[1]
    if recipe == "mxfp8":
        dy_operand, x_operand = _quantized(dy_operand), _quantized(x_operand)
    a, b = dy_operand.transposed, x_operand.transposed
    problem = GroupedProblem(
        "grouped_wgrad", dy_shape[0], groups, n, k, a, b, out_operand, out_format, place, bool(accumulate)
    )
    return problem, faults.found


def _quantized(x: Operand) -> Operand:
    """Describe what `quantize_mxfp8` makes of a matrix in groups of rows."""
    if x.format.block:
        return x  # a fault
    form = QUANTIZED["mxfp8_e4m3"]
    pitch = line_pitch(x.shape[-1], 1)
    scales = x.shape[-1], 1
    return Operand(x.shape, (pitch, 1), form, 0, x.device or 0, padded=True, scale_strides=scales)


def _misshapen(faults: Faults) -> bool:
    return any(reason.code == "shape" for reason in faults.found)


def _shape(faults: Faults, name: str, x: Any, ndim: int) -> tuple[int, ...] | None:
    """Return a shape if it has the right number of axes."""
    if not isinstance(x, ScaledArray) and not is_array(x):
        return None
    if len(x.shape) != ndim:
        if len(x.shape) >= 2:  # else it is told already
            faults.add(
                ValueError, "shape", f"{name}.ndim must be {ndim}", len(x.shape), f"{name}.shape={x.shape}"
            )
        return None
    return tuple(x.shape)


def _output(
    faults: Faults, out: Any, dtype: Any, like: Operand | None, want: tuple[str, tuple[int, ...]] | None
) -> tuple[Operand | None, Format | None]:
    """Read where the result goes, and its type."""
    operand = None if out is None else faults.matrix("out", out, OUTPUTS)
    if operand and want and operand.shape != want[1]:
        required = f"out.shape must be {want[0]}={want[1]}"
        faults.add(ValueError, "shape", required, operand.shape)
    if dtype is None:
        if operand:
            return operand, operand.format
        return operand, F16 if like and like.format == F16 else BF16
    form = format_of(dtype)
    if form is None:
        faults.add(TypeError, "dtype", f"dtype must be {dtype_names(OUTPUTS)}", dtype_name(dtype))
    elif operand and operand.format != form:
        faults.add(TypeError, "dtype", f"out.dtype must be dtype={form.dtype}", operand.format.dtype)
    return operand, form


def _overlaps(faults: Faults, out: Any, operand: Operand | None, offsets: Any, **inputs: Any) -> None:
    if operand is None:
        return
    parts: dict[str, Operand | None] = {}
    for name, x in inputs.items():
        if isinstance(x, ScaledArray):
            parts[name], parts[f"{name}.scale"] = bytes_of(x.data), bytes_of(x.scale)
        elif is_array(x):
            parts[name] = operand_of(x, format_of(x.dtype) or BF16)
    if isinstance(offsets, Resident):
        parts["group_offsets"] = bytes_of(offsets)
    faults.output(out, operand, **parts)


def _blocks(faults: Faults, name: str, q: ScaledArray, offsets: Any) -> None:
    """Check that the blocks of an operand are those of the groups."""
    if q.group_offsets is not None:
        if not same_offsets(q.group_offsets, offsets):
            required = f"group_offsets must be those that {name} was quantized with"
            one, other = (isinstance(o, Resident) for o in (q.group_offsets, offsets))
            got = "others" if one == other else f"{_place(offsets)}, not {_place(q.group_offsets)}"
            faults.add(ValueError, "groups", required, got, "on a device, pass the same array")
    elif q.format.startswith("mx") and isinstance(offsets, np.ndarray) and offsets.dtype.kind in "iu":
        inside = straddling(offsets) if offsets.ndim == 1 else None
        if inside is not None:
            required = f"group_offsets must be multiples of 32 where {name} was quantized without them"
            got = f"group_offsets[{inside}]={offsets[inside]}"
            advice = "quantize with quantize_mxfp8(x, axis=0, group_offsets=group_offsets)"
            faults.add(ValueError, "groups", required, got, advice)


def _place(offsets: Any) -> str:
    return "an array on the device" if isinstance(offsets, Resident) else "one on the host"


def _recipe(faults: Faults, recipe: Any, dy: Any, x: Any) -> None:
    if recipe is None:
        return
    if recipe not in RECIPES:
        kind = ValueError if isinstance(recipe, str) else TypeError
        required = f"recipe must be {' or '.join(map(repr, RECIPES))}"
        faults.add(kind, "recipe", required, repr(recipe))
    for name, y in (("dy", dy), ("x", x)):
        if isinstance(y, ScaledArray):
            required = "recipe must be left out for operands that are quantized"
            faults.add(ValueError, "recipe", required, f"recipe={recipe!r}, {name} in {y.format}")


# ---- the choice ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedChoice:
    """A way to compute a product of groups: a kernel, and what it cannot take as it is."""

    kernel: Kernel
    copies: tuple[tuple[str, str], ...]
    cost: Cost
    copy_clocks: float
    why: tuple[Reason, ...] = ()

    @property
    def rank(self) -> tuple[bool, float]:
        """What is least in the best choice: nothing is copied that need not be, then time decides."""
        return bool(self.copies), self.cost.clocks + self.copy_clocks


def grouped_choices(p: GroupedProblem, kernels: Iterable[Kernel]) -> tuple[list[GroupedChoice], list[Reason]]:
    """Return every way to compute a product of groups, the best first; or every reason why there is none.

    HIPGEMM_KERNEL names the only kernel to consider; there is no plain one.
    """
    kernels = list(kernels)
    served = [k for k in kernels if _serves(k, p.op)]
    forced = config.kernel
    if forced == PLAIN:
        text = "HIPGEMM_KERNEL=plain: there is no plain kernel for groups of rows"
        return [], [Reason(UnsupportedError, "forced", text)]
    if forced:
        served = [k for k in served if k.name == forced]
        if not served:
            required = f"HIPGEMM_KERNEL must be the name of a kernel for {p.op}"
            hint = "python -m hipgemm info lists them"
            return [], [Reason(ValueError, "kernel", sentence(required, forced, hint))]
    formats = p.a.format.name, p.b.format.name
    known = dict.fromkeys(f"{k.a} and {k.b}" for k in served)
    served = [k for k in served if (k.a, k.b) == formats]
    if not served:
        if not known:
            built = load_manifest().items()
            able = [arch for arch, made in built if any(_serves(k, p.op) for k in made.kernels.values())]
            required = f"the GPU must be one with kernels for groups of rows, {' or '.join(able) or 'none'}"
            got = kernels[0].arch if kernels else "none"
            return [], [Reason(UnsupportedError, "kernel", sentence(required, got))]
        names = "x and w" if p.op == "grouped_matmul" else "dy and x"
        required = f"{names} must be {' or '.join(known)}"
        return [], [Reason(UnsupportedError, "format", sentence(required, " and ".join(formats)))]
    found: list[GroupedChoice] = []
    reasons: dict[str, Reason] = {}
    for kernel in served:
        broken = _broken(p, kernel)
        for code, demand, found_instead in broken:
            reasons.setdefault(code, Reason(UnsupportedError, code, sentence(demand, found_instead)))
        if not broken:
            found.append(_choice(p, kernel))
    if found:
        best, *others = sorted(found, key=lambda choice: choice.rank)
        return [replace(best, copies=(*best.copies, *_scale_copies(p))), *others], []
    return [], list(reasons.values())


def _serves(kernel: Kernel, op: str) -> bool:
    return kernel.op.removeprefix("scaled_") == op


def workgroups(p: GroupedProblem, kernel: Kernel) -> int:
    """Workgroups of a launch, which must do wherever groups begin. Without K, rows are of no group: zero."""
    tile_m, tile_n = kernel.tile[:2]
    if p.op == "grouped_matmul":
        groups = p.groups if p.k else 0
        return group_slots(p.rows, groups, tile_m) * -(-p.n // tile_n)
    return p.groups * -(-p.n // tile_m) * -(-p.k // tile_n)


def operands(p: GroupedProblem) -> tuple[Operand, Operand]:
    """The operands as they lie on a device, or will."""
    return uploaded(p.a, p.k), uploaded(p.b, p.k)


def direct(p: GroupedProblem, kernel: Kernel) -> bool:
    """Whether a kernel can store into the output itself."""
    return p.out is None or p.out.device is None or (p.out.rows_contiguous and _fits(p.out.pitch, p, kernel))


def _fits(pitch: int, p: GroupedProblem, kernel: Kernel) -> bool:
    return kernel.tile[0] * pitch * p.out_format.itemsize < REACH


def _broken(p: GroupedProblem, kernel: Kernel) -> list[tuple[str, str, object]]:
    """Every demand of a kernel that is not met: (code, required, got)."""
    broken: list[tuple[str, str, object]] = []
    if max(p.rows, p.n, p.k, p.groups) >= 2**31:
        broken.append(("size", "M, N, K and the number of groups must be below 2**31", p))
    for side, (name, x) in enumerate(zip(("a", "b"), operands(p), strict=True)):
        lines = kernel.tile[2] if "tn"[side] == kernel.layout[side] else kernel.tile[side]
        if copy_reason(x, kernel, side) is not None and copy_pitch(x, kernel, side) * lines >= REACH:
            required = f"rows of the {'first' if name == 'a' else 'second'} operand must be shorter"
            broken.append(("pitch", required, p))
    columns = p.n if p.op == "grouped_matmul" else p.k
    if not direct(p, kernel) and not _fits(columns, p, kernel):
        broken.append(("output", f"rows of {p.out_format.name} output must be shorter", columns))
    threads = workgroups(p, kernel) * kernel.threads
    if threads >= 2**32:
        broken.append(("grid", "the grid must be below 2**32 threads", threads))
    return broken


def _choice(p: GroupedProblem, kernel: Kernel) -> GroupedChoice:
    names = ("x", "w") if p.op == "grouped_matmul" else ("dy", "x")
    copies: list[tuple[str, str]] = []
    clocks = 0.0
    if p.rows and p.k and p.n and p.groups:
        for side, (name, x) in enumerate(zip(names, operands(p), strict=True)):
            if (reason := copy_reason(x, kernel, side)) is not None:
                copies.append((name, reason))
                size = math.prod(x.shape) * x.format.itemsize
                clocks += copy_clocks(size, size, kernel.arch)
    if not direct(p, kernel):
        assert p.out is not None
        reason = "row pitch too large" if p.out.rows_contiguous else "rows not contiguous"
        copies.append(("out", reason))
    return GroupedChoice(kernel, tuple(copies), _cost(p, kernel), clocks)


def _scale_copies(p: GroupedProblem) -> list[tuple[str, str]]:
    """Scales that no kernel reads where they lie, and why."""
    names = ("x", "w") if p.op == "grouped_matmul" else ("dy", "x")
    if p.device is None or not (p.rows and p.k and p.n and p.groups):
        return []
    sides = zip(names, operands(p), strict=True)
    return [(f"{name}.scale", reason) for name, x in sides if (reason := scales_reason(x))]


def _cost(p: GroupedProblem, kernel: Kernel) -> Cost:
    """Estimate a kernel's time as that of a batch of products, each over the average rows of a group."""
    groups = max(1, p.groups)
    each = -(-p.rows // groups)
    item = p.out_format.itemsize
    m, n, k = (each, p.n, p.k) if p.op == "grouped_matmul" else (p.n, p.k, each)
    load = Load(Product(m, n, k, groups, out_bytes=item), kernel)
    turns = load.k_tiles + load.k_tiles % 2
    clocks = max(load.overlapping(1, turns)) + sum(load.added(1))
    return Cost(kernel, 1, turns, load.tiles * load.batches, load.rounds(1), clocks, load)


DESCRIBE |= {
    "grouped_matmul": describe_grouped_matmul,
    "grouped_wgrad": describe_grouped_wgrad,
    "grouped_linear": describe_grouped_forward,
}
CHOOSE |= dict.fromkeys(("grouped_matmul", "grouped_wgrad", "grouped_linear"), grouped_choices)
