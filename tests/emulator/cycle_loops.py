"""Main loops without a kernel around them, as AMD's gfx950 Gluon tutorials measured them on MI355X.

They have the instructions of a loop of eight waves in a plausible order: nothing is computed, but the cycle
model does not care. `HIPGEMM_RUNTIME=emulator python tests/emulator/cycle_loops.py` prints what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import asm
import numpy as np

from hipgemm.products.chips import chip_of
from hipgemm_benchmarks import cycles
from hipgemm_benchmarks.cycle_kernels import clock

TURNS, KIB = 64, 1024
FAR = 240  # the first register of the offsets of loads
K_TILE = 64 * KIB  # bytes from those of a turn to those of the next


class Loop(NamedTuple):
    """A loop, and the share of clocks in which its matrix pipes were measured to be busy, in percent."""

    name: str
    body: str
    measured: float
    points: float  # that the model may be off
    waves: int = 8


def spread(*groups: Sequence[str]) -> Iterator[str]:
    """The instructions of all groups, each group evenly over the whole."""
    places = [((i + 0.5) / len(group), text) for group in groups for i, text in enumerate(group)]
    return (text for _, text in sorted(places, key=lambda place: place[0]))


def loads(count: int, first: int = 0) -> list[str]:
    """Loads to LDS, of a KiB each: other lines by each wave, in each turn."""
    text = "s_mov_b32 m0, {0}\nglobal_load_lds_dwordx4 v{1}, s[2:3]"
    return [text.format(i * KIB, FAR + i) for i in range(first, first + count)]


def reads(count: int) -> list[str]:
    """Reads of 16 bytes a lane."""
    return [f"ds_read_b128 v[{16 + 4 * (i % 4)}:{19 + 4 * (i % 4)}], v1" for i in range(count)]


def products(name: str, count: int, accumulators: int, rest: str = "") -> list[str]:
    """Matrix instructions, in as many accumulators as fit so many registers; of 8 bits if they are f8f6f4."""
    registers = 16 if "32x32" in name else 4
    first = [40 + registers * (i % (accumulators // registers)) for i in range(count)]
    results = [f"v[{r}:{r + registers - 1}]" for r in first]
    operands = "v[8:15], v[8:15]" if "f8f6f4" in name and not rest else "v[8:11], v[12:15]"
    return [f"v_mfma_{name} {d}, {operands}, {d}{rest}" for d in results]


def looped(body: Iterable[str], second_half: str = "", halves: bool = False, waves: int = 8) -> str:
    """A loop of these turns; waves 4 to 7 begin with `second_half`.

    With `halves` a load of a wave has one half of each of 16 lines, and that of another wave the others.
    """
    half = f"s_cmp_lt_u32 s5, 0x100\ns_cbranch_scc1 1f\n{second_half}\n" if second_half else ""
    after = f"s_cmp_ge_u32 s5, 0x100\ns_cbranch_scc1 2f\n{second_half}\n2:" if second_half else ""
    address = [f"v_lshlrev_b32 v{FAR}, 4, v0"]
    if halves:  # the bits of a thread's number, by where they go to
        moved = {4: (0, 2), 7: (2, 4), 11: (6, 1), 6: (7, 1), 12: (8, 1)}
        address = [f"v_mov_b32 v{FAR}, 0"]
        for to, (first, bits) in moved.items():
            address.append(f"v_bfe_u32 v2, v0, {first}, {bits}\nv_lshl_or_b32 v{FAR}, v2, {to}, v{FAR}")
    offsets = [f"v_add_u32 v{FAR + i}, {i * waves * KIB:#x}, v{FAR}" for i in range(1, 64 // waves)]
    return "\n".join([
        "s_load_dwordx2 s[2:3], s[0:1], 0x0\nv_readfirstlane_b32 s5, v0\nv_and_b32 v1, 63, v0",
        "v_lshlrev_b32 v1, 4, v1", *address, *offsets, f"s_mov_b32 s4, 0\ns_waitcnt lgkmcnt(0)\n{half}1:",
        *body,
        f"s_add_u32 s2, s2, {K_TILE:#x}\ns_addc_u32 s3, s3, 0",
        f"s_add_u32 s4, s4, 1\ns_cmp_lt_u32 s4, {TURNS}\ns_cbranch_scc1 1b\ns_waitcnt vmcnt(0) lgkmcnt(0)",
        after,
    ])  # fmt: skip


def tile(m: int, n: int) -> str:
    """K tiles of 64 in bf16: loads two tiles ahead, one barrier, the rest spread evenly."""
    waves_m, waves_n = (4, 2) if m > n else (2, 4)
    multiply = products("f32_16x16x32_bf16", m * n // 1024, m * n // 512)
    fetch, read = loads((m + n) // 64), reads((m // waves_m + n // waves_n) // 8)
    return looped(
        [f"s_waitcnt vmcnt({2 * len(fetch)}) lgkmcnt(0)\ns_barrier", *spread(multiply, fetch, read)]
    )


def stages(name: str, count: int, memory_first: bool) -> str:
    """K tiles of 256x256 and 128 bytes: half of the waves load and read (scales too), the others multiply."""
    scaled = name.startswith("scale")
    rest = ", v2, v3 op_sel_hi:[0,0,0] cbsz:4 blgp:4" if scaled else ""
    scales = [f"ds_read_b32 v{32 + i % 4}, v1" for i in range(8 if scaled else 0)]
    memory = [f"s_setprio {int(memory_first)}", *loads(8), *reads(24), *scales]
    memory.append("s_waitcnt vmcnt(16) lgkmcnt(0)\ns_barrier")
    multiply = products(name, count, 128, rest)
    return looped([*memory, f"s_setprio {int(not memory_first)}", *multiply, "s_barrier"], "s_barrier")


def clusters(name: str) -> str:
    """K tiles of 256x256 and 128 bytes in HipKittens' order: barriers between clusters of memory and MFMAs.

    With rows of 16 in four clusters, and loads that are waited for six instructions later; with rows of 32 in
    two, and all loads are waited for in the K tile that issued them.
    """
    bf16 = name.endswith("bf16")
    small = "_16x16" in name
    multiply = products(name, 16 if bf16 else 8, 32 if small else 128)
    multiply = ["s_setprio 1", *multiply, "s_setprio 0", "s_barrier"]
    if small:
        body = []
        for i, (count, wait) in enumerate(((12, "lgkmcnt(8)"), (4, ""), (8, ""), (0, "vmcnt(6)"))):
            memory = [*reads(count), *loads(2, 2 * i), *([f"s_waitcnt {wait}"] if wait else []), "s_barrier"]
            body += [*memory, "s_waitcnt lgkmcnt(0)", *multiply]
    else:
        compute = ["s_waitcnt lgkmcnt(0)", *multiply]
        body = [*reads(8), *loads(4), *reads(4), *loads(4, 4), "s_barrier", *compute]
        body += [*reads(12), "s_waitcnt vmcnt(0) lgkmcnt(0)", "s_barrier", *compute]
    return looped(body, "s_barrier", halves=bf16)


def interleaved() -> str:
    """K tiles of 256x256x128 in fp8 by four waves, in HipKittens' order: loads and reads between products."""
    multiply, fetch, read = iter(products("f32_16x16x128_f8f6f4", 64, 128)), iter(loads(16)), iter(reads(32))
    body = []
    for cluster in range(4):
        body += ["s_waitcnt vmcnt(16)\ns_barrier"] if cluster % 2 == 0 else []
        body += ["s_waitcnt lgkmcnt(0)"] if cluster < 3 else []
        body += [next(multiply)]
        for i in range(8):
            body += [next(multiply)] if i == 0 else []
            body += [next(fetch)] if i % 2 == 0 else []
            body += [next(read), next(multiply)]
            body += [next(multiply)] if i > 1 else []
    return looped(body, waves=4)


def skinny() -> str:
    """K tiles of 32x256x64 in bf16 by four waves: b is another one in each workgroup, and read once."""
    fetch = [f"s_mov_b32 m0, {i * 1024}\nglobal_load_lds_dwordx4 v{2 + i // 4}, s[8:9] offset:{i % 4 * 1024}"
             for i in range(8)]  # fmt: skip
    fetch.append("s_mov_b32 m0, 8192\nglobal_load_lds_dwordx4 v1, s[2:3]")
    multiply = products("f32_16x16x32_bf16", 16, 32)
    begin = f"""s_mov_b32 s6, s2
        s_load_dwordx2 s[2:3], s[0:1], 0x0
        v_lshlrev_b32 v1, 4, v0
        v_lshlrev_b32 v2, 7, v0
        v_and_b32 v3, 0x3f0, v1
        v_and_b32 v2, 0x6000, v2
        v_add_u32 v2, v2, v3
        v_add_u32 v3, 0x1000, v2
        s_mul_i32 s6, s6, {TURNS * 32768}
        s_add_u32 s6, s6, {TURNS * 4096}
        s_mov_b32 s4, 0
        s_waitcnt lgkmcnt(0)
        s_add_u32 s8, s2, s6
        s_addc_u32 s9, s3, 0"""
    advance = "s_add_u32 s2, s2, 0x1000\ns_addc_u32 s3, s3, 0\ns_add_u32 s8, s8, 0x8000\ns_addc_u32 s9, s9, 0"
    turn = [f"1:\ns_waitcnt vmcnt({2 * len(fetch)}) lgkmcnt(0)\ns_barrier"]
    turn += [*spread(multiply, fetch, reads(10)), advance, f"s_add_u32 s4, s4, 1\ns_cmp_lt_u32 s4, {TURNS}"]
    return "\n".join([begin, *turn, "s_cbranch_scc1 1b\ns_waitcnt vmcnt(0) lgkmcnt(0)"])


# The same tutorials: GB/s of so many workgroups, one on each CU, K 8192.
SKINNY = {32: 1529, 64: 2864, 96: 4067, 128: 4580, 160: 4828, 192: 5628, 224: 6198, 256: 6442}


def skinny_rate(workgroups: int) -> float:
    """GB/s of b by the model, at 2.4 GHz."""
    memory = np.zeros(TURNS * (2 * 32768 + 4096), np.uint8)
    cycles.record(lambda: module().run("skinny", memory, grid=2, block=256), (0, 1))
    share = next(f.value for f in cycles.figures() if f.name == "memory_bytes") * 256 / workgroups
    loop = cycles.replay(1, {"memory_bytes": share}).main_loop()
    return workgroups * 256 * 128 / loop.clocks * 2.4


TILES = tuple(
    Loop(f"bf16 {m}x{n}", tile(m, n), measured, 10 if (m, n) == (256, 128) else 5)
    for m, n, measured in (
        (256, 256, 96), (256, 128, 83), (128, 256, 84), (128, 128, 69),
        (256, 64, 55), (64, 256, 57), (128, 64, 47), (64, 128, 47),
    )
)  # fmt: skip
STAGES = tuple(
    Loop(what + ", memory first" * memory_first, stages(name, count, memory_first), measured, 5)
    for memory_first in (False, True)
    for what, name, count, measured in (
        ("fp4 16x16x128", "scale_f32_16x16x128_f8f6f4", 64, 79.6),
        ("fp4 32x32x64", "scale_f32_32x32x64_f8f6f4", 32, 98.9),
        ("fp8 16x16x128", "f32_16x16x128_f8f6f4", 32, 99.8),
        ("bf16 16x16x32", "f32_16x16x32_bf16", 64, 99.8),
    )
)
# TFLOP/s of HipKittens on MI355X at 8192: of whole kernels, so their ratio is what can be compared.
CLUSTERS = (
    Loop("bf16 16x16x32", clusters("f32_16x16x32_bf16"), 1580, 0),
    Loop("bf16 32x32x16", clusters("f32_32x32x16_bf16"), 1291, 0),
    Loop("fp8 4 waves", interleaved(), 3303, 0, 4),
    Loop("fp8 8 waves", clusters("f32_16x16x128_f8f6f4"), 3066, 0),
)
LOOPS = TILES + STAGES + CLUSTERS


@cache
def module() -> asm.Module:
    """All loops, assembled at once."""
    bodies = {f"k{i}": x.body for i, x in enumerate(LOOPS)} | {"skinny": skinny()}
    return asm.Module({name: asm.Snippet(body, lds=65536, vgprs=256) for name, body in bodies.items()})


def modelled(loop: Loop, **figures: float) -> cycles.Loop:
    """What the model says, with the figures of its table or others."""
    name, memory = f"k{LOOPS.index(loop)}", np.zeros((TURNS + 1) * K_TILE, np.uint8)
    cycles.record(lambda: module().run(name, memory, block=64 * loop.waves))
    return cycles.replay(1, figures).main_loop()


def busy(loop: Loop, **figures: float) -> float:
    """The busy share by the model, in percent."""
    return 100 * modelled(loop, **figures).busy


class Sustained(NamedTuple):
    """TFLOP/s of 256 CUs, at the clock of such a loop; its busy share, in percent; and GHz."""

    rate: float
    busy: float
    clock: float


def sustained(loop: Loop) -> Sustained:
    """What the model says of a whole chip."""
    found, chip = modelled(loop), chip_of("gfx950")
    bits = 16 if loop.name.startswith("bf16") else 8
    flop = 2 * chip.rates.matrix[bits].value * chip.compute_units
    return Sustained(1e-3 * flop * found.busy * clock(found), 100 * found.busy, clock(found))


if __name__ == "__main__":
    print(f"{'busy, percent':28}  measured  model    off  allowed")
    for x in TILES + STAGES:
        found = busy(x)
        print(f"{x.name:28}  {x.measured:8.1f}  {found:5.1f}  {found - x.measured:+5.1f}  {x.points:7.0f}")
    print(f"\n{'TFLOP/s':28}  measured  model      off  busy  at GHz")
    for x in CLUSTERS:
        s = sustained(x)
        off, band = 100 * (s.rate / x.measured - 1), f"{0.9 * s.clock:.2f} to {1.1 * s.clock:.2f}"
        print(f"{x.name:28}  {x.measured:8.0f}  {s.rate:5.0f}  {off:+5.0f} %  {s.busy:.1f}  {band}")
    print(f"\n{'GB/s of 32x256x64':28}  measured  model      off")
    for workgroups, rate in SKINNY.items():
        modelled = skinny_rate(workgroups)
        off = 100 * (modelled / rate - 1)
        print(f"{f'{workgroups} workgroups':28}  {rate:8.0f}  {modelled:5.0f}  {off:+5.0f} %")
