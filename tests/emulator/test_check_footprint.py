"""The registers that an instruction reads and writes, according to the checks.

The widths come from elsewhere: clang's assembler accepts a register tuple only if it is as long as the
instruction's operand, so the text of an instruction shows them. What the text does not show (which operand is
written, VCC, EXEC, SCC, M0) is written down here by hand.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

import asm
import pytest

# text: reads, writes
TABLE = {
    # scalar ALU
    "s_mov_b32 s4, s5": ("s5", "s4"),
    "s_mov_b64 vcc, exec": ("exec", "vcc"),
    "s_mov_b32 m0, 17": ("", "m0"),
    "s_add_u32 s4, s5, s6": ("s5 s6", "s4 scc"),
    "s_addc_u32 s4, s5, 0": ("s5 scc", "s4 scc"),
    "s_cselect_b64 s[4:5], s[6:7], 0": ("s[6:7] scc", "s[4:5]"),
    "s_cmov_b32 s4, s5": ("s5 s4 scc", "s4"),
    "s_lshl_b64 s[4:5], s[6:7], s8": ("s[6:7] s8", "s[4:5] scc"),
    "s_bitset1_b32 s4, s5": ("s5 s4", "s4"),
    "s_and_saveexec_b64 s[4:5], vcc": ("vcc exec", "s[4:5] exec scc"),
    "s_cmp_lt_u32 s4, s5": ("s4 s5", "scc"),
    "s_cmpk_eq_u32 s4, 0x7": ("s4", "scc"),
    "s_movk_i32 s4, 0x7": ("", "s4"),
    "s_addk_i32 s4, 0x7": ("s4", "s4 scc"),
    "s_mul_hi_u32 s4, s5, s6": ("s5 s6", "s4"),
    "s_movrels_b32 s4, s5": ("s5 m0", "s4"),
    "s_getpc_b64 s[4:5]": ("", "s[4:5]"),
    "s_swappc_b64 s[4:5], s[6:7]": ("s[6:7]", "s[4:5]"),
    "s_cbranch_scc1 4": ("scc", ""),
    "s_cbranch_vccnz 4": ("vcc", ""),
    "s_cbranch_execz 4": ("exec", ""),
    "s_set_gpr_idx_on s4, 1": ("s4", "m0"),
    "s_barrier": ("", ""),
    "s_waitcnt vmcnt(0)": ("", ""),
    # scalar memory
    "s_load_dwordx4 s[4:7], s[0:1], s8 offset:0x10": ("s[0:1] s8", "s[4:7]"),
    "s_buffer_load_dwordx8 s[16:23], s[4:7], 0x10": ("s[4:7]", "s[16:23]"),
    "s_memtime s[4:5]": ("", "s[4:5]"),
    # vector ALU
    "v_mov_b32_e32 v1, s4": ("s4", "v1"),
    "v_mov_b64_e32 v[2:3], v[4:5]": ("v[4:5]", "v[2:3]"),
    "v_readfirstlane_b32 s4, v1": ("v1", "s4"),
    "v_readlane_b32 s4, v1, s5": ("v1 s5", "s4"),
    "v_writelane_b32 v1, 7, m0": ("v1 m0", "v1"),
    "v_add_u32_e32 v1, v2, v3": ("v2 v3", "v1"),
    "v_addc_co_u32_e32 v1, vcc, v2, v3, vcc": ("v2 v3 vcc", "v1 vcc"),
    "v_add_co_u32_e64 v1, s[4:5], v2, v3": ("v2 v3", "v1 s[4:5]"),
    "v_cndmask_b32_e64 v1, v2, v3, s[4:5]": ("v2 v3 s[4:5]", "v1"),
    "v_fmac_f32_e32 v1, v2, v3": ("v2 v3 v1", "v1"),
    "v_fma_f64 v[2:3], v[4:5], s[4:5], v[6:7]": ("v[4:5] v[6:7] s[4:5]", "v[2:3]"),
    "v_mad_u64_u32 v[2:3], s[4:5], v4, v5, v[6:7]": ("v4 v5 v[6:7]", "v[2:3] s[4:5]"),
    "v_div_scale_f32 v1, vcc, v2, v3, v4": ("v2 v3 v4", "v1 vcc"),
    "v_div_fmas_f32 v1, v2, v3, v4": ("v2 v3 v4 vcc", "v1"),
    "v_lshlrev_b64 v[2:3], v4, v[6:7]": ("v4 v[6:7]", "v[2:3]"),
    "v_cmp_lt_u64_e32 vcc, v[2:3], v[4:5]": ("v[2:3] v[4:5]", "vcc"),
    "v_cmpx_eq_u32_e64 s[4:5], v1, v2": ("v1 v2", "s[4:5] exec"),
    "v_swap_b32 v1, v2": ("v1 v2", "v1 v2"),
    "v_permlane32_swap_b32_e32 v1, v2": ("v1 v2", "v1 v2"),
    "v_pk_fma_f32 v[2:3], v[4:5], v[6:7], s[4:5]": ("v[4:5] v[6:7] s[4:5]", "v[2:3]"),
    "v_pk_mul_f16 v1, v2, v3": ("v2 v3", "v1"),
    "v_cvt_pk_fp8_f32 v1, v2, v3 op_sel:[0,0,1]": ("v2 v3 v1", "v1"),
    "v_cvt_scalef32_pk32_fp6_bf16 v[2:7], v[16:31], v1": ("v[16:31] v1", "v[2:7]"),
    "v_mov_b32_sdwa v1, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD": ("v2 v1", "v1"),
    "v_mov_b32_sdwa v1, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:DWORD": ("v2", "v1"),
    "v_accvgpr_read_b32 v1, a2": ("a2", "v1"),
    "v_accvgpr_write_b32 a1, s4": ("s4", "a1"),
    "v_dot2c_f32_f16_e32 v1, v2, v3": ("v2 v3 v1", "v1"),
    # matrix
    "v_mfma_f32_16x16x32_bf16 a[0:3], v[4:7], v[8:11], a[4:7]": ("v[4:7] v[8:11] a[4:7]", "a[0:3]"),
    "v_mfma_f32_32x32x16_f16 v[0:15], v[16:19], a[20:23], 0": ("v[16:19] a[20:23]", "v[0:15]"),
    "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:21], v[0:3] blgp:2": (
        "v[8:15] v[16:21] v[0:3]",
        "v[0:3]",
    ),
    "v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[16:19], v[24:31], v[0:15], v40, v41 cbsz:4": (
        "v[16:19] v[24:31] v[0:15] v40 v41",
        "v[0:15]",
    ),
    "v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7]": ("v[8:9] v[10:11] v[0:7]", "v[0:7]"),
    "v_smfmac_f32_16x16x64_bf16 v[0:3], v[4:7], v[8:15], v16": ("v[4:7] v[8:15] v16 v[0:3]", "v[0:3]"),
    # LDS
    "ds_read_b128 v[4:7], v1 offset:16": ("v1", "v[4:7]"),
    "ds_read2_b64 v[4:7], v1 offset1:1": ("v1", "v[4:7]"),
    "ds_write_b96 v1, v[4:6]": ("v1 v[4:6]", ""),
    "ds_write2_b32 v1, v2, v3 offset1:1": ("v1 v2 v3", ""),
    "ds_add_rtn_u32 v1, v2, v3": ("v2 v3", "v1"),
    "ds_cmpst_b64 v1, v[2:3], v[4:5]": ("v1 v[2:3] v[4:5]", ""),
    "ds_bpermute_b32 v1, v2, v3": ("v2 v3", "v1"),
    "ds_read_b64_tr_b16 v[2:3], v1": ("v1", "v[2:3]"),
    "ds_read_b96_tr_b6 v[2:4], v1": ("v1", "v[2:4]"),
    "ds_read_b128 a[4:7], v1": ("v1", "a[4:7]"),
    # buffers
    "buffer_load_dwordx4 v[4:7], v1, s[8:11], s4 offen": ("v1 s[8:11] s4", "v[4:7]"),
    "buffer_load_dword v4, v[2:3], s[8:11], 0 idxen offen": ("v[2:3] s[8:11]", "v4"),
    "buffer_load_dwordx4 v1, s[8:11], s4 offen lds": ("v1 s[8:11] s4 m0", ""),
    "buffer_store_dwordx3 v[4:6], off, s[8:11], 0": ("v[4:6] s[8:11]", ""),
    "buffer_atomic_add v4, v1, s[8:11], 0 offen": ("v4 v1 s[8:11]", ""),
    "buffer_atomic_cmpswap_x2 v[4:7], v1, s[8:11], 0 offen sc0": ("v[4:7] v1 s[8:11]", "v[4:5]"),
    # flat, global, scratch
    "flat_load_dwordx2 v[4:5], v[2:3]": ("v[2:3]", "v[4:5]"),
    "global_load_dwordx4 v[4:7], v[2:3], off": ("v[2:3]", "v[4:7]"),
    "global_store_dwordx4 v1, a[4:7], s[4:5]": ("v1 a[4:7] s[4:5]", ""),
    "global_load_lds_dwordx4 v1, s[4:5]": ("v1 s[4:5] m0", ""),
    "global_atomic_add_f32 v1, v2, s[4:5]": ("v1 v2 s[4:5]", ""),
    "global_atomic_swap_x2 v[4:5], v1, v[2:3], s[4:5] sc0": ("v1 v[2:3] s[4:5]", "v[4:5]"),
    "scratch_load_dwordx2 v[4:5], v1, s4": ("v1 s4", "v[4:5]"),
    "scratch_store_dword off, v1, s4": ("v1 s4", ""),
}

LONGEST = 32  # bytes, more than any instruction has
REGISTER = re.compile(r"\b(?:[sva](?:\d+|\[\d+:\d+\])|vcc(?:_lo|_hi)?|exec(?:_lo|_hi)?|m0)(?![\w:])")


@pytest.fixture(scope="module")
def encodings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The table's instructions, assembled by clang."""
    folder = tmp_path_factory.mktemp("footprint")
    source, binary = folder / "t.s", folder / "t.o"
    source.write_text("\n".join(TABLE))
    arguments = ("clang", "-x", "assembler", "--target=amdgcn-amd-amdhsa", "-mcpu=gfx950", "-c")
    subprocess.run(
        [sys.executable, "-m", "ziglang", *arguments, str(source), "-o", str(binary)],
        check=True,
        capture_output=True,
    )
    code = section(binary.read_bytes(), b".text")
    result = {}
    for text in TABLE:
        size = footprint(code)[0]
        assert size, f"{text}: {code[:8].hex()} does not decode"
        result[text] = code[:size]
        code = code[size:]
    assert not code
    return result


def section(elf: bytes, name: bytes) -> bytes:
    """Contents of a section of a 64-bit ELF file."""

    def word(at: int, n: int) -> int:
        return int.from_bytes(elf[at : at + n], "little")

    table, size, count, names = word(40, 8), word(58, 2), word(60, 2), word(62, 2)
    strings = word(table + names * size + 24, 8)
    for i in range(count):
        header = table + i * size
        at = strings + word(header, 4)
        if elf[at : elf.index(b"\0", at)] == name:
            return elf[word(header + 24, 8) :][: word(header + 32, 8)]
    raise AssertionError(f"no section {name!r}")


def ask(function: str, code: bytes) -> tuple[int, str]:
    text = ctypes.create_string_buffer(1024)
    size = getattr(asm.library(), function)(
        code, ctypes.c_size_t(min(len(code), LONGEST)), text, ctypes.c_size_t(1024)
    )
    return size, text.value.decode()


def footprint(code: bytes) -> tuple[int, set[str], set[str]]:
    """Size of the first instruction, what it reads, what it writes."""
    size, text = ask("hipgemm_emulator_footprint", code)
    reads, _, writes = text.removeprefix("reads").partition(" writes")
    return size, set(reads.split()), set(writes.split())


@pytest.mark.parametrize("text", TABLE)
def test_table(text: str, encodings: dict[str, bytes]) -> None:
    _, reads, writes = footprint(encodings[text])
    assert (reads, writes) == (set(TABLE[text][0].split()), set(TABLE[text][1].split()))


def test_operands_of_our_kernels() -> None:
    """Of every instruction in the code object, all registers in the text and no others."""
    folder = Path(__file__).parents[2] / "hipgemm" / "kernels"
    manifest = json.loads((folder / "manifest.json").read_text())
    code = section((folder / manifest["archs"]["gfx950"]["file"]).read_bytes(), b".text")
    seen = set()
    at = 0
    while at < len(code):
        instruction = code[at : at + LONGEST]
        size, text = ask("hipgemm_emulator_disassemble", instruction)
        at += size or 4  # padding
        if not size or text in seen:
            continue
        seen.add(text)
        mnemonic, _, operands = text.partition(" ")
        _, reads, writes = footprint(instruction)
        named = set(REGISTER.findall(operands)) - {"m0"}
        implied = {"scc", "m0", "exec", "vcc"}
        missing = {r for r in named if r not in reads | writes}
        extra = {r for r in reads | writes if r not in named and r not in implied}
        assert not missing, f"{text}: {missing} not in {reads | writes}"
        assert not extra, f"{text}: {extra} not in the text"
        if mnemonic.startswith(("s_cmp_", "s_add_", "s_and_b")):
            assert "scc" in writes, text
    assert len(seen) > 1000
