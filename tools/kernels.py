"""Build the kernels: src_hip/ -> hipgemm/kernels/hipgemm_<arch>.co and manifest.json.

Uses ROCm's compiler where there is one, else the clang in the ziglang wheel. The environment variable
HIPGEMM_HIPCC names another compiler driver, or is ``ziglang``. Exits with 1 when a kernel spills, uses
scratch, or breaks a limit of src_hip/instances.def.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import code_object
import units
from archs import ARCHS, Arch

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src_hip"
OUTPUT = ROOT / "hipgemm" / "kernels"
CACHE = ROOT / "build" / "kernels"

MAX_BYTES = 8 * 2**20  # of a code object
SLOW_SECONDS = 2 * 120  # of processor time for a build from nothing, which two cores share

ARGUMENT_SIZES = {"ptr": 8, "i64": 8, "u32": 4, "f32": 4}


class BuildError(Exception):
    """The toolchain failed or is missing."""


@dataclass(frozen=True)
class Toolchain:
    """A clang driver and a linker."""

    clang: list[str]
    lld: list[str]

    def compile(self, source: Path, arch: str, assembly: Path, *flags: str) -> None:
        """HIP source to assembly. No headers, no device library, no value-changing math."""
        warnings = ("-Wall", "-Wextra", "-Werror=return-type")
        run([*self._hip(arch), "-O3", *warnings, *flags, "-S", source.name, "-o", str(assembly)])

    def expand(self, source: Path, arch: str, *flags: str) -> str:
        """HIP source as the compiler sees it, without the names of files."""
        return run([*self._hip(arch), *flags, "-E", "-P", source.name])

    def _hip(self, arch: str) -> list[str]:
        bare = ("--offload-device-only", "-nogpuinc", "-nogpulib")
        return [*self.clang, "-x", "hip", f"--offload-arch={arch}", *bare, "-std=c++20"]

    def assemble(self, assembly: Path, arch: str, target: Path) -> None:
        """Assembly to an object file."""
        run(
            [
                *self.clang,
                *("-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}"),
                *("-c", str(assembly), "-o", str(target)),
            ]
        )

    def link(self, sources: Iterable[Path], target: Path) -> None:
        """Object files to code object."""
        run([*self.lld, "-shared", *map(str, sources), "-o", str(target)])

    def preprocess(self, text: str) -> str:
        """`text` with src_hip's lists expanded."""
        return run([*self.clang, "-x", "c++", "-E", "-P", f"-I{SOURCE}", "-"], text)

    def version(self) -> str:
        """The compiler's first line about itself."""
        found = re.search(r"clang version [\w.]+", run([*self.clang, "--version"]))
        return found.group() if found else "unknown"


def run(command: list[str], text: str | None = None) -> str:
    """What a command prints; its complaints go on to ours, and its failure is a BuildError."""
    done = subprocess.run(command, cwd=SOURCE, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr:
        sys.stderr.write(done.stderr)
    return done.stdout


def find_toolchain() -> Toolchain:
    """HIPGEMM_HIPCC, else ROCm's clang, else ziglang's."""
    wanted = os.environ.get("HIPGEMM_HIPCC")
    if wanted != "ziglang":
        clang = shutil.which(wanted) if wanted else _rocm_clang()
        if clang:
            return Toolchain([clang], [_lld_beside(Path(clang))])
        if wanted:
            raise BuildError(f"HIPGEMM_HIPCC={wanted}: no such program")
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise BuildError(
            "no compiler for AMD GPUs: neither ROCm (ROCM_PATH, amdclang++ or hipcc in PATH) nor the "
            f"ziglang package of {sys.executable} (pip install ziglang)"
        )
    zig = [sys.executable, "-m", "ziglang"]
    headers = Path(spec.origin).parent / "lib"
    return Toolchain([*zig, "clang", f"-resource-dir={headers}"], [*zig, "ld.lld"])


def _rocm_clang() -> str | None:
    for root in filter(None, (os.environ.get("ROCM_PATH"), "/opt/rocm")):
        for name in ("llvm/bin/amdclang++", "lib/llvm/bin/amdclang++", "bin/amdclang++", "bin/hipcc"):
            if (found := Path(root) / name).is_file():
                return str(found)
    return shutil.which("amdclang++") or shutil.which("hipcc")


def _lld_beside(clang: Path) -> str:
    for bin_dir in (clang.parent, clang.resolve().parent):
        for where in (".", "../llvm/bin", "../lib/llvm/bin"):
            if (found := bin_dir / where / "ld.lld").is_file():
                return str(found)
    found_in_path = shutil.which("ld.lld")
    if not found_in_path:
        raise BuildError(f"no ld.lld beside {clang} or in PATH")
    return found_in_path


# ---- the lists in src_hip -------------------------------------------------------------------------------


def read_rows(tools: Toolchain) -> list[str]:
    """The rows of instances.def, its own macros expanded."""
    names = ("GEMM", "SCALED_GEMM", "GROUPED", "SCALED_GROUPED", "PLAIN", "COPY", "PASS")
    # A macro is not expanded again inside itself.
    kept = "".join(f"#define {name}(...) {name}(__VA_ARGS__)\n" for name in names)
    return re.findall(r"\w+\([^()]*\)", tools.preprocess(f'{kept}#include "instances.def"\n'))


def read_instances(tools: Toolchain) -> list[dict[str, Any]]:
    """The kernels of instances.def with their argument lists."""
    expanded = tools.preprocess(
        """
        #define HIPGEMM_LISTS_ONLY
        #include "kargs.hpp"
        #define ROW(type, name) [#type, #name]
        #define COMMA ,
        #define GEMM(format, layout, M, N, K, waves_m, waves_n, schedule, waves_per_simd, limit) \\
          ["gemm", #format, #layout, M, N, K, waves_m, waves_n, #schedule, waves_per_simd, limit]
        #define SCALED_GEMM(formats, a, b, layout, M, N, K, waves_m, waves_n, schedule, per_simd, limit) \\
          ["scaled_gemm", #formats, #a, #b, #layout, M, N, K, waves_m, waves_n, #schedule, per_simd, limit]
        #define GROUPED(walk, format, layout, M, N, K, waves_m, waves_n, schedule, per_simd, limit) \\
          ["grouped", #walk, #format, #layout, M, N, K, waves_m, waves_n, #schedule, per_simd, limit]
        #define SCALED_GROUPED( \\
          walk, formats, a, b, layout, M, N, K, waves_m, waves_n, schedule, per_simd, limit) \\
          ["scaled_grouped", #walk, #formats, #a, #b, #layout, M, N, K, waves_m, waves_n, \\
           #schedule, per_simd, limit]
        #define PLAIN(M, N, K, threads) ["plain", [M, N, K], threads]
        #define COPY(bytes, side, threads) ["copy", bytes, side, threads]
        #define PASS(name, ARGS, Args, threads, waves_per_simd, ...) \\
          ["pass", #name, threads, [__VA_ARGS__], [HIPGEMM_##ARGS##_ARGS(ROW, COMMA)]]
        ["gemm_args", HIPGEMM_GEMM_ARGS(ROW, COMMA)]
        ["scaled_gemm_args", HIPGEMM_GEMM_ARGS(ROW, COMMA), HIPGEMM_SCALE_ARGS(ROW, COMMA)]
        ["grouped_args", HIPGEMM_GROUPED_ARGS(ROW, COMMA)]
        ["scaled_grouped_args", HIPGEMM_GROUPED_ARGS(ROW, COMMA), HIPGEMM_GROUPED_SCALE_ARGS(ROW, COMMA)]
        ["plain_args", HIPGEMM_PLAIN_ARGS(ROW, COMMA)]
        ["copy_args", HIPGEMM_COPY_ARGS(ROW, COMMA)]
        """
        + "\n".join(read_rows(tools))
    )
    rows = [json.loads(line) for line in expanded.splitlines() if line.strip()]
    args = {name.removesuffix("_args"): lay_out(pairs) for name, *pairs in rows if name.endswith("_args")}
    kernels: list[dict[str, Any]] = []
    for op, *row in rows:
        if op == "gemm":
            element, *rest = row
            kernels.append(_gemm(op, element, element, element, *rest) | {"args": args[op]})
        elif op == "scaled_gemm":
            kernels.append(_gemm(op, *row) | {"args": args[op]})
        elif op == "grouped":
            walk, element, *rest = row
            kernels.append(_gemm(f"grouped_{walk}", element, element, element, *rest) | {"args": args[op]})
        elif op == "scaled_grouped":
            walk, *rest = row
            kernels.append(_gemm(f"scaled_grouped_{walk}", *rest) | {"args": args[op]})
        elif op == "plain":
            tile, threads = row
            kernels.append(
                {"name": "plain_gemm", "op": op, "tile": tile, "threads": threads, "args": args[op]}
            )
        elif op == "copy":
            element_bytes, side, threads = row
            kernels.append(
                {
                    "name": f"copy_strided_b{element_bytes}",
                    "op": op,
                    "element_bytes": element_bytes,
                    "tile": [side, side],
                    "threads": threads,
                    "args": args[op],
                }
            )
        elif op == "pass":
            name, threads, tile, pairs = row
            kernels.append(
                {"name": name, "op": name, "tile": tile, "threads": threads, "args": lay_out(pairs)}
            )
    return kernels


def _gemm(
    op: str,
    formats: str,
    a: str,
    b: str,
    layout: str,
    m: int,
    n: int,
    k: int,
    waves_m: int,
    waves_n: int,
    schedule: str,
    waves_per_simd: int,
    limit: int,
) -> dict[str, Any]:
    return {
        "name": f"{op.removeprefix('scaled_')}_{formats}_{layout}_{m}x{n}x{k}",
        "op": op,
        "a": a,
        "b": b,
        "layout": layout,
        "tile": [m, n, k],
        "waves": waves_m * waves_n,
        "threads": waves_m * waves_n * 64,
        "schedule": schedule,
        # Numbers of 16 bytes: K comes in whole chunks, and a K tile is 8 of them.
        "chunk": k // 8,
        # Numbers along K with a scale of their own; 0 where a row or all share one.
        "block": 32 if a.startswith("mx") else 0,
        "limits": {"waves_per_simd": waves_per_simd, "valu_salu": limit},
    }


def is_gemm(kernel: dict[str, Any]) -> bool:
    """Whether a kernel has a main loop with matrix instructions."""
    return "schedule" in kernel


def lay_out(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Offsets of kernel arguments: each aligned to its own size."""
    result: list[dict[str, Any]] = []
    offset = 0
    for kind, name in pairs:
        size = ARGUMENT_SIZES[kind]
        offset = (offset + size - 1) // size * size
        result.append({"name": name, "type": kind, "offset": offset, "size": size})
        offset += size
    return result


# ---- what the compiler made of them ---------------------------------------------------------------------


CLASSES = ("mfma", "ds_read", "ds_write", "dma", "vmem", "valu", "salu", "barrier", "wait", "nop", "setprio")


def classify(line: str) -> str | None:
    """The class of an assembly instruction; None for labels, directives and comments."""
    found = re.match(r"\s+([a-z]\w+)", line)
    if not found:
        return None
    name = found.group(1)
    if name.startswith(("v_mfma", "v_smfma")):
        return "mfma"
    if name.startswith(("ds_read", "ds_write")):
        return name[: name.index("_", 3)]
    if name.startswith(("buffer_", "global_", "flat_", "scratch_")):
        return "dma" if re.search(r"\blds\b", line) else "vmem"
    exact = {"s_barrier": "barrier", "s_waitcnt": "wait", "s_nop": "nop", "s_setprio": "setprio"}
    return exact.get(name) or {"v_": "valu", "s_": "salu"}.get(name[:2], "other")


def main_loop(assembly: str, kernel: str) -> list[str]:
    """The assembly of the loop that holds the most MFMAs."""
    body = assembly[assembly.index(f"\n{kernel}:") : assembly.index(f"\n\t.size\t{kernel},")].splitlines()
    labels = {line.split(":")[0]: i for i, line in enumerate(body) if line.startswith(".L")}
    loops = []
    for i, line in enumerate(body):
        branch = re.match(r"\s+s_c?branch\w*\s+(\S+)", line)
        start = labels.get(branch.group(1), i) if branch else i
        if mfmas := sum(classify(x) == "mfma" for x in body[start:i]):
            loops.append((mfmas, start, i + 1))
    # A branch back may also lead to code that was moved out of line: only the innermost are surely loops.
    inner = [x for x in loops if not any(x[1] <= y[1] and y[2] <= x[2] for y in loops if y != x)]
    _, start, end = max(inner, default=(0, 0, 0))
    return body[start:end]


def count_loop(assembly: str, kernel: str, tile: list[int], waves: int) -> dict[str, float]:
    """Instructions of the main loop per wave and K tile."""
    loop = main_loop(assembly, kernel)
    counts = Counter(filter(None, map(classify, loop)))
    if not counts["mfma"]:
        raise BuildError(f"{kernel}: no loop with MFMA in the assembly")
    shape = re.search(r"v_mfma\w*?_(\d+)x(\d+)x(\d+)", "\n".join(loop))
    assert shape
    per_mfma = int(shape[1]) * int(shape[2]) * int(shape[3])
    per_tile = tile[0] * tile[1] * tile[2] // (per_mfma * waves)
    tiles = counts["mfma"] / per_tile
    if tiles != int(tiles):
        raise BuildError(f"{kernel}: {counts['mfma']} MFMA in the loop, {per_tile} per K tile")
    names = (
        "mfma",
        "ds_read",
        "ds_write",
        "dma",
        "vmem",
        "valu",
        "salu",
        "barrier",
        "wait",
        "nop",
        "setprio",
    )
    per = {name: counts[name] / tiles for name in names}
    widths = re.findall(r"^\s+ds_read(2?)\w*?_[bu](\d+)", "\n".join(loop), re.MULTILINE)
    per["ds_read_bytes"] = sum((2 if two else 1) * 64 * int(bits) // 8 for two, bits in widths) / tiles
    return {name: int(n) if n == int(n) else n for name, n in per.items()}


def complete(kernel: dict[str, Any], arch: Arch, built: code_object.CodeObject, assembly: str) -> None:
    """Add the figures of the built kernel; the argument layout must be the code object's."""
    name = kernel["name"]
    meta = built.kernels.get(name)
    if meta is None:
        raise BuildError(f"{name}: in instances.def but not in the code object")
    visible = [a for a in meta[".args"] if not a[".value_kind"].startswith("hidden_")]
    if [(a[".offset"], a[".size"]) for a in visible] != [(a["offset"], a["size"]) for a in kernel["args"]]:
        raise BuildError(f"{name}: argument layout {visible} differs from kargs.hpp {kernel['args']}")
    vgpr, lds = meta[".vgpr_count"], meta[".group_segment_fixed_size"]
    kernel.update(
        lds=lds,
        vgpr=vgpr,
        agpr=meta.get(".agpr_count", 0),
        sgpr=meta[".sgpr_count"],
        vgpr_spills=meta[".vgpr_spill_count"],
        sgpr_spills=meta[".sgpr_spill_count"],
        scratch=meta[".private_segment_fixed_size"],
        waves_per_simd=arch.occupancy(vgpr, lds, kernel["threads"]),
        code_bytes=built.symbols[name].size,
    )
    if is_gemm(kernel):
        kernel["main_loop"] = count_loop(assembly, name, kernel["tile"], kernel["waves"])


def faults(kernel: dict[str, Any]) -> list[str]:
    """Every limit the kernel breaks."""
    found = [
        f"{kernel['name']}: {what} {kernel[key]}, must be 0"
        for key, what in (
            ("vgpr_spills", "VGPR spills"),
            ("sgpr_spills", "SGPR spills"),
            ("scratch", "scratch bytes"),
        )
        if kernel[key]
    ]
    if not is_gemm(kernel):
        return found
    limits, loop = kernel["limits"], kernel["main_loop"]
    if kernel["waves_per_simd"] < limits["waves_per_simd"]:
        found.append(
            f"{kernel['name']}: {kernel['waves_per_simd']} waves per SIMD ({kernel['vgpr']} VGPR, "
            f"{kernel['lds']} bytes of LDS), must be at least {limits['waves_per_simd']}"
        )
    if loop["valu"] + loop["salu"] > limits["valu_salu"]:
        found.append(
            f"{kernel['name']}: {loop['valu']} VALU + {loop['salu']} SALU per K tile in the main loop, "
            f"must be at most {limits['valu_salu']}"
        )
    return found


# ---- output ---------------------------------------------------------------------------------------------


def instances_for(tools: Toolchain, arch: Arch) -> tuple[list[str], list[dict[str, Any]]]:
    """The rows of instances.def that an architecture builds, and the kernels they stand for."""
    pairs = zip(read_rows(tools), read_instances(tools), strict=True)
    chosen = [(row, kernel) for row, kernel in pairs if arch.builds(kernel)]
    return [row for row, _ in chosen], [kernel for _, kernel in chosen]


def build() -> tuple[dict[str, Any], dict[str, bytes]]:
    """Build every architecture; returns the manifest and the code objects by file name."""
    tools = find_toolchain()
    print(f"compiling kernels for {', '.join(ARCHS)}: minutes at first, seconds after an edit", flush=True)
    manifest: dict[str, Any] = {"version": 1, "compiler": tools.version(), "archs": {}}
    files: dict[str, bytes] = {}
    for arch, machine in ARCHS.items():
        rows, kernels = instances_for(tools, machine)
        assembly, content = units.build(tools, SOURCE / "kernels.hip", rows, arch, CACHE)
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
    "agpr": "AGPR",
    "sgpr": "SGPR",
    "lds": "LDS",
    "vgpr_spills": "v spill",
    "sgpr_spills": "s spill",
    "scratch": "scratch",
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
    note = "MFMA to setprio: instructions per wave and K tile in the main loop"
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
        manifest, files = build()
    except BuildError as error:
        print(f"tools/kernels.py: {error}", file=sys.stderr)
        return 1
    broken = [fault for entry in manifest["archs"].values() for k in entry["kernels"] for fault in faults(k)]
    broken += [
        f"{name}: {len(content)} bytes, must be at most {MAX_BYTES}"
        for name, content in files.items()
        if len(content) > MAX_BYTES
    ]
    times = os.times()
    spent = times.children_user + times.children_system
    if broken:
        print(table(manifest), *broken, sep="\n", file=sys.stderr)
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
