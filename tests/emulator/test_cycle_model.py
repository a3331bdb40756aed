"""The cycle model against what others measured on MI355X, with snippets."""

from __future__ import annotations

import asm
import cycle_loops
import numpy as np
import pytest

from hipgemm.inspect.counters import emulator_counters
from hipgemm_benchmarks import cycles

pytestmark = pytest.mark.emulator("cycle model")


def replayed(body: str, waves: int = 1, **figures: float) -> cycles.Replay:
    memory = np.zeros(1 << 20, np.uint8)
    snippet = asm.Snippet(body, lds=65536)
    with asm.Module({"k": snippet}) as module:
        cycles.record(lambda: module.run("k", memory, block=64 * waves))
    return cycles.replay(1, figures)


def clocks_of(replay: cycles.Replay, text: str, wave: int = 0) -> list[int]:
    """When instructions of a wave issue that begin so."""
    named = [i for i, x in enumerate(replay.instructions) if x.text.startswith(text)]
    mine = replay.issues[(replay.issues["wave"] == wave) & np.isin(replay.issues["op"], named)]
    return [int(c) for c in mine["clock"]]


def reads(count: int, stride: int, offset: int = 0) -> str:
    lines = [f"ds_read_b128 v[{4 * (i % 16) + 4}:{4 * (i % 16) + 7}], v1" for i in range(count)]
    address = f"v_and_b32 v1, 63, v0\nv_mul_u32_u24 v1, {stride}, v1\nv_add_u32 v1, {offset}, v1"
    return "\n".join([address, *lines, "s_waitcnt lgkmcnt(0)"])


# AMD's gfx950 Gluon tutorials: clocks of each ds_read_b128 of a SIMD, of one wave and of four.
READS = {
    "no conflict": (16, 0, 8, 16),
    "2 ways": (32, 0, 8, 32),
    "4 ways": (64, 0, 16, 64),
    "8 ways": (128, 0, 32, 128),
    "unaligned": (16, 4, 64, 256),
}


@pytest.fixture(scope="module")
def reading():
    made = {
        f"k{n}_{a}_{b}": asm.Snippet(reads(n, a, b), lds=65536)
        for a, b, *_ in READS.values()
        for n in (64, 128)
    }
    with asm.Module(made) as module:
        yield module


@pytest.mark.parametrize("case", READS)
def test_reads_of_lds_take_as_long_as_measured(reading, case):
    stride, offset, *measured = READS[case]
    for waves, expected in zip((1, 4), measured, strict=True):
        clocks = []
        for n in (64, 128):
            cycles.record(lambda n=n, waves=waves: reading.run(f"k{n}_{stride}_{offset}", block=64 * waves))
            clocks.append(cycles.replay().clocks)
        assert (clocks[1] - clocks[0]) / 64 == expected


def test_the_ninth_read_waits_for_the_first():
    """Measured: eight issue 4 clocks apart, the ninth when the first is complete, after 50 to 70 clocks."""
    issued = clocks_of(replayed(reads(16, 16), straddle_clocks=0), "ds_read")
    assert np.diff(issued[:8]).tolist() == [4] * 7
    assert 50 <= issued[8] - issued[0] <= 70


def test_two_simds_take_turns():
    replay = replayed(reads(64, 128), 4)
    ends = [clocks_of(replay, "ds_read", wave)[-1] for wave in range(4)]
    assert max(ends) - min(ends) < 0.1 * max(ends)


FP4 = "{d}, v[0:3], v[4:7], {d}, v8, v9 op_sel_hi:[0,0,0] cbsz:4 blgp:4"


# Slots for others while matrix instructions issue back to back: 16x16x32 by inference, the others measured.
@pytest.mark.parametrize(
    ("instruction", "registers", "clocks", "others"),
    [
        ("v_mfma_f32_16x16x32_bf16 {d}, v[0:3], v[4:7], {d}", 4, 16, 2),
        ("v_mfma_f32_32x32x16_bf16 {d}, v[0:3], v[4:7], {d}", 16, 32, 6),
        (f"v_mfma_scale_f32_16x16x128_f8f6f4 {FP4}", 4, 16, 1),
        (f"v_mfma_scale_f32_32x32x64_f8f6f4 {FP4}", 16, 32, 5),
    ],
    ids=["16x16x32", "32x32x16", "scaled 16x16x128", "scaled 32x32x64"],
)
def test_slots_in_the_shadow_of_matrix_instructions(instruction, registers, clocks, others):
    """Wave 0 multiplies; wave 4, on the same SIMD, moves registers."""
    first = [16 + i % 4 * registers for i in range(64)]
    multiply = "\n".join(instruction.format(d=f"v[{r}:{r + registers - 1}]") for r in first)
    move = "\n".join(["v_mov_b32 v10, v11"] * 600)
    choose = "v_readfirstlane_b32 s4, v0\ns_cmp_ge_u32 s4, 0x100\ns_cbranch_scc1 others\ns_cmp_gt_u32 s4, 0"
    body = f"{choose}\ns_cbranch_scc1 end\n{multiply}\ns_branch end\nothers:\n{move}\nend:"
    replay = replayed(body, 5)
    issued, moved = (np.array(clocks_of(replay, *x)) for x in (("v_mfma",), ("v_mov", 4)))
    within = issued[16:48]
    assert set(np.diff(within)) == {clocks}
    assert np.histogram(moved, within)[0].tolist() == [others] * (len(within) - 1)


def test_as_many_bytes_a_clock_as_others_sustain():
    """44 to 46 in tiles of five sizes; the model is up to 2 below."""
    address = "s_load_dwordx2 s[0:1], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\nv_lshlrev_b32 v1, 4, v0\n"
    load = "global_load_dwordx4 v[8:11], v1, s[0:1]\nv_add_u32 v1, 0x2000, v1\n"
    few, more = (replayed(address + load * n + "s_waitcnt vmcnt(0)", 8).clocks for n in (32, 64))
    assert 42 < 32 * 8 * 1024 / (more - few) < 46


@pytest.mark.parametrize("loop", [*cycle_loops.TILES, *cycle_loops.STAGES[:4]], ids=lambda x: x.name)
def test_loops_that_others_measured(loop):
    """Also with the longest barrier of its range."""
    for figures in ({}, {"barrier_clocks": 20}):
        assert abs(cycle_loops.busy(loop, **figures) - loop.measured) <= loop.points


@pytest.mark.parametrize(
    "variants", [cycle_loops.CLUSTERS[:2], cycle_loops.CLUSTERS[2:]], ids=["bf16", "fp8"]
)
def test_variants_that_others_timed_rank_as_they_did(variants):
    found = [cycle_loops.sustained(x).rate for x in variants]
    assert found[0] > found[1]
    assert found[0] / found[1] == pytest.approx(variants[0].measured / variants[1].measured, rel=0.1)


@pytest.mark.parametrize("workgroups", cycle_loops.SKINNY)
def test_rates_of_memory(workgroups):
    """Few CUs wait for single lines, all of them for each other."""
    assert cycle_loops.skinny_rate(workgroups) == pytest.approx(cycle_loops.SKINNY[workgroups], rel=0.15)


def test_each_instruction_issues_once():
    late = "s_cmp_lt_u32 s5, 64\ns_cbranch_scc1 soon\ns_nop 15\ns_nop 15\nsoon:"  # but for wave 0
    turn = f"{late}\ns_barrier\ns_add_u32 s4, s4, 1\ns_cmp_lt_u32 s4, 9\ns_cbranch_scc1 loop"
    body = f"v_readfirstlane_b32 s5, v0\ns_mov_b32 s4, 0\nloop:\n{turn}"
    emulator_counters(reset=True)
    replay = replayed(body, 3)
    (launch,) = emulator_counters().each
    assert (
        len(replay.issues) == launch.counters.wave_instructions == sum(i.issues for i in replay.instructions)
    )
    ends = [clocks_of(replay, "s_endpgm", wave)[0] for wave in range(3)]
    assert max(ends) - min(ends) < 8, "waves leave the last barrier together"
    assert (np.diff(replay.issues["clock"].astype(int)) >= 0).all()


@pytest.mark.parametrize(("apart", "times"), [(1, 1), (15, 1), (17, 2)])
def test_a_line_is_fetched_once_while_l1_has_it(apart, times):
    """Two instructions read half of each of 16 lines; between them so many less one read other lines."""
    address = "v_lshrrev_b32 v1, 2, v0\nv_lshlrev_b32 v1, 7, v1\nv_and_b32 v2, 3, v0\nv_lshlrev_b32 v2, 4, v2"
    begin = f"s_load_dwordx2 s[2:3], s[0:1], 0x0\n{address}\nv_add_u32 v1, v1, v2\nv_add_u32 v2, 64, v1\n"
    load = "global_load_dwordx4 v[4:7], v{0}, s[2:3]\nv_add_u32 v{0}, 0x800, v{0}\n"
    after = (
        load.format(1) * apart + (load.format(2) + load.format(1)) * (128 - apart) + load.format(2) * apart
    )
    once, both = (replayed(f"{begin}s_waitcnt lgkmcnt(0)\n{x}s_waitcnt vmcnt(0)").clocks
                  for x in (load.format(1) * 128, after))  # fmt: skip
    assert both / once == pytest.approx(times, rel=0.1)


def test_lines_are_found_where_others_have_read_them():
    """Four workgroups read the same KiB twice: one from memory, the others from L2; then all again."""
    load = "global_load_dwordx4 v[4:7], v1, s[2:3]\ns_waitcnt vmcnt(0)\n"
    body = f"s_load_dwordx2 s[2:3], s[0:1], 0x0\nv_lshlrev_b32 v1, 4, v0\ns_waitcnt lgkmcnt(0)\n{2 * load}"
    memory = np.zeros(1 << 12, np.uint8)
    with asm.Module({"k": asm.Snippet(body)}) as module:
        cycles.record(lambda: module.run("k", memory, grid=25), (0, 8, 16, 24))
    assert cycles.replay(1, {"loaded_latency": 5000}).clocks < 5000
    assert cycles.found_lines() == (56, 8)
    assert cycles.replay(4, {"loaded_latency": 5000}).clocks > 5000, (
        "four are all that were recorded: then every line takes as long"
    )


def test_only_the_workgroups_that_are_recorded_run():
    body = """s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_mov_b32 v1, 1
        s_lshl_b32 s3, s2, 2
        v_mov_b32 v2, s3
        s_waitcnt lgkmcnt(0)
        global_store_dword v2, v1, s[4:5]
        s_waitcnt vmcnt(0)"""
    with asm.Module({"k": asm.Snippet(body)}) as module:
        for only in (True, False):
            found = []
            run = lambda: found.extend(module.run("k", np.zeros(8, np.uint32), grid=8))  # noqa: B023, E731
            cycles.record(run, (2, 5), only=only)
            assert np.flatnonzero(found[0]).tolist() == ([2, 5] if only else list(range(8)))


def test_a_wave_that_ends_releases_a_barrier():
    """Wave 4 ends late, on the SIMD of wave 0, which has waited for it at a barrier."""
    end = "s_cmp_ge_u32 s5, 0x100\ns_cbranch_scc0 meet\ns_nop 15\ns_nop 15\ns_endpgm\nmeet:\ns_barrier"
    replay = replayed(f"v_readfirstlane_b32 s5, v0\n{end}", 5)
    ends = [clocks_of(replay, "s_endpgm", wave)[0] for wave in range(5)]
    assert all(ends[4] < end < ends[4] + 20 for end in ends[:4])


def test_what_cannot_be_replayed(monkeypatch):
    body = "s_load_dwordx2 s[0:1], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v1, 0\n"
    cycles.record(lambda: asm.run(body), (0, 1))
    with pytest.raises(cycles.CycleModelError, match="has not run all"):
        cycles.replay()
    with pytest.raises(cycles.CycleModelError, match="atomic"):
        replayed(body + "global_atomic_add v2, v1, v1, s[0:1] sc0\ns_waitcnt vmcnt(0)")
    with pytest.raises(cycles.CycleModelError, match="no loop has matrix instructions"):
        replayed(body).main_loop()
    monkeypatch.setattr(cycles, "ARCH", "gfx942")
    with pytest.raises(cycles.CycleModelError, match="those of gfx942; the device is gfx950"):
        replayed(body)


def test_every_figure_has_a_source_and_lies_between_its_ends():
    found = cycles.figures()
    assert len({f.name for f in found}) == len(found)
    for f in found:
        assert f.low <= f.value <= f.high, f.name
        assert f.source
        assert f.kind in ("measured", "documented", "inferred", "assumed"), f.name
