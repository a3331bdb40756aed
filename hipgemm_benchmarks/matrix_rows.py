"""Main loops with matrix instructions of 16 and of 32 rows: the table in docs/change/kernels.md.

Run: HIPGEMM_RUNTIME=emulator python -m hipgemm_benchmarks.matrix_rows
"""

from __future__ import annotations

from hipgemm.kernels.manifest import Kernel, code_object

from .model_check import launch_counters

COLUMNS = {
    "MFMA": ("mfma",),
    "MFMA clocks": ("matrix_clocks",),
    "LDS reads and DMAs": ("lds", "vmem"),
    "LDS clocks": ("lds_data_clocks",),
    "conflicts": ("lds_conflict_clocks",),
    "VALU": ("valu",),
    "SALU": ("salu", "branch"),
    "waits": ("wait",),
}


def per_k_tile(kernel: Kernel, *names: str) -> float:
    """A sum of counters of the main loop, per wave and K tile: what two more K tiles add."""
    m, n, k = kernel.tile
    few, more = (launch_counters(kernel, m, n, tiles * k) for tiles in (4, 6))
    added: int = sum(getattr(more, name) - getattr(few, name) for name in names)
    return added / 2 / more.waves


def table() -> list[str]:
    """In Markdown: each kernel with instructions of 16 rows, above that of the same tile with 32."""
    kernels = code_object("gfx950").kernels
    lines = [
        f"| kernel | {' | '.join(COLUMNS)} | registers |",
        f"|---|{'--:|' * (len(COLUMNS) + 1)}",
    ]
    for smaller in [k for k in kernels.values() if k.by_name]:
        for kernel in (smaller, kernels[smaller.name.rpartition("_")[0]]):
            cells = [f"{per_k_tile(kernel, *names):g}" for names in COLUMNS.values()]
            (launch,) = launch_counters(kernel, *kernel.tile).each
            lines.append(f"| {kernel.name} | {' | '.join(cells)} | {launch.allocated_vgprs} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
