"""Random code: for any bytes, a launch ends with a result or a report."""

from __future__ import annotations

import ctypes

import asm
import numpy as np
import pytest

# The leading bits of every encoding family, and how many dwords follow.
FAMILIES = (
    (0xBE800000, 9, 0),  # SOP1
    (0x80000000, 2, 0),  # SOP2
    (0xBF000000, 9, 0),  # SOPC
    (0xB0000000, 4, 0),  # SOPK
    (0xBF800000, 9, 0),  # SOPP
    (0xC0000000, 6, 1),  # SMEM
    (0x7E000000, 7, 0),  # VOP1
    (0x00000000, 1, 0),  # VOP2
    (0x7C000000, 7, 0),  # VOPC
    (0xD0000000, 6, 1),  # VOP3
    (0xD3800000, 9, 1),  # VOP3P, MFMA
    (0xD8000000, 6, 1),  # DS
    (0xE0000000, 6, 1),  # MUBUF
    (0xDC000000, 6, 1),  # FLAT
)
PRELUDE = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    s_waitcnt lgkmcnt(0)
    v_lshlrev_b32 v1, 3, v0
    v_mov_b32 v2, s4
    v_mov_b32 v3, s5
    v_mov_b32 v4, 0
    s_mov_b32 s10, 4096
    s_mov_b32 s11, 0x20000
    s_mov_b64 s[8:9], s[4:5]
    s_mov_b32 m0, 16
"""


def random_code(rng: np.random.Generator, length: int) -> str:
    """Instructions of every family, most of them known ones with small register numbers."""
    lines: list[str] = []
    text = ctypes.create_string_buffer(200)
    while len(lines) < length:
        prefix, bits, more = FAMILIES[rng.integers(len(FAMILIES))]
        words = [prefix | int(rng.integers(2**32)) & ((1 << (32 - bits)) - 1)]
        for _ in range(more):
            words.append(int(rng.integers(16)) * 0x01010101 & int(rng.integers(2**32)))
        code = np.array([*words, 0, 0], np.uint32).tobytes()
        known = asm.library().hipgemm_emulator_disassemble(code, len(code), text, len(text))
        if known or rng.random() < 0.01:
            lines.append(".long " + ", ".join(f"{w:#x}" for w in words))
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(4))
def test_random_instructions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPGEMM_EMULATOR_BUDGET", "20000")
    rng = np.random.default_rng(seed)
    kernels = {
        f"k{i}": asm.Snippet(
            PRELUDE + random_code(rng, int(rng.integers(1, 8))), lds=512, scratch=64, vgprs=64
        )
        for i in range(300)
    }
    ended, reports = 0, dict[str, str]()
    with asm.Module(kernels) as module:
        for name in kernels:
            try:
                module.run(name, np.zeros(1024, np.uint32), grid=2, block=128)
                ended += 1
            except asm.LaunchError as error:
                reports[name] = error.report
    assert all(f"kernel {name}" in report for name, report in reports.items()), reports
    assert ended > 10  # not all failed at the first instruction
    assert len(reports) > 10


def test_the_machine_is_none_the_worse() -> None:
    body = "s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_lshlrev_b32 v1, 2, v0\ns_waitcnt lgkmcnt(0)\n"
    (out,) = asm.run(body + "global_store_dword v1, v0, s[4:5]", np.zeros(64, np.uint32))
    np.testing.assert_array_equal(out, np.arange(64))
