"""The cost model against the emulator's counters, and how its choice ranks by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from hipgemm.array.device_array import upload_async
from hipgemm.errors import RuntimeNotFoundError, requirement
from hipgemm.formats.elements import BF16, F32, QUANTIZED, named_format
from hipgemm.formats.groups import group_slots
from hipgemm.inspect.counters import EmulatorCounters, emulator_counters
from hipgemm.inspect.explain import ask, in_place
from hipgemm.kernels import launch as _launch
from hipgemm.kernels.manifest import Kernel
from hipgemm.kernels.scale_layout import gemm_scale_bytes, gemm_scale_step
from hipgemm.products.choose import PLAIN, Support, k_strided
from hipgemm.products.cost import Cost, Loop, uneven
from hipgemm.products.operation import GROUPED_MATMUL
from hipgemm.runtime import device_errors
from hipgemm.runtime import hip as _hip

Numbers = npt.NDArray[np.float64]
Size = tuple[int, int, int]  # M, N, K


@dataclass(frozen=True)
class Shape:
    """A product to check."""

    what: str
    m: int
    n: int
    k: int
    format: str = "bf16"
    layout: str = "nt"
    batch: int = 0
    groups: int = 0  # of the M rows

    def ask(self) -> Support:
        """The candidates, and the choice."""
        op = "grouped_matmul" if self.groups else "matmul"
        asked = self.m, self.n, self.k, self.format, self.layout, self.batch
        return ask(*asked, op=op, groups=self.groups)

    def __str__(self) -> str:
        times = f"{self.batch} x " if self.batch else ""
        rows = f"{self.m} in {self.groups}" if self.groups else str(self.m)
        return f"{times}{rows} x {self.n} x {self.k}"


# N x K of the layers: LLaMA 8B 4096 wide with 14336, 70B 8192 wide with 28672; Mixtral as 8B; DeepSeek V3
# 7168 wide with experts of 2048.
SHAPES = (
    Shape("decode, q k v, 8B", 1, 6144, 4096),
    Shape("decode, down, 8B", 1, 4096, 14336),
    Shape("decode, gate up, 8B", 4, 28672, 4096),
    Shape("decode, out, 8B", 8, 4096, 4096),
    Shape("decode, gate up, 8B", 16, 28672, 4096, "fp8_e4m3"),
    Shape("decode, down, 8B", 16, 4096, 14336, "mxfp8_e4m3"),
    Shape("decode, out, 70B", 32, 8192, 8192),
    Shape("decode, down, 70B", 32, 8192, 28672, "mxfp4_e2m1"),
    Shape("decode, gate up, 70B", 64, 57344, 8192, "fp8_e4m3"),
    Shape("decode, down, 70B", 64, 8192, 28672),
    Shape("prefill 512, q k v, 8B", 512, 6144, 4096),
    Shape("prefill 2048, out, 8B", 2048, 4096, 4096),
    Shape("prefill 2048, gate up, 8B", 2048, 28672, 4096, "mxfp8_e4m3"),
    Shape("prefill 4096, down, 8B", 4096, 4096, 14336),
    Shape("prefill 8192, out, 70B", 8192, 8192, 8192, "mxfp4_e2m1"),
    Shape("ragged prompt, out, 8B", 1000, 4096, 4096),
    Shape("ragged prompt, q k v, 8B", 333, 6144, 4096, "fp8_e4m3"),
    Shape("data gradient, down, 8B", 4096, 14336, 4096, "bf16", "nn"),
    Shape("weight gradient, out, 8B", 4096, 4096, 8192, "bf16", "tn"),
    Shape("weight gradient, small batch", 1024, 1024, 16384, "bf16", "tn"),
    Shape("expert, gate up, Mixtral", 64, 28672, 4096, "bf16", "nt", 8),
    Shape("expert, down, Mixtral", 256, 4096, 14336, "fp8_e4m3"),
    Shape("expert, up, DeepSeek", 32, 4096, 7168, "fp8_e4m3"),
    Shape("expert, down, DeepSeek", 128, 7168, 2048, "mxfp8_e4m3"),
    Shape("attention scores", 2048, 2048, 128, "bf16", "nt", 32),
    Shape("cube", 512, 512, 512),
    Shape("cube", 1024, 1024, 1024),
    Shape("cube", 2048, 2048, 2048, "fp8_e4m3"),
    Shape("cube", 4096, 4096, 4096),
    Shape("cube", 8192, 8192, 8192, "fp8_e4m3"),
    Shape("decode, gate up, gpt-oss", 1, 5760, 2880, "bf16@mxfp4_e2m1"),
    Shape("decode, gate up, gpt-oss", 16, 5760, 2880, "mxfp8_e4m3@mxfp4_e2m1"),
    Shape("decode, out, 8B", 32, 4096, 4096, "bf16@mxfp6_e2m3"),
    Shape("decode, down, 70B", 64, 8192, 28672, "bf16@fp8_e4m3"),
    Shape("prefill 512, gate up, gpt-oss", 512, 5760, 2880, "bf16@mxfp4_e2m1"),
    Shape("prefill 2048, gate up, 8B", 2048, 28672, 4096, "bf16@mxfp8_e4m3"),
    Shape("prefill 2048, gate up, gpt-oss", 2048, 5760, 2880, "mxfp8_e4m3@mxfp4_e2m1"),
    Shape("prefill 4096, down, 8B", 4096, 4096, 14336, "mxfp6_e2m3@mxfp4_e2m1"),
    Shape("cube", 4096, 4096, 4096, "mxfp6_e2m3"),
    Shape("cube", 8192, 8192, 8192, "mxfp6_e2m3"),
)

# Experts of gpt-oss, Mixtral and DeepSeek V3, from a few rows of decoding to many rows of a long prompt.
GROUPED = tuple(
    Shape("experts", rows, n, k, form, groups=groups)
    for form in ("bf16", "fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1", "bf16@mxfp4_e2m1", "mxfp8_e4m3@mxfp4_e2m1")
    for n, k in ((5760, 2880), (4096, 14336), (2048, 7168))
    for groups in (8, 32, 128)
    for rows in (4, 64, 512, 4096)
)
# TFLOP/s of others' kernels on one device, of gfx950 on MI355X: HipKittens and hipBLASLt as HipKittens timed
# them, the mxfp8 of ROCm/TransformerEngine#682, the mxfp4 of AITER's tuning table and tinygrad#17315 (MI350X
# or MI355X).
PUBLISHED = {
    "gfx950": (
        ("bf16", 4096, 1412.9),
        ("bf16", 8192, 1610.5),
        ("bf16", 16384, 1571.5),
        ("fp8_e4m3", 4096, 2748.8),
        ("fp8_e4m3", 8192, 3327.5),
        ("fp8_e4m3", 16384, 3377.8),
        ("mxfp8_e4m3", 4096, 1966.0),
        ("mxfp8_e4m3", 8192, 2345.0),
        ("mxfp4_e2m1", 4096, 3624.0),
        ("mxfp4_e2m1", 8192, 6000.0),
        ("mxfp4_e2m1", 16384, 5627.0),
    )
}


# ---- counting: one tile, a few K tiles -------------------------------------------------------------

NEUTRAL_SCALE = 127  # the byte of 1

# What is counted of one launch, in this order.
MATRIX_CLOCKS, LDS_CLOCKS, DMA_BYTES, READ_BYTES, UNIQUE_BYTES, WRITTEN_BYTES = range(6)


def counted_launch(
    kernel: Kernel, m: int, n: int, k: int, *, single: bool = False, whole: Size | None = None
) -> Numbers:
    """The counters of one launch that the terms need; see `launch_counters`."""
    c = launch_counters(kernel, m, n, k, single=single, whole=whole)
    lds = c.lds_data_clocks + c.lds_conflict_clocks
    found = (
        c.matrix_clocks,
        lds,
        c.lds_dma_bytes,
        128 * c.l2_read_requests,
        c.unique_read_bytes,
        c.global_written_bytes,
    )
    return np.array(found, np.float64)


@cache
def launch_counters(
    kernel: Kernel, m: int, n: int, k: int, *, single: bool = False, whole: Size | None = None
) -> EmulatorCounters:
    """Count one launch; see `launch`."""
    emulator_counters(reset=True, addresses=True)
    launch(kernel, m, n, k, single=single, whole=whole)
    return emulator_counters(reset=True, addresses=False)


def launch(
    kernel: Kernel, m: int, n: int, k: int, *, single: bool = False, whole: Size | None = None
) -> None:
    """Launch a kernel on uninitialized memory: what is counted or timed does not depend on the values.

    `single`: for a part of K, with float32 output and without per-tensor scales. If it is a part of a `whole`
    (M, N, K), its pitches are those of the whole product.
    """
    device = _hip.current_device()
    blocks: list[_hip.Block] = []

    def memory(size: int) -> int:
        blocks.append(_hip.allocate(max(16, size), device, 0))
        return blocks[-1].ptr

    values: dict[str, _launch.Value] = {
        "m": m,
        "n": n,
        "k": k,
        "alpha": 1.0,
        "ldc": n,
        "splits": 1,
        "batch_inner": 1,
    }
    whole_m, whole_n, whole_k = whole or (m, n, k)
    for side, name, rows, whole_rows in ((0, "a", m, whole_m), (1, "b", n, whole_n)):
        vectors, length = (k, whole_rows) if k_strided(kernel, side) else (rows, whole_k)
        ld = _up(length, kernel.chunk(side))
        bits = named_format((kernel.a, kernel.b)[side]).bits
        values[name], values[f"ld{name}"] = memory(vectors * ld * bits // 8), ld
        scaled = (kernel.a, kernel.b)[side] in QUANTIZED
        if scaled and (QUANTIZED[kernel.b].block or not single):
            blocked = bool(QUANTIZED[kernel.b].block)
            size = gemm_scale_bytes(whole_rows, k) if blocked else 4
            values[f"{name}_scale"] = scales = memory(size)
            # What lay there may be a NaN or huge, or take elements out of bfloat16's range.
            _hip.call("hipMemsetAsync", scales, NEUTRAL_SCALE if blocked else 0, size, 0)
            values[f"{name}_scale_step"] = gemm_scale_step(whole_rows) if blocked else 0
    iterations = max(1, -(-k // kernel.tile[2]))
    values["split_tiles"] = iterations + iterations % 2
    values["c"] = memory(4 * m * n)
    values["out_type"] = F32 if single else BF16
    workgroups = -(-m // kernel.tile[0]) * -(-n // kernel.tile[1])
    if kernel.op.removeprefix("scaled_") == GROUPED_MATMUL.kernels:  # one group of all rows
        offsets = upload_async(np.array([0, m], np.int32), device, 0)
        blocks.append(offsets._block)
        values |= {"offsets": offsets.ptr, "status": device_errors.slot(GROUPED_MATMUL.name), "groups": 1}
        workgroups = group_slots(m, 1, kernel.tile[0]) * -(-n // kernel.tile[1])
    arguments = {x.name: values.get(x.name, 0) for x in kernel.args}
    _launch.launch(_launch.function(device, kernel.name), workgroups, 0, **arguments)
    _hip.block("hipDeviceSynchronize")


def _up(n: int, chunk: int) -> int:
    return max(1, -(-n // chunk)) * chunk


def _tile(kernel: Kernel, m: int, n: int, k_tiles: int, single: bool, whole: Size) -> Numbers:
    """Count one workgroup's tile (m, n) of a product over `k_tiles` K tiles, with the same partial last one.

    Counters grow by the same amount for every two K tiles, so a few are enough; for every four if they have
    three quarters of a cache line.
    """
    step = kernel.tile[2]
    rest = whole[2] - (max(1, -(-whole[2] // step)) - 1) * step

    def count(tiles: int) -> Numbers:
        return counted_launch(kernel, m, n, (tiles - 1) * step + rest, single=single, whole=whole)

    period = 4 if 6 in (named_format(kernel.a).bits, named_format(kernel.b).bits) else 2
    few = 2 * period + k_tiles % period
    if k_tiles <= few:
        return count(k_tiles)
    low, high = count(few - period), count(few)
    return high + (k_tiles - few) * (high - low) / period


@dataclass(frozen=True)
class Counted:
    """The cost of a candidate by the counters: of one whole workgroup, and the sum over all."""

    cost: Cost
    tile: Numbers
    total: Numbers

    @property
    def loop(self) -> Loop:
        """The model's terms of the main loop, from counters instead of the model's numbers."""
        load, splits = self.cost.load, self.cost.splits
        mine, rates = load.per_unit(splits), load.rates
        simds = max(1.0, 4 / (load.waves * min(mine, load.resident)))
        known = load.overlapping(splits, self.cost.split_tiles)
        matrix = mine * self.tile[MATRIX_CLOCKS] / 4 * simds
        return known._replace(
            matrix=matrix,
            issue=matrix * load.issue_share,
            lds=mine * (self.tile[LDS_CLOCKS] / 2 + self.tile[DMA_BYTES] / rates.lds_writes.value),
            l2=mine * self.tile[READ_BYTES] / rates.l2.value,
            memory=load.memory(splits, self.total[UNIQUE_BYTES], self.total[WRITTEN_BYTES]),
        )

    @property
    def floor(self) -> float:
        """A lower bound in clocks, from the counted terms alone and the reduction."""
        loop = self.loop._replace(latency=0.0, fabric=0.0)
        terms = {term.name: term.clocks for term in self.cost.terms}
        return max(loop) + self.cost.load.slower(loop) + terms.get("reduction", 0.0)

    @property
    def clocks(self) -> float:
        """The estimate with counted terms; terms without counters (latency, starts) by the model."""
        loop = self.loop
        added = sum(t.clocks for t in self.cost.terms if not t.overlaps and t.name not in ("uneven", "power"))
        return max(loop) + self.cost.load.slower(loop) + uneven(loop) + added


def count(cost: Cost) -> Counted:
    """Count a candidate: each kind of tile, whole or at an edge, once for all tiles of that kind."""
    kernel, load = cost.kernel, cost.load
    x = load.x
    single, splits = cost.splits > 1, cost.splits
    steps = min(load.k_tiles, cost.split_tiles)
    rows, columns = min(kernel.tile[0], x.m), min(kernel.tile[1], x.n)
    last_rows = x.m - (load.tiles_m - 1) * kernel.tile[0]
    last_columns = x.n - (load.tiles_n - 1) * kernel.tile[1]

    def tile(m: int, n: int, k_tiles: int) -> Numbers:
        return _tile(kernel, m, n, k_tiles, single, (x.m, x.n, x.k))

    total = np.zeros(6)
    for m, times_m in ((rows, load.tiles_m - 1), (last_rows, 1)):
        for n, times_n in ((columns, load.tiles_n - 1), (last_columns, 1)):
            if times_m * times_n:
                total += times_m * times_n * tile(m, n, load.k_tiles)
    total[WRITTEN_BYTES] *= splits
    total *= load.batches
    total[UNIQUE_BYTES] = _unique(cost, rows, columns)
    return Counted(cost, tile(rows, columns, steps), total)


def _unique(cost: Cost, rows: int, columns: int) -> float:
    """Distinct bytes: each row and each column once, even if many tiles read it.

    A launch with fewer rows shows the share of the rows. Of an MN-major operand, whole chunks are loaded, or,
    through registers, what a thread loads of one row.
    """
    kernel, load = cost.kernel, cost.load
    x = load.x

    def loaded(n: int, side: int) -> int:
        each = kernel.tile[side] * kernel.tile[2] // kernel.chunk(side) // kernel.threads
        return _up(n, kernel.chunk(side) if load.by_dma else each) if k_strided(kernel, side) else n

    def tile(m: int, n: int) -> float:
        return float(_tile(kernel, m, n, load.k_tiles, cost.splits > 1, (m, n, x.k))[UNIQUE_BYTES])

    a, b, both = loaded(rows, 0), loaded(columns, 1), tile(rows, columns)
    fewer_rows, fewer_columns = (
        n // 2 // kernel.chunk(side) * kernel.chunk(side) for side, n in enumerate((rows, columns))
    )
    if fewer_rows:
        row = (both - tile(fewer_rows, columns)) / (a - fewer_rows)
        column = (both - a * row) / b
    else:
        column = (both - tile(rows, fewer_columns)) / (b - fewer_columns) if fewer_columns else 0.0
        row = (both - b * column) / a
    return loaded(x.m, 0) * row * load.a_matrices + loaded(x.n, 1) * column * load.b_matrices


# ---- the table -------------------------------------------------------------------------------------


def agreement(first: Sequence[float], second: Sequence[float]) -> float:
    """The share of pairs that two lists of times rank alike; a pair within 1 % in either counts as alike.

    Examples
    --------
    >>> agreement([1, 2, 3], [1, 3, 2])
    0.6666666666666666
    """
    pairs = list(combinations(range(len(first)), 2))

    def order(x: Sequence[float], i: int, j: int) -> int:
        return 0 if abs(x[i] - x[j]) <= 0.01 * min(x[i], x[j]) else 1 if x[i] > x[j] else -1

    alike = [order(first, i, j) * order(second, i, j) >= 0 for i, j in pairs]
    return sum(alike) / len(alike) if alike else 1.0


def run(shapes: Sequence[Shape] = SHAPES + GROUPED) -> int:
    """Print the table; return 0."""
    if _hip.runtime().emulator is None:
        text = requirement("the runtime must be the emulator", _hip.runtime().kind)
        raise RuntimeNotFoundError(f"explain --check: {text}; set HIPGEMM_RUNTIME=emulator")
    print("\n".join(_HEAD))
    worst, regrets = dict.fromkeys(("matrix", "lds", "l2", "memory"), 0.0), []
    for shape in shapes:
        label = f"{shape.what:28} {shape!s:23} {shape.format:10} {shape.layout}"
        answer = shape.ask()
        costs = [c for c in in_place(answer) if c.kernel.op != PLAIN]
        if not costs:
            print(f"{label}  no kernel of this table: {answer}")
            continue
        found = [count(c) for c in costs]
        off = {name: max(_deviation(x, name) for x in found) for name in worst}
        worst = {name: max(value, off[name]) for name, value in worst.items()}
        alike = agreement([c.clocks for c in costs], [x.clocks for x in found])
        regret = found[0].clocks / min(x.clocks for x in found) - 1
        floor = found[0].floor / min(x.floor for x in found) - 1
        regrets.append(regret)
        chosen = f"{'x'.join(map(str, costs[0].kernel.tile[:2]))}/{costs[0].splits}"
        line = f"{label}  {len(costs):2d}  {chosen:12} {costs[0].bound:8}"
        line += "".join(f" {100 * value:6.1f}" for value in off.values())
        print(f"{line}  {100 * alike:6.0f} {100 * regret:6.1f} {100 * floor:6.1f}", flush=True)
    print(
        f"{len(regrets)} shapes: the choice is the best one by the counters in"
        f" {sum(r < 0.01 for r in regrets)}; regret {100 * max(regrets, default=0):.1f} % at most,"
        f" {100 * sum(regrets) / max(1, len(regrets)):.2f} % on average; terms off by at most "
        + ", ".join(f"{100 * value:.1f} % ({name})" for name, value in worst.items())
    )
    _print_published(_hip.arch(_hip.current_device()))
    return 0


def _deviation(x: Counted, name: str) -> float:
    expected = next(term.clocks for term in x.cost.terms if term.name == name)
    return float(abs(getattr(x.loop, name) / expected - 1))


def _print_published(arch: str) -> None:
    if arch not in PUBLISHED:
        return
    print("\nThe chip's rates in the model against the best published cubes of others, TFLOP/s:")
    for form, size, best in PUBLISHED[arch]:
        cost = ask(size, size, size, form, arch=arch).costs[0]
        rate = 2 * size**3 / cost.microseconds / 1e6
        print(f"  {form:10} {size:6}^3  published {best:6.0f}  model {rate:6.0f}  ratio {rate / best:.2f}")


_HEAD = (
    "The model's candidates against the emulator's counters, for each product: how many kernels could serve;",
    "which one does (tile / parts of K) and what binds it; by how many % the model's terms differ from what",
    "was counted, for the worst candidate; how many % of the pairs of candidates both rank alike; what the",
    "choice costs over the best one, in %: with what was counted put into the model, and by the counted",
    "terms alone.",
    "",
    f"{'product':28} {'M x N x K':23} {'format':10} {'':2} kernels chosen     bound by"
    "  matrix    lds     l2 memory   alike regret  floor",
)
