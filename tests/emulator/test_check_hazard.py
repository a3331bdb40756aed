"""The hazard check: every distance at its boundary, one wait state short and just enough."""

from __future__ import annotations

import asm
import pytest
from checked import Snippets, nops, note_texts

# Buffer descriptors in s[8:11] without any record: accesses are out of range, whatever the address.
NO_RECORDS = "s_mov_b64 s[8:9], 0\ns_mov_b32 s10, 0\ns_mov_b32 s11, 0x20000\n"
DPP = " row_mask:0xf bank_mask:0xf"
GFX942 = asm.ARCH == "gfx942"
MORE = 0 if GFX942 else 1  # wait states after four passes and more


def xdl4(d: int, a: int, b: int, c: int, kind: str = "bf16") -> str:
    """A 16x16 MFMA by the first of its registers."""
    k, last = (16, 1) if GFX942 else (32, 3)
    return f"v_mfma_f32_16x16x{k}_{kind} v[{d}:{d + 3}], v[{a}:{a + last}], v[{b}:{b + last}], v[{c}:{c + 3}]"


def xdl8(d: int, a: int, b: int, c: int, kind: str = "bf16") -> str:
    k, last = (8, 1) if GFX942 else (16, 3)
    return (
        f"v_mfma_f32_32x32x{k}_{kind} v[{d}:{d + 15}], v[{a}:{a + last}], v[{b}:{b + last}], v[{c}:{c + 15}]"
    )


XDL4, XDL8 = xdl4(0, 4, 8, 0), xdl8(0, 32, 36, 0)
SCALED16 = "v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[32:39], v[40:47], v[0:15], v60, v61"
SCALED8 = "v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[32:35], v[40:43], v[0:15], v60, v61 cbsz:4 blgp:4"

# name: first instruction, second, wait states needed, what the report says, preparation
RULES: dict[str, tuple[str, str, int, str, str]] = {
    # MFMA results
    "xdl4_a": (
        XDL4,
        xdl4(20, 0, 8, 20),
        7 + MORE,
        "v0 is read after an MFMA",
        "",
    ),
    "xdl4_b": (
        XDL4,
        xdl4(20, 8, 2, 20),
        7 + MORE,
        "v2 is read after an MFMA",
        "",
    ),
    "xdl4_c_overlap": (
        XDL4,
        xdl4(20, 8, 12, 2),
        5 + MORE,
        "v2 is read",
        "",
    ),
    "xdl4_valu": (XDL4, "v_add_u32 v20, v21, v3", 7 + MORE, "v3 is read after an MFMA", ""),
    "xdl4_lds": (XDL4, "ds_write_b32 v20, v1", 7 + MORE, "v1 is read after an MFMA", "v_mov_b32 v20, 0"),
    "xdl4_overwrite": (XDL4, "v_mov_b32 v2, 0", 7 + MORE, "v2 is overwritten after an MFMA", ""),
    "xdl4_agpr": (XDL4.replace("v[0:3]", "a[0:3]"), "v_accvgpr_read_b32 v20, a3", 7 + MORE, "a3 is read", ""),
    "xdl8_a": (
        XDL8,
        xdl4(20, 12, 32, 20),
        11 + MORE,
        "v12 is read",
        "",
    ),
    "xdl8_c_overlap": (
        XDL8,
        xdl4(20, 32, 36, 4),
        9 + MORE,
        "v4 is read",
        "",
    ),
    # Results pass without a wait between MFMAs of one opcode only.
    "other_opcode_2": (
        "v_mfma_f32_4x4x4_16b_f16 v[0:3], v[4:5], v[8:9], v[0:3]",
        "v_mfma_f32_16x16x16_f16 v[20:23], v[12:13], v[8:9], v[0:3]",
        3,
        "v0 is read after an MFMA",
        "",
    ),
    "other_opcode_4": (
        XDL4,
        "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[8:9], v[0:3]",
        5 + MORE,
        "v0 is read after an MFMA",
        "",
    ),
    "other_opcode_8": (
        XDL8,
        xdl8(0, 32, 36, 0, "f16"),
        9 + MORE,
        "v0 is read after an MFMA",
        "",
    ),
    "other_opcode_agpr": (
        xdl4(0, 4, 8, 0, "f16").replace("v[0:3]", "a[0:3]"),
        XDL4.replace("v[0:3]", "a[0:3]"),
        5 + MORE,
        "a0 is read after an MFMA",
        "",
    ),
    "other_rate": (SCALED16, SCALED8, 18, "v0 is read after an MFMA", ""),
    "xdl8_valu": (XDL8, "v_mov_b32 v20, v15", 11 + MORE, "v15 is read after an MFMA", ""),
    "xdl16_valu": (SCALED16, "v_mov_b32 v20, v15", 20, "v15 is read after an MFMA", ""),
    "xdl16_c_overlap": (
        SCALED16,
        xdl4(20, 32, 36, 4),
        18,
        "v4",
        "",
    ),
    "fp4_valu": (SCALED8, "v_mov_b32 v20, v15", 12, "v15 is read after an MFMA", ""),
    # C read, then overwritten
    "xdl4_war": (
        xdl4(0, 4, 8, 12),
        "v_mov_b32 v13, 0",
        3,
        "reads it as C",
        "",
    ),
    "xdl8_war": (
        xdl8(0, 32, 36, 16),
        "v_mov_b32 v31, 0",
        7,
        "v31 is overwritten while an MFMA reads it as C",
        "",
    ),
    # vector operations
    "valu_a": ("v_mov_b32 v4, 0", XDL4, 2, "v4 is read after a vector operation", ""),
    "valu_c": ("v_mov_b32 v3, 0", XDL4, 2, "v3 is read after a vector operation", ""),
    "valu_scale": ("v_mov_b32 v61, 0", SCALED8, 2, "v61 is read after a vector operation", ""),
    "valu_readfirstlane": ("v_mov_b32 v4, 0", "v_readfirstlane_b32 s4, v4", 1, "v4 is read", ""),
    "valu_readlane": ("v_mov_b32 v4, 0", "v_readlane_b32 s4, v4, 3", 1, "v4 is read", ""),
    "valu_swap": ("v_mov_b32 v4, 0", "v_permlane32_swap_b32 v5, v4", 2, "v4 is read", ""),
    "valu_dpp": ("v_mov_b32 v4, 0", "v_mov_b32_dpp v5, v4 quad_perm:[1,0,3,2]" + DPP, 2, "v4 is read", ""),
    "trans": ("v_rcp_f32 v4, v5", "v_mov_b32 v6, v4", 1, "v4 is read", "v_mov_b32 v5, 1.0"),
    "half": ("v_cvt_pk_fp8_f32 v4, v5, v6 op_sel:[0,0,1]", "v_mov_b32 v7, v4", 1, "v4 is read", ""),
    "half_again": ("v_cvt_pk_fp8_f32 v4, v5, v6 op_sel:[0,0,1]", "v_mov_b32 v4, 0", 1, "a part of it", ""),
    # scalar registers written by vector operations
    "sgpr_constant": ("v_readfirstlane_b32 s4, v0", "v_mov_b32 v4, s4", 2, "s4 is read after a vector", ""),
    "sgpr_select": ("v_readfirstlane_b32 s4, v0", "v_readlane_b32 s5, v0, s4", 4, "s4 is read", ""),
    "sgpr_vmem": (
        "v_readfirstlane_b32 s4, v0",
        "buffer_load_dword v4, v0, s[8:11], s4 offen",
        5,
        "s4 is read",
        NO_RECORDS,
    ),
    "sgpr_descriptor": (
        "v_readfirstlane_b32 s10, v4",
        "buffer_load_dword v4, v0, s[8:11], 0 offen",
        5,
        "s10 is read",
        NO_RECORDS + "v_mov_b32 v4, 0",
    ),
    "vcc_select": ("v_cmp_eq_u32 vcc, v0, v1", "v_cndmask_b32 v4, v5, v6, vcc", 2, "vcc_lo is read", ""),
    "sgpr_mask": ("v_cmp_eq_u32 s[4:5], v0, v1", "v_cndmask_b32 v4, v5, v6, s[4:5]", 2, "s4 is read", ""),
    "vcc_fmas": ("v_cmp_eq_u32 vcc, v0, v1", "v_div_fmas_f32 v4, v5, v6, v7", 4, "vcc_lo is read", ""),
    # EXEC written by a vector operation
    "exec_mfma": ("v_cmpx_eq_u32 vcc, v0, v0", XDL4, 4, "EXEC matters", ""),
    "exec_readlane": ("v_cmpx_eq_u32 vcc, v0, v0", "v_readlane_b32 s4, v0, 3", 4, "EXEC matters", ""),
    "exec_writelane": ("v_cmpx_eq_u32 vcc, v0, v0", "v_writelane_b32 v4, 1, 3", 4, "EXEC matters", ""),
    "exec_dpp": ("v_cmpx_eq_u32 vcc, v0, v0", "v_mov_b32_dpp v5, v4 row_shl:1" + DPP, 5, "EXEC matters", ""),
    # M0, hardware registers
    "m0_dma": ("s_mov_b32 m0, 0", "buffer_load_dword v0, s[8:11], 0 offen lds", 1, "m0 is read", NO_RECORDS),
    "m0_movrel": ("s_mov_b32 m0, 1", "s_movrels_b32 s4, s5", 1, "m0 is read", ""),
    "setreg": (
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0",
        "s_getreg_b32 s4, hwreg(HW_REG_MODE)",
        2,
        "a hardware register is used after s_setreg",
        "",
    ),
    # store data
    "store": (
        "buffer_store_dwordx4 v[4:7], v0, s[8:11], 0 offen",
        "v_mov_b32 v6, 0",
        2,
        "v6 is overwritten while a store",
        NO_RECORDS,
    ),
    "store96": (
        "buffer_store_dwordx3 v[4:6], v0, s[8:11], 0 offen",
        "v_mov_b32 v4, 0",
        2,
        "v4 is overwritten while a store",
        NO_RECORDS,
    ),
}
if GFX942:
    XF32_8 = "v_mfma_f32_32x32x4_xf32 v[0:15], v[32:33], v[36:37], v[0:15]"
    F64_8 = "v_mfma_f64_16x16x4_f64 v[0:7], v[32:33], v[36:37], v[0:7]"
    RULES |= {
        "xf32_valu": (XF32_8, "v_mov_b32 v20, v15", 11, "v15 is read after an MFMA", ""),
        "xf32_c_overlap": (XF32_8, xdl4(20, 32, 36, 4), 9, "v4 is read after an MFMA", ""),
        "fp8_valu": (
            "v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[4:5], v[8:9], v[0:3]",
            "v_mov_b32 v20, v3",
            7,
            "v3 is read after an MFMA",
            "",
        ),
        "f64_valu": (F64_8, "v_mov_b32 v20, v7", 11, "v7 is read after an MFMA", ""),
        "f64_a": (F64_8, F64_8.replace("v[32:33]", "v[2:3]"), 11, "v2 is read after an MFMA", ""),
        "f64_c_overlap": (F64_8, F64_8.replace(" v[0:7]", " v[2:9]"), 9, "v2 is read after an MFMA", ""),
        "f64_lds": (F64_8, "ds_write_b32 v20, v1", 18, "v1 is read", "v_mov_b32 v20, 0"),
    }

# Pairs that need nothing in between.
FREE = {
    "same_accumulator": (XDL4, XDL4),
    "other_registers": (XDL4, "v_mov_b32 v20, v21"),
    "narrow_store": ("buffer_store_dwordx2 v[4:5], v0, s[8:11], 0 offen", "v_mov_b32 v4, 0"),
    "store_with_offset": ("buffer_store_dwordx4 v[4:7], v0, s[8:11], s12 offen", "v_mov_b32 v4, 0"),
    "valu_chain": ("v_mov_b32 v4, 0", "v_mov_b32 v5, v4"),
    "scalar_sgpr": ("s_mov_b32 s4, 0", "v_mov_b32 v4, s4"),
    "other_hwreg": ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0", "s_getreg_b32 s4, hwreg(HW_REG_HW_ID)"),
}

# Registers with a load in flight. `out` is in s[4:5]; v2 is a zero.
START = "s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_mov_b32 v2, 0\ns_waitcnt lgkmcnt(0)\n"
TWO_SCALARS = "s_load_dword s6, s[0:1], 0x0\ns_load_dword s7, s[0:1], 0x0\n"
TWO_VECTORS = "global_load_dword v4, v2, s[4:5]\nglobal_load_dword v5, v2, s[4:5]\n"
FLIGHTS: dict[str, tuple[str, str, str]] = {  # name: faulty, clean, report
    "smem_read": (
        "s_load_dword s6, s[0:1], 0x0\ns_add_u32 s7, s6, 1",
        "s_load_dword s6, s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\ns_add_u32 s7, s6, 1",
        "s6 is read while a load into it is in flight: an s_waitcnt for lgkmcnt",
    ),
    "smem_overwritten": (
        "s_load_dword s6, s[0:1], 0x0\ns_mov_b32 s6, 1",
        "s_load_dword s6, s[0:1], 0x0\ns_mov_b32 s7, 1",
        "s6 is overwritten",
    ),
    "smem_count": (  # scalar loads come in any order: only a wait for all will do
        f"{TWO_SCALARS}s_waitcnt lgkmcnt(1)\ns_add_u32 s8, s6, 1",
        f"{TWO_SCALARS}s_waitcnt lgkmcnt(0)\ns_add_u32 s8, s6, 1",
        "s6 is read",
    ),
    "vmem_read": (
        "global_load_dword v4, v2, s[4:5]\nv_add_u32 v5, v4, v4",
        "global_load_dword v4, v2, s[4:5]\ns_waitcnt vmcnt(0)\nv_add_u32 v5, v4, v4",
        "v4 is read while a load into it is in flight: an s_waitcnt for vmcnt",
    ),
    "vmem_count": (
        f"{TWO_VECTORS}s_waitcnt vmcnt(1)\nv_mov_b32 v6, v5",
        f"{TWO_VECTORS}s_waitcnt vmcnt(1)\nv_mov_b32 v6, v4",
        "v5 is read",
    ),
    "vmem_overwritten": (
        "global_load_dwordx4 v[4:7], v2, s[4:5]\nv_mov_b32 v7, 0",
        "global_load_dwordx4 v[4:7], v2, s[4:5]\nv_mov_b32 v8, 0",
        "v7 is overwritten",
    ),
    "vmem_stored": (
        "global_load_dword v4, v2, s[4:5]\nglobal_store_dword v2, v4, s[4:5]",
        "global_load_dword v4, v2, s[4:5]\ns_waitcnt vmcnt(0)\nglobal_store_dword v2, v4, s[4:5]",
        "v4 is read",
    ),
    "lds_read": (
        "ds_read_b32 v4, v2\nv_mov_b32 v5, v4",
        "ds_read_b32 v4, v2\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v5, v4",
        "v4 is read while a load into it is in flight: an s_waitcnt for lgkmcnt",
    ),
    "lds_wrong_counter": (
        "ds_read_b32 v4, v2\ns_waitcnt vmcnt(0)\nv_mov_b32 v5, v4",
        "ds_read_b32 v4, v2\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v5, v4",
        "v4 is read",
    ),
    "same_queue": (  # loads of one kind come in order, so the second wins
        "ds_read_b32 v4, v2\nglobal_load_dword v4, v2, s[4:5]",
        "ds_read_b32 v4, v2\nds_read_b32 v4, v2",
        "v4 is overwritten",
    ),
}


def snippet(body: str) -> asm.Snippet:
    return asm.Snippet(body, lds=1024, vgprs=128, accum=96)


KERNELS = Snippets(
    {
        **{
            f"{name}_{n}": snippet(f"{prepare}\n{nops(24)}{first}\n{nops(n)}{second}")
            for name, (first, second, need, _, prepare) in RULES.items()
            for n in (need - 1, need)
        },
        **{
            f"free_{name}": snippet(f"{NO_RECORDS}s_mov_b32 s12, 0\n{nops(24)}{a}\n{b}")
            for name, (a, b) in FREE.items()
        },
        **{
            f"flight_{name}_{kind}": snippet(START + body)
            for name, (bad, good, _) in FLIGHTS.items()
            for kind, body in (("bad", bad), ("good", good))
        },
        "loop": snippet(
            f"s_mov_b32 s4, 2\n.Lagain:\nv_mov_b32 v20, v0\n{XDL4}\ns_sub_u32 s4, s4, 1\ns_cmp_lg_u32 s4, 0\n"
            "s_cbranch_scc1 .Lagain"
        ),
        "interleaved": snippet(f"{nops(24)}{XDL4}\n" + "v_mov_b32 v20, 0\n" * 8 + "v_mov_b32 v21, v0"),
    }
)


@pytest.mark.parametrize("name", RULES)
def test_one_state_short(name: str) -> None:
    first, second, need, says, _ = RULES[name]
    report = KERNELS.report(f"{name}_{need - 1}", "hazard")
    kept = f"{need - 1} wait state{'' if need == 2 else 's'} in between where {need}"
    assert all(part in report for part in ("hazard: ", says, kept)), report
    assert first.split()[0] in report.split("the other is")[1].split(";")[0], report
    assert second.split()[0].removesuffix("_dpp") in report.split("kernel ")[1], report
    assert f"kernel {name}_{need - 1} at 0x" in report
    assert "workgroup (0,0,0) wave 0" in report


@pytest.mark.parametrize("name", RULES)
def test_just_enough(name: str) -> None:
    assert KERNELS.report(f"{name}_{RULES[name][2]}", "hazard") == ""


@pytest.mark.parametrize("name", FREE)
def test_no_hazard(name: str) -> None:
    assert KERNELS.report(f"free_{name}", "hazard") == ""


@pytest.mark.parametrize("name", FLIGHTS)
def test_in_flight(name: str) -> None:
    report = KERNELS.report(f"flight_{name}_bad", "hazard")
    assert all(part in report for part in ("hazard: ", FLIGHTS[name][2], "the load is 0x")), report
    assert KERNELS.report(f"flight_{name}_good", "hazard") == ""


# AMD's kernels for gfx950 keep fewer wait states here than the compiler; from how many on, if so.
ADVICE = {"xdl4_valu": 6, "xdl4_lds": 6, "xdl4_overwrite": 6, "xdl8_valu": 10, "xdl16_valu": 18, "m0_dma": 0}
ADVICE |= {"xdl4_agpr": 6, "fp4_valu": 10}
if GFX942:  # whose kernels do not
    ADVICE = {"m0_dma": 0}


@pytest.mark.parametrize("name", RULES)
def test_advice_or_wrong_values(name: str) -> None:
    """A finding says whether it is advice; under `all` advice is a note, and ends no launch."""
    need = RULES[name][2]
    kernel = f"{name}_{need - 1}"
    advice = ADVICE.get(name, need) < need
    report = KERNELS.report(kernel, "hazard")
    assert ("(advice: hardware waits by itself)" if advice else "(values may be wrong)") in report
    before = len(note_texts())
    report = KERNELS.report(kernel, "all")
    message = [n for n in note_texts()[before:] if "hazard: " in n]
    if advice:
        assert "hazard" not in report
        assert len(message) == 1, message
        assert f"kernel {kernel} at 0x" in message[0], message
    else:
        assert "hazard: " in report or "uninit: " in report or "bounds: " in report, report
        assert not message


def test_across_a_loop() -> None:
    report = KERNELS.report("loop", "hazard")
    assert "v0 is read after an MFMA has written it, with 3 wait states" in report, report


def test_any_instruction_is_a_wait_state() -> None:
    assert KERNELS.report("interleaved", "hazard") == ""


def test_off() -> None:
    assert KERNELS.report(f"xdl4_a_{6 + MORE}", "") == ""
    assert KERNELS.report(f"xdl4_a_{6 + MORE}", "uninit,hazard").count("hazard: ") == 1
