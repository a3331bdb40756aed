"""What follows a product and its bias: another output, activation, what is added, quantization."""

from __future__ import annotations

from dataclasses import dataclass

from ..formats.activations import ACTIVATIONS, GLU_ACTIVATIONS, GLUS
from ..formats.elements import QUANTIZED, Format
from ..formats.operand import Operand

__all__ = ["GLUS", "OUT_EPS", "OUT_FORMATS", "Stages", "activations"]

OUT_FORMATS = tuple(QUANTIZED)
OUT_EPS = 1e-8  # added to the amax, as in quantize_fp8


@dataclass(frozen=True)
class Stages:
    """The stages of a product, in this order; `accumulate` is the problem's."""

    activation: str | None = None
    glu: str | None = None
    aux: Operand | None = None  # (batch.., M, N), before the activation
    residual: Operand | None = None  # (batch.., M, N), or half of N with a GLU
    quantized: Format | None = None
    scaling: str = ""  # the scale rule of an MX format

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments of the call for those that there are."""
        found = {"activation": self.activation, "glu": self.glu, "aux": self.aux, "residual": self.residual}
        return tuple(name for name, x in {**found, "out_format": self.quantized}.items() if x is not None)

    def columns(self, n: int) -> int:
        """The columns of the result of a product with N columns."""
        return n // 2 if self.glu else n


def activations(glu: object) -> tuple[str, ...]:
    """The names of the activations, with or without a GLU."""
    return (*ACTIVATIONS, *GLU_ACTIVATIONS) if glu is not None else tuple(ACTIVATIONS)


def scale_rule(form: Format | None, rule: object) -> str:
    """The rule of the scales of a result; anything but a name stands for the quantizer's default."""
    return rule if isinstance(rule, str) else ("unit" if form is None or form.bits == 8 else "even")
