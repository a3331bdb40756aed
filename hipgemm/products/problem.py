"""From arguments to one description of the product, with every fault in them named. Pure: no device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import Reason
from ..formats.elements import BF16, F16, F32, QUANTIZED, Format, format_of
from ..formats.faults import INPUTS, OUTPUTS, Faults, dtype_name, dtype_names
from ..formats.operand import Operand, Shaped, bytes_of, operand_of
from ..formats.scaled import ScaledArray, is_array


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
    faults = Faults()
    a_operand = faults.scaled("a", a, -1) if isinstance(a, ScaledArray) else faults.matrix("a", a, INPUTS)
    b_operand = faults.scaled("b", b, -2) if isinstance(b, ScaledArray) else faults.matrix("b", b, INPUTS)
    out_operand = None if out is None else faults.matrix("out", out, OUTPUTS)
    alpha_value = faults.alpha(alpha)

    out_format = None
    if dtype is not None:
        out_format = format_of(dtype)
        if out_format is None:
            faults.add(TypeError, "dtype", f"dtype must be {dtype_names(OUTPUTS)}", dtype_name(dtype))
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
        others = {
            name: operand_of(x, format_of(x.dtype) or F32) for name, x in vectors.items() if is_array(x)
        }
        for name, q in (("a", a), ("b", b)):
            if isinstance(q, ScaledArray):
                others[f"{name}.scale"] = bytes_of(q.scale)
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
