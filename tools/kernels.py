"""Build the kernels: src_hip/ -> hipgemm/kernels/hipgemm_<arch>.co and manifest.json.

With the clang of the pinned package ziglang, or with the one that the environment variable HIPGEMM_HIPCC
names, which must pass a probe first (probe.py). Exits with 1 when a kernel breaks a limit (limits.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import code_object
import units
from archs import ARCHS, local_arch
from figures import complete
from instances import Instance, instances_for, is_gemm
from limits import faults, file_faults
from probe import find_toolchain
from report import rows, table
from tables import read_codes
from toolchain import ROOT, SOURCE, BuildError, Toolchain, reason

OUTPUT = ROOT / "hipgemm" / "kernels"
CACHE = ROOT / "build" / "kernels"
DEMO_ARCH = "gfx950"  # without a GPU: the emulator's architecture
REPORTS = 4  # lines of progress


class Progress:
    """Prints how many kernels are compiled, at most REPORTS times."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, done: int, of: int) -> None:
        """Called for each unit: `done` kernels are compiled `of` those to compile."""
        if done * REPORTS // of > self._said:
            self._said = done * REPORTS // of
            print(f"kernels: {done} of {of} compiled", flush=True)


def plan(
    compiler: units.Compiler, every: dict[str, list[Instance]], part: str = "all"
) -> dict[str, list[units.Unit]]:
    """The units to build by architecture: all; or those of a part, and those compiled before.

    "demo" is what the examples use, on the present GPU or else on gfx950; "local" is all of both.
    """
    split = {arch: units.split(instances, arch) for arch, instances in every.items()}
    if part == "all":
        return split
    found = local_arch()
    wanted = {found if found in ARCHS else DEMO_ARCH}
    if part == "local":
        wanted.add(DEMO_ARCH)
    products = {_product(i.kernel) for i in every.get(found or "", ()) if i.demo}

    def chosen(unit: units.Unit) -> bool:
        one = unit.instances[0]
        return part != "demo" or one.demo or _product(one.kernel) in products or compiler.has(unit)

    return {
        arch: [unit for unit in listed if chosen(unit)]
        for arch, listed in split.items()
        if arch in wanted or all(compiler.has(unit) for unit in listed)
    }


def build(
    tools: Toolchain, part: str = "all", archs: Iterable[str] = ARCHS
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Build the kernels of some architectures; returns the manifest and the code objects by file name."""
    compiler = units.Compiler(tools, SOURCE / "kernels.hip", CACHE)
    every = {arch: instances_for(tools, ARCHS[arch]) for arch in archs}
    planned = plan(compiler, every, part)
    by = f" with {tools.origin}" if tools.origin else ""
    count = sum(len(unit.instances) for listed in planned.values() for unit in listed)
    print(f"kernels: {count} for {', '.join(planned)}{by}", flush=True)
    compiled = iter(compiler.compile([unit for listed in planned.values() for unit in listed], Progress()))
    manifest: dict[str, Any] = {
        "version": 1,
        "compiler": tools.version(),
        **read_codes(),
        "archs": {},
    }
    files: dict[str, bytes] = {}
    for arch, listed in planned.items():
        assembly, content = units.link(tools, [next(compiled) for _ in listed], arch)
        built = code_object.read(content)
        names = {instance.kernel["name"] for unit in listed for instance in unit.instances}
        if extra := set(built.kernels) - names:
            raise BuildError(f"kernels that instances.def does not know: {sorted(extra)}")
        kernels = [instance.kernel for instance in every[arch] if instance.kernel["name"] in names]
        for kernel in kernels:
            complete(kernel, ARCHS[arch], built, assembly)
        file = f"hipgemm_{arch}.co"
        files[file] = content
        manifest["archs"][arch] = {
            "file": file,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "wave": ARCHS[arch].wave,
            **listed_once(kernels),
            "left_out": _left_out([i.kernel for i in every[arch]], kernels),
            "left_out_tiles": sorted(_sizes(i.kernel for i in every[arch]) - _sizes(kernels)),
        }
    compiler.drop_old()
    return manifest, files


def listed_once(kernels: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Kernels for the manifest: "args" is a number in the list of argument lists, which many kernels share.

    They would be most of what every process has to read.
    """
    lists: list[Any] = []
    made = []
    for kernel in kernels:
        if kernel["args"] not in lists:
            lists.append(kernel["args"])
        made.append(kernel | {"args": lists.index(kernel["args"])})
    return {"args": lists, "kernels": made}


PRODUCT = ("op", "a", "b", "layout")


def _product(kernel: dict[str, Any]) -> tuple[str | None, ...]:
    """What a GEMM kernel computes, whatever its tile."""
    return tuple(kernel.get(key) for key in PRODUCT)


def _left_out(kernels: Iterable[dict[str, Any]], built: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The products that have kernels, but none of those built."""
    missing = dict.fromkeys(map(_product, kernels)).keys() - set(map(_product, built))
    return [dict(zip(PRODUCT, x, strict=True)) for x in dict.fromkeys(map(_product, kernels)) if x in missing]


def _sizes(kernels: Iterable[dict[str, Any]]) -> set[str]:
    """The tiles of GEMM kernels."""
    return {"x".join(map(str, kernel["tile"][:2])) for kernel in kernels if is_gemm(kernel)}


def write(path: Path, content: bytes) -> None:
    """Write through a temporary file: a reader sees the old content or the new."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as f:
        f.write(content)
    os.chmod(f.name, 0o644)
    os.replace(f.name, path)


def broken(manifest: dict[str, Any], files: dict[str, bytes]) -> list[str]:
    """Every limit that a build breaks, below the figures of the kernels that break one."""
    lines = []
    for arch, entry in manifest["archs"].items():
        found = {k["name"]: faults(k, ARCHS[arch]) for k in entry["kernels"]}
        if any(found.values()):
            lines += rows(arch, [k for k in entry["kernels"] if found[k["name"]]])
            lines += [fault for listed in found.values() for fault in listed]
    return lines + [fault for name, content in files.items() for fault in file_faults(name, content)]


def summary(manifest: dict[str, Any], seconds: float) -> str:
    """What was built, and what was not."""
    archs = manifest["archs"]
    counts = ", ".join(f"{arch} {len(entry['kernels'])}" for arch, entry in archs.items())
    missing = [arch for arch in ARCHS if arch not in archs]
    left = [arch for arch in missing if arch == DEMO_ARCH]
    left += dict.fromkeys(f"{x['a']} by {x['b']}" for e in archs.values() for x in e["left_out"])
    left += dict.fromkeys(f"tile {size}" for e in archs.values() for size in e["left_out_tiles"])
    others = [arch for arch in missing if arch not in left]
    rest = "".join(
        f"; left out until `make {target}`: {', '.join(names)}"
        for target, names in (("kernels", left), ("kernels-all", others))
        if names
    )
    return f"kernels: built in {seconds:.0f} s: {counts}{rest}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="build the kernels")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--table", action="store_true", help="only print the table of the last build")
    for part, means in (
        ("demo", "what the examples use, for the present GPU or gfx950"),
        ("local", "the present GPU's and gfx950's"),
    ):
        what.add_argument(f"--{part}", dest="part", action="store_const", const=part, help=f"only {means}")
    what.add_argument(
        "--arch", action="append", choices=ARCHS, help="only this architecture's; others stay as built"
    )
    args = parser.parse_args()
    if args.table:
        return _print_table()
    started = time.monotonic()
    try:
        tools = find_toolchain()
    except BuildError as error:
        return _fail(error)
    try:
        manifest, files = build(tools, args.part or "all", args.arch or ARCHS)
    except BuildError as error:
        why = [tools.refused(f"cannot compile the kernels: {reason(error)}")] if tools.origin else []
        return _fail(error, *why)
    if lines := broken(manifest, files):
        why = (
            [tools.refused("does not keep the limits of the kernels, as listed above")]
            if tools.origin
            else []
        )
        print(*lines, *why, sep="\n", file=sys.stderr)
        return 1
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write(OUTPUT / name, content)
    listed = OUTPUT / "manifest.json"
    if args.arch:
        built = manifest["archs"]
        others = json.loads(listed.read_text())["archs"] if listed.exists() else {}
        manifest["archs"] = {arch: entry for arch in ARCHS if (entry := built.get(arch) or others.get(arch))}
    named = {OUTPUT / entry["file"] for entry in manifest["archs"].values()}
    for old in set(OUTPUT.glob("hipgemm_gfx*.co")) - named:
        old.unlink()
    write(listed, (json.dumps(manifest, indent=1) + "\n").encode())
    print(summary(manifest, time.monotonic() - started))
    return 0


def _fail(error: BuildError, *more: BuildError) -> int:
    print(f"tools/kernels.py: {error}", *more, sep="\n", file=sys.stderr)
    return 1


def _print_table() -> int:
    manifest = OUTPUT / "manifest.json"
    if not manifest.exists():
        print(f"tools/kernels.py: no {manifest}; run: make kernels", file=sys.stderr)
        return 1
    print(table(json.loads(manifest.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
