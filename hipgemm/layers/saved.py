"""Results of a layer's passes: operands saved for the backward pass, and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..array.device_array import DeviceArray
from ..formats.scaled import ScaledArray
from ..quantize.quantizers import Input
from .problem import Layer

SavedArray = DeviceArray | ScaledArray


@dataclass(frozen=True)
class Saved:
    """What a forward pass saves for the backward pass."""

    arrays: ClassVar[tuple[str, ...]]

    recipe: str
    x: SavedArray
    w: SavedArray
    w_post_scale: DeviceArray | None
    group_offsets: Input | None
    layer: Layer = field(repr=False)
    aux: DeviceArray | None = None

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of each array, with its scales; `aux` only if there is one."""
        arrays = {name: getattr(self, name) for name in self.arrays if name != "aux" or self.aux is not None}
        return {name: 0 if array is None else array.nbytes for name, array in arrays.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(self.bytes.values())


class LinearSaved(Saved):
    """What `linear` saves for `linear_backward`, on the device.

    Attributes
    ----------
    recipe : str
        The recipe.
    x, w : DeviceArray or ScaledArray
        Activations (M, K) and weights (N, K) for the backward pass: in bfloat16 for bf16; the operands of
        the forward pass for fp8, fp8_block and mxfp8; for mxfp4 blocked along M and N, unless the arguments
        were quantized.
    w_post_scale : DeviceArray or None
        The factors of the columns of y.
    aux : bfloat16 DeviceArray (M, N) or None
        What the activation was applied to.
    """

    arrays = ("x", "w", "w_post_scale", "aux")


class GroupedSaved(Saved):
    """What `grouped_linear` saves for `grouped_linear_backward`, on the device.

    Attributes
    ----------
    recipe : str
        The recipe.
    x, w : DeviceArray or ScaledArray
        Activations (M, K) and weights (G, N, K) for the backward pass: in bfloat16 for bf16, else the
        operands of the forward pass; for mxfp4 the weights are blocked along N.
    group_offsets : int32 array (G+1,)
        The offsets of the groups of rows.
    aux : bfloat16 DeviceArray (M, N) or None
        What the activation was applied to; 0 in rows after the last group.
    """

    arrays = ("x", "w", "group_offsets", "aux")


@dataclass(frozen=True)
class LinearGrads:
    """Gradients of a linear layer. Unpacks to ``dx, dw``, or ``dx, dw, dbias`` if the layer has a bias.

    Attributes
    ----------
    dx : array (lead.., K)
        With respect to x.
    dw : array (N, K), or (G, N, K)
        With respect to the weights, w_post_scale included.
    dbias : float32 array (N,) or (G, N) like the bias, or None
        With respect to the bias.
    """

    dx: Any
    dw: Any
    dbias: Any = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.dx, self.dw) if self.dbias is None else (self.dx, self.dw, self.dbias))
