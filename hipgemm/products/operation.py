"""The parameters in which matmul, grouped_matmul and grouped_wgrad differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class Operation:
    """A kind of matrix product."""

    name: str  # the public function
    operands: tuple[str, str]  # the names of its operands
    kernels: str  # `Kernel.op` of its kernels, without the prefix "scaled_"
    ragged: Literal["", "m", "k"]  # the extent that groups of rows divide
    k_axes: tuple[int, int]  # the contraction axes of the arguments
    k_name: str = "K"  # the name of their extent in messages
    out_name: str = "(M, N)"  # the shape of the result in messages
    ndims: tuple[int, int] | None = None  # ndim of the arguments; None: two or more, which broadcast
    plain: bool = False  # whether the plain kernel supports it


MATMUL = Operation("matmul", ("a", "b"), "gemm", "", (-1, -2), plain=True)
GROUPED_MATMUL = Operation("grouped_matmul", ("x", "w"), "grouped_matmul", "m", (-1, -2), ndims=(2, 3))
GROUPED_WGRAD = Operation(
    "grouped_wgrad", ("dy", "x"), "grouped_wgrad", "k", (-2, -2), "M", "(G, N, K)", ndims=(2, 2)
)
OPERATIONS = {op.name: op for op in (MATMUL, GROUPED_MATMUL, GROUPED_WGRAD)}


class Arguments(NamedTuple):
    """The arguments of a call of any operation."""

    a: Any
    b: Any
    out: Any = None
    dtype: Any = None
    alpha: Any = 1.0
    col_scale: Any = None
    bias: Any = None
    offsets: Any = None
    recipe: Any = None
    accumulate: Any = False
    residual: Any = None
    activation: Any = None
    glu: Any = None
    aux: Any = None
    out_format: Any = None
    out_scaling: Any = None
    out_amax: Any = None

    @property
    def stages(self) -> tuple[Any, ...]:
        """What follows the bias, but for `accumulate`."""
        return self[10:]

    @property
    def staged(self) -> bool:
        """Whether anything follows the bias."""
        return self.accumulate is not False or any(x is not None for x in self[10:])

    @classmethod
    def named(cls, op: Operation, given: Mapping[str, Any]) -> Arguments:
        """The arguments of a call, by their names in the public function."""
        first, second = op.operands
        rest = {
            name: x for name, x in given.items() if name not in (first, second, "group_offsets", "stream")
        }
        return cls(given[first], given[second], offsets=given.get("group_offsets"), **rest)
