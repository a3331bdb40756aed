"""What matmul, grouped_matmul and grouped_wgrad differ in: one record each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class Operation:
    """A kind of matrix product.

    Attributes
    ----------
    name : str
        The public function.
    operands : tuple of str
        What that calls its operands.
    kernels : str
        `Kernel.op` of the kernels that serve it, but for ``"scaled_"``.
    ragged : str
        The extent that groups of rows cut: ``"m"``, ``"k"``, or none.
    k_axes : tuple of int
        The axes of the arguments that the product sums over.
    k_name, out_name : str
        What messages call that extent, and the shape of the result.
    ndims : tuple of int, optional
        How many axes the arguments have; two or more, which broadcast, unless given.
    plain : bool
        Whether a kernel that takes any format and any strides may serve it.
    """

    name: str
    operands: tuple[str, str]
    kernels: str
    ragged: Literal["", "m", "k"]
    k_axes: tuple[int, int]
    k_name: str = "K"
    out_name: str = "(M, N)"
    ndims: tuple[int, int] | None = None
    plain: bool = False


MATMUL = Operation("matmul", ("a", "b"), "gemm", "", (-1, -2), plain=True)
GROUPED_MATMUL = Operation("grouped_matmul", ("x", "w"), "grouped_matmul", "m", (-1, -2), ndims=(2, 3))
GROUPED_WGRAD = Operation(
    "grouped_wgrad", ("dy", "x"), "grouped_wgrad", "k", (-2, -2), "M", "(G, N, K)", ndims=(2, 2)
)


class Arguments(NamedTuple):
    """The arguments of one call, whichever operation it is of."""

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
