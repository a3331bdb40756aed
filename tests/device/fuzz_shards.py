"""Random sharded products, generated from a seed and checked. One device repeated counts as several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import fuzz
import numpy as np

import hipgemm as hg
from hipgemm.distributed.sharded_array import block_step
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close

# Along which axes a split cuts the operands.
CUTS: dict[str, tuple[int | None, int | None]] = {
    "m": (-2, None),
    "n": (None, -1),
    "k": (-1, -2),
    "batch": (-3, -3),
}


@dataclass
class Sharding:
    """A product of `fuzz`, its operands sharded."""

    product: fuzz.Case
    split: str
    devices: list[int]
    way: str

    def __str__(self) -> str:
        return f"split {self.split} over {self.devices}, {self.way}, of {self.product}"


def make(seed: int) -> Sharding:
    """Make the case of a seed, from the first product from there on that can be sharded."""
    rng = np.random.default_rng(seed)
    for at in range(1000 * seed, 1000 * (seed + 1)):
        product = fuzz.make(at)
        a, b = product.a.host, product.b.host
        splits = [split for split in CUTS if _possible(split, a.shape, b.shape)]
        if splits:
            break
    count = _hip.runtime().devices
    devices = [int(d) for d in rng.integers(0, count, int(rng.integers(1, 5)))]
    return Sharding(product, str(rng.choice(splits)), devices, str(rng.choice(["host", "device", "sharded"])))


def _possible(split: str, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    if len(a) not in (2, 3) or not 2 <= len(b) <= len(a):
        return False
    if split == "batch":
        return len(a) == 3 and (len(b) == 2 or a[0] == b[0])
    return split != "k" or len(b) == 2


def run(case: Sharding) -> None:
    """Run a case twice: inside the bound of the full product, and the same bits."""
    product = case.product
    a, b = product.a.host, product.b.host
    options: dict[str, Any] = {"split": case.split, "dtype": product.dtype, **product.epilogue}
    if case.way == "sharded":
        first, second = CUTS[case.split]
        second = None if case.split == "batch" and b.ndim == 2 else second
        sizes = None
        if case.split == "k":  # of the operand with the larger blocks
            q, axis = max(((a, -1), (b, -2)), key=lambda pair: block_step(*pair))
            sizes = np.diff(hg.shard(q, case.devices, axis=axis).offsets).tolist()
        x = hg.shard(a, case.devices, axis=first, sizes=sizes)
        y = hg.shard(b, case.devices, axis=second, sizes=sizes)
    else:
        x, y = (a, b) if case.way == "host" else (product.a.device(), product.b.device())
        options["devices"] = case.devices
    results = []
    for _ in range(2):
        out = hg.sharded_matmul(x, y, **options)
        results.append(out if isinstance(out, np.ndarray) else out.get())
    assert results[0].tobytes() == results[1].tobytes(), "other bits the second time"
    assert_gemm_close(results[0], a, b, exact=product.exact, **product.epilogue)
