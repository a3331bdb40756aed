"""The recipes of a layer: what its products multiply, and how the operands are made. Pure: no device."""

from __future__ import annotations

from dataclasses import dataclass

from ..formats.elements import BF16, QUANTIZED, Format
from ..formats.scaled import HADAMARD


@dataclass(frozen=True)
class Recipe:
    """One recipe. A layer carries it; nothing else tells recipes apart."""

    name: str
    # x, w and dy are quantized to the first, dy to another on request. None: rounded to bfloat16.
    formats: tuple[str, ...]
    # Whether a tensor has one scale, from its greatest magnitude.
    amax: bool = False
    # The usual rule of the scales of blocks, which lie along what a product sums over. Empty: no blocks.
    scaling: str = ""
    # Whether both operands of a product get a Hadamard transform first, where their length allows it.
    hadamard: bool = False
    # Whether the forward pass quantizes x and w along both axes, the other one for the backward pass.
    # Otherwise that takes what the forward pass multiplied, and requantizes it where there are blocks.
    both_axes: bool = False
    # The recipe of dw over groups of rows, where these formats have no kernel for it.
    group_wgrad: str = ""

    @property
    def form(self) -> Format:
        """The format of x and w."""
        return QUANTIZED[self.formats[0]] if self.formats else BF16

    def transforms(self, length: int, wanted: bool | None) -> bool:
        """Whether to transform along an axis: where its length allows it, unless the caller decided.

        >>> mxfp4 = RECIPES["mxfp4"]
        >>> mxfp4.transforms(64, None), mxfp4.transforms(10, None), mxfp4.transforms(64, False)
        (True, False, False)
        """
        return self.hadamard and (length % HADAMARD == 0 if wanted is None else wanted)


_ALL = (
    Recipe("bf16", ()),
    Recipe("fp8", ("fp8_e4m3", "fp8_e5m2"), amax=True),
    Recipe("mxfp8", ("mxfp8_e4m3", "mxfp8_e5m2"), scaling="unit"),
    Recipe("mxfp4", ("mxfp4_e2m1",), False, "even", hadamard=True, both_axes=True, group_wgrad="mxfp8"),
)
RECIPES = {recipe.name: recipe for recipe in _ALL}
# Stands for one that the caller misnamed, so that the other faults are found: takes what any of them does.
ANY = Recipe("any", tuple(QUANTIZED), amax=True, scaling="unit", hadamard=True)
