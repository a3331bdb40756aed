"""Random sharded products, generated from a seed and checked. One device repeated counts as several."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import fuzz
import numpy as np
from fuzz import BF16, F16, F32
from test_stages import QUANTIZERS, activated, assert_within, rounded

import hipgemm as hg
from hipgemm import reference
from hipgemm.distributed.sharded_array import block_step, even_offsets
from hipgemm.formats.activations import ACTIVATIONS
from hipgemm.formats.elements import QUANTIZED
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, gemm_bound

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
    stages: dict[str, Any]  # which the call has: activation, glu, whether aux and residual, what result

    def __str__(self) -> str:
        return f"split {self.split} over {self.devices}, {self.way}, {self.stages}, of {self.product}"


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
    split, way = str(rng.choice(splits)), str(rng.choice(["host", "device", "sharded"]))
    stages: dict[str, Any] = {}
    if rng.integers(2):
        stages = {"activation": str(rng.choice([*ACTIVATIONS])) if rng.integers(2) else None}
        stages |= {"glu": "interleaved" if b.shape[-1] % 2 == 0 and rng.integers(2) else None}
        stages |= {"aux": bool(rng.integers(2)), "residual": bool(rng.integers(2))}
        stages["result"] = str(rng.choice(["new", "accumulate", str(rng.choice([*QUANTIZED]))]))
    return Sharding(product, split, devices, way, stages)


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
        elif case.split == "n" and case.stages:
            step = (2 if case.stages["glu"] else 1) * (32 if case.stages["result"].startswith("mx") else 1)
            step = max(step, block_step(b, -1))
            sizes = np.diff(even_offsets(b.shape[-1], len(case.devices), step)).tolist()
        x = hg.shard(a, case.devices, axis=first, sizes=None if first is None else sizes)
        y = hg.shard(b, case.devices, axis=second, sizes=None if second is None else sizes)
    else:
        x, y = (a, b) if case.way == "host" else (product.a.device(), product.b.device())
        options["devices"] = case.devices
    if case.stages:
        return _staged(case, x, y, options)
    results = []
    for _ in range(2):
        out = hg.sharded_matmul(x, y, **options)
        results.append(out if isinstance(out, np.ndarray) else out.get())
    assert results[0].tobytes() == results[1].tobytes(), "other bits the second time"
    assert_gemm_close(results[0], a, b, exact=product.exact, **product.epilogue)


def _staged(case: Sharding, x: Any, y: Any, options: dict[str, Any]) -> None:
    """Check a call with stages, whose arrays are on the host."""
    product, rng = case.product, np.random.default_rng(case.product.seed)
    activation, glu, result = (case.stages[name] for name in ("activation", "glu", "result"))
    a, b, exact = product.a.host, product.b.host, product.exact
    t = reference.matmul(reference.values(a), reference.values(b), **product.epilogue)
    dtype = options["dtype"] or (F16 if product.a.data.dtype == F16 else BF16)
    if dtype == F16 or result in QUANTIZED:
        dtype = options["dtype"] = F32  # holds any value
    shape = (*t.shape[:-1], t.shape[-1] // (2 if glu else 1))
    old, residual = (rng.integers(-6, 7, shape).astype(one) for one in (dtype, F32))
    call = partial(hg.sharded_matmul, x, y, activation=activation, glu=glu)
    if case.stages["residual"]:
        call = partial(call, residual=residual)
    found = []
    for _ in range(2):
        more: dict[str, Any] = {"aux": np.full(t.shape, np.nan, F32)} if case.stages["aux"] else {}
        if result == "accumulate":
            more |= {"out": old.copy(), "accumulate": True}
        elif result in QUANTIZED:
            more |= {"out_format": result, "dtype": None}
            more |= {"out_amax": hg.AmaxState(30.0)} if result.startswith("fp8") else {}
        made = call(**options | more)
        made = made.get() if isinstance(made, hg.ShardedArray) else made
        found.append([more.get("aux"), *((made.data, made.scale) if result in QUANTIZED else (made,))])
    for one, other in zip(*found, strict=True):
        assert one is other or one.tobytes() == other.tobytes(), "other bits the second time"
    aux, got, *scale = found[0]
    if aux is not None:
        assert_gemm_close(aux, a, b, exact=exact, **product.epilogue)
    if result in QUANTIZED:
        plain = call(**options)
        plain = plain.get() if isinstance(plain, hg.ShardedArray) else plain
        quantize: Any = QUANTIZERS.get(result.split("_")[0])
        if quantize is None:
            quantize = partial(hg.quantize_fp8, amax=hg.AmaxState(30.0))
        want = quantize(plain, format=result) if "fp4" not in result else quantize(plain, hadamard=False)
        if got.size:  # else no scale is read
            assert (got.tobytes(), scale[0].tobytes()) == (want.data.tobytes(), want.scale.tobytes())
        return
    if not np.isfinite(t).all():
        return
    slack = np.zeros_like(t) if exact else gemm_bound(a, b, dtype=F32, **product.epilogue)
    want, bound = activated(t, slack, activation, glu)
    for added in [residual] * case.stages["residual"] + [old] * (result == "accumulate"):
        added = added.astype(np.float64)
        bound = bound + 2.0**-23 * (abs(want) + abs(added))
        want = want + added
    if want.size:
        assert_within(got, want, rounded(bound, want, dtype))
