"""Waves: start state, control flow, barriers, and when memory takes effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asm
import numpy as np
import pytest

PRELUDE = "s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_lshlrev_b32 v2, 2, v0\ns_waitcnt lgkmcnt(0)\n"
STORE = "\ns_waitcnt vmcnt(0) lgkmcnt(0)\nglobal_store_dword v2, v1, s[4:5]\n"


@pytest.fixture(params=["late", "early"])
def memory_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HIPGEMM_EMULATOR_MEMORY", request.param)
    return str(request.param)


def scalar_result(body: str, n: int = 1, **options: object) -> list[int]:
    """s[16:] after the body, from lane 0."""
    text = PRELUDE + body + "\ns_mov_b64 exec, 1\nv_mov_b32 v2, 0\n"
    text += "".join(
        f"v_mov_b32 v1, s{16 + k}\nglobal_store_dword v2, v1, s[4:5] offset:{4 * k}\n" for k in range(n)
    )
    (out,) = asm.run(asm.Snippet(text, **options), np.zeros(max(n, 2), np.uint32))  # type: ignore[arg-type]
    return [int(x) for x in out[:n]]


# ---- start state -------------------------------------------------------------------------------------


def test_workitem_ids_of_partial_waves() -> None:
    """A block of (10, 5, 2) is two waves; the second has 36 live lanes."""
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_and_b32 v3, 0x3ff, v0
        v_bfe_u32 v4, v0, 10, 10
        v_lshrrev_b32 v5, 20, v0
        v_mul_lo_u32 v4, v4, 10
        v_mul_lo_u32 v5, v5, 50
        v_add3_u32 v3, v3, v4, v5
        v_lshlrev_b32 v2, 2, v3
        s_waitcnt lgkmcnt(0)
        global_store_dword v2, v0, s[4:5]
    """
    with asm.Module({"k": asm.Snippet(body)}) as module:
        (out,) = module.run("k", np.full(128, 0xFFFFFFFF, np.uint32), block=(10, 5, 2))
    n = np.arange(100)
    np.testing.assert_array_equal(out[:100], n % 10 | n // 10 % 5 << 10 | n // 50 << 20)
    assert (out[100:] == 0xFFFFFFFF).all()


def test_workgroup_ids() -> None:
    body = """
        s_load_dwordx2 s[8:9], s[0:1], 0x0
        s_mul_i32 s5, s3, 3
        s_add_u32 s5, s5, s2
        s_mul_i32 s6, s4, 6
        s_add_u32 s5, s5, s6
        s_lshl_b32 s5, s5, 2
        v_mov_b32 v1, s5
        s_lshl_b32 s3, s3, 8
        s_lshl_b32 s4, s4, 16
        s_or_b32 s2, s2, s3
        s_or_b32 s2, s2, s4
        v_mov_b32 v2, s2
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v2, s[8:9]
    """
    directives = ".amdhsa_system_sgpr_workgroup_id_y 1\n.amdhsa_system_sgpr_workgroup_id_z 1"
    with asm.Module({"k": asm.Snippet(body, directives=directives)}) as module:
        (out,) = module.run("k", np.zeros(24, np.uint32), grid=(3, 2, 4))
    n = np.arange(24)
    np.testing.assert_array_equal(out, n % 3 | n // 3 % 2 << 8 | n // 6 << 16)


def test_preloaded_arguments() -> None:
    """They are after the kernarg pointer, and the first 256 bytes of code are skipped."""
    body = """
        s_trap 2
        .p2align 8
        v_lshlrev_b32 v1, 2, v0
        v_mov_b32 v2, s6
        global_store_dword v1, v2, s[2:3]
    """
    snippet = asm.Snippet(
        body,
        directives=".amdhsa_user_sgpr_kernarg_preload_length 4\n.amdhsa_user_sgpr_kernarg_preload_offset 0",
    )
    with asm.Module({"k": snippet}) as module:
        out, _ = module.run("k", np.zeros(64, np.uint32), np.zeros(4, np.uint32), grid=1)
        assert not out.any()  # workgroup 0: s6 holds its number, after s[2:5]


def test_dispatch_packet() -> None:
    body = """
        s_load_dword s6, s[0:1], 0x4
        s_load_dword s7, s[0:1], 0xc
        s_load_dwordx2 s[8:9], s[2:3], 0x0
        v_mov_b32 v1, 0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v2, s6
        v_mov_b32 v3, s7
        global_store_dwordx2 v1, v[2:3], s[8:9]
    """
    snippet = asm.Snippet(body, directives=".amdhsa_user_sgpr_dispatch_ptr 1")
    with asm.Module({"k": snippet}) as module:
        (out,) = module.run("k", np.zeros(2, np.uint32), grid=5, block=(64, 2, 1))
    assert out.tolist() == [64 | 2 << 16, 5 * 64]


def test_registers_start_poisoned() -> None:
    """Uninitialized memory is not zero."""
    (out,) = asm.run(PRELUDE + "v_mov_b32 v1, v77\n" + STORE, np.zeros(64, np.uint32))
    assert (out > 0xF0000000).all()
    assert scalar_result("s_mov_b32 s16, s50")[0] > 0xF0000000


# ---- control flow ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "branch", "taken"),
    [
        ("s_cmp_eq_u32 s2, s2", "s_cbranch_scc1", True),
        ("s_cmp_eq_u32 s2, s2", "s_cbranch_scc0", False),
        ("s_mov_b64 vcc, 0", "s_cbranch_vccz", True),
        ("s_mov_b64 vcc, 0", "s_cbranch_vccnz", False),
        ("s_mov_b64 vcc, 8", "s_cbranch_vccnz", True),
        ("s_mov_b64 exec, 0", "s_cbranch_execz", True),
        ("s_mov_b64 exec, 4", "s_cbranch_execz", False),
        ("s_mov_b64 exec, 4", "s_cbranch_execnz", True),
        ("", "s_branch", True),
    ],
)
def test_branches(before: str, branch: str, taken: bool) -> None:
    body = f"s_mov_b32 s16, 1\n{before}\n{branch} over\ns_mov_b32 s16, 2\nover:"
    assert scalar_result(body) == [1 if taken else 2]


def test_loops_calls_and_computed_jumps() -> None:
    body = """
        s_mov_b32 s16, 0
        s_mov_b32 s17, 10
    loop:
        s_add_u32 s16, s16, s17
        s_sub_u32 s17, s17, 1
        s_cmp_lg_u32 s17, 0
        s_cbranch_scc1 loop
        s_call_b64 s[20:21], function
        s_getpc_b64 s[22:23]
    here:
        s_add_u32 s22, s22, function - here
        s_addc_u32 s23, s23, 0
        s_swappc_b64 s[20:21], s[22:23]
        s_branch done
    function:
        s_add_u32 s16, s16, 1000
        s_mov_b32 s18, 0x12345
        s_setpc_b64 s[20:21]
    done:
        s_mov_b32 s17, s18
    """
    assert scalar_result(body, 2) == [2055, 0x12345]


# A fork within the path of another that branches. A join leaves the lanes of the last path.
FORKS = """
    s_load_dwordx2 s[34:35], s[0:1], 0x0
    v_mov_b32 v2, 0
    s_mov_b32 s36, 0
    s_getpc_b64 s[40:41]
here:
    s_add_u32 s40, s40, outer - here
    s_addc_u32 s41, s41, 0
    s_mov_b64 s[42:43], exec
    v_cmp_gt_u32 s[44:45], {outer}, v0
    v_cmp_gt_u32 s[46:47], {inner}, v0
    s_waitcnt lgkmcnt(0)
    s_cbranch_g_fork s[44:45], s[40:41]
    v_add_u32 v2, 1, v2
    s_branch join_outer
outer:
    s_getreg_b32 s37, hwreg(HW_REG_MODE, 29, 3)
    s_mov_b64 s[38:39], exec
    s_cbranch_i_fork s[46:47], inner
    v_add_u32 v2, 2, v2
    s_branch join_inner
inner:
    v_add_u32 v2, 4, v2
join_inner:
    s_cbranch_join s37
    s_mov_b64 exec, s[38:39]
    v_add_u32 v2, 8, v2
join_outer:
    s_cbranch_join s36
    s_mov_b64 exec, s[42:43]
    s_getreg_b32 s48, hwreg(HW_REG_MODE, 29, 3)
    v_lshl_add_u32 v2, s48, 8, v2
    v_lshlrev_b32 v1, 2, v0
    global_store_dword v1, v2, s[34:35]
"""


@pytest.mark.parametrize("outer", [0, 10, 40, 64])
@pytest.mark.parametrize("inner", [0, 5, 30, 64])
def test_forks_and_joins(outer: int, inner: int) -> None:
    """Lanes below `outer` branch, and those of them below `inner` again; each goes its way once."""
    (out,) = asm.run(asm.Snippet(FORKS.format(outer=outer, inner=inner)), np.zeros(64, np.uint32))
    lane = np.arange(64)
    assert out.tolist() == np.where(lane < outer, 8 + np.where(lane < inner, 4, 2), 1).tolist()


def test_barrier_lets_waves_exchange_data(memory_mode: str) -> None:
    """Each wave writes its LDS slot and reads its neighbour's; the last wave ends before the barrier."""
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_lshlrev_b32 v1, 2, v0
        v_add_u32 v3, 1000, v0
        v_readfirstlane_b32 s6, v0
        s_cmp_eq_u32 s6, 192
        s_cbranch_scc1 out
        ds_write_b32 v1, v3
        s_waitcnt lgkmcnt(0)
        s_barrier
        v_xor_b32 v4, 0x100, v1
        v_and_b32 v4, 0x1ff, v4
        ds_read_b32 v5, v4
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v5, s[4:5]
    out:
    """
    (out,) = asm.run(asm.Snippet(body, lds=1024), np.zeros(256, np.uint32), block=256)
    lane = np.arange(192)
    np.testing.assert_array_equal(out[:192], 1000 + ((lane ^ 64) & 127))
    assert not out[192:].any()


def test_a_wave_can_wait_for_another() -> None:
    """Spinning on memory works: a wave's time slice ends, and its stores take effect."""
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_readfirstlane_b32 s6, v0
        v_mov_b32 v2, 0
        v_mov_b32 v3, 7
        s_waitcnt lgkmcnt(0)
        s_cmp_eq_u32 s6, 64
        s_cbranch_scc1 second
    spin:
        global_load_dword v4, v2, s[4:5]
        s_waitcnt vmcnt(0)
        v_readfirstlane_b32 s7, v4
        s_cmp_lg_u32 s7, 7
        s_cbranch_scc1 spin
        global_store_dword v2, v3, s[4:5] offset:4
        s_branch out
    second:
        global_store_dword v2, v3, s[4:5]
    out:
    """
    (out,) = asm.run(body, np.zeros(2, np.uint32), block=128)
    assert out.tolist() == [7, 7]


@pytest.mark.parametrize("order", ["forward", "reverse", "random:1", "random:2", "lockstep"])
@pytest.mark.parametrize("memory", ["late", "early", "random:1", "random:2"])
def test_right_programs_do_not_depend_on_the_order(
    order: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight rounds in which each of four waves passes a value to the next through LDS and memory."""
    monkeypatch.setenv("HIPGEMM_EMULATOR_WAVES", order)
    monkeypatch.setenv("HIPGEMM_EMULATOR_MEMORY", memory)
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_lshlrev_b32 v1, 2, v0
        v_add_u32 v2, 0x100, v1
        v_and_b32 v2, 0x3ff, v2
        v_mov_b32 v3, v0
        s_movk_i32 s6, 8
        s_waitcnt lgkmcnt(0)
    round:
        ds_write_b32 v1, v3
        global_store_dword v1, v3, s[4:5]
        s_waitcnt vmcnt(0) lgkmcnt(0)
        s_barrier
        ds_read_b32 v4, v2
        global_load_dword v5, v2, s[4:5]
        s_waitcnt vmcnt(0) lgkmcnt(0)
        s_barrier
        v_lshlrev_b32 v4, 1, v4
        v_add_u32 v3, v4, v5
        s_sub_u32 s6, s6, 1
        s_cmp_lg_u32 s6, 0
        s_cbranch_scc1 round
        global_store_dword v1, v3, s[4:5]
    """
    (out,) = asm.run(asm.Snippet(body, lds=1024), np.zeros(256, np.uint32), block=256)
    np.testing.assert_array_equal(out, np.arange(256, dtype=np.uint32) * 3**8)


RACE = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_lshlrev_b32 v1, 2, v0
    v_xor_b32 v2, 0x100, v1
    v_add_u32 v3, 1, v0
    s_waitcnt lgkmcnt(0)
    ds_write_b32 v1, v3
    s_waitcnt lgkmcnt(0)
    ds_read_b32 v4, v2
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v4, s[4:5]
"""


@pytest.mark.parametrize("order", ["forward", "reverse", "random:3"])
def test_a_missing_barrier_shows_in_some_order(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half of the waves is correct in one of the two fixed orders; random orders repeat by seed."""
    monkeypatch.setenv("HIPGEMM_EMULATOR_WAVES", order)
    results = [asm.run(asm.Snippet(RACE, lds=512), np.zeros(128, np.uint32), block=128)[0] for _ in "ab"]
    np.testing.assert_array_equal(results[0], results[1])
    right = results[0] == (np.arange(128) ^ 64) + 1
    if not order.startswith("random"):
        first = slice(0, 64) if order == "forward" else slice(64, 128)
        assert not right[first].any()


def test_lockstep_hides_what_only_a_fast_wave_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second wave reads what the first overwrites a few instructions later, without a barrier."""
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_readfirstlane_b32 s6, v0
        v_lshlrev_b32 v1, 2, v0
        v_and_b32 v2, 63, v0
        v_lshlrev_b32 v2, 2, v2
        v_mov_b32 v3, 7
        ds_write_b32 v2, v3
        s_waitcnt lgkmcnt(0)
        s_barrier
        ds_read_b32 v4, v2
        s_waitcnt lgkmcnt(0)
        s_cmp_lg_u32 s6, 0
        s_cbranch_scc1 second
        s_nop 0
        ds_write_b32 v2, v0
        s_waitcnt lgkmcnt(0)
    second:
        global_store_dword v1, v4, s[4:5]
    """
    right = {}
    for order in ("forward", "lockstep"):
        monkeypatch.setenv("HIPGEMM_EMULATOR_WAVES", order)
        (out,) = asm.run(asm.Snippet(body, lds=256), np.zeros(128, np.uint32), block=128)
        right[order] = (out == 7).mean()
    assert right["lockstep"] == 1
    assert right["forward"] < 0.6


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("WAVES", "sideways", "forward, reverse, random"),
        ("WAVES", "random:x", "forward, reverse, random"),
        ("MEMORY", "never", "late, early, random, late-vm, late-lgkm, or random:SEED"),
        ("THREADS", "0", "a positive number"),
        ("BUDGET", "-1", "a positive number"),
    ],
)
def test_unknown_modes_are_errors(
    name: str, value: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"HIPGEMM_EMULATOR_{name}", value)
    with pytest.raises(asm.LaunchError) as caught:
        asm.run("s_nop 0")
    assert f"HIPGEMM_EMULATOR_{name} must be {wanted}" in caught.value.report
    assert f"; got '{value}'" in caught.value.report
    monkeypatch.delenv(f"HIPGEMM_EMULATOR_{name}")
    asm.run("s_nop 0")


@pytest.mark.parametrize("level", ["v5", "v44", "avx2"])
def test_unknown_levels_are_errors(run_python: Callable[..., Any], level: str) -> None:
    code = """if True:
        import sys; sys.path.insert(0, 'tests/emulator')
        import asm
        try:
            asm.run("s_nop 0")
        except asm.LaunchError as error:
            print(error.report)
    """
    text = run_python(code, HIPGEMM_EMULATOR_CPU=level).stdout
    assert "HIPGEMM_EMULATOR_CPU must be " in text
    assert f"; got '{level}'" in text


# ---- when memory takes effect ------------------------------------------------------------------------


def late_or_early(memory_mode: str, late: int, early: int) -> int:
    return late if memory_mode == "late" else early


LOADS = {
    "vmem": ("global_load_dword v1, v2, s[4:5]", "s_waitcnt lgkmcnt(0)", "s_waitcnt vmcnt(0)"),
    "lds": ("ds_read_b32 v1, v2", "s_waitcnt vmcnt(0)", "s_waitcnt lgkmcnt(0)"),
}


@pytest.mark.parametrize("unit", LOADS)
def test_load_lands_when_waited_for(unit: str, memory_mode: str) -> None:
    load, other, wait = LOADS[unit]
    body = (
        PRELUDE
        + f"""
        v_mov_b32 v3, 55
        ds_write_b32 v2, v3
        s_waitcnt 0
        v_mov_b32 v1, 99
        {load}
        {{wait}}
        v_mov_b32 v4, v1
        s_waitcnt 0
        global_store_dword v2, v4, s[4:5]
    """
    )
    for text, late in ((other, 99), (wait, 55)):
        (out,) = asm.run(asm.Snippet(body.format(wait=text), lds=256), np.full(64, 55, np.uint32))
        assert (out == late_or_early(memory_mode, late, 55)).all()


def test_counters_allow_the_youngest(memory_mode: str) -> None:
    """vmcnt(1) and lgkmcnt(1) leave the last operation of each kind in flight."""
    body = (
        PRELUDE
        + """
        v_mov_b32 v4, 99
        v_mov_b32 v5, 99
        v_mov_b32 v6, 99
        v_mov_b32 v7, 99
        v_mov_b32 v3, 44
        ds_write_b32 v2, v3
        s_waitcnt 0
        global_load_dword v4, v2, s[4:5]
        global_load_dword v5, v2, s[4:5]
        ds_read_b32 v6, v2
        ds_read_b32 v7, v2
        s_waitcnt vmcnt(1) lgkmcnt(1)
        v_mov_b32 v8, v4
        v_mov_b32 v9, v5
        v_mov_b32 v10, v6
        v_mov_b32 v11, v7
        s_waitcnt 0
        v_lshlrev_b32 v1, 4, v0
        global_store_dwordx4 v1, v[8:11], s[4:5]
    """
    )
    (out,) = asm.run(asm.Snippet(body, lds=256), np.full((64, 4), 55, np.uint32))
    still = [late_or_early(memory_mode, 99, x) for x in (55, 44)]
    assert (out == [55, still[0], 44, still[1]]).all()


def test_vmcnt_has_six_bits(memory_mode: str) -> None:
    body = PRELUDE + "v_mov_b32 v5, 99\ns_waitcnt 0\nglobal_load_dword v4, v2, s[4:5]\n"
    body += "global_load_dword v5, v2, s[4:5]\n" + "global_load_dword v7, v2, s[4:5]\n" * 16
    body += "s_waitcnt vmcnt(17)\nv_mov_b32 v8, v4\nv_mov_b32 v9, v5\ns_waitcnt 0\nv_lshlrev_b32 v1, 3, v0\n"
    body += "global_store_dwordx2 v1, v[8:9], s[4:5]"
    (out,) = asm.run(body, np.full((64, 2), 55, np.uint32))
    assert (out == [55, late_or_early(memory_mode, 99, 55)]).all()


def test_scalar_loads_need_a_wait_for_zero(memory_mode: str) -> None:
    body = """
        s_mov_b32 s16, 99
        s_mov_b32 s17, 99
        s_load_dword s16, s[4:5], 0x4
        s_load_dword s17, s[4:5], 0x4
        s_waitcnt lgkmcnt(1)
        s_mov_b32 s18, s16
        s_mov_b32 s19, s17
        s_waitcnt lgkmcnt(0)
    """
    stale = late_or_early(memory_mode, 99, 0)
    assert scalar_result(body, 4) == [0, 0, stale, stale]


def test_flat_needs_both_counters(memory_mode: str) -> None:
    body = (
        PRELUDE
        + """
        v_mov_b32 v6, 99
        v_add_co_u32 v4, vcc, s4, v2
        v_mov_b32 v5, s5
        v_addc_co_u32 v5, vcc, 0, v5, vcc
        flat_load_dword v6, v[4:5]
        s_waitcnt vmcnt(0)
        v_mov_b32 v8, v6
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v9, v6
        v_lshlrev_b32 v1, 3, v0
        global_store_dwordx2 v1, v[8:9], s[4:5]
    """
    )
    (out,) = asm.run(body, np.full((64, 2), 55, np.uint32))
    assert (out == [late_or_early(memory_mode, 99, 55), 55]).all()


@pytest.mark.parametrize("more", [0, 1])
def test_full_counters_force_the_oldest(more: int, memory_mode: str) -> None:
    """vmcnt counts to 63 and lgkmcnt to 15: one more in flight, and the first has returned."""
    body = (
        PRELUDE + "v_mov_b32 v4, 99\nv_mov_b32 v5, 99\nv_mov_b32 v6, 44\nds_write_b32 v2, v6\ns_waitcnt 0\n"
    )
    body += "global_load_dword v4, v2, s[4:5]\nds_read_b32 v5, v2\n"
    body += "global_load_dword v7, v2, s[4:5]\n" * (62 + more)
    body += "ds_read_b32 v8, v2\n" * (14 + more)
    body += "v_mov_b32 v10, v4\nv_mov_b32 v11, v5\ns_waitcnt 0\nv_lshlrev_b32 v1, 3, v0\n"
    body += "global_store_dwordx2 v1, v[10:11], s[4:5]"
    (out,) = asm.run(asm.Snippet(body, lds=256), np.full((64, 2), 55, np.uint32))
    assert (out == ([55, 44] if more else [late_or_early(memory_mode, 99, x) for x in (55, 44)])).all()


def test_stores_read_their_data_at_issue_and_arrive_late(memory_mode: str) -> None:
    """The register may be overwritten at once; another wave sees the data after the wait only."""
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_and_b32 v3, 63, v0
        v_lshlrev_b32 v2, 2, v3
        v_readfirstlane_b32 s6, v0
        s_waitcnt lgkmcnt(0)
        s_cmp_eq_u32 s6, 0
        s_cbranch_scc1 second
        v_mov_b32 v1, 5
        global_store_dword v2, v1, s[4:5]
        v_mov_b32 v1, 6
        s_barrier
        s_waitcnt vmcnt(0)
        s_barrier
        s_branch out
    second:
        s_barrier
        global_load_dword v4, v2, s[4:5]
        s_waitcnt vmcnt(0)
        s_barrier
        global_load_dword v5, v2, s[4:5]
        s_waitcnt vmcnt(0)
        global_store_dword v2, v4, s[4:5] offset:256
        global_store_dword v2, v5, s[4:5] offset:512
    out:
    """
    (out,) = asm.run(body, np.zeros((3, 64), np.uint32), block=128)
    assert (out[0] == 5).all()
    assert (out[1] == late_or_early(memory_mode, 0, 5)).all()
    assert (out[2] == 5).all()


# ---- faults ------------------------------------------------------------------------------------------


def test_stores_in_flight_arrive_at_the_end() -> None:
    (out,) = asm.run(PRELUDE + "global_store_dword v2, v0, s[4:5]", np.zeros(64, np.uint32))
    np.testing.assert_array_equal(out, np.arange(64))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("s_trap 2", "s_trap"),
        # The end of these wraps around, after an access to memory that exists.
        (
            "s_load_dword s6, s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\ns_load_dwordx2 s[6:7], exec, 0x0",
            "illegal address",
        ),
        (
            "v_mov_b32 v2, s0\nv_mov_b32 v3, s1\nglobal_load_dword v4, v[2:3], off\ns_waitcnt vmcnt(0)\n"
            "v_mov_b32 v2, -4\nv_mov_b32 v3, -1\ns_mov_b64 exec, 1\nglobal_load_dwordx2 v[4:5], v[2:3], off",
            "illegal address",
        ),
        ("s_sendmsg sendmsg(MSG_GET_DOORBELL)", "other than MSG_INTERRUPT is not emulated.*s_sendmsg"),
        ("s_sendmsghalt sendmsg(MSG_INTERRUPT)", "no semantics for this instruction.*s_sendmsghalt"),
        (".long 0xbf9f0000", "not an instruction of this architecture.*bf9f0000"),
        ("v_mov_b32 v200, 0", "vector register beyond the kernel's allocation"),
        ("global_load_dword a0, v2, s[4:5]", "accumulation register beyond the allocation"),
        ("s_mov_b64 s[8:9], 64\ns_setpc_b64 s[8:9]", "instruction fetch outside the code"),
        ("s_branch -30000", "instruction fetch outside the code"),
        ("s_getpc_b64 s[8:9]\ns_add_u32 s8, s8, 2\ns_setpc_b64 s[8:9]", "instruction fetch outside"),
    ],
)
def test_bad_code_is_reported(body: str, message: str) -> None:
    with pytest.raises(asm.LaunchError, match=f"(?s){message}") as caught:
        asm.run(asm.Snippet(body, vgprs=64))
    assert "kernel k" in caught.value.report
    assert "workgroup (0,0,0) wave 0" in caught.value.report


def test_an_interrupt_changes_nothing() -> None:
    assert scalar_result("s_mov_b32 s16, 3\ns_sendmsg sendmsg(MSG_INTERRUPT)") == [3]


def test_bad_code_that_is_not_executed_is_ignored() -> None:
    """Only what is executed counts."""
    assert scalar_result("s_mov_b32 s16, 3\ns_branch over\n.long 0xbf9f0000\nover:") == [3]


def test_endless_kernel_meets_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPGEMM_EMULATOR_BUDGET", "3000000")
    with pytest.raises(asm.LaunchError, match="budget") as caught:
        asm.run("again:\ns_branch again")
    assert caught.value.code == 719
    assert "s_branch" in caught.value.report


def test_results_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        PRELUDE
        + """
        s_lshl_b32 s6, s2, 8
        v_add_u32 v2, s6, v2
        v_add_u32 v1, s6, v0
        global_store_dword v2, v1, s[4:5]
    """
    )
    results = []
    for threads in ("1", "5"):
        monkeypatch.setenv("HIPGEMM_EMULATOR_THREADS", threads)
        results.append(asm.run(body, np.zeros((100, 64), np.uint32), grid=100)[0])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], np.arange(100)[:, None] * 256 + np.arange(64))


@pytest.mark.packaging
def test_levels_are_reported(run_python: Callable[..., object]) -> None:
    """A forced CPU level is used if the CPU has it."""
    code = f"import ctypes; lib = ctypes.CDLL({str(asm.LIBRARY)!r}); f = lib.hipgemm_emulator_cpu; "
    code += "f.restype = ctypes.c_char_p; print(f().decode())"
    result = run_python(code, HIPGEMM_EMULATOR_CPU="v2")
    assert result.stdout.strip() in ("v2", "base")  # type: ignore[attr-defined]
