"""The race check: for every rule a kernel that violates it, and one that does not."""

from __future__ import annotations

import itertools

import asm
import numpy as np
import pytest
from checked import Snippets, note_texts

# s8 is the wave's number, and SCC whether it is 0.
WAVE = "v_readfirstlane_b32 s8, v0\ns_lshr_b32 s8, s8, 6\ns_cmp_eq_u32 s8, 0\n"
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)\n"
BARRIER = WAIT + "s_barrier\n"
# v1: four bytes for each lane of the wave; v2: sixteen for each lane of the workgroup; s[4:5]: the buffer.
SET_UP = WAVE + (
    "v_and_b32 v1, 63, v0\nv_lshlrev_b32 v1, 2, v1\nv_lshlrev_b32 v2, 4, v0\nv_mov_b32 v3, 0\n"
    "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\ns_mov_b32 s6, -1\ns_mov_b32 s7, 0x20000\n"
    "s_lshl_b32 s9, s8, 10\ns_mov_b32 m0, s9\ns_nop 4\ns_cmp_eq_u32 s8, 0\n"
)


LABELS = itertools.count()


def wave0(body: str, other: str = "") -> str:
    """One body where SCC is set, for wave 0 at first, and one where it is not."""
    n = next(LABELS)
    return f"s_cbranch_scc0 .Lother{n}\n{body}\ns_branch .Lend{n}\n.Lother{n}:\n{other}\n.Lend{n}:\n"


# Every lane writes 16 bytes, and reads those of the lane 64 further on.
EXCHANGE = "ds_write_b128 v2, v[4:7]\n{between}v_xor_b32 v3, 0x400, v2\nds_read_b128 v[8:11], v3\n" + WAIT
DMA = "buffer_load_dwordx4 v2, s[4:7], 0 offen lds\n"
DMA_4 = "buffer_load_dword v2, s[4:7], 0 offen lds\n"
READ_OTHER = "v_xor_b32 v3, 0x400, v2\nds_read_b128 v[8:11], v3\n" + WAIT
STORE, LOAD = "global_store_dword v1, v3, s[4:5]\n", "global_load_dword v7, v1, s[4:5]\n"
STORE_OWN = "v_lshlrev_b32 v4, 2, v0\nglobal_store_dword v4, v3, s[4:5]\n"
# 512 bytes for each workgroup; then all read the first one's.
STORE_OWN_PART = "s_lshl_b32 s11, s2, 9\nv_lshlrev_b32 v4, 2, v0\nv_add_u32 v4, s11, v4\n"
STORE_OWN_PART += "global_store_dword v4, v3, s[4:5]\ns_cmp_eq_u32 s8, 0\n"
READ_FIRST = "v_subrev_u32 v4, s11, v4\nglobal_load_dword v7, v4, s[4:5]\n" + WAIT
ATOMIC = "global_atomic_add v5, v3, v3, s[4:5] offset:2048 sc0\n" + WAIT

# name: body, workgroups, what the report says ("": clean). All have two waves, 8 KiB of LDS.
CASES: dict[str, tuple[str, int, list[str]]] = {
    "exchange": (EXCHANGE.format(between=BARRIER), 1, []),
    "exchange_no_barrier": (
        EXCHANGE.format(between=WAIT),
        1,
        [
            "race: LDS at 0x400 is written by lane 0 after 0 barriers, and was read by wave 0 lane 0,",
            "issued after 0 barriers and landed since the last: 0x",
            "ds_read_b128 v[8:11], v3. In between there must be a barrier;",
            "ds_write_b128 v2, v[4:7]; workgroup (0,0,0) wave 1",
        ],
    ),
    "exchange_no_wait": (
        EXCHANGE.format(between="s_barrier\n"),
        1,
        [
            "written by wave 1 lane 0, issued after 0 barriers and still in flight",
            "that wave's wait for it and then a barrier",
        ],
    ),
    "dma": (DMA + BARRIER + READ_OTHER, 1, []),
    "dma_no_barrier": (
        DMA + WAIT + READ_OTHER,
        1,
        ["LDS at 0x", "is written by lane", "was read by wave 0", "buffer_load_dwordx4"],
    ),
    "dma_no_wait": (DMA + "s_barrier\n" + READ_OTHER, 1, ["still in flight: 0x", "buffer_load_dwordx4"]),
    "dma_wait_behind_barrier": (DMA + "s_barrier\n" + WAIT + READ_OTHER, 1, ["still in flight", "LDS at"]),
    "dma_counted_wait": (
        DMA
        + "s_nop 0\ns_add_u32 m0, m0, 0x800\ns_nop 4\n"
        + DMA
        + "s_waitcnt vmcnt(1)\ns_barrier\n"
        + READ_OTHER,
        1,
        [],
    ),
    "dma_weak_wait": (
        DMA + "s_add_u32 m0, m0, 0x800\ns_nop 4\n" + DMA + "s_waitcnt vmcnt(2)\ns_barrier\n" + READ_OTHER,
        1,
        ["LDS at 0x", "still in flight"],
    ),
    "dma_of_dwords": (DMA_4 + BARRIER + READ_OTHER, 1, []),
    "dma_of_dwords_no_wait": (DMA_4 + "s_barrier\n" + READ_OTHER, 1, ["still in flight", "load_dword v2"]),
    "dma_own": (DMA + WAIT + "ds_read_b128 v[8:11], v2\n" + WAIT, 1, []),
    "dma_own_no_wait": (
        DMA + "ds_read_b128 v[8:11], v2\n" + WAIT,
        1,
        [
            "is read by lane 0",
            "was written by the same wave lane 0",
            "In between there must be a wait for it",
        ],
    ),
    "read_then_dma": ("ds_read_b128 v[8:11], v2\n" + WAIT + DMA + WAIT, 1, []),
    "read_then_dma_no_wait": (
        "ds_read_b128 v[8:11], v2\n" + DMA + WAIT,
        1,
        ["is written by lane 0", "was read by the same wave lane 0", "still in flight", "ds_read_b128"],
    ),
    "write_then_read_own": ("ds_write_b32 v1, v3\nds_read_b32 v4, v1\n" + WAIT, 1, ["written"]),
    "write_then_read_own_place": (
        "v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v3\nds_read_b32 v4, v1\nds_write_b32 v1, v3\n" + WAIT,
        1,
        [],
    ),
    # A write after a read: values are right however late memory is.
    "read_write": (wave0("ds_read_b32 v4, v1\n" + BARRIER, "s_barrier\nds_write_b32 v1, v3\n"), 1, []),
    "read_write_no_wait": (
        wave0("ds_read_b32 v4, v1\ns_barrier\n" + WAIT, "s_barrier\nds_write_b32 v1, v3\n"),
        1,
        [
            "is written by lane 0 after 1 barrier, and was read by wave 0 lane 0, issued after 0 barriers",
            "In between there must be a barrier, after the wait for it",
        ],
    ),
    "read_write_no_barrier": (
        wave0("ds_read_b32 v4, v1\n", "ds_write_b32 v1, v3\n") + BARRIER,
        1,
        ["written"],
    ),
    "write_read_no_barrier": (
        wave0("ds_write_b32 v1, v3\n", "ds_read_b32 v4, v1\n") + BARRIER,
        1,
        ["is read"],
    ),
    "read_read": ("ds_read_b32 v4, v1\n" + WAIT, 1, []),
    "write_write": (
        "ds_write_b32 v1, v0\n" + WAIT,
        1,
        ["is written by lane 0", "was written by wave 0 lane 0"],
    ),
    # The same bytes by both waves; one word of many differs; then what is no plain store.
    "same_word": ("ds_write_b32 v1, v3\n" + WAIT, 1, []),
    "same_halves": ("ds_write_b16 v1, v3\nds_write_b8_d16_hi v1, v3 offset:2\n" + WAIT, 1, []),
    "same_wide": (
        "v_lshlrev_b32 v2, 2, v1\nds_write2_b64 v2, v[4:5], v[6:7] offset1:1\n" + WAIT,
        1,
        [],
    ),
    "same_but_one_byte": (
        "v_mov_b32 v4, 0\n" + wave0("v_mov_b32 v4, 0x10000\n") + "ds_write_b32 v1, v4\n" + WAIT,
        1,
        ["is written by lane 0", "was written by wave 0 lane 0"],
    ),
    "other_half": (
        "v_mov_b32 v4, 5\n" + wave0("ds_write_b16 v1, v4\n", "ds_write_b16_d16_hi v1, v4\n") + WAIT,
        1,
        ["ds_write_b16_d16_hi"],
    ),
    "same_by_dma": (
        wave0("ds_write_b128 v2, v[4:7]\n", "s_mov_b32 m0, 0\ns_nop 0\n" + DMA) + WAIT,
        1,
        ["buffer_load_dwordx4"],
    ),
    # Half of the waves one barrier ahead: the count is what matters.
    "lagging": (
        wave0("s_barrier\n")
        + wave0("ds_write_b32 v1, v3\n" + BARRIER, BARRIER + BARRIER + "ds_read_b32 v4, v1\n" + WAIT),
        1,
        [],
    ),
    "lagging_too_far": (
        wave0("s_barrier\n")
        + wave0("ds_write_b32 v1, v3\n" + BARRIER, BARRIER + "ds_read_b32 v4, v1\n" + WAIT + "s_barrier\n"),
        1,
        ["is read by lane 0 after 1 barrier, and was written by wave 0 lane 0, issued after 1 barrier"],
    ),
    "bytes": ("ds_write_b8 v0, v3\nds_read_u8 v4, v0\n" + WAIT, 1, []),
    "bytes_overlap": ("ds_write_b8 v0, v3\nds_read_u16 v4, v0\n" + WAIT, 1, ["LDS at 0x40 is"]),
    "bytes_then_wide": ("ds_write_b8 v0, v3\n" + BARRIER + "ds_read_b128 v[8:11], v2\n" + WAIT, 1, []),
    "atomics": ("ds_add_u32 v1, v3\nds_add_rtn_u32 v4, v1, v3\n" + WAIT, 1, []),
    "atomic_and_write": (
        wave0("ds_add_u32 v1, v3\n", "ds_write_b32 v1, v3\n") + WAIT,
        1,
        ["is written by lane 0", "ds_add_u32"],
    ),
    "atomic_and_read": (wave0("ds_add_u32 v1, v3\n", "ds_read_b32 v4, v1\n") + WAIT, 1, ["ds_add_u32"]),
    "read_and_atomic": (
        wave0("ds_read_b32 v4, v1\n", "ds_add_u32 v1, v3\n") + WAIT,
        1,
        ["is changed by lane 0"],
    ),
    # The last wave to arrive reads what all have written.
    "lds_counter": (
        "ds_write_b128 v2, v[4:7]\n"
        + WAIT
        + "ds_add_rtn_u32 v4, v3, v3 offset:4096\n"
        + WAIT
        + wave0("", READ_OTHER)
        + WAIT,
        1,
        [],
    ),
    "lds_counter_no_wait": (
        wave0("ds_add_rtn_u32 v4, v3, v3 offset:4096\n" + WAIT + "ds_write_b128 v2, v[4:7]\n")
        + wave0("", "ds_add_rtn_u32 v4, v3, v3 offset:4096\n" + WAIT + READ_OTHER)
        + WAIT,
        1,
        ["is read"],
    ),
    # ---- global memory, within a workgroup ----
    "global": (wave0(STORE + BARRIER, "s_barrier\n" + LOAD + WAIT), 1, []),
    "global_no_barrier": (
        wave0(STORE, LOAD) + WAIT,
        1,
        [
            "race: memory at 0x",
            "0 bytes into allocation #",
            "is read by lane 0",
            "was written by wave 0 lane 0",
        ],
    ),
    "global_no_wait": (
        wave0(STORE + "s_barrier\n", "s_barrier\n" + LOAD + WAIT),
        1,
        ["was written by wave 0 lane 0, issued after 0 barriers and landed since the last"],
    ),
    "global_in_flight": (
        STORE_OWN + "s_barrier\n" + LOAD + WAIT,
        1,
        ["is read by lane 0", "a barrier, after the wait for it"],
    ),
    "global_read_write": (wave0(LOAD, STORE) + WAIT, 1, ["is written by lane 0", "was read by wave 0"]),
    "global_two_readers": (LOAD + BARRIER + wave0(STORE) + WAIT, 1, []),
    "global_two_readers_no_barrier": (LOAD + WAIT + wave0("", STORE) + WAIT, 1, ["is written by lane 0"]),
    "global_same_wave": (wave0(STORE + LOAD + STORE + WAIT), 1, []),
    "global_bytes": ("global_store_byte v0, v3, s[4:5]\n" + WAIT, 1, []),
    "global_bytes_overlap": (
        "global_store_byte v0, v3, s[4:5]\nglobal_load_ushort v4, v0, s[4:5]\n" + WAIT,
        1,
        ["race: memory at 0x"],
    ),
    "global_atomics": ("global_atomic_add v1, v3, s[4:5]\n" + WAIT, 3, []),
    # ---- between workgroups ----
    "groups": (
        "v_lshl_add_u32 v4, s2, 9, v1\nv_lshl_add_u32 v4, s8, 8, v4\nglobal_store_dword v4, v3, s[4:5]\n",
        3,
        [],
    ),
    "groups_bytes": ("v_lshl_add_u32 v4, v0, 1, s2\nglobal_store_byte v4, v3, s[4:5]\n", 2, []),
    "groups_write": (
        wave0(STORE),
        2,
        [
            "race: memory at 0x",
            "0 bytes into allocation #",
            "workgroup (1,0,0) wave 0 lane 0 writes it, 0x",
            "workgroup (0,0,0) wave 0 lane 0 writes it, 0x",
            "global_store_dword v1, v3, s[4:5]",
            "workgroups of a launch run in no order",
        ],
    ),
    "groups_read": (
        "s_cmp_eq_u32 s2, 0\n"
        + wave0("", LOAD)
        + "s_or_b32 s10, s2, s8\ns_cmp_eq_u32 s10, 0\n"
        + wave0(STORE),
        2,
        ["writes it", "reads it"],
    ),
    "groups_only_read": (LOAD, 3, []),
    "groups_atomic_and_write": (
        "s_cmp_eq_u32 s2, 0\n"
        + wave0("global_atomic_add v1, v3, s[4:5]\n")
        + "s_cmp_eq_u32 s2, 1\ns_cselect_b32 s10, 1, 0\ns_cmp_eq_u32 s8, 0\ns_cselect_b32 s10, s10, 0\n"
        + "s_cmp_eq_u32 s10, 1\n"
        + wave0(STORE),
        2,
        ["changes it atomically", "writes it"],
    ),
    # The last workgroup to arrive reads what all have written.
    "groups_counter": (
        "v_lshl_add_u32 v4, s2, 8, v1\ns_cmp_eq_u32 s8, 0\n"
        + wave0("global_store_dword v4, v3, s[4:5]\n" + WAIT + ATOMIC + LOAD + WAIT),
        3,
        [],
    ),
    "groups_counter_last": (
        "v_lshl_add_u32 v4, s2, 8, v1\nv_mov_b32 v6, 1\ns_cmp_eq_u32 s8, 0\n"
        + wave0(
            "global_store_dword v4, v3, s[4:5]\n"
            + WAIT
            + "s_mov_b64 exec, 1\nglobal_atomic_add v5, v3, v6, s[4:5] offset:2048 sc0\n"
            + WAIT
            + "s_mov_b64 exec, -1\nv_readfirstlane_b32 s10, v5\ns_cmp_eq_u32 s10, 2\n"
            + wave0(
                LOAD + LOAD.replace("\n", " offset:256\n") + LOAD.replace("\n", " offset:512\n") + WAIT, ""
            )
        ),
        3,
        [],
    ),
    # All waves write, one counts for all, all read what the first wrote: barriers pass on what it has seen.
    "groups_counter_barrier": (
        STORE_OWN_PART + BARRIER + wave0(ATOMIC) + BARRIER + READ_FIRST,
        2,
        [],
    ),
    "groups_counter_no_barrier": (
        STORE_OWN_PART + READ_FIRST + BARRIER + wave0(ATOMIC),
        2,
        ["race: memory at 0x"],
    ),
    # Reads before its own atomic operation.
    "groups_counter_early": (
        "v_lshl_add_u32 v4, s2, 8, v1\ns_cmp_eq_u32 s8, 0\n"
        + wave0(LOAD.replace("\n", " offset:256\n") + "global_store_dword v4, v3, s[4:5]\n" + WAIT + ATOMIC),
        2,
        ["reads it", "writes it"],
    ),
}

KERNELS = Snippets({name: asm.Snippet(SET_UP + body, lds=8192) for name, (body, _, _) in CASES.items()})


@pytest.mark.parametrize("memory", ["late", "early"])
@pytest.mark.parametrize("name", CASES)
def test_race(name: str, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPGEMM_EMULATOR_MEMORY", memory)
    monkeypatch.setenv("HIPGEMM_EMULATOR_THREADS", "1")
    _, grid, says = CASES[name]
    report = KERNELS.report(name, "race", np.zeros(2048, np.uint32), block=128, grid=grid)
    if says:
        assert all(part in report for part in says), report
    else:
        assert report == ""


@pytest.mark.parametrize("name", ["same_word", "same_halves", "same_wide"])
def test_the_same_value_is_a_note(name: str) -> None:
    before = len(note_texts())
    assert KERNELS.report(name, "race", np.zeros(2048, np.uint32), block=128) == ""
    (message,) = note_texts()[before:]
    parts = [
        "race: two waves store the same value, in no order: LDS at 0x",
        "ds_write",
        f"kernel {name} at 0x",
    ]
    assert all(part in message for part in [*parts, "workgroup (0,0,0) wave 1"]), message


def test_only_under_race() -> None:
    assert KERNELS.report("exchange_no_barrier", "hazard", np.zeros(2048, np.uint32), block=128) == ""
