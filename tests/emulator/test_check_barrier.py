"""Barrier divergence, which the race check reports: lanes or waves that never arrive."""

from __future__ import annotations

import asm
import pytest
from checked import Snippets

# s8 is the wave's index.
WAVE = "v_readfirstlane_b32 s8, v0\ns_lshr_b32 s8, s8, 6\ns_cmp_eq_u32 s8, 0\n"

# name: body, work-items, what the report says ("": clean)
CASES: dict[str, tuple[str, int, str]] = {
    "all": ("s_barrier", 128, ""),
    "partial_last_wave": ("s_barrier\ns_barrier", 100, ""),
    "lanes_off": (
        "s_mov_b64 exec, 0xff\ns_barrier",
        64,
        "barrier divergence: lane 8 and 55 others of the wave do not take part",
    ),
    "lanes_back": ("s_mov_b64 exec, 0xff\nv_mov_b32 v1, 0\ns_mov_b64 exec, -1\ns_barrier", 64, ""),
    "no_lanes": ("s_mov_b64 exec, 0\ns_barrier", 64, "barrier divergence: lane 0 and 63 others"),
    "one_wave_ends": (
        WAVE + "s_cbranch_scc0 .Lend\ns_barrier\n.Lend:",
        128,
        "barrier divergence: wave 0 passed 1 barriers, wave 1 ended after 0",
    ),
    "first_wave_ends": (
        WAVE + "s_cbranch_scc1 .Lend1\ns_barrier\ns_barrier\n.Lend1:",
        128,
        "barrier divergence: wave 1 passed 2 barriers, wave 0 ended after 0",
    ),
    # Half of the waves run one barrier ahead of the others, and wait once more at the end.
    "ping_pong": (
        WAVE
        + "s_cbranch_scc1 .La\ns_barrier\n.La:\ns_barrier\ns_barrier\ns_cbranch_scc0 .Lb\ns_barrier\n.Lb:",
        128,
        "",
    ),
    "branches": (WAVE + "s_cbranch_scc1 .Lc\ns_barrier\ns_branch .Ld\n.Lc:\ns_barrier\n.Ld:", 128, ""),
}

KERNELS = Snippets({name: asm.Snippet(body) for name, (body, _, _) in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_barrier(name: str) -> None:
    _, block, says = CASES[name]
    report = KERNELS.report(name, "race", block=block)
    if says:
        assert all(part in report for part in ("race: ", says, "s_barrier")), report
    else:
        assert report == ""


def test_only_under_race() -> None:
    assert KERNELS.report("lanes_off", "hazard,uninit") == ""
