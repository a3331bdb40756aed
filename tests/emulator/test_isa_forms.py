"""Every form of every vector ALU instruction that the assembler accepts, against independent formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from asm import LaunchError
from forms import MAKERS, SCALING_MODE, Variant, variants
from test_isa_valu import FAMILIES, ULPS, typed
from valu import assert_bits, assert_floats, launch

BATCH = 400  # instructions in a kernel


def compare(v: Variant) -> None:
    row, case = v.row, v.case
    want, values = v.wanted()
    if v.twin is not None:
        usual = np.ones(want.shape[1], bool)
        t = row.destinations[0]
        if case.mode == SCALING_MODE and t.elements == 1:
            with np.errstate(all="ignore"):
                x = abs(typed(t, want))
                usual = np.isfinite(x) & (x > 16 * np.finfo(x.dtype).tiny)
        if t.kind in ("f", "bf") and t.elements == 1 and v.form in ("clamp", "sdwa_dst"):
            usual &= ~np.isnan(typed(t, v.twin.result))
        assert_bits(np.where(usual, case.result, 0), np.where(usual, want, 0), case, v.form)
        return
    if row.family == "VOPC":
        assert_bits(case.result, want, case, v.form)
        return
    t = row.destinations[0]
    got = case.result[: t.dwords]
    if t.kind in ("f", "bf"):
        if case.mode == SCALING_MODE:  # away from what is flushed, and from the rules for NaN
            with np.errstate(all="ignore"):
                inputs = [abs(x) for x in values if np.asarray(x).dtype.kind == "f"]
                x = abs(typed(t, want))
                usual = np.isfinite(x) & (x > 16 * np.finfo(x.dtype).tiny)
                for y in inputs:
                    usual &= np.isfinite(y) & ((y > 16 * np.finfo(y.dtype).tiny) | (y == 0))
            got, want = np.where(usual, got, 0), np.where(usual, want, 0)
        if v.form in ("sdwa_dst", "op_sel_dst"):  # the upper half; the lower is kept
            assert_bits(got & np.uint32(0xFFFF), case.old & np.uint32(0xFFFF), case, "kept half")
            got, want = got >> np.uint32(16), want >> np.uint32(16)
            if t.bits != 16:  # half of a float: all but what bits a NaN has
                nan = np.isnan(typed(t, v.whole()))
                assert_bits(np.where(nan, 0, got), np.where(nan, 0, want), case, v.form)
                return
        elif t.elements == 1 and t.bits == 16:
            assert_bits(got & np.uint32(0xFFFF0000), want & np.uint32(0xFFFF0000), case, "high half")
        for n in range(t.dwords if t.bits == 32 else 1):
            one = slice(n, n + 1) if t.bits == 32 else slice(None)
            assert_floats(got[one], want[one], t, case, ULPS.get(row.name, 0), v.form)
    else:
        assert_bits(got, want, case, v.form)
    if case.both:
        assert_bits(case.result[t.dwords :], v.carry(values), case, v.form)


@pytest.mark.parametrize("maker", MAKERS, ids=[m.__name__[3:] for m in MAKERS])
@pytest.mark.parametrize("family", FAMILIES)
def test_forms(family: str, maker: Callable[..., object]) -> None:
    todo = variants(family, maker)  # type: ignore[arg-type]
    problems = []
    for at in range(0, len(todo), BATCH):
        some = todo[at : at + BATCH]
        while True:
            try:
                launch([c for v in some for c in (v.case, v.twin) if c is not None])
            except LaunchError as error:  # refused with an error: not a wrong value
                refused = [v for v in some if v.form == "saturates" and f" {v.row.name}" in error.report]
                if "integer saturation is not emulated here" not in error.report or not refused:
                    raise
                some = [v for v in some if v not in refused]
            else:
                break
        for v in some:
            try:
                compare(v)
            except AssertionError as e:
                problems.append(str(e))
    assert not problems, f"{len(problems)} of {len(todo)}\n" + "\n".join(problems)
