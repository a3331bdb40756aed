"""The cost model: an estimate of a kernel's time, for kernel selection. See docs/change/choice.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..formats.elements import FORMATS, QUANTIZED
from ..kernels.manifest import Kernel
from .chips import CHIPS, chip_of

RUN, GROUP_ROWS = (
    64,
    8,
)  # consecutive tiles of an XCD, and the rows of tiles in them: src_hip/gemm/tile_order.hpp
_SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)  # numbers of parts of K to consider
# Loads of 32 elements in a row, by their bytes, that widen them on the way to LDS; each asks for their lines.
_WIDENED_LOADS = {1.0: 2, 0.75: 3}


# ---- inputs and outputs of the model ---------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """The parameters of a product that determine its time: `batches` products (M, K) @ (K, N)."""

    m: int
    n: int
    k: int
    batches: int = 1
    a_matrices: int = 0  # the number of distinct operands: 1 if all share one; 0 stands for `batches`
    b_matrices: int = 0
    out_bytes: int = 2  # of an element of the result
    a_bits: int = 16  # of an element of the operands, for the plain kernel
    b_bits: int = 16
    splittable: bool = True  # whether K may be split


class Term(NamedTuple):
    """A term of an estimate.

    Terms with `overlaps` run concurrently, and the longest of them counts; the others are added.
    """

    name: str
    clocks: float
    formula: str
    source: str
    overlaps: bool


@dataclass(frozen=True)
class Cost:
    """An estimated time of one kernel, in engine clocks. It is for comparing kernels.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    splits, split_tiles : int
        The number of parts of K, and of K iterations in each.
    tiles, rounds : int
        The number of output tiles of all products, and of workgroups that a compute unit runs in sequence.
    clocks : float
        The estimate.
    load : Load
        The work of the kernel, independent of how K is split.
    """

    kernel: Kernel
    splits: int
    split_tiles: int
    tiles: int
    rounds: int
    clocks: float
    load: Load = field(repr=False, compare=False)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the estimate."""
        return tuple(self.load.terms(self.splits, self.split_tiles))

    @property
    def bound(self) -> str:
        """The name of the longest term."""
        return max(self.terms, key=lambda term: term.clocks).name

    @property
    def microseconds(self) -> float:
        """The estimate in microseconds."""
        return self.clocks / self.load.chip.ghz / 1e3

    @property
    def totals(self) -> Totals:
        """Totals of the whole product, for comparison with counters."""
        return self.load.totals(self.splits)

    def __repr__(self) -> str:
        return f"Cost({self})"

    def __str__(self) -> str:
        tiles = f"{self.tiles} tile{'s' if self.tiles != 1 else ''}"
        splits = f" x {self.splits} parts of K" if self.splits > 1 else ""
        rounds = f"{self.rounds} round{'s' if self.rounds != 1 else ''}"
        return f"{self.kernel.name}: {tiles}{splits} in {rounds}, estimated at {self.clocks:.3g} clocks"


class Loop(NamedTuple):
    """Clocks of the concurrent terms. Those of the engine's clock come first."""

    matrix: float
    issue: float
    vector: float
    lds: float
    l2: float
    latency: float
    fabric: float
    memory: float

    @property
    def engine(self) -> float:
        """The longest term of those that a lower engine clock stretches."""
        return max(self[:6])


class Totals(NamedTuple):
    """Totals over the chip, in the units of the emulator's counters."""

    matrix_clocks: float  # of SIMDs
    lds_read_bytes: float
    lds_dma_bytes: float
    lds_written_bytes: float  # by stores from registers
    read_bytes: float  # requested by workgroups
    unique_bytes: float  # of the operands, each counted once
    written_bytes: float


def estimate(x: Product, kernel: Kernel) -> Cost:
    """Estimate a kernel's time for a product, with the best number of parts of K.

    >>> kernel = Kernel("k", "gemm", "gfx950", 256, (64, 64, 64), (), "bf16", "bf16", "nt")
    >>> one, many = (estimate(Product(m, 4096, 4096), kernel) for m in (1, 4096))
    >>> one.splits > 1, many.splits
    (True, 1)
    """
    load = Load(x, kernel)
    best, least = (1, 0), math.inf
    for choice in load.choices():
        loop = load.overlapping(*choice)
        slower = load.slower(loop)
        clocks = max(loop) + slower + uneven(loop) + sum(load.added(choice[0]))
        if clocks < least:
            best, least = choice, clocks
        if (
            max(loop.fabric, loop.memory) == max(loop)
            and not slower
            and load.readers(choice[0]) >= load.chip.compute_units
        ):
            break  # limited by the whole chip, all of which reads: more parts would not help
    tiles, rounds = load.tiles * load.batches, load.rounds(best[0])
    return Cost(kernel, *best, tiles=tiles, rounds=rounds, clocks=least, load=load)


def uneven(loop: Iterable[float]) -> float:
    """Clocks that the shorter terms of the main loop add to the longest one."""
    terms = list(loop)
    return CHIPS["gfx950"].rates.uneven.value * (sum(terms) - max(terms))


def copy_clocks(read: int, written: int, arch: str = "gfx950") -> float:
    """Estimate the time of a copy of an operand, in clocks: its bytes at memory bandwidth, and a launch."""
    chip = chip_of(arch)
    rates = chip.rates
    alone = rates.launch.value + rates.wave_start.value + rates.latency.value + rates.wave_end.value
    return alone + (read + written) / chip.memory_clock_bytes


# ---- the model -------------------------------------------------------------------------------------


class Load:
    """The work of a kernel for a product, independent of how K is split."""

    def __init__(self, x: Product, kernel: Kernel) -> None:
        self.x, self.kernel = x, kernel
        self.chip = chip_of(kernel.arch)
        self.rates = r = self.chip.rates
        self.plain = kernel.op == "plain"
        tm, tn = kernel.tile[0], kernel.tile[1]
        tk = kernel.tile[2] if len(kernel.tile) > 2 else 16
        self.tile_m, self.tile_n, self.tile_k = tm, tn, tk
        self.tiles_m, self.tiles_n = max(1, -(-x.m // tm)), max(1, -(-x.n // tn))
        self.tiles = self.tiles_m * self.tiles_n
        self.batches = max(1, x.batches)
        self.k_tiles = max(1, -(-x.k // tk))
        self.waves = max(1, kernel.threads // 64)
        self.resident = max(1, int(kernel.workgroups_per_cu))  # occupancy: workgroups per compute unit
        a_bytes, b_bytes = _bytes(kernel.a, x.a_bits), _bytes(kernel.b, x.b_bits)
        self.a_matrices = min(x.a_matrices or self.batches, self.batches)
        self.b_matrices = min(x.b_matrices or self.batches, self.batches)
        # Bytes of a K tile that are requested from L2, and written to LDS (rows past the end as zeros). Each
        # wave loads its block scales: at least one cache line of 128 bytes for each block of a load (a
        # matrix instruction of 32 rows has 2, one of 16 has 4), more if the wave has more than 64 rows.
        a_item, b_item = _bytes(kernel.a, x.a_bits, False), _bytes(kernel.b, x.b_bits, False)
        # For an MN-major operand, a load reads a run of elements, which may be shorter than a cache line.
        # Rows of a K-major operand that are not aligned to a cache line touch one more.
        whole_lines = kernel.schedule == "LineRing"
        ping_pong = whole_lines or kernel.schedule == "PingPong"
        parts = 2 if ping_pong else 1

        stored = kernel.main_loop.get("ds_write_bytes", 0) * self.waves  # to LDS from registers, else by DMA
        self.by_dma = not stored
        # Vector instructions of all waves, of 4 clocks on 4 SIMDs. By DMA there are few of them.
        self.vector_step = 0.0 if self.by_dma else kernel.main_loop.get("valu", 0) * self.waves
        self.bits = 32 if self.plain else kernel.mfma_bits or kernel.bits

        def asked(item: float, vectors: int, k_major: bool) -> float:
            if not k_major:
                return item * max(1.0, 128 * parts / (vectors * item))
            run = _touched_once(self.k_tiles) if whole_lines else _touched(x.k * item, tk * item)
            widened = not self.by_dma and self.bits > 8 * item
            return item * run * (_WIDENED_LOADS.get(item, 1) if widened else 1)

        a_asked = asked(a_item, tm, kernel.layout[:1] != "t")
        b_asked = asked(b_item, tn, kernel.layout[1:] != "n")
        cache_lines = 64 // kernel.mfma_rows * max(1.0, math.sqrt(tm * tn / self.waves) / 64)
        self.scale_bytes = kernel.main_loop.get("vmem", 0) * self.waves * 128 * cache_lines
        if not self.by_dma:  # a load of a byte by each lane: 16 rows of 4 blocks
            rows = min(tm, x.m) * _has_block_scales(kernel.a) + min(tn, x.n) * _has_block_scales(kernel.b)
            self.scale_bytes = 4 * 128 / 16 * rows
        self.step_bytes = (min(tm, x.m) * a_asked + min(tn, x.n) * b_asked) * tk + self.scale_bytes
        lds_row = float if whole_lines else _lds_row
        self.stage_bytes = stored or (
            (tm + tn) * 4 * tk if self.plain else tm * lds_row(tk * a_item) + tn * lds_row(tk * b_item)
        )
        reads = kernel.main_loop.get("ds_read_bytes", 1024 * kernel.main_loop.get("ds_read", 0))
        self.lds_bytes = reads * self.waves or 2 * self.stage_bytes
        if self.plain:  # each thread computes a square of the tile, from float32 in LDS
            self.lds_bytes = kernel.threads * 2 * math.sqrt(tm * tn / kernel.threads) * 4 * tk
        rate = r.vector.value / r.plain_work.value if self.plain else r.matrix[self.bits].value
        self.peak = rate * self.chip.compute_units
        # Clocks of a compute unit per K tile.
        self.matrix_step = tm * tn * tk / rate
        # Before a scaled matrix instruction its scales are loaded. Those of 32 rows have the time for it.
        scaled = not self.plain and self.bits <= 6 and kernel.mfma_rows == 16
        instruction = 16 * 16 * 128 / (rate / 4)
        self.issue_share = 1 + r.scale_issue.value / instruction if scaled else 0.0
        self.lds_step = self.lds_bytes / r.lds_reads.value + self.stage_bytes / r.lds_writes.value
        self.l2_step = self.step_bytes / r.l2.value
        # The prefetch distance in K tiles. Registers hold one more than the stage in LDS, or two more, for
        # which the loop has two tiles.
        stages = kernel.lds // self.stage_bytes if kernel.lds else 2.0
        if not self.by_dma:
            stages = 1 + kernel.main_loop.get("tiles", 1)
        self.ahead = 1.5 if whole_lines else 1.25 if ping_pong else max(1.0, stages - 1)
        # Tiles of zeros that are prefetched at the end, to keep wait counts.
        self.spare = max(0.0, stages - 2) if self.by_dma else 0.0
        if whole_lines:  # 15 DMAs before the first tile; 7, 8, 5 and 4 in each four tiles
            self.spare = (15 + (0, 1, 3, 2)[self.k_tiles % 4]) / 6
        alone = self.matrix_step * max(1.0, 4 / self.waves)
        if ping_pong:
            chain = max(alone, self.lds_step)
        elif kernel.schedule == "SingleBuffer":  # half of the reads, and all stores, while half is multiplied
            reads, stores = self.lds_bytes / r.lds_reads.value, self.stage_bytes / r.lds_writes.value
            stores = max(stores, self.vector_step * max(1.0, 4 / self.waves))
            chain = reads / 2 + max(alone, reads) / 2 + max(alone / 2, stores) + 2 * r.lds_latency.value
        else:
            chain = alone + self.lds_step + r.lds_latency.value
        self.chain_step = max(chain, r.latency.value / self.ahead)
        self.macs = self.tiles * tm * tn * self.k_tiles * tk * self.batches
        operands = self.a_matrices * x.m * a_bytes + self.b_matrices * x.n * b_bytes
        self.unique_bytes = operands * x.k
        self.read_bytes = (
            (self.tiles_n * x.m * a_asked + self.tiles_m * x.n * b_asked) * x.k
            + self.tiles * self.k_tiles * self.scale_bytes
        ) * self.batches
        # Tiles that are in flight on an XCD, and how many rows and columns of tiles they cover.
        xcd_units = max(1, self.chip.compute_units // self.chip.xcds)
        self.together = max(1, min(xcd_units * self.resident, RUN, -(-self.tiles // self.chip.xcds)))
        self.run_rows = min(GROUP_ROWS, self.tiles_m, self.together)
        self.run_columns = min(self.tiles_n, -(-self.together // self.run_rows))
        each = min(self.run_rows * tm, x.m) * a_bytes + min(self.run_columns * tn, x.n) * b_bytes
        missed = each * x.k * self.batches * self.tiles / self.together
        self.missed_bytes = min(self.read_bytes, max(self.unique_bytes, missed))
        # The mean time from a request to its data, when all compute units load.
        late = max(0.0, r.latency.value - r.loaded_latency.value)
        down, across = min(tm, x.m) * a_bytes, min(tn, x.n) * b_bytes
        covered = self.run_rows * self.run_columns * (down + across)
        missed_share = (self.run_rows * down + self.run_columns * across) / max(1.0, covered)
        self.round_trip = r.loaded_latency.value + late * missed_share
        self.results = x.m * x.n * self.batches

    def choices(self) -> Iterator[tuple[int, int]]:
        """Numbers of parts of K to consider, with the even number of K iterations in each."""
        iterations = self.k_tiles + self.k_tiles % 2
        yield 1, iterations
        if (
            self.plain
            or not self.x.splittable
            or self.tiles * self.batches >= 4 * self.chip.compute_units * self.resident
        ):
            return  # so many rounds that idle compute units in the last one hardly matter
        before = 1
        for wanted in _SPLITS:
            each = -(-iterations // wanted)
            each += each % 2
            splits = -(-iterations // each)
            if splits > before:
                before = splits
                yield splits, each

    def per_unit(self, splits: int) -> int:
        """Workgroups of the compute unit with the most workgroups."""
        xcds = self.chip.xcds
        on_xcd = -(-self.tiles * splits * self.batches // xcds)
        return -(-on_xcd // max(1, self.chip.compute_units // xcds))

    def rounds(self, splits: int) -> int:
        """Workgroups that such a compute unit runs in sequence."""
        return -(-self.per_unit(splits) // self.resident)

    def written(self, splits: int) -> float:
        """Bytes that the kernel stores, in all."""
        return self.results * (4 * splits if splits > 1 else self.x.out_bytes)

    def stored_bytes(self, splits: int) -> int:
        """Bytes of an output tile."""
        size = 4 if splits > 1 else self.x.out_bytes
        return min(self.tile_m, self.x.m) * min(self.tile_n, self.x.n) * size

    def overlapping(self, splits: int, split_tiles: int) -> Loop:
        """Clocks of the concurrent terms, at the highest clock."""
        r, mine, steps = self.rates, self.per_unit(splits), min(self.k_tiles, split_tiles)
        simds = max(1.0, 4 / (self.waves * min(mine, self.resident)))
        written = self.written(splits)
        matrix = mine * steps * self.matrix_step * simds
        in_flight = mine * steps * self.step_bytes / r.in_flight.value * self.round_trip
        return Loop(
            matrix=matrix,
            issue=matrix * self.issue_share,
            vector=mine * steps * self.vector_step * simds,
            lds=mine * (steps * self.lds_step + self.spare * self.stage_bytes / r.lds_writes.value),
            l2=mine * steps * self.l2_step,
            latency=max(self.rounds(splits) * steps * self.chain_step, in_flight),
            fabric=(self.missed_bytes + written) / r.fabric.value,
            memory=self.memory(splits, self.unique_bytes, written),
        )

    def memory(self, splits: int, read: float, written: float) -> float:
        """Clocks to read and to write so many bytes of memory."""
        return (
            read / self.chip.read_clock_bytes(self.readers(splits)) + written / self.chip.memory_clock_bytes
        )

    def readers(self, splits: int) -> float:
        """Workgroups that read memory at a time.

        In few rows or columns of tiles, those that read the same are in step, and count once.
        """
        if min(self.tiles_m, self.tiles_n) >= GROUP_ROWS:
            return self.chip.compute_units
        extent = max(1, self.x.m + self.x.n)  # else nothing is read, at no rate
        return extent / max(self.tile_m, self.tile_n) * self.batches * splits

    def busy(self, loop: Loop) -> float:
        """The share of the main loop in which the matrix units of the chip are busy."""
        return 0.0 if self.plain else min(1.0, self.macs / self.peak / loop.engine)

    def slower(self, loop: Loop) -> float:
        """Clocks that the main loop takes longer because power holds the clock down."""
        return max(0.0, loop.engine / self.rates.clock_at(self.busy(loop)) - max(loop))

    def added(self, splits: int) -> tuple[float, ...]:
        """Clocks of the sequential terms: launch, start, store, reduction of the parts of K."""
        r, mine, rounds = self.rates, self.per_unit(splits), self.rounds(splits)
        return (
            r.launch.value,
            rounds * (r.wave_start.value + r.latency.value),
            mine * self.stored_bytes(splits) / r.l2.value + rounds * r.wave_end.value,
            self.reduction(splits) if splits > 1 else 0.0,
        )

    def reduction(self, splits: int) -> float:
        """Clocks of the second kernel, which adds the parts of K."""
        r, workspace = self.rates, self.written(splits)
        speed = r.fabric.value if workspace <= r.cache.value else self.chip.memory_clock_bytes
        moved = workspace / speed + self.results * self.x.out_bytes / self.chip.memory_clock_bytes
        return r.launch.value + r.wave_start.value + r.latency.value + r.wave_end.value + moved

    def totals(self, splits: int) -> Totals:
        """Totals over the chip."""
        groups = self.tiles * self.batches * splits
        steps = self.tiles * self.k_tiles * self.batches
        return Totals(
            matrix_clocks=0.0 if self.plain else 4 * self.macs / self.rates.matrix[self.bits].value,
            lds_read_bytes=steps * self.lds_bytes,
            lds_dma_bytes=(steps + groups * self.spare) * self.stage_bytes if self.by_dma else 0.0,
            lds_written_bytes=0.0 if self.by_dma else steps * self.stage_bytes,
            read_bytes=self.read_bytes,
            unique_bytes=self.unique_bytes,
            written_bytes=self.written(splits),
        )

    def terms(self, splits: int, split_tiles: int) -> Iterator[Term]:
        """The terms with their formulas."""
        chip, r, mine, rounds = self.chip, self.rates, self.per_unit(splits), self.rounds(splits)
        steps = min(self.k_tiles, split_tiles)
        loop = self.overlapping(splits, split_tiles)
        launch, start, store, reduction = self.added(splits)
        tile = f"{self.tile_m} x {self.tile_n} x {self.tile_k}"
        each = f"{mine} workgroup{'s' if mine != 1 else ''} x {steps} K tiles"
        rate = r.vector if self.plain else r.matrix[self.bits]
        speed = f"({rate.value:.0f} / {r.plain_work.value:.0f})" if self.plain else f"{rate.value:.0f}"
        written = self.written(splits)
        name, formula = "vector" if self.plain else "matrix", f"{each} x {tile} / {speed}"
        busy = min(4, self.waves * min(mine, self.resident))
        formula += f" x 4 / {busy}, the SIMDs with a wave" if busy < 4 else ""
        yield Term(name, loop.matrix, formula, rate.source, True)
        if loop.issue:
            formula = f"{loop.matrix:.0f} of matrix x {self.issue_share:g}: the scales of each instruction"
            yield Term("issue", loop.issue, formula, r.scale_issue.source, True)
        if loop.vector:
            formula = f"{each} x {self.vector_step:.0f} vector instructions of its waves"
            formula += f" x 4 / {busy}" if busy < 4 else ""
            yield Term("vector", loop.vector, formula, r.vector.source, True)
        formula = f"{each} x ({self.lds_bytes:.0f} read / {r.lds_reads.value:.0f}"
        formula += f" + {self.stage_bytes:.0f} written / {r.lds_writes.value:.0f})"
        formula += f" + {self.spare:.0f} tiles of zeros at the end" if self.spare else ""
        yield Term("lds", loop.lds, formula, f"{r.lds_reads.source}; {r.lds_writes.source}", True)
        formula = f"{each} x {self.step_bytes:.0f} bytes / {r.l2.value:.0f}"
        yield Term("l2", loop.l2, formula, r.l2.source, True)
        formula = f"({_size(self.missed_bytes)} for {self.run_rows} x {self.run_columns} tiles in each L2"
        formula += f" + {_size(written)} stored) / {r.fabric.value:.0f}"
        yield Term("fabric", loop.fabric, formula, r.fabric.source, True)
        readers = self.readers(splits)
        formula = f"{_size(self.unique_bytes)} of operands / {chip.read_clock_bytes(readers):.0f}"
        formula += f" by {readers:.0f} workgroups" if readers < chip.compute_units else ""
        formula += f" + {_size(written)} stored / {chip.memory_clock_bytes:.0f}"
        source = f"{r.memory_reads[1.0].source}; {r.sustained_memory.source}"
        yield Term("memory", loop.memory, formula, source, True)
        chain = rounds * steps * self.chain_step
        if chain < loop.latency:
            formula = f"{each} x {self.step_bytes:.0f} bytes / {_size(r.in_flight.value)} in flight"
            formula += f" x {self.round_trip:.0f}"
            source = f"{r.in_flight.source}; {r.loaded_latency.source}"
        else:
            formula = f"{rounds} round{'s' if rounds != 1 else ''} x {steps} K tiles x {self.chain_step:.0f}"
            source = f"a K tile of one workgroup: prefetched {self.ahead:g} ahead,"
            source += f" {r.latency.value:.0f} clocks each; {r.latency.source}"
        yield Term("latency", loop.latency, formula, source, True)
        share = self.busy(loop)
        formula = f"{loop.engine:.0f} at {r.clock_at(share):.2f} of the clock, matrix units {share:.0%} busy"
        yield Term("power", self.slower(loop), formula, "; ".join(x.source for x in r.clock.values()), False)
        formula = f"{r.uneven.value:g} x the sum of all terms above except the longest"
        yield Term("uneven", uneven(loop), formula, r.uneven.source, False)
        yield Term("launch", launch, f"{r.launch.value:.0f}", r.launch.source, False)
        formula = f"{rounds} x ({r.wave_start.value:.0f} + {r.latency.value:.0f})"
        yield Term("start", start, formula, f"{r.wave_start.source}; {r.latency.source}", False)
        stored = f"{mine} tile{'s' if mine != 1 else ''} of {self.stored_bytes(splits):.0f} bytes"
        formula = f"{stored} / {r.l2.value:.0f} + {rounds} x {r.wave_end.value:.0f}"
        yield Term("store", store, formula, f"{r.l2.source}; {r.wave_end.source}", False)
        if splits > 1:
            formula = f"a second launch, start and end; {_size(written)} read back, results stored"
            yield Term("reduction", reduction, formula, f"{r.launch.source}; {r.fabric.source}", False)


def _bytes(name: str, bits: int, scales: bool = True) -> float:
    """Bytes of an element of a format, with its share of the scales; by `bits` for the plain kernel."""
    made = FORMATS.get(name) or QUANTIZED.get(name.removesuffix("_block"))
    if made is None:
        return bits / 8
    return made.bits / 8 + (1 / made.block if scales and made.block else 0)


def _has_block_scales(name: str) -> bool:
    """Whether a kernel's operand has scales of blocks."""
    return name.endswith("_block") or (name in QUANTIZED and bool(QUANTIZED[name].block))


def _touched_once(k_tiles: int) -> float:
    """The bytes of a row's lines, each asked for once, by its own: K tiles of 96, the last one first.

    >>> _touched_once(1), _touched_once(64)
    (1.3333333333333333, 1.0208333333333333)
    """
    last = 1 if k_tiles % 4 in (0, 1) else 2
    return (math.ceil((k_tiles - 1) * 96 / 128) + last) * 128 / (k_tiles * 96)


def _lds_row(size: float) -> float:
    """Bytes that a row of a K tile has in LDS: 6-bit elements take as much as those of 8 bits.

    >>> _lds_row(96), _lds_row(64)
    (128.0, 64.0)
    """
    return float(2 ** math.ceil(math.log2(size)))


def _touched(row: float, width: float) -> float:
    """Bytes of the cache lines that rows of K tiles touch, relative to their `width`; `row` is the pitch.

    >>> _touched(4096, 128), _touched(2880, 128), _touched(3072, 96)
    (1.0, 1.5, 2.0)
    """
    pitch, size = -(-int(row) // 16) * 16, int(width)
    starts = [i * pitch + tile * size for i in range(8) for tile in range(4)]
    cache_lines = [-(-(start % 128 + size) // 128) for start in starts]
    return sum(cache_lines) * 128 / len(starts) / width


def _size(count: float) -> str:
    """Format a number of bytes."""
    power = min(4, int(math.log2(count) // 10)) if count >= 1 else 0
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
