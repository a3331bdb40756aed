"""Build the portable kernels for NVIDIA GPUs: src_hip/ -> hipgemm/kernels/hipgemm_sm_90a.ptx and bridge.json.

The driver compiles the text when it is loaded. It decides on registers: no limits here.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from archs import ARCHS
from instances import instances_for, unit_source
from kernels import OUTPUT, listed_once, write
from probe import find_toolchain
from tables import read_codes
from toolchain import BuildError, Toolchain, run

CHIP, WAVE = "sm_90a", 32


def build(tools: Toolchain) -> tuple[dict[str, Any], bytes]:
    """The manifest and the text."""
    like = replace(ARCHS["gfx90a"], special=True)  # an architecture with portable kernels only
    instances = instances_for(tools, like)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "unit.def").write_text(unit_source(instances))
        text = Path(scratch) / "kernels.ptx"
        cuda = ("-x", "cuda", f"--cuda-gpu-arch={CHIP}", "--cuda-device-only", "-nocudainc", "-nocudalib")
        # No fused multiply-add but where the code says so.
        flags = ("-std=c++20", "-O3", "-ffp-contract=on", "-Wno-unknown-cuda-version")
        unit = ("-I.", f"-I{scratch}", '-DHIPGEMM_INSTANCES="unit.def"')
        run([*tools.clang, *cuda, *flags, *unit, "-S", "kernels.hip", "-o", str(text)])
        content = text.read_bytes() + b"\0"  # the driver wants a terminator
    entry = {
        "file": f"hipgemm_{CHIP}.ptx",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "wave": WAVE,
        **listed_once(instance.kernel for instance in instances),
    }
    return {
        "version": 1,
        "compiler": tools.version(),
        **read_codes(),
        "archs": {CHIP: entry},
    }, content


def main() -> int:
    """Command line."""
    try:
        manifest, content = build(find_toolchain())
    except BuildError as error:
        print(f"tools/ptx.py: {error}", file=sys.stderr)
        return 1
    entry = manifest["archs"][CHIP]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    write(OUTPUT / entry["file"], content)
    write(OUTPUT / "bridge.json", (json.dumps(manifest, indent=1) + "\n").encode())
    print(f"{CHIP}: {len(entry['kernels'])} kernels, {len(content)} bytes of PTX; {manifest['compiler']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
