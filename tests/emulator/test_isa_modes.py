"""Modes that change later instructions: register numbers from M0, skipped vector instructions; and the one
register file after VGPRs and AGPRs."""

from __future__ import annotations

import asm
import numpy as np
import pytest

LANES = np.arange(64, dtype=np.uint32)
FILL = "\n".join(f"v_add_u32 v{10 + n}, {n}, v0" for n in range(8))  # v[10 + n] = n + lane
STORE = """
    v_lshlrev_b32 v1, 2, v0
    global_store_dword v1, v2, s[4:5]
    s_waitcnt vmcnt(0)
"""
BEGIN = "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\n" + FILL + "\n"
ZEROS = np.zeros(64, np.uint32)


def run(body: str, *buffers: np.ndarray, accum: int | None = None) -> np.ndarray:
    return asm.run(asm.Snippet(BEGIN + body + STORE, accum=accum), *(buffers or (ZEROS,)))[0]


@pytest.mark.parametrize("index", [0, 1, 5, 7])
def test_index_of_a_source(index: int) -> None:
    got = run(f"""
        s_mov_b32 s8, {index + 256}
        s_set_gpr_idx_on s8, gpr_idx(SRC0)
        v_mov_b32 v2, v10
        s_set_gpr_idx_off
        v_add_u32 v2, v2, v10
    """)
    assert (got == 2 * LANES + index).all()  # eight bits of the index count; v10 is v10 again after the end


def test_index_of_each_operand() -> None:
    got = run("""
        v_mov_b32 v13, 100
        s_mov_b32 s8, 3
        s_set_gpr_idx_on s8, gpr_idx(SRC1)
        v_sub_u32 v2, v17, v10
        s_set_gpr_idx_mode gpr_idx(SRC2)
        v_mad_u32_u24 v3, 2, 3, v10
        s_set_gpr_idx_mode gpr_idx(SRC0,DST)
        v_add_u32 v4, v10, v10
        s_mov_b32 s9, 4
        s_set_gpr_idx_idx s9
        v_mov_b32 v4, v11
        s_set_gpr_idx_off
        v_add3_u32 v2, v2, v3, v7
        v_add_u32 v2, v2, v8
    """)
    each = (LANES + 7 - 100) + (6 + 100) + (100 + LANES) + (5 + LANES)
    assert (got == each.astype(np.uint32)).all()


def test_index_and_m0() -> None:
    got = run("""
        s_mov_b32 m0, 0x12345f00
        s_mov_b32 s8, 0xab02
        s_set_gpr_idx_on s8, gpr_idx(SRC0,SRC2)
        s_set_gpr_idx_off
        v_mov_b32 v2, m0
    """)
    assert (got == 0x12345F02).all()


def test_index_in_a_loop_over_two_groups() -> None:
    """Each step of a loop takes another register, and lanes that are off keep theirs."""
    got = run("""
        v_mov_b32 v2, 0
        s_mov_b32 s8, 0
        s_mov_b32 exec_lo, 0xffff
    again:
        s_set_gpr_idx_on s8, gpr_idx(SRC1)
        v_add_u32 v2, v2, v10
        s_set_gpr_idx_off
        s_add_u32 s8, s8, 1
        s_cmp_lt_u32 s8, 8
        s_cbranch_scc1 again
        s_mov_b64 exec, -1
    """)
    on = (LANES < 16) | (LANES >= 32)
    assert (got == np.where(on, 8 * LANES + 28, 0)).all()


def test_index_beyond_the_registers() -> None:
    with pytest.raises(asm.LaunchError, match="M0 indexes beyond the vector registers"):
        run("s_movk_i32 s8, 0xff\ns_set_gpr_idx_on s8, gpr_idx(DST)\nv_mov_b32 v10, 0\ns_set_gpr_idx_off")


def test_vector_instructions_are_skipped() -> None:
    got = run("""
        v_mov_b32 v2, v10
        s_mov_b32 s8, 0b1010
        s_setvskip s8, 1
        v_mov_b32 v2, 1
        v_readfirstlane_b32 s9, v2
        global_store_dword v1, v10, s[4:5]
        ds_write_b32 v10, v10
        s_mov_b32 s10, 5
        s_setvskip s8, 2
        s_nop 1
        v_add_u32 v2, s10, v2
        s_setvskip s8, 3
        v_mov_b32 v2, 2
        s_setvskip 0, 0
    """)
    assert (got == LANES + 5).all()


def test_vgprs_reach_into_the_agprs() -> None:
    got = run("v_mov_b32 v70, v13\nv_accvgpr_read_b32 v2, a6", accum=64)
    assert (got == LANES + 3).all()
    with pytest.raises(asm.LaunchError, match="beyond the kernel's allocation"):
        run("v_mov_b32 v128, 0", accum=64)


def test_index_of_accumulation_registers() -> None:
    """AGPRs are indexed as VGPRs are, as sources and as destinations."""
    got = asm.run(
        asm.Snippet(
            BEGIN
            + "\n".join(f"v_accvgpr_write_b32 a{n}, v{10 + n}" for n in range(8))
            + """
        s_mov_b32 s8, 2
        s_set_gpr_idx_on s8, gpr_idx(SRC0)
        v_accvgpr_read_b32 v2, a0
        v_accvgpr_mov_b32 a9, a1
        s_set_gpr_idx_mode gpr_idx(DST)
        v_accvgpr_write_b32 a10, v17
        s_set_gpr_idx_mode gpr_idx(SRC0,DST)
        v_accvgpr_mov_b32 a12, a4
        s_set_gpr_idx_off
        v_accvgpr_read_b32 v3, a9
        v_accvgpr_read_b32 v4, a12
        v_accvgpr_read_b32 v5, a14
        v_lshl_add_u32 v2, v3, 8, v2
        v_lshlrev_b32 v4, 16, v4
        v_lshlrev_b32 v5, 24, v5
        v_or3_b32 v2, v2, v4, v5
    """
            + STORE,
            vgprs=96,
            accum=64,
        ),
        ZEROS,
    )[0]
    want = (LANES + 2) + (LANES + 3 << 8) + ((LANES + 7 & 255) << 16) + ((LANES + 6 & 255) << 24)
    assert (got == want.astype(np.uint32)).all()


@pytest.mark.parametrize("name", ["v_mov_b32 v2, v250", "v_accvgpr_read_b32 v2, a250"])
def test_index_does_not_leave_its_file(name: str) -> None:
    """v250 and ten more is no AGPR."""
    body = BEGIN + f"s_mov_b32 s8, 10\ns_set_gpr_idx_on s8, gpr_idx(SRC0)\n{name}\ns_set_gpr_idx_off" + STORE
    with pytest.raises(asm.LaunchError, match="M0 indexes beyond the vector registers"):
        asm.run(asm.Snippet(body, vgprs=512, accum=256), ZEROS)
