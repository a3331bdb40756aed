"""Instructions without semantics: those below and no others, and executing one is an error that names it."""

from __future__ import annotations

import asm
from test_decode import ROWS, seeds

# Trap handlers, debuggers and graphics; global wave sync; what runs on older hardware, or no compiler emits.
MISSING = """
    s_rfe_b64 s_rfe_restore_b64 s_cbranch_g_fork s_cbranch_i_fork s_cbranch_join s_setkill s_sendmsghalt
    s_scratch_load_dword s_scratch_load_dwordx2 s_scratch_load_dwordx4
    s_scratch_store_dword s_scratch_store_dwordx2 s_scratch_store_dwordx4 s_dcache_discard s_dcache_discard_x2
    v_mfma_ld_scale_b32 s_atc_probe s_atc_probe_buffer v_screen_partition_4se_b32
    ds_gws_init ds_gws_barrier ds_gws_sema_v ds_gws_sema_br ds_gws_sema_p ds_gws_sema_release_all
"""


def test_each_has_semantics_or_is_listed() -> None:
    kernels = {}
    for row in ROWS:
        _, words, _ = next(iter(seeds(row)))
        kernels[row.name] = asm.Snippet(".long " + ", ".join(f"{w:#x}" for w in words), lds=512, scratch=64)
    reports = {}
    with asm.Module({f"k_{name}": kernel for name, kernel in kernels.items()}) as module:
        for name in kernels:
            try:
                module.run(f"k_{name}")
            except asm.LaunchError as error:
                reports[name] = error.report
    missing = {name for name, text in reports.items() if "no semantics for this instruction" in text}
    assert missing == kernels.keys() & MISSING.split()
    assert all(name in reports[name] for name in missing)
