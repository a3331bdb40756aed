"""What a layer's passes leave: operands for the backward pass, and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..array.device_array import DeviceArray
from ..formats.scaled import ScaledArray
from ..quantize.quantizers import Input
from .problem import Layer

Kept = DeviceArray | ScaledArray


@dataclass(frozen=True)
class Saved:
    """What the forward pass leaves for the backward pass, of a layer of either kind."""

    arrays: ClassVar[tuple[str, ...]]

    recipe: str
    x: Kept
    w: Kept
    w_post_scale: DeviceArray | None
    group_offsets: Input | None
    layer: Layer = field(repr=False)

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of each array: its numbers and their scales."""
        arrays = {name: getattr(self, name) for name in self.arrays}
        return {name: 0 if array is None else array.nbytes for name, array in arrays.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(self.bytes.values())


class LinearSaved(Saved):
    """What the forward pass of a layer leaves for its backward pass. It lives on the device.

    Attributes
    ----------
    recipe : str
        The recipe.
    x, w : DeviceArray or ScaledArray
        Activations (M, K) and weights (N, K) as the backward pass takes them: bfloat16 for bf16; the codes
        of the forward pass for fp8 and mxfp8; for mxfp4 those blocked along M and N, unless what came in
        was quantized already.
    w_post_scale : DeviceArray or None
        The factors of the columns of y.
    """

    arrays = ("x", "w", "w_post_scale")


class GroupedSaved(Saved):
    """What the forward pass of grouped layers leaves for its backward pass. It lives on the device.

    Attributes
    ----------
    recipe : str
        The recipe.
    x, w : DeviceArray or ScaledArray
        Activations (M, K) and weights (G, N, K) as the backward pass takes them: bfloat16 for bf16, else the
        codes of the forward pass; for mxfp4 the weights blocked along N.
    group_offsets : int32 array (G+1,)
        Where the groups of rows begin.
    """

    arrays = ("x", "w", "group_offsets")


@dataclass(frozen=True)
class LinearGrads:
    """Gradients of a linear layer; unpacks into ``dx, dw``, and ``dbias`` if the layer had a bias.

    Attributes
    ----------
    dx : array (lead.., K)
        With respect to x.
    dw : array (N, K)
        With respect to the weights, w_post_scale included.
    dbias : float32 array (N,), or None
        With respect to the bias.
    """

    dx: Any
    dw: Any
    dbias: Any = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.dx, self.dw) if self.dbias is None else (self.dx, self.dw, self.dbias))
