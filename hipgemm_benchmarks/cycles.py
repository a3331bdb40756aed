"""The cycle model of the emulator: record a launch, replay it on one CU, find the main loop.

docs/change/model.md says what it predicts, and what it cannot.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hipgemm.errors import RuntimeNotFoundError, requirement
from hipgemm.runtime import hip as _hip

ARCH = "gfx950"
ISSUE, SIMDS = np.dtype([("wave", "u4"), ("op", "u4"), ("clock", "u4")]), 4
FEW = 64  # matrix instructions of a wave, among which there is no steady state


class Figure(NamedTuple):
    """A figure of the model, with the ends of what is plausible."""

    name: str
    kind: str  # measured, documented, inferred, assumed
    source: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Instruction:
    """An instruction of the code, and what its executions waited for, in clocks."""

    offset: int  # bytes from the kernel's entry
    size: int
    matrix_clocks: int
    issues: int
    lds_bytes: int  # that LDS returned, of all issues
    waits: Mapping[str, int]
    text: str


@dataclass(frozen=True)
class Loop:
    """The main loop: the clocks of its turns without the first third and the last one."""

    head: int  # offset of its first instruction
    tail: int  # and of its last
    turns: int
    clocks: float  # per turn
    matrix_clocks: float  # per turn and SIMD
    lds_bytes: float  # that LDS returns, per turn

    @property
    def busy(self) -> float:
        """The share of clocks in which the matrix pipes are busy."""
        return self.matrix_clocks / self.clocks


class CycleModelError(RuntimeError):
    """What was recorded cannot be replayed."""


class NoLoopError(CycleModelError):
    """There is no main loop."""


@dataclass(frozen=True)
class Replay:
    """The replay of one recording."""

    instructions: tuple[Instruction, ...]
    issues: npt.NDArray[np.void]  # of ISSUE, in the order of time
    clocks: int
    seconds: float  # of the host's CPU that the replay took

    def whole(self) -> Loop:
        """All of it, from the start of the workgroups to their end, as one turn of a loop."""
        matrix = sum(x.matrix_clocks * x.issues for x in self.instructions) / SIMDS
        offsets = [x.offset for x in self.instructions]
        lds = sum(x.lds_bytes for x in self.instructions)
        return Loop(min(offsets), max(offsets), 1, self.clocks, matrix, lds)

    def middle(self) -> Loop:
        """From a third to nine tenths of the first wave's matrix instructions, as one turn; else `whole`."""
        matrix = np.array([x.matrix_clocks for x in self.instructions])
        clocks = self.issues["clock"][(self.issues["wave"] == 0) & (matrix[self.issues["op"]] > 0)]
        if len(clocks) < FEW:
            return self.whole()
        begin, end = int(clocks[len(clocks) // 3]), int(clocks[len(clocks) * 9 // 10])
        offsets = [x.offset for x in self.instructions]
        return self._turns(min(offsets), max(offsets), 1, begin, end)

    def main_loop(self) -> Loop:
        """The loop whose turns have the most matrix clocks, by the first wave."""
        offsets = np.array([x.offset for x in self.instructions])
        matrix = np.array([x.matrix_clocks for x in self.instructions])
        first = self.issues[self.issues["wave"] == 0]
        at = offsets[first["op"]]
        back = at[1:] <= at[:-1]
        loops = {}  # matrix clocks by the offsets of the first and the last instruction
        for head in np.unique(at[1:][back]):
            tails = at[:-1][back & (at[1:] == head)]
            inside = (at >= head) & (at <= tails.max())
            if len(tails) > 3:
                loops[int(head), int(tails.max())] = matrix[first["op"][inside]].sum()
        if not any(loops.values()):
            raise NoLoopError("no loop has matrix instructions and turns more than three times")
        head, tail = max(loops, key=lambda ends: loops[ends])
        starts = first["clock"][at == head]
        turns = len(starts) - 1 - len(starts) // 3
        return self._turns(head, tail, turns, int(starts[len(starts) // 3]), int(starts[-1]))

    def _turns(self, head: int, tail: int, turns: int, begin: int, end: int) -> Loop:
        within = (self.issues["clock"] >= begin) & (self.issues["clock"] < end)
        issues = np.bincount(self.issues["op"][within], minlength=len(self.instructions)) / turns
        matrix = np.array([x.matrix_clocks for x in self.instructions]) / SIMDS
        lds = np.array([x.lds_bytes / max(1, x.issues) for x in self.instructions])
        return Loop(head, tail, turns, (end - begin) / turns, float(issues @ matrix), float(issues @ lds))


def library() -> ctypes.CDLL:
    """The emulator, which must be the runtime."""
    rt = _hip.runtime()
    if rt.emulator is None:
        text = requirement("the runtime must be the emulator", rt.kind)
        raise RuntimeNotFoundError(f"model: {text}; set HIPGEMM_RUNTIME=emulator")
    found = rt.emulator
    found.hipgemm_emulator_replay.restype = found.hipgemm_emulator_replay_waits.restype = ctypes.c_char_p
    return found


def figures() -> tuple[Figure, ...]:
    """All figures of the model."""
    text, values = (ctypes.c_char_p * 3)(), (ctypes.c_double * 3)()
    found: list[Figure] = []
    while library().hipgemm_emulator_figure(len(found), text, values):
        name, kind, source = ((x or b"").decode() for x in text)
        found.append(Figure(name, kind, source, *values))
    return tuple(found)


def record(launch: Callable[[], object], groups: Sequence[int] = (0,), *, only: bool = False) -> None:
    """Record these workgroups of a launch, and wait for it. If `only` these, it runs no others."""
    lib = library()
    arch = _hip.arch(_hip.current_device())
    if arch != ARCH:
        raise CycleModelError(f"the figures of the cycle model are those of {ARCH}; the device is {arch}")
    lib.hipgemm_emulator_record((ctypes.c_uint64 * len(groups))(*groups), len(groups), int(only))
    try:
        launch()
        _hip.block("hipDeviceSynchronize")
    finally:
        lib.hipgemm_emulator_record(None, 0, 0)


def replay(resident: int = 1, changed: Mapping[str, float] | None = None) -> Replay:
    """Replay the last recording, with so many workgroups on a CU; `changed` are other figures.

    If more were recorded, they run on the other CUs of the XCD, and lines are looked for in its L2. Else
    all lines but those of L1 take as long as on a chip that is loaded; of fewer workgroups copies are made.
    """
    lib = library()
    values = [(changed or {}).get(f.name, f.value) for f in figures()]
    begin = time.thread_time()
    fault = lib.hipgemm_emulator_replay(resident, (ctypes.c_double * len(values))(*values))
    seconds = time.thread_time() - begin
    if fault:
        raise CycleModelError(fault.decode())
    size = (ctypes.c_uint64 * 3)()
    lib.hipgemm_emulator_replay_size(size)
    issues = np.empty(size[0], ISSUE)
    lib.hipgemm_emulator_replay_issues(issues.ctypes.data_as(ctypes.c_void_p))
    waits = (lib.hipgemm_emulator_replay_waits() or b"").decode().split()
    numbers, text = (ctypes.c_uint64 * (5 + len(waits)))(), ctypes.create_string_buffer(256)
    instructions = []
    for i in range(size[1]):
        lib.hipgemm_emulator_replay_instruction(i, numbers, text, ctypes.c_size_t(len(text)))
        offset, length, matrix, count, lds, *waited = numbers
        named = dict(zip(waits, waited, strict=True))
        instructions.append(Instruction(offset, length, matrix, count, lds, named, text.value.decode()))
    return Replay(tuple(instructions), issues, size[2], seconds)


def found_lines() -> tuple[int, int]:
    """Lines that all recorded workgroups found in L2 and in memory, but for L1; zeros for a loaded chip."""
    found = (ctypes.c_uint64 * 2)()
    library().hipgemm_emulator_found_lines(found)
    return found[0], found[1]
