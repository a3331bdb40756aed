"""The recipes of a layer: the formats of its products, and how the operands are quantized. Uses no device."""

from __future__ import annotations

from dataclasses import dataclass

from ..formats.elements import BF16, QUANTIZED, Format
from ..formats.scaled import HADAMARD


@dataclass(frozen=True)
class Recipe:
    """The parameters of a recipe. All differences between recipes are here."""

    name: str
    # x, w and dy are quantized to the first format, dy to another one on request. Empty: rounded to bfloat16.
    formats: tuple[str, ...]
    # Whether a tensor has one scale, computed from its amax.
    amax: bool = False
    # The default rule of MX block scales. Blocks are along the contraction axis. Empty: no such blocks.
    scaling: str = ""
    # Whether fp8 has float32 scales of blocks: of 128 along the contraction axis, and of 128 x 128 weights.
    blocks: bool = False
    # Whether both operands of a product get a Hadamard transform first, if their length allows it.
    hadamard: bool = False
    # Whether the forward pass quantizes x and w along both axes, one of them for the backward pass.
    # Otherwise the backward pass uses the operands of the forward pass, and requantizes those that have
    # blocks along the other axis only.
    both_axes: bool = False
    # The recipe of dw for groups of rows, if these formats have no kernel for it.
    group_wgrad: str = ""

    @property
    def form(self) -> Format:
        """The format of x and w."""
        return QUANTIZED[self.formats[0]] if self.formats else BF16

    @property
    def in_blocks(self) -> bool:
        """Whether scales belong to blocks along the contraction axis."""
        return self.blocks or bool(self.scaling)

    def transforms(self, length: int, wanted: bool | None) -> bool:
        """Whether to transform along an axis: if its length allows it, unless the caller decided.

        >>> mxfp4 = RECIPES["mxfp4"]
        >>> mxfp4.transforms(64, None), mxfp4.transforms(10, None), mxfp4.transforms(64, False)
        (True, False, False)
        """
        return self.hadamard and (length % HADAMARD == 0 if wanted is None else wanted)


FP8 = ("fp8_e4m3", "fp8_e5m2")
_ALL = (
    Recipe("bf16", ()),
    Recipe("fp8", FP8, amax=True),
    Recipe("fp8_block", FP8, blocks=True, group_wgrad="mxfp8"),
    Recipe("mxfp8", ("mxfp8_e4m3", "mxfp8_e5m2"), scaling="unit"),
    Recipe("mxfp4", ("mxfp4_e2m1",), False, "even", hadamard=True, both_axes=True, group_wgrad="mxfp8"),
)
RECIPES = {recipe.name: recipe for recipe in _ALL}
# Replaces an unknown recipe, so that other faults are found too: it accepts everything that any recipe does.
ANY = Recipe("any", tuple(QUANTIZED), amax=True, scaling="unit", hadamard=True)
