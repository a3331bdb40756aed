"""The trial of a compiler that is not the pinned one, before it compiles all kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import code_object
import units
from archs import ARCHS
from figures import complete
from instances import instances_for
from limits import faults
from toolchain import SOURCE, BuildError, Toolchain, choose, reason

ARCH = "gfx950"
# It needs nearly all registers of two waves per SIMD, so it is the first kernel to spill.
INSTANCE = "gemm_mxfp8_e4m3_nt_256x256x128"
SECONDS = 60  # limit of one command


def find_toolchain() -> Toolchain:
    """The compiler that is asked for; a BuildError of one sentence if it cannot be used."""
    tools = choose()
    if tools.origin:
        probe(tools)
    return tools


def probe(tools: Toolchain) -> None:
    """Compile every builtin that the kernels call, and one kernel, which must keep its limits."""
    limited = replace(tools, seconds=SECONDS)
    with TemporaryDirectory() as folder:
        try:
            limited.compile(SOURCE / "probe.hip", ARCH, Path(folder) / "probe.s")
            chosen = [x for x in instances_for(limited, ARCHS[ARCH]) if x.kernel["name"] == INSTANCE]
            (kernel,) = [x.kernel for x in chosen]
            assembly, content = units.build(limited, SOURCE / "kernels.hip", chosen, ARCH, Path(folder))
            complete(kernel, ARCHS[ARCH], code_object.read(content), assembly)
        except BuildError as error:
            raise tools.refused(f"cannot compile the kernels: {reason(error)}") from error
    if broken := faults(kernel, ARCHS[ARCH]):
        what = ", and ".join(fault.removeprefix(f"{INSTANCE}: ") for fault in broken)
        raise tools.refused(f"does not keep the limits of {INSTANCE}: {what}")
