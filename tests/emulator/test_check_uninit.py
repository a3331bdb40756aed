"""The uninit check: undefined values that reach memory, an address or control flow, and those that do not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import asm
import numpy as np
import pytest
from checked import Snippets, checks

# s[4:5] is the output, s[6:7] a second buffer (where there is one), v1 the lane's byte offset, v2 zero.
START = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_mov_b32 v2, 0
s_waitcnt lgkmcnt(0)
"""
STORE = "global_store_dword v1, v5, s[4:5]"
COPY = f"global_load_dword v5, v1, s[6:7]\ns_waitcnt vmcnt(0)\n{STORE}"
# A descriptor of no bytes, in s[8:11].
NO_RECORDS = "s_mov_b64 s[8:9], 0\ns_mov_b32 s10, 0\ns_mov_b32 s11, 0x20000\n"
DPP = "row_mask:0xf bank_mask:0xf"
# v9 is known in lane 0 only.
ONE_LANE = "s_mov_b64 exec, 1\nv_mov_b32 v9, 0\n"
TRANSPOSED = (
    "v_lshlrev_b32 v6, 3, v0\nv_mov_b32 v3, 0\ns_mov_b64 exec, -3\nds_write_b64 v6, v[2:3]\n"
    "s_mov_b64 exec, -1\nds_read_b64_tr_b16 v[4:5], v6\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v5, v4\n"
)
MFMA = "v_mfma_f32_16x16x16_bf16 v[20:23], v[24:25], v[28:29], 0\ns_nop 15"
ZERO_A, ZERO_B = ("\n".join(f"v_mov_b32 v{r}, 0" for r in range(n, n + 4)) + "\ns_nop 1\n" for n in (24, 28))

# A typed store to the output, and a typed load of the second buffer.
TYPED = "s_mov_b32 s10, 4096\ns_mov_b32 s11, 0x20000\n"
TYPED_STORE = f"s_mov_b64 s[8:9], s[4:5]\n{TYPED}tbuffer_store_format_d16_xy v5, v1, s[8:11], 0 format:"
TYPED_STORE += "[BUF_DATA_FORMAT_16_16,BUF_NUM_FORMAT_UINT] offen"
TYPED_LOAD = f"s_mov_b64 s[8:9], s[6:7]\n{TYPED}tbuffer_load_format_xyzw v[4:7], v1, s[8:11], 0 format:"
TYPED_LOAD += f"[BUF_DATA_FORMAT_8_8_8_8,BUF_NUM_FORMAT_UINT] offen\ns_waitcnt vmcnt(0)\n{STORE}"

# name: faulty, clean, what the report says
PAIRS: dict[str, tuple[str, str, str]] = {
    # where undefined values come from
    "register": (STORE, f"v_mov_b32 v5, 1\n{STORE}", "v5, which nothing has written"),
    "agpr": (
        "global_store_dword v1, a5, s[4:5]",
        "v_accvgpr_write_b32 a5, 1\nglobal_store_dword v1, a5, s[4:5]",
        "a5, which nothing has written",
    ),
    "scalar": (
        f"v_mov_b32 v5, s20\n{STORE}",
        f"s_mov_b32 s20, 1\nv_mov_b32 v5, s20\n{STORE}",
        "s20, which nothing",
    ),
    "lds": (
        f"ds_read_b32 v5, v1\ns_waitcnt lgkmcnt(0)\n{STORE}",
        f"ds_write_b32 v1, v0\nds_read_b32 v5, v1\ns_waitcnt lgkmcnt(0)\n{STORE}",
        "LDS at 0x0, which nothing has written; it was read by 0x",
    ),
    "lds_stored": (  # the store is no finding; its use is, and names the register
        f"ds_write_b32 v1, v9\nds_read_b32 v5, v1\ns_waitcnt lgkmcnt(0)\n{STORE}",
        f"ds_write_b32 v1, v9\nds_write_b32 v1, v0\nds_read_b32 v5, v1\ns_waitcnt lgkmcnt(0)\n{STORE}",
        "v9, which nothing has written; it was read by",
    ),
    "lds_transposed": (  # what lane 1 should have written goes to lanes 4 to 7
        f"{TRANSPOSED}s_mov_b64 exec, 0x10\n{STORE}",
        f"{TRANSPOSED}s_andn2_b64 exec, exec, 0xf0\n{STORE}",
        "LDS at 0x8, which nothing has written; it was read by",
    ),
    "lds_atomic": (
        f"ds_add_rtn_u32 v5, v1, v0\ns_waitcnt lgkmcnt(0)\n{STORE}",
        f"ds_write_b32 v1, v0\nds_add_rtn_u32 v5, v1, v0\ns_waitcnt lgkmcnt(0)\n{STORE}",
        "LDS at 0x0",
    ),
    "scratch": (
        f"scratch_load_dword v5, v2, off\ns_waitcnt vmcnt(0)\n{STORE}",
        f"scratch_store_dword v2, v0, off\nscratch_load_dword v5, v2, off\ns_waitcnt vmcnt(0)\n{STORE}",
        "scratch at 0x0, which nothing has written",
    ),
    "typed_store": (
        f"v_mov_b32_sdwa v5, v2 dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:DWORD\n{TYPED_STORE}",
        f"v_mov_b32 v5, 1\n{TYPED_STORE}",
        "lane 0 stores an undefined value",
    ),
    "typed_load": (
        f"global_store_byte v1, v0, s[6:7]\n{TYPED_LOAD}",
        f"global_store_dword v1, v0, s[6:7]\n{TYPED_LOAD}",
        "lane 0 stores an undefined value",
    ),
    "memory": (
        f"global_load_dword v5, v1, s[6:7]\ns_waitcnt vmcnt(0)\n{STORE}",
        f"global_store_dword v1, v0, s[6:7]\nglobal_load_dword v5, v1, s[6:7]\ns_waitcnt vmcnt(0)\n{STORE}",
        "which nothing has written (",
    ),
    "memory_scalar": (
        f"s_load_dword s8, s[6:7], 0x10\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v5, s8\n{STORE}",
        f"s_load_dword s8, s[4:5], 0x10\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v5, s8\n{STORE}",
        "memory at 0x",
    ),
    "memory_to_lds": (
        "s_mov_b32 m0, 0\ns_nop 0\nglobal_load_lds_dword v1, s[6:7]\ns_waitcnt vmcnt(0)\nds_read_b32 v5, v1\n"
        f"s_waitcnt lgkmcnt(0)\n{STORE}",
        "s_mov_b32 m0, 0\ns_nop 0\nglobal_load_lds_dword v1, s[4:5]\ns_waitcnt vmcnt(0)\nds_read_b32 v5, v1\n"
        f"s_waitcnt lgkmcnt(0)\n{STORE}",
        "LDS at 0x0",
    ),
    "out_of_range": (  # such lanes load zeros, and DMA writes them
        f"ds_read_b32 v5, v1 offset:256\ns_waitcnt lgkmcnt(0)\n{STORE}",
        f"{NO_RECORDS}s_mov_b32 m0, 256\ns_nop 0\nbuffer_load_dword v1, s[8:11], 0 offen lds\n"
        "s_waitcnt vmcnt(0)\n"
        f"ds_read_b32 v5, v1 offset:256\ns_waitcnt lgkmcnt(0)\n{STORE}",
        "LDS at 0x100",
    ),
    # where they must not go
    "lane": (
        f"s_mov_b64 exec, 0xff\nv_mov_b32 v5, 1\ns_mov_b64 exec, 0x1ff\n{STORE}",
        f"s_mov_b64 exec, 0xff\nv_mov_b32 v5, 1\n{STORE}",
        "lane 8 stores an undefined value to 0x",
    ),
    "wide_store": (
        "v_mov_b32 v4, 0\nv_mov_b32 v6, 0\nglobal_store_dwordx3 v2, v[4:6], s[4:5]",
        "v_mov_b32 v4, 0\nv_mov_b32 v6, 0\nv_mov_b32 v5, 0\nglobal_store_dwordx3 v2, v[4:6], s[4:5]",
        "lane 0 stores an undefined value",
    ),
    "atomic": (
        "global_atomic_add v1, v5, s[4:5]",
        "v_mov_b32 v5, 1\nglobal_atomic_add v1, v5, s[4:5]",
        "stores an undefined value",
    ),
    "address": (
        "global_store_dword v5, v0, s[4:5]",
        "v_mov_b32 v5, v1\nglobal_store_dword v5, v0, s[4:5]",
        "the address of lane 0 is undefined (v5)",
    ),
    "scalar_address": (
        "s_load_dword s8, s[20:21], 0x0",
        "s_mov_b64 s[20:21], s[4:5]\ns_load_dword s8, s[20:21], 0x0",
        "the address is undefined (s20)",
    ),
    "lds_address": ("ds_write_b32 v5, v0", "v_mov_b32 v5, 0\nds_write_b32 v5, v0", "the address of lane 0"),
    "m0_address": (
        NO_RECORDS + "buffer_load_dword v1, s[8:11], 0 offen lds",
        NO_RECORDS + "s_mov_b32 m0, 0\ns_nop 0\nbuffer_load_dword v1, s[8:11], 0 offen lds",
        "the address is undefined (m0)",
    ),
    "branch": (
        "s_cmp_eq_u32 s20, 1\ns_cbranch_scc1 .Lx\n.Lx:",
        "s_cmp_eq_u32 s4, 1\ns_cbranch_scc1 .Ly\n.Ly:",
        "a branch depends on an undefined scc. It comes from s20",
    ),
    "branch_vcc": (
        "v_cmp_eq_u32 vcc, v5, v0\ns_cbranch_vccz .Lx1\n.Lx1:",
        "v_cmp_eq_u32 vcc, v1, v0\ns_cbranch_vccz .Ly1\n.Ly1:",
        "a branch depends on the undefined vcc_lo. It comes from v5",
    ),
    "exec": (
        "v_cmp_eq_u32 vcc, v5, v0\ns_and_saveexec_b64 s[8:9], vcc",
        "v_cmp_eq_u32 vcc, v1, v0\ns_and_saveexec_b64 s[8:9], vcc",
        "whether lane 0 runs depends on an undefined value",
    ),
    "cmpx": ("v_cmpx_eq_u32 vcc, v5, v0", "v_cmpx_eq_u32 vcc, v1, v0", "whether lane 0 runs depends"),
    # computing with them
    "arithmetic": (f"v_add_u32 v5, v9, v0\n{STORE}", f"v_add_u32 v5, v1, v0\n{STORE}", "v9, which nothing"),
    "same_operand": (f"v_add_u32 v5, v9, v9\n{STORE}", f"v_xor_b32 v5, v9, v9\n{STORE}", "v9, which nothing"),
    "minus_itself": (f"v_sub_u32 v5, v9, v0\n{STORE}", f"v_sub_u32 v5, v9, v9\n{STORE}", "v9, which nothing"),
    "selected": (
        f"s_mov_b64 vcc, 0xf\ns_nop 3\nv_cndmask_b32 v5, v0, v9, vcc\n{STORE}",
        f"s_mov_b64 vcc, 0\ns_nop 3\nv_cndmask_b32 v5, v0, v9, vcc\n{STORE}",
        "v9, which nothing",
    ),
    "half_written": (
        f"v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\n{STORE}",
        f"v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_cvt_pk_fp8_f32 v5, v2, v2 op_sel:[0,0,1]\ns_nop 0\n{STORE}",
        "v5, which nothing has written",
    ),
    "half_stored": (
        "v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nglobal_store_short_d16_hi v2, v5, s[4:5]",
        "v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nglobal_store_short v2, v5, s[4:5]",
        "v5, which nothing has written",
    ),
    "truth_table": (  # (a & b) | c
        f"v_bitop3_b32 v5, v9, v1, v0 bitop3:0xea\n{STORE}",
        f"v_bitop3_b32 v5, v9, v2, v0 bitop3:0xea\n{STORE}",
        "v9, which nothing has written",
    ),
    "bit_select": (  # s8 ? v9 : v0
        f"s_mov_b32 s8, 0xff\nv_bfi_b32 v5, s8, v9, v0\n{STORE}",
        f"v_bfi_b32 v5, 0, v9, v0\n{STORE}",
        "v9, which nothing has written",
    ),
    "sixteen_bits": (  # the other half becomes zero
        f"v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_add_u32 v5, v5, v0\n{STORE}",
        f"v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_add_u16 v5, v5, v0\n{STORE}",
        "v5, which nothing has written",
    ),
    "high_half_unused": (  # the compiler's 64-bit products leave anything in a dword that is not read
        f"v_mov_b32 v8, 1\nv_mad_u64_u32 v[8:9], s[10:11], v0, 12, v[8:9]\nv_mov_b32 v5, v9\n{STORE}",
        f"v_mov_b32 v8, 1\nv_mad_u64_u32 v[8:9], s[10:11], v0, 12, v[8:9]\nv_mov_b32 v5, v8\n{STORE}",
        "v9, which nothing has written",
    ),
    "low_half_used": (
        "v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_add_u32 v5, v5, v0\nglobal_store_dword v2, v5, s[4:5]",
        "v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_add_u32 v5, v5, v0\nglobal_store_short v2, v5, s[4:5]",
        "v5, which nothing has written",
    ),
    "masked": (
        f"v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_and_b32 v5, 0xffffff, v5\n{STORE}",
        f"v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_and_b32 v5, 0xffff, v5\n{STORE}",
        "v5, which nothing has written",
    ),
    "shifted": (
        f"v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_lshlrev_b32 v5, 8, v5\n{STORE}",
        f"v_cvt_pk_fp8_f32 v5, v2, v2\ns_nop 0\nv_lshlrev_b32 v5, 16, v5\n{STORE}",
        "v5, which nothing has written",
    ),
    "permuted_bytes": (
        f"v_cvt_pk_fp8_f32 v9, v2, v2\ns_mov_b32 s8, 0x02000100\nv_perm_b32 v5, v0, v9, s8\n{STORE}",
        f"v_cvt_pk_fp8_f32 v9, v2, v2\ns_mov_b32 s8, 0x04000100\nv_perm_b32 v5, v0, v9, s8\n{STORE}",
        "v9, which nothing has written",
    ),
    "mask_bits": (  # bits of inactive lanes may be anything, if they are not used
        "s_and_b64 s[8:9], exec, s[20:21]\ns_mov_b64 exec, s[8:9]",
        "s_andn2_b64 s[8:9], s[20:21], exec\ns_and_b64 s[10:11], exec, -1\n"
        "s_or_b64 s[8:9], s[8:9], s[10:11]\n"
        "s_mov_b64 exec, s[8:9]",
        "whether lane 0 runs",
    ),
    "readlane": (
        "s_mov_b64 exec, 1\nv_mov_b32 v5, 0\ns_mov_b64 exec, -1\nv_readlane_b32 s8, v5, 1\n"
        "s_cmp_eq_u32 s8, 0\n"
        "s_cbranch_scc1 .Lx2\n.Lx2:",
        "s_mov_b64 exec, 1\nv_mov_b32 v5, 0\ns_mov_b64 exec, -1\nv_readlane_b32 s8, v5, 0\n"
        "s_cmp_eq_u32 s8, 0\n"
        "s_cbranch_scc1 .Ly2\n.Ly2:",
        "a branch depends on an undefined scc. It comes from v5",
    ),
    # Selectors and shifts per lane, defined in part or in the lanes that matter.
    "permuted_by_lanes": (
        f"v_cvt_pk_fp8_f32 v9, v2, v2\nv_mov_b32 v8, 0x02000100\nv_perm_b32 v5, v0, v9, v8\n{STORE}",
        "v_cvt_pk_fp8_f32 v9, v2, v2\nv_and_b32 v8, 1, v0\nv_or_b32 v8, 0x04000100, v8\n"
        f"v_perm_b32 v5, v0, v9, v8\n{STORE}",
        "lane 0 stores",
    ),
    "permuted_by_unknown": (
        f"v_mov_b32_sdwa v8, v2 dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:DWORD\n"
        f"v_perm_b32 v5, v0, v2, v8\n{STORE}",
        "v_mov_b32_sdwa v8, v2 dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:DWORD\n"
        "v_perm_b32 v5, v0, v2, v8\nglobal_store_short v1, v5, s[4:5]",
        "lane 0 stores",
    ),
    "shifted_by_lanes": (
        f"v_cvt_pk_fp8_f32 v9, v2, v2\nv_mov_b32 v8, 8\nv_lshlrev_b32 v5, v8, v9\n{STORE}",
        "v_cvt_pk_fp8_f32 v9, v2, v2\nv_and_b32 v8, 1, v0\nv_lshl_add_u32 v8, v8, 2, 16\n"
        f"v_lshlrev_b32 v5, v8, v9\n{STORE}",
        "lane 0 stores",
    ),
    "aligned_by_lanes": (
        f"v_mov_b32 v8, 17\nv_alignbit_b32 v5, v9, v2, v8\n{STORE}",
        f"v_mov_b32 v8, 0\nv_alignbit_b32 v5, v9, v2, v8\n{STORE}",
        "lane 0 stores",
    ),
    "writelane": (
        f"s_mov_b64 exec, 2\nv_writelane_b32 v5, 7, 0\n{STORE}",
        f"s_mov_b64 exec, 1\nv_writelane_b32 v5, 7, 0\n{STORE}",
        "lane 1 stores",
    ),
    "spilled_mask": (  # tracked by bytes
        "s_or_b32 s9, s20, 0x00010101\nv_writelane_b32 v5, s9, 0\ns_nop 4\nv_readlane_b32 s8, v5, 0\n"
        "s_cmp_eq_u32 s8, 0\ns_cbranch_scc1 .Lx3\n.Lx3:",
        "s_or_b32 s9, s20, 0x01010101\nv_writelane_b32 v5, s9, 0\ns_nop 4\nv_readlane_b32 s8, v5, 0\n"
        "s_and_b32 s8, s8, 0x01010101\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc1 .Ly3\n.Ly3:",
        "a branch depends on an undefined scc. It comes from",
    ),
    "dpp": (
        f"{ONE_LANE}s_mov_b64 exec, 3\ns_nop 4\nv_mov_b32_dpp v5, v9 quad_perm:[0,1,2,3] {DPP}\n{STORE}",
        f"{ONE_LANE}s_mov_b64 exec, 3\ns_nop 4\nv_mov_b32_dpp v5, v9 quad_perm:[0,0,0,0] {DPP}\n{STORE}",
        "lane 1 stores",
    ),
    "swap": (
        f"v_mov_b32 v9, 0\ns_nop 1\nv_permlane32_swap_b32 v5, v9\n{STORE}",
        f"v_mov_b32 v9, 0\ns_nop 1\nv_permlane32_swap_b32 v5, v9\ns_mov_b32 exec_lo, 0\n{STORE}",
        "lane 0 stores",
    ),
    # Under a partial EXEC: lanes 32 and on are off, so that lane 0's partner is.
    "swap_fetches": (
        "s_mov_b32 exec_hi, 0\nv_mov_b32 v9, 0\ns_nop 4\n"
        f"v_permlane32_swap_b32_e64 v5, v9 fi:1\nv_mov_b32 v5, v9\n{STORE}",
        "v_mov_b32 v5, 0\ns_mov_b32 exec_hi, 0\nv_mov_b32 v9, 0\ns_nop 4\n"
        f"v_permlane32_swap_b32_e64 v5, v9 fi:1\nv_mov_b32 v5, v9\n{STORE}",
        "lane 0 stores",
    ),
    "swap_zero": (
        f"s_mov_b32 exec_hi, 0\ns_nop 4\nv_permlane32_swap_b32_e64 v5, v9\nv_mov_b32 v5, v9\n{STORE}",
        "s_mov_b32 exec_hi, 0\ns_nop 4\n"
        f"v_permlane32_swap_b32_e64 v5, v9 bound_ctrl:1\nv_mov_b32 v5, v9\n{STORE}",
        "lane 0 stores",
    ),
    "bpermute": (
        f"{ONE_LANE}s_mov_b64 exec, -1\nds_bpermute_b32 v5, v1, v9\ns_waitcnt lgkmcnt(0)\n{STORE}",
        f"{ONE_LANE}s_mov_b64 exec, -1\nds_bpermute_b32 v5, v2, v9\ns_waitcnt lgkmcnt(0)\n{STORE}",
        "lane 1 stores",
    ),
    # MFMA: row m of A affects row m. Lane 5 of A is row 5: register 1 of lanes 16-31.
    "mfma_a": (
        ZERO_B
        + ZERO_A.replace("v_mov_b32 v24", "s_mov_b32 exec_lo, 0xffffffdf\nv_mov_b32 v24")
        + f"s_mov_b64 exec, -1\n{MFMA}\nv_mov_b32 v5, v21\n{STORE}",
        ZERO_B
        + ZERO_A.replace("v_mov_b32 v24", "s_mov_b32 exec_lo, 0xffffffdf\nv_mov_b32 v24")
        + f"s_mov_b64 exec, -1\n{MFMA}\nv_mov_b32 v5, v20\n{STORE}",
        "lane 16 stores an undefined value",
    ),
    "mfma_b": (
        ZERO_A
        + ZERO_B.replace("v_mov_b32 v28", "s_mov_b32 exec_lo, 0xffffffdf\nv_mov_b32 v28")
        + f"s_mov_b64 exec, -1\n{MFMA}\nv_mov_b32 v5, v20\n{STORE}",
        ZERO_A
        + ZERO_B.replace("v_mov_b32 v28", "s_mov_b32 exec_lo, 0xffffffdf\nv_mov_b32 v28")
        + f"s_mov_b32 exec_lo, 0xffdfffdf\ns_mov_b32 exec_hi, 0xffdfffdf\n{MFMA}\nv_mov_b32 v5, v20\n{STORE}",
        "lane 5 stores an undefined value",
    ),
    "mfma_c": (
        ZERO_A + ZERO_B + MFMA.replace(", 0\n", ", v[32:35]\n") + f"\nv_mov_b32 v5, v20\n{STORE}",
        ZERO_A + ZERO_B + MFMA + f"\nv_mov_b32 v5, v20\n{STORE}",
        "v32, which nothing has written",
    ),
}

KERNELS = Snippets(
    {
        f"{name}_{kind}": asm.Snippet(START + body, lds=1024, vgprs=128, accum=96, scratch=16, kernarg=16)
        for name, (bad, good, _) in PAIRS.items()
        for kind, body in (("bad", bad), ("good", good))
    }
    | {"copy": asm.Snippet(START + COPY, kernarg=16)}
)


def launch(name: str, prepare: Callable[[ctypes.CDLL, ctypes.c_void_p], object] | None = None) -> str:
    """Run with a written and a new buffer of 4 KiB; `prepare` may write to the new one."""
    lib = asm.library()
    with checks("uninit"):
        output, fresh, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        for p in (output, fresh):
            assert lib.hipMalloc(ctypes.byref(p), ctypes.c_size_t(4096)) == 0
        assert lib.hipMemset(output, 0, ctypes.c_size_t(4096)) == 0
        if prepare is not None:
            prepare(lib, fresh)
        asm._call("hipModuleGetFunction", ctypes.byref(function), KERNELS.module(name)._module, name.encode())
        values = (ctypes.c_void_p * 2)(output.value, fresh.value)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(values), ctypes.addressof(values) + 8)
        try:
            asm._call(
                "hipModuleLaunchKernel",
                *(function, 1, 1, 1, 64, 1, 1, 0, ctypes.c_void_p(), arguments, ctypes.c_void_p()),
            )
            asm._call("hipDeviceSynchronize")
        except asm.LaunchError as error:
            return error.report
        finally:
            for p in (output, fresh):
                lib.hipFree(p)
    return ""


@pytest.mark.parametrize("name", PAIRS)
def test_planted(name: str) -> None:
    report = launch(f"{name}_bad")
    parts = ("uninit: ", PAIRS[name][2], f"kernel {name}_bad at 0x", "workgroup (0,0,0) wave 0")
    assert all(part in report for part in parts), report


@pytest.mark.parametrize("name", PAIRS)
def test_clean_twin(name: str) -> None:
    assert launch(f"{name}_good") == ""


def test_copies_and_fills_define() -> None:
    host = np.zeros(4096, np.uint8)
    pointer, size = host.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(4096)
    assert launch("copy", lambda lib, p: lib.hipMemcpy(p, pointer, size, 1)) == ""
    assert launch("copy", lambda lib, p: lib.hipMemset(p, 7, size)) == ""
    assert "memory at" in launch("copy", lambda lib, p: lib.hipMemset(p, 7, ctypes.c_size_t(255)))
    assert "memory at" in launch(
        "copy", lambda lib, p: lib.hipMemset(ctypes.c_void_p(p.value + 4), 7, size.value - 4)
    )


def test_device_copies_carry_it_along() -> None:
    size = ctypes.c_size_t(4096)

    def from_device(lib: ctypes.CDLL, p: ctypes.c_void_p, written: int) -> None:
        other = ctypes.c_void_p()
        assert lib.hipMalloc(ctypes.byref(other), size) == 0
        assert lib.hipMemset(other, 7, ctypes.c_size_t(written)) == 0
        assert lib.hipMemcpy(p, other, size, 3) == 0
        lib.hipFree(other)

    assert launch("copy", lambda lib, p: from_device(lib, p, 4096)) == ""
    assert "which nothing has written" in launch("copy", lambda lib, p: from_device(lib, p, 128))


def test_memory_from_before_the_check_counts_as_written() -> None:
    lib = asm.library()
    buffers = (np.zeros(1024, np.uint32), np.zeros(1024, np.uint32))
    assert KERNELS.report("copy", "", *buffers) == ""
    assert KERNELS.report("copy", "uninit", *buffers) == ""
    assert lib.hipDeviceSynchronize() == 0


def test_unknown_names() -> None:
    lib = asm.library()
    assert lib.hipgemm_emulator_set_check(b"uninit,bogus") != 0
    assert lib.hipgemm_emulator_set_check(b"uninit,,race") == 0
    assert lib.hipgemm_emulator_set_check(b"") == 0


def test_unknown_name_in_the_environment(run_python: Callable[..., object]) -> None:
    code = """if True:
        import sys; sys.path.insert(0, 'tests/emulator')
        import asm, numpy as np
        try:
            asm.run('s_nop 0', np.zeros(4, np.uint32))
        except asm.LaunchError as error:
            print(error.report)
    """
    done = run_python(code, HIPGEMM_EMULATOR_CHECK="hazard,bogus")
    text = done.stdout  # type: ignore[attr-defined]
    assert 'no check is called "bogus"; there are race, uninit, bounds, hazard and all' in text
