"""Figures of a compiled kernel, from the code object and the assembly."""

from __future__ import annotations

from typing import Any

import code_object
from archs import Arch
from instances import is_gemm
from loops import count_loop, multiplied_bits
from toolchain import BuildError


def complete(kernel: dict[str, Any], arch: Arch, built: code_object.CodeObject, assembly: str) -> None:
    """Add the figures of the built kernel; its argument layout must be that of the code object."""
    name = kernel["name"]
    meta = built.kernels.get(name)
    if meta is None:
        raise BuildError(f"{name}: in instances.def but not in the code object")
    visible = [a for a in meta[".args"] if not a[".value_kind"].startswith("hidden_")]
    if [(a[".offset"], a[".size"]) for a in visible] != [(a["offset"], a["size"]) for a in kernel["args"]]:
        raise BuildError(f"{name}: argument layout {visible} differs from the header's {kernel['args']}")
    descriptor = built.descriptors[name]
    vgprs = arch.allocated(descriptor.vgprs)
    kernel.update(
        lds=descriptor.lds,
        vgpr=meta[".vgpr_count"],
        vgpr_allocated=vgprs,
        agpr=meta.get(".agpr_count", 0),
        sgpr=meta[".sgpr_count"],
        vgpr_spills=meta[".vgpr_spill_count"],
        sgpr_spills=meta[".sgpr_spill_count"],
        scratch=meta[".private_segment_fixed_size"],
        **arch.occupancy(vgprs, descriptor.lds, kernel["threads"])._asdict(),
        code_bytes=built.symbols[name].size,
    )
    if is_gemm(kernel):
        if bits := multiplied_bits(assembly, name):
            kernel["mfma_bits"] = bits
        kernel["main_loop"] = count_loop(assembly, name, kernel["tile"], kernel["waves"])
