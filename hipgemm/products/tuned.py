"""Times of kernels for products: ``python -m hipgemm tune`` measures them, and `choose` prefers them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..config import config
from ..kernels.manifest import code_object
from ..runtime import hip, record
from .problem import Problem


class Times(NamedTuple):
    """Microseconds of one kernel: the median, and the percentiles 10 and 90."""

    median: float
    p10: float
    p90: float


Products = Mapping[str, Mapping[str, Times]]  # by the text of `Shape`, then by kernel


@dataclass(frozen=True)
class Shape:
    """What a product is timed by. Its text is the arguments of ``python -m hipgemm tune``."""

    op: str
    m: int
    n: int
    k: int
    formats: tuple[str, str]
    layout: str
    batch: int
    groups: int
    dtype: str

    @classmethod
    def of(cls, p: Problem) -> Shape:
        """The shape of a product as it is launched, whatever follows the product."""
        layout = "".join(
            kind[_k_strided(x.shape, x.strides, x.format.itemsize)] for x, kind in ((p.a, "nt"), (p.b, "tn"))
        )
        batch = p.batches if p.batch and not p.op.ragged else 0
        return cls(p.op.name, p.m, p.n, p.k, p.kernel_formats, layout, batch, p.groups, p.out_format.name)

    def __str__(self) -> str:
        first, second = self.formats
        parts = [
            f"{self.m} {self.n} {self.k}",
            f"--op {self.op}",
            f"--format {first if first == second else f'{first}@{second}'}",
            f"--layout {self.layout}",
            *([f"--batch {self.batch}"] if self.batch else []),
            *([f"--groups {self.groups}"] if self.groups else []),
            f"--dtype {self.dtype}",
        ]
        return " ".join(parts)


def _k_strided(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> bool:
    """Whether K, the last axis of an operand as it is described, is not the contiguous one."""
    return shape[-1] > 1 and strides[-1] != item


# ---- the file ----------------------------------------------------------------------------------------


def path(device: int) -> Path:
    """Where the times of a device are."""
    return record.path_of(record.TUNED, device, **kernels_of(device))


def kernels_of(device: int) -> dict[str, str]:
    """What a record is about besides the device and its driver: the build of the kernels."""
    return {"kernels": code_object(hip.arch(device)).sha256}


@lru_cache(maxsize=64)
def recorded(device: int) -> Products:
    """All times of a device with its driver and kernels; read once in a process."""
    config.fix("the first product on a device", "tuned")
    if config.tuned == "ignore":
        return {}
    return parsed(record.read(record.TUNED, device, **kernels_of(device)), device)


def parsed(content: Mapping[str, Any], device: int) -> Products:
    """The times in a record; none, and a warning, if it is damaged."""
    try:
        return {
            shape: {name: _times(*values) for name, values in kernels.items()}
            for shape, kernels in content.get("products", {}).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        record.warn_of_damage(record.TUNED, path(device), error)
        return {}


def _times(median: float, p10: float, p90: float) -> Times:
    found = Times(median, p10, p90)
    if not all(0 < x < math.inf for x in found):
        raise ValueError(f"times must be positive; got {found}")
    return found


def add(device: int, shape: Shape, found: Mapping[str, Times]) -> None:
    """Add the times of a product to the file, with what other processes have added since."""

    def change(content: dict[str, Any]) -> dict[str, Any]:
        products = {name: dict(kernels) for name, kernels in parsed(content, device).items()}
        return {"products": {**products, str(shape): dict(found)}}

    record.update(record.TUNED, device, change, **kernels_of(device))


def on_file(device: int) -> Products:
    """What the file has now, also where `config.tuned` is "ignore"."""
    return parsed(record.read(record.TUNED, device, **kernels_of(device)), device)
