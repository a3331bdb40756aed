"""Kernels compiled in several translation units side by side, and linked into one code object.

Every unit would bring a metadata note of its own, which a linker does not merge, and of which a runtime
reads one. So units are assembled without, and one more object carries the metadata of all.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from instances import Instance, unit_source
from toolchain import Toolchain

METADATA, KERNELS, TARGET = "\t.amdgpu_metadata\n", "amdhsa.kernels:\n", "amdhsa.target:"
KEPT_SECONDS = 3600  # that a unit stays in the cache after its last use


@dataclass(frozen=True)
class Unit:
    """Instances that are compiled together."""

    assembly: str  # without the metadata
    header: str  # what the assembly begins with, whatever the kernels
    kernels: str  # their entries of the metadata
    footer: str  # what follows these
    code: bytes


def split(instances: Iterable[Instance]) -> list[list[Instance]]:
    """Kernels by unit."""
    found: dict[str, list[Instance]] = {}
    for instance in instances:
        found.setdefault(instance.unit, []).append(instance)
    return list(found.values())


def build(
    tools: Toolchain, source: Path, instances: Iterable[Instance], arch: str, cache: Path
) -> tuple[str, bytes]:
    """Compile kernels for one architecture, on all cores; returns the assembly and the code object.

    Units that were compiled before from the same text are taken from the `cache`.
    """
    version = tools.version()
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as folder, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        scratch = Path(folder)

        def make(numbered: tuple[int, list[Instance]]) -> Unit:
            return _unit(tools, source, numbered[1], arch, version, scratch / str(numbered[0]), cache)

        units = list(pool.map(make, enumerate(split(instances))))
        objects = [scratch / f"{number}.o" for number in range(len(units))]
        for file, unit in zip(objects, units, strict=True):
            file.write_bytes(unit.code)
        note, target = scratch / "metadata.s", scratch / f"hipgemm_{arch}.co"
        note.write_text(_metadata(units))
        tools.assemble(note, arch, scratch / "metadata.o")
        tools.link([*objects, scratch / "metadata.o"], target)
        content = target.read_bytes()
    for old in cache.glob("*.*"):
        if old.stat().st_mtime < time.time() - KEPT_SECONDS:
            old.unlink(missing_ok=True)
    return "".join(unit.assembly for unit in units), content


def _unit(
    tools: Toolchain,
    source: Path,
    instances: list[Instance],
    arch: str,
    version: str,
    folder: Path,
    cache: Path,
) -> Unit:
    folder.mkdir()
    (folder / "unit.def").write_text(unit_source(instances))
    # Each unit defines a symbol with its -cuid in the name.
    name = hashlib.sha256(instances[0].unit.encode()).hexdigest()[:16]
    flags = (f"-I{folder}", '-DHIPGEMM_INSTANCES="unit.def"', f"-cuid={name}")
    # Everything that the code depends on; the compiler's flags are in the source of the toolchain.
    how = (inspect.getsource(type(tools)), Path(__file__).read_text())
    text = "\0".join((version, arch, tools.expand(source, arch, *flags), *how))
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    assembly, code = cache / f"{key}.s.gz", cache / f"{key}.o"
    if not (assembly.exists() and code.exists()):
        made, bare, target = folder / "unit.s", folder / "bare.s", folder / "unit.o"
        tools.compile(source, arch, made, *flags)
        bare.write_text(made.read_text().split(METADATA)[0])
        tools.assemble(bare, arch, target)
        made.write_bytes(gzip.compress(made.read_bytes(), 1))
        made.replace(assembly)
        target.replace(code)
    for kept in (assembly, code):
        os.utime(kept)
    body, note = gzip.decompress(assembly.read_bytes()).decode().split(METADATA)
    kernels, footer = note.split(KERNELS)[1].split(TARGET)
    return Unit(body, body.split("\t.text\n")[0], kernels, TARGET + footer, code.read_bytes())


def _metadata(units: list[Unit]) -> str:
    kernels = "".join(unit.kernels for unit in units)
    return f"{units[0].header}{METADATA}---\n{KERNELS}{kernels}{units[0].footer}"
