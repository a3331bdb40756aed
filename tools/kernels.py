"""Build the kernels: src_hip/ -> hipgemm/kernels/hipgemm_<arch>.co and manifest.json.

With the clang of the pinned package ziglang, or with the one that the environment variable HIPGEMM_HIPCC
names, which must pass a probe first (probe.py). Exits with 1 when a kernel spills, uses scratch, or breaks
a limit of src_hip/instances.def.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import code_object
import units
from archs import ARCHS
from figures import complete, faults
from instances import instances_for
from probe import find_toolchain
from tables import read_formats
from toolchain import ROOT, SOURCE, BuildError, Toolchain, reason

OUTPUT = ROOT / "hipgemm" / "kernels"
CACHE = ROOT / "build" / "kernels"

MAX_BYTES = 8 * 2**20  # of a code object
SLOW_SECONDS = 2 * 120  # of processor time for a build from nothing, which two cores share


def build(tools: Toolchain) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Build every architecture; returns the manifest and the code objects by file name."""
    by = f" with {tools.origin}" if tools.origin else ""
    print(
        f"compiling kernels for {', '.join(ARCHS)}{by}: minutes at first, seconds after an edit", flush=True
    )
    manifest: dict[str, Any] = {
        "version": 1,
        "compiler": tools.version(),
        **read_formats().codes(),
        "archs": {},
    }
    files: dict[str, bytes] = {}
    for arch, machine in ARCHS.items():
        instances = instances_for(tools, machine)
        kernels = [instance.kernel for instance in instances]
        assembly, content = units.build(tools, SOURCE / "kernels.hip", instances, arch, CACHE)
        built = code_object.read(content)
        for kernel in kernels:
            complete(kernel, machine, built, assembly)
        if extra := set(built.kernels) - {k["name"] for k in kernels}:
            raise BuildError(f"kernels that instances.def does not know: {sorted(extra)}")
        file = f"hipgemm_{arch}.co"
        files[file] = content
        manifest["archs"][arch] = {
            "file": file,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "wave": machine.wave,
            "kernels": kernels,
        }
    return manifest, files


def write(path: Path, content: bytes) -> None:
    """Write through a temporary file: a reader sees the old content or the new."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as f:
        f.write(content)
    os.chmod(f.name, 0o644)
    os.replace(f.name, path)


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
        rows = [[f"{arch} kernel", *RESOURCES.values(), *LOOP.values()]]
        for kernel in entry["kernels"]:
            loop = kernel.get("main_loop")
            row = [kernel["name"], *(str(kernel[key]) for key in RESOURCES)]
            rows.append(row + [f"{loop[key]:g}" if loop else "-" for key in LOOP])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *rest in rows:
            cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
            lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
        lines.append(f"{entry['file']}: {len(entry['kernels'])} kernels, {entry['bytes']} bytes")
    note = "alloc: registers a wave gets; MFMA to setprio: instructions per wave and K tile in the main loop"
    return "\n".join([*lines, f"{note}; {manifest['compiler']}"])


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="build the kernels")
    parser.add_argument("--table", action="store_true", help="only print the table of the last build")
    if parser.parse_args().table:
        manifest_file = OUTPUT / "manifest.json"
        if not manifest_file.exists():
            print(f"tools/kernels.py: no {manifest_file}; run: make kernels", file=sys.stderr)
            return 1
        print(table(json.loads(manifest_file.read_text())))
        return 0
    started = time.monotonic()
    try:
        tools = find_toolchain()
    except BuildError as error:
        print(f"tools/kernels.py: {error}", file=sys.stderr)
        return 1
    try:
        manifest, files = build(tools)
    except BuildError as error:
        print(f"tools/kernels.py: {error}", file=sys.stderr)
        if tools.origin:
            print(tools.refused(f"cannot compile the kernels: {reason(error)}"), file=sys.stderr)
        return 1
    broken = [
        fault
        for arch, entry in manifest["archs"].items()
        for kernel in entry["kernels"]
        for fault in faults(kernel, ARCHS[arch])
    ]
    broken += [
        f"{name}: {len(content)} bytes, must be at most {MAX_BYTES}"
        for name, content in files.items()
        if len(content) > MAX_BYTES
    ]
    times = os.times()
    spent = times.children_user + times.children_system
    if broken:
        print(table(manifest), *broken, sep="\n", file=sys.stderr)
        if tools.origin:
            print(tools.refused("does not keep the limits of the kernels, as listed above"), file=sys.stderr)
        return 1
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write(OUTPUT / name, content)
    # Last: make takes this file for the sign of a finished build.
    write(OUTPUT / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())
    print(f"kernels built in {time.monotonic() - started:.0f} s, {spent:.0f} s of processor time")
    if spent > SLOW_SECONDS:
        print(f"(the aim is {SLOW_SECONDS} on two cores as of 2025; a slower machine takes longer)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
