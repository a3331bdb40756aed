"""Parameters of the cost model for each architecture, with their sources. `explain` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple


class Rate(NamedTuple):
    """A parameter of the model."""

    value: float
    unit: str
    source: str

    @property
    def assumed(self) -> bool:
        """Whether no source gives it for this architecture."""
        return self.source.startswith("assumed")


@dataclass(frozen=True)
class Rates:
    """The parameters of an architecture."""

    matrix: Mapping[int, Rate]  # by the bits of an element
    vector: Rate
    plain_work: Rate
    clock: Mapping[float, Rate]  # by the share of clocks in which the matrix units are busy; lines between
    scale_issue: Rate
    memory_reads: Mapping[float, Rate]  # by the share of compute units that read; lines between
    sustained_memory: Rate
    lds_reads: Rate
    lds_writes: Rate
    l2: Rate
    in_flight: Rate
    fabric: Rate
    cache: Rate
    latency: Rate
    loaded_latency: Rate
    lds_latency: Rate
    wave_start: Rate
    wave_end: Rate
    uneven: Rate
    launch: Rate

    def named(self) -> dict[str, Rate]:
        """The parameters by the names to print.

        >>> list(CHIPS["gfx942"].rates.named())[:4]
        ['matrix, 16 bits', 'matrix, 8 bits', 'vector', 'plain work']
        """
        made: dict[str, Rate] = {}
        for field in fields(self):
            rate, name = getattr(self, field.name), _LABELS.get(field.name, field.name.replace("_", " "))
            if field.name == "matrix":
                made |= {f"{name}, {bits} bits": each for bits, each in rate.items()}
            elif field.name in _SHARES:
                made |= {f"{name}, {share:.0%} {_SHARES[field.name]}": each for share, each in rate.items()}
            else:
                made[name] = rate
        return made

    def clock_at(self, busy: float) -> float:
        """The engine clock under load, relative to the highest, with the matrix units `busy` for that share.

        >>> [round(CHIPS["gfx950"].rates.clock_at(busy), 2) for busy in (0, 0.3, 0.72, 1)]
        [1.0, 0.85, 0.71, 0.62]
        """
        return _between(self.clock, busy)


_SHARES = {"clock": "busy", "memory_reads": "of the CUs"}
_LABELS = {"lds_reads": "LDS reads", "lds_writes": "LDS writes", "l2": "L2", "lds_latency": "LDS latency"}
_LABELS["cache"] = "memory-side cache"


def _between(knots: Mapping[float, Rate], share: float) -> float:
    """The value at a share, on the lines between the given ones."""
    for (low, at_low), (high, at_high) in pairwise(knots.items()):
        if share <= high:
            return at_low.value + (at_high.value - at_low.value) * (share - low) / (high - low)
    return knots[max(knots)].value


@dataclass(frozen=True)
class Chip:
    """One device of an architecture, at its highest clock. From vendors' data sheets."""

    name: str
    compute_units: int
    xcds: int  # each has its own L2; workgroups are assigned to XCDs round-robin
    ghz: float
    memory: float  # bytes per second
    rates: Rates

    def tflops(self, bits: int) -> float:
        """The peak of dense products of elements of so many bits.

        >>> round(CHIPS["gfx950"].tflops(8))
        5033
        """
        return 2 * self.rates.matrix[bits].value * self.compute_units * self.ghz / 1e3

    @property
    def memory_clock_bytes(self) -> float:
        """Sustained memory bandwidth of passes that read and write, in bytes per clock."""
        return self.memory * self.rates.sustained_memory.value / (self.ghz * 1e9)

    def read_clock_bytes(self, workgroups: float) -> float:
        """Bytes per clock that so many workgroups read, each what no other does.

        >>> [round(CHIPS["gfx950"].read_clock_bytes(n)) for n in (16, 128, 256, 1000)]
        [319, 1908, 2684, 2684]
        """
        share = min(1.0, workgroups / self.compute_units)
        return self.memory * _between(self.rates.memory_reads, share) / (self.ghz * 1e9)

    def __str__(self) -> str:
        return f"{self.name}: {self.compute_units} CUs, {self.ghz} GHz, {self.memory / 1e12:g} TB/s"


MACS, BYTES = "multiply-adds/clock/CU", "bytes/clock/CU"
OF_HIGHEST = "of the highest"
_ASSUMED = "assumed: AMD's mirage timing table"
_TUTORIALS = "measured: AMD's gfx950 Gluon tutorials, MI355X"

_GFX950 = Rates(
    matrix={
        16: Rate(2048, MACS, "ISA: 16x16x32 in 4 passes of 4 clocks, 4 SIMDs"),
        8: Rate(4096, MACS, "ISA: 16x16x128 in 8 passes of 4 clocks, 4 SIMDs"),
        6: Rate(8192, MACS, "ISA: 16x16x128 in 4 passes of 4 clocks, 4 SIMDs"),
        4: Rate(8192, MACS, "ISA: 16x16x128 in 4 passes of 4 clocks, 4 SIMDs"),
    },
    vector=Rate(64, MACS, "ISA: 64 lanes in 4 clocks, 4 SIMDs"),
    plain_work=Rate(2, "instructions/multiply-add", "assumed: one LDS access or conversion for each"),
    # From the TFLOP/s of whole kernels and the busy share of their main loops: at least the clock.
    clock={
        0.0: Rate(1, OF_HIGHEST, "assumed: nothing holds it down"),
        0.25: Rate(0.86, OF_HIGHEST, f"{_TUTORIALS}: bf16 541 TFLOP/s, 2.06 GHz"),
        0.6: Rate(0.82, OF_HIGHEST, f"{_TUTORIALS}: three, 59 to 63 % busy, 1.85 to 2.13 GHz"),
        0.72: Rate(0.71, OF_HIGHEST, f"{_TUTORIALS}: bf16 1263 TFLOP/s, 1.68 GHz"),
        1.0: Rate(
            0.62,
            OF_HIGHEST,
            f"{_TUTORIALS}: four of bf16 and fp8, 1.37 to 1.55 GHz; HipKittens' best: 1.54 and 1.59",
        ),
    },
    scale_issue=Rate(
        4,
        "clocks/instruction",
        f"{_TUTORIALS}: 16x16x128 of 16 clocks takes 20, fp4 loop 79.6 % busy",
    ),
    memory_reads={
        0.0: Rate(0, "of the peak", "exact: none reads"),
        **{
            workgroups / 256: Rate(
                rate / 8000, "of the peak", f"{_TUTORIALS}: {workgroups} workgroups, {rate} GB/s"
            )
            for workgroups, rate in (
                *((32, 1529), (64, 2864), (96, 4067), (128, 4580)),
                *((160, 4828), (192, 5628), (224, 6198), (256, 6442)),
            )
        },
    },
    sustained_memory=Rate(0.56, "of the peak", "torchao's MX quantizer, MI350X: 4.5 of 8 TB/s"),
    lds_reads=Rate(256, BYTES, "AMD's rocRoller: two ports, 64 lanes x 16 bytes in 8 clocks on each"),
    lds_writes=Rate(128, BYTES, "assumed: DMA as 16-byte writes, rocRoller"),
    l2=Rate(45, BYTES, f"{_TUTORIALS}: 44 to 46 sustained, bf16 tiles of five sizes"),
    in_flight=Rate(44 * 1024, "bytes/CU", f"{_TUTORIALS}: 32 KiB of L1, and 12 KiB of requests in its queue"),
    fabric=Rate(
        7167, "bytes/clock", "assumed as on gfx942: AMD: 17.2 TB/s from the memory-side cache; none published"
    ),
    cache=Rate(256 * 2**20, "bytes", "AMD: memory-side cache"),
    latency=Rate(1344, "clocks", f"{_ASSUMED}: L1 50 ns, L2 130 ns, memory 380 ns, at 2.4 GHz"),
    loaded_latency=Rate(1000, "clocks", f"{_TUTORIALS}: 256 CUs at once, most lines from L2"),
    lds_latency=Rate(44, "clocks", "measured: tinygrad's traces, 40 to 48 from a read to its use"),
    wave_start=Rate(700, "clocks", "measured: tinygrad's traces, cold start of a wave"),
    wave_end=Rate(230, "clocks", "measured: tinygrad's traces, 180 to 280 from the last store to the end"),
    uneven=Rate(
        0.02, "of the shorter terms", "assumed: overlap is not perfect; small, so that it only breaks ties"
    ),
    launch=Rate(1032, "clocks", f"{_ASSUMED}: dispatch 430 ns"),
)


def _like_gfx950(ghz: float, **known: Any) -> Rates:
    """The parameters of another architecture: the known ones, and gfx950's for the others."""
    known["latency"] = Rate(560 * ghz, "clocks", f"assumed as on gfx950: 560 ns, at {ghz} GHz")
    known["launch"] = Rate(430 * ghz, "clocks", f"assumed as on gfx950: 430 ns, at {ghz} GHz")

    def assumed(rate: Rate) -> Rate:
        return rate if rate.assumed else rate._replace(source=f"assumed as on gfx950: {rate.source}")

    for field in fields(Rates):
        rate = getattr(_GFX950, field.name)
        if field.name not in known:
            several = isinstance(rate, Mapping)
            known[field.name] = {x: assumed(r) for x, r in rate.items()} if several else assumed(rate)
    return Rates(**known)


_32_BANKS = Rate(128, BYTES, "ISA: 32 banks of 4 bytes")
_WRITES = Rate(128, BYTES, "AMD's rocRoller: two ports, 64 lanes x 16 bytes in 16 clocks on each")
_2_SIMDS = Rate(64, MACS, "ISA: 32 lanes in a clock, 2 SIMDs")
_ROCM = "ROCm's documentation"
CHIPS = {
    "gfx950": Chip("MI355X", 256, 8, 2.4, 8.0e12, _GFX950),
    "gfx942": Chip(
        "MI300X",
        304,
        8,
        2.1,
        5.3e12,
        _like_gfx950(
            2.1,
            matrix={
                16: Rate(1024, MACS, "AMD: 1307 TFLOP/s of bf16, dense"),
                8: Rate(2048, MACS, "AMD: 2615 TFLOP/s of fp8, dense"),
            },
            vector=Rate(64, MACS, "ISA: 64 lanes in 4 clocks, 4 SIMDs"),
            lds_reads=_32_BANKS,
            lds_writes=_WRITES,
            l2=Rate(2048 / 38, BYTES, "AMD, CDNA 3: 16 channels x 128 bytes/clock for the 38 CUs of an XCD"),
            fabric=Rate(8190, "bytes/clock", "AMD, CDNA 3: 17.2 TB/s from the memory-side cache"),
            cache=Rate(256 * 2**20, "bytes", f"{_ROCM}: memory-side cache"),
        ),
    ),
    "gfx90a": Chip(
        "one die of MI250X",
        110,
        1,
        1.7,
        1.6e12,
        _like_gfx950(
            1.7,
            matrix={16: Rate(512, MACS, "AMD: 191.5 TFLOP/s of bf16 on each die")},
            vector=Rate(64, MACS, "ISA: 64 lanes in 4 clocks, 4 SIMDs"),
            lds_reads=_32_BANKS,
            l2=Rate(4096 / 110, BYTES, "AMD, CDNA 2: 32 channels x 128 bytes/clock for the 110 CUs"),
            fabric=Rate(1.6e3 / 1.7, "bytes/clock", "no memory-side cache: peak of the memory"),
            cache=Rate(8 * 2**20, "bytes", f"{_ROCM}: L2; there is no memory-side cache"),
        ),
    ),
    "gfx1100": Chip(
        "RX 7900 XTX",
        96,
        1,
        2.5,
        0.96e12,
        _like_gfx950(
            2.5,
            matrix={16: Rate(256, MACS, "AMD: 123 TFLOP/s of fp16")},
            vector=_2_SIMDS,
            lds_reads=_32_BANKS,
            fabric=Rate(2120, "bytes/clock", "AMD: 5.3 TB/s between the dies of compute and of cache"),
            cache=Rate(96 * 2**20, "bytes", f"{_ROCM}: memory-side cache"),
        ),
    ),
    "gfx1201": Chip(
        "RX 9070 XT",
        64,
        1,
        2.97,
        0.64e12,
        _like_gfx950(
            2.97,
            matrix={
                16: Rate(512, MACS, "AMD: 195 TFLOP/s of fp16, dense"),
                8: Rate(1024, MACS, "AMD: 389 TFLOP/s of fp8, dense"),
            },
            vector=_2_SIMDS,
            lds_reads=_32_BANKS,
            fabric=Rate(2120 * 64 / 96, "bytes/clock", "assumed: as gfx1100's, for each CU"),
            cache=Rate(64 * 2**20, "bytes", f"{_ROCM}: memory-side cache"),
        ),
    ),
}


def chip_of(arch: str) -> Chip:
    """The chip of an architecture; gfx950's for one that is not known."""
    return CHIPS.get(arch, CHIPS["gfx950"])
