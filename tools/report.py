"""The table of a build: registers, occupancy, main loops and sizes of its kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

RESOURCES = {
    "vgpr": "VGPR",
    "vgpr_allocated": "alloc",
    "agpr": "AGPR",
    "sgpr": "SGPR",
    "lds": "LDS",
    "vgpr_spills": "v spill",
    "sgpr_spills": "s spill",
    "scratch": "scratch",
    "workgroups_per_cu": "groups/CU",
    "waves_per_simd": "waves/SIMD",
    "code_bytes": "code B",
}
LOOP = {
    "mfma": "MFMA",
    "ds_read": "ds_read",
    "dma": "DMA",
    "valu": "VALU",
    "salu": "SALU",
    "barrier": "barrier",
    "wait": "wait",
    "nop": "nop",
    "setprio": "setprio",
}


def table(manifest: dict[str, Any]) -> str:
    """Resources per kernel, and the main loop's instructions per wave and K tile."""
    lines = []
    for arch, entry in manifest["archs"].items():
        lines += rows(arch, entry["kernels"])
        lines.append(f"{entry['file']}: {len(entry['kernels'])} kernels, {entry['bytes']} bytes")
    note = "alloc: registers a wave gets; MFMA to setprio: instructions per wave and K tile in the main loop"
    return "\n".join([*lines, f"{note}; {manifest['compiler']}"])


def rows(arch: str, kernels: Iterable[dict[str, Any]]) -> list[str]:
    """A header, and a line for each kernel."""
    cells = [[f"{arch} kernel", *RESOURCES.values(), *LOOP.values()]]
    for kernel in kernels:
        loop = kernel.get("main_loop")
        row = [kernel["name"], *(str(kernel[key]) for key in RESOURCES)]
        cells.append(row + [f"{loop[key]:g}" if loop else "-" for key in LOOP])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            [
                f"{first:<{widths[0]}}",
                *(f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)),
            ]
        )
        for first, *rest in cells
    ]
