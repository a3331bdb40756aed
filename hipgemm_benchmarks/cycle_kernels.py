"""Kernels and launches by the cycle model: their main loops, and what holds them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hipgemm.inspect.counters import EmulatorLaunch, emulator_counters
from hipgemm.kernels.manifest import Kernel
from hipgemm.products.chips import Chip, chip_of
from hipgemm.products.cost import Cost

from . import cycles
from .model_check import launch

LINE = 128  # bytes
LDS_BYTES = (64, 96)  # for each clock of the matrix pipes: where `lds_clock` was measured
K_TILES = 64  # of the product that is recorded
# Figures without which a part of the CU holds nothing up.
WITHOUT: Mapping[str, Mapping[str, float]] = {
    "scales": {"scale_clocks": 0},
    "LDS": {"lds_queue": 1e6, "lds_latency": 0, "lds_return_bytes": 1e6, "dma_write_bytes": 1e6},
    "memory": {
        "l1_bytes": 1e9,
        "l2_bytes": 1e9,
        "loaded_latency": 0,
        "l1_latency": 0,
        "l2_latency": 0,
        "cache_latency": 0,
        "memory_latency": 0,
        "memory_wait": 0,
        "cache_bytes": 1e9,
        "memory_bytes": 1e9,
        "memory_queue": 1e6,
        "address_clocks_wide": 0,
        "address_clocks_dword": 0,
    },
    "barriers": {"barrier_clocks": 0},
    "branches": {"branch_clocks": 4, "straddle_clocks": 0},
}


@dataclass(frozen=True)
class Timed:
    """A launch on one CU, and what it would gain."""

    resident: int  # workgroups on the CU
    replay: cycles.Replay
    loop: cycles.Loop
    without: Mapping[str, float]  # clocks of the loop, relative, without one part

    @property
    def bound(self) -> str:
        """What most of the time is lost to; the matrix pipe if it is hardly lost."""
        least = min(self.without, key=lambda name: self.without[name])
        return "matrix" if self.loop.busy > 0.95 or self.without[least] > 0.99 else least


@dataclass(frozen=True)
class Modelled(Timed):
    """A kernel of this package, with the figures of the table and with others."""

    kernel: Kernel
    speed: float  # the more the better
    at_ends: Mapping[tuple[str, float], float]  # the speed with one figure at an end

    @property
    def clocks(self) -> float:
        """Clocks of a K tile of each workgroup."""
        m, n, k = self.kernel.tile
        tiles = self.loop.matrix_clocks / (m * n * k / _peak(self.kernel))
        return self.loop.clocks / tiles * self.resident


def model(kernel: Kernel, *, ends: bool = False) -> Modelled:
    """Record one workgroup of a kernel and replay as many as fit the CU, on a chip that is loaded.

    The speed is that of the main loop, in multiply-adds per clock.
    """
    m, n, k = kernel.tile
    cycles.record(lambda: launch(kernel, m, n, K_TILES * k))

    def speed(found: cycles.Replay) -> float:
        return found.main_loop().busy * _peak(kernel)

    return _modelled(kernel, _resident(kernel), {}, speed, ends=ends)


def model_product(cost: Cost, *, ends: bool = False) -> Modelled:
    """Record the workgroups of one XCD of a product and replay those of one CU, with the XCD's caches.

    The speed is that of all rounds, from start to end, in products per clock.
    """
    kernel, load, x = cost.kernel, cost.load, cost.load.x
    groups, resident = workgroups_of_xcd(load.tiles * cost.splits, _resident(kernel))
    groups = [g for g in groups if g < load.tiles]  # parts of K other than the first are left out
    part = min(x.k, cost.split_tiles * kernel.tile[2])
    single, whole = cost.splits > 1, (x.m, x.n, x.k)
    cycles.record(lambda: launch(kernel, x.m, x.n, part, single=single, whole=whole), groups, only=True)
    given = _memory_share(load.chip, load.missed_bytes / load.unique_bytes, load.tiles * cost.splits)
    added = sum(load.added(cost.splits)[3:])  # the reduction of the parts of K

    def speed(found: cycles.Replay) -> float:
        return 1 / (cost.rounds * found.clocks + added)

    return _modelled(kernel, resident, given, speed, ends=ends)


def _memory_share(chip: Chip, again: float, workgroups: int) -> Mapping[str, float]:
    """Figures of memory, if lines miss L2 so many times: only the first time they come from memory."""
    rates = {f.name: f.value for f in cycles.figures() if f.name in ("cache_bytes", "memory_bytes")}
    each = chip.compute_units / min(chip.compute_units, workgroups)
    return {name: rate * each for name, rate in rates.items()} | {"memory_share": 1 / max(1.0, again)}


class TimedProduct(NamedTuple):
    """A launch of any kernel, with the figures of the table and with others."""

    loop: cycles.Loop
    clocks: float  # of all rounds
    at_ends: Mapping[tuple[str, float], float]  # these with one figure at an end


def time_product(call: Callable[[], object], workgroups: int, unique_bytes: float) -> TimedProduct:
    """Record the workgroups of one XCD of a launch of any kernel, and replay those of one CU.

    As `model_product`, but what misses L2 is counted in the first round, and not taken from the cost model.
    """
    chip = chip_of("gfx950")
    emulator_counters(reset=True)
    cycles.record(call, [0], only=True)
    groups, resident = workgroups_of_xcd(workgroups, occupancy(emulator_counters().each[-1]))
    cycles.record(call, groups, only=True)
    cycles.replay(resident)
    rounds = -(-workgroups // (chip.compute_units * resident))
    missed = LINE * cycles.found_lines()[1] * chip.xcds * rounds
    given = _memory_share(chip, missed / unique_bytes, workgroups)

    def clocks(found: cycles.Replay) -> float:
        return rounds * found.clocks

    found = cycles.replay(resident, given)
    return TimedProduct(_loop_of(found), clocks(found), _at_ends(resident, given, clocks))


def clock(loop: cycles.Loop) -> float:
    """GHz of a chip that runs such a loop: by its busy share, and by the bytes that LDS returns for it."""
    chip, gain = chip_of("gfx950"), next(f.value for f in cycles.figures() if f.name == "lds_clock")
    few, many = LDS_BYTES
    bytes_ = min(max(loop.lds_bytes / max(1.0, loop.matrix_clocks), few), many)
    return chip.ghz * chip.rates.clock_at(loop.busy) * (1 + gain * (0.5 - (bytes_ - few) / (many - few)))


def workgroups_of_xcd(count: int, resident: int) -> tuple[list[int], int]:
    """The workgroups that the first XCD runs at once, by CU, and how many of them its first CU runs.

    >>> workgroups_of_xcd(20, 2), workgroups_of_xcd(600, 2)[0][:4]
    (([0, 8, 16], 1), [0, 256, 8, 264])
    """
    chip = chip_of("gfx950")
    units = chip.compute_units // chip.xcds
    of_cu = [range(cu * chip.xcds, count, chip.compute_units)[:resident] for cu in range(units)]
    return [group for groups in of_cu for group in groups], len(of_cu[0])


def time_launch(call: Callable[[], object]) -> tuple[EmulatorLaunch, Timed]:
    """Record workgroup 0 of a call's last launch that multiplies matrices, and fill a CU with copies."""
    emulator_counters(reset=True)
    cycles.record(call)
    launches = emulator_counters().each
    if not launches:
        raise cycles.CycleModelError("nothing was launched")
    last = [x for x in launches if x.counters.mfma][-1:] or launches[-1:]
    return last[0], _timed(occupancy(last[0]), {})


def occupancy(x: EmulatorLaunch) -> int:
    """Workgroups of a launch that share a CU of gfx950: by registers, LDS and slots for waves."""
    size_x, size_y, size_z = x.workgroup_size
    waves = -(-size_x * size_y * size_z // 64)
    of_cu = 4 * min(8, 512 // max(8, x.allocated_vgprs)) // waves
    return max(1, min(of_cu, (160 << 10) // max(1, x.lds_bytes)))


def _timed(resident: int, given: Mapping[str, float]) -> Timed:
    """Replay what was recorded, with figures other than those of the table."""
    found = cycles.replay(resident, given)
    loop = _loop_of(found)
    without = {
        name: _loop_of(cycles.replay(resident, {**given, **by})).clocks / loop.clocks
        for name, by in WITHOUT.items()
    }
    return Timed(resident, found, loop, without)


def _loop_of(found: cycles.Replay) -> cycles.Loop:
    try:
        return found.main_loop()
    except cycles.NoLoopError:  # too few K tiles, or as much code as that
        return found.middle()


def _modelled(
    kernel: Kernel,
    resident: int,
    given: Mapping[str, float],
    speed: Callable[[cycles.Replay], float],
    *,
    ends: bool,
) -> Modelled:
    x = _timed(resident, given)
    at_ends = _at_ends(resident, given, speed) if ends else {}
    return Modelled(resident, x.replay, x.loop, x.without, kernel, speed(x.replay), at_ends)


def _at_ends(
    resident: int, given: Mapping[str, float], value: Callable[[cycles.Replay], float]
) -> dict[tuple[str, float], float]:
    """Replays with each figure that is not measured at each end of its range."""
    return {
        (figure.name, end): value(cycles.replay(resident, {**given, figure.name: end}))
        for figure in cycles.figures()
        for end in {figure.low, figure.high} - {figure.value}
        if figure.kind in ("assumed", "inferred")
    }


def _resident(kernel: Kernel) -> int:
    return max(1, int(kernel.workgroups_per_cu))


def _peak(kernel: Kernel) -> float:
    return chip_of(kernel.arch).rates.matrix[kernel.bits].value
