"""Kernels compiled in several translation units side by side, and linked into one code object.

A unit is compiled again when something that it depends on has changed: its rows, the files that the compiler
says it read (but for comments), the compiler, the flags. What was compiled is kept under a hash of all these.

A kernel may be like another one but for the formats that its matrix instructions name. Then it takes the
other's assembly with these replaced, which takes less time than to compile it: one compilation serves all
pairs of formats that have as many bits.

Functions that kernels call are compiled once in each unit, so units have many kernels.

Every unit would bring a metadata note of its own, which a linker does not merge, and of which a runtime
reads one. So units are assembled without, and one more object carries the metadata of all.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from instances import Instance, is_gemm, unit_source
from toolchain import BuildError, Toolchain, assembler_flags, hip_flags

METADATA, KERNELS, TARGET = "\t.amdgpu_metadata\n", "amdhsa.kernels:\n", "amdhsa.target:"
# Lines after which the assembler keeps a token, so that each later line takes it longer, unless they are in a
# block of their own.
FORMAT_OF_B = re.compile(r"((?:^\t[^\n]* blgp:[^\n]*\n)+)", re.MULTILINE)
LAYOUT = "2"  # version of the files in the cache; to be changed with their contents
KEPT_SECONDS = 24 * 3600  # that a unit stays in the cache after its last use


@dataclass(frozen=True)
class Unit:
    """Instances that are compiled together for one architecture."""

    arch: str
    instances: Sequence[Instance]

    @property
    def name(self) -> str:
        """A name of its own."""
        return f"{self.arch}_{self.instances[0].unit}"

    @property
    def source(self) -> str:
        """What is compiled: its kernels, or those whose assembly these take."""
        return unit_source({x.kernel["name"]: x for x in map(compiled_for, self.instances)}.values())

    @property
    def cuid(self) -> str:
        """What the name of a symbol that the unit defines is made of."""
        return hashlib.sha256(self.instances[0].unit.encode()).hexdigest()[:16]

    @property
    def flags(self) -> tuple[str, ...]:
        """Of the compiler, besides those that all units have."""
        return ('-DHIPGEMM_INSTANCES="unit.def"', f"-cuid={self.cuid}")


@dataclass(frozen=True)
class Compiled:
    """A unit's assembly, in parts, and its object file."""

    assembly: str  # without the metadata
    header: str  # the part of the assembly before the kernels
    kernels: str  # their entries of the metadata
    footer: str  # what follows these
    code: bytes


def split(instances: Iterable[Instance], arch: str) -> list[Unit]:
    """Kernels by unit."""
    found: dict[str, list[Instance]] = {}
    for instance in instances:
        found.setdefault(instance.unit, []).append(instance)
    return [Unit(arch, members) for members in found.values()]


class Compiler:
    """Compiles units of one source file, and keeps what it made in a folder."""

    def __init__(self, tools: Toolchain, source: Path, cache: Path) -> None:
        self._tools, self._source, self._cache = tools, source, cache
        self._version = tools.version()
        self._content = lru_cache(maxsize=None)(self._hash_of)

    def has(self, unit: Unit) -> bool:
        """Whether a unit was compiled before, and nothing that it depends on has changed."""
        return self._kept(unit) is not None

    def compile(
        self, units: Sequence[Unit], progress: Callable[[int, int], None] = lambda done, of: None
    ) -> list[Compiled]:
        """Compile what is not kept, on all cores. `progress` gets how many kernels of how many."""
        self._cache.mkdir(parents=True, exist_ok=True)
        missing = [unit for unit in units if not self.has(unit)]
        # The slowest units first, so that all cores end at about the same time.
        missing.sort(key=lambda unit: (not is_gemm(unit.instances[0].kernel), -len(unit.source)))
        done, of = 0, sum(len(unit.instances) for unit in missing)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for unit, _ in zip(missing, pool.map(self._compile, missing), strict=True):
                done += len(unit.instances)
                progress(done, of)
        return [self._read(unit) for unit in units]

    def drop_old(self) -> None:
        """Delete what was not used for long."""
        for old in self._cache.glob("*.*"):
            if old.stat().st_mtime < time.time() - KEPT_SECONDS:
                old.unlink(missing_ok=True)

    def _kept(self, unit: Unit) -> tuple[Path, Path] | None:
        try:
            files = self._dependencies(unit).read_text().splitlines()
            paths = self._paths(unit, files)
        except OSError:  # never compiled, or a header is gone
            return None
        return paths if all(path.exists() for path in paths) else None

    def _dependencies(self, unit: Unit) -> Path:
        return self._cache / f"{unit.name}.files"

    def _paths(self, unit: Unit, files: Iterable[str]) -> tuple[Path, Path]:
        """Paths of assembly and object, for the files that the unit reads."""
        how = (*hip_flags(unit.arch), *unit.flags, *assembler_flags(unit.arch))
        parts = (LAYOUT, self._version, *how, unit.source)
        parts += tuple(part for x in unit.instances for part in (x.kernel["name"], *x.named))
        parts += tuple(part for file in files for part in (file, self._content(file)))
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
        return self._cache / f"{key}.s.gz", self._cache / f"{key}.o"

    def _hash_of(self, file: str) -> str:
        text = without_comments((self._source.parent / file).read_text())
        return hashlib.sha256(text.encode()).hexdigest()

    def _compile(self, unit: Unit) -> None:
        with TemporaryDirectory(dir=self._cache) as scratch:
            folder = Path(scratch)
            (folder / "unit.def").write_text(unit.source)
            made, read = folder / "unit.s", folder / "unit.d"
            # As with -MD -MF, which drivers ignore when they compile for a GPU only.
            dependencies = ("-dependency-file", str(read), "-MT", "unit", "-sys-header-deps")
            passed_on = (part for flag in dependencies for part in ("-Xclang", flag))
            # From where the compiler runs: so its list names no folder above, which may have any character.
            here = os.path.relpath(scratch, self._source.parent)
            flags = (f"-I{here}", *unit.flags, *passed_on)
            self._tools.compile(self._source, unit.arch, made, *flags)
            files = [name for name in read_files(read.read_text()) if not name.startswith(here)]
            self._keep(unit, with_alike(share_functions(made.read_text()), unit.instances), files, folder)

    def _keep(self, unit: Unit, text: str, files: Sequence[str], scratch: Path) -> None:
        """Assemble a unit, and keep it."""
        made, target, read = (scratch / f"kept.{end}" for end in ("s", "o", "d"))
        made.write_text(FORMAT_OF_B.sub(r"\t.rept 1\n\1\t.endr\n", text.split(METADATA)[0]))
        self._tools.assemble(made, unit.arch, target)
        made.write_bytes(gzip.compress(text.encode(), 1))
        read.write_text("\n".join(files))
        assembly, code = self._paths(unit, files)
        made.replace(assembly)
        target.replace(code)
        read.replace(self._dependencies(unit))

    def _read(self, unit: Unit) -> Compiled:
        kept = self._kept(unit)
        assert kept is not None, unit.name
        for path in (*kept, self._dependencies(unit)):
            os.utime(path)
        assembly, code = kept
        body, note = gzip.decompress(assembly.read_bytes()).decode().split(METADATA)
        kernels, footer = note.split(KERNELS)[1].split(TARGET)
        return Compiled(body, body.split("\t.text\n")[0], kernels, TARGET + footer, code.read_bytes())


def compiled_for(instance: Instance) -> Instance:
    """The kernel whose assembly one takes, or itself."""
    return instance.like or instance


# In assembly, a kernel with what belongs to it; in the metadata, its entry.
KERNEL = re.compile(r"^\t\.protected\t(\w+) .*?; -- End function\n.*?^\t\.text\n", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^  - \..*?^    \.name: +(\w+)\n.*?(?=^  - |^amdhsa\.)", re.MULTILINE | re.DOTALL)


def with_alike(assembly: str, instances: Iterable[Instance]) -> str:
    """The assembly of what was compiled for these kernels as theirs: for each, those that take it."""
    takers: dict[str, list[Instance]] = {}
    for instance in instances:
        takers.setdefault(compiled_for(instance).kernel["name"], []).append(instance)

    def of_each(found: re.Match[str]) -> str:
        return "".join(_with_formats(found[0], taker) for taker in takers[found[1]])

    body, note = assembly.split(METADATA)
    return KERNEL.sub(of_each, body) + METADATA + ENTRY.sub(of_each, note)


def _with_formats(text: str, taker: Instance) -> str:
    """The part of a kernel that is compiled, as that of one that takes its assembly."""
    if taker.like is None:
        return text
    (start, old), (_, new) = taker.like.named, taker.named
    lines = text.splitlines(keepends=True)
    name = taker.kernel["name"]
    for i, line in enumerate(lines):
        if line.startswith(f"\t{start}"):
            if line.count(old) != 1:
                raise BuildError(f"{name}: an instruction does not name the formats by {old}: {line}")
            lines[i] = line.replace(old, new)
    text = re.sub(r"\.(LBB|Lfunc_end)\d+", rf".\1_{name}", "".join(lines))  # labels of its own
    return text.replace(taker.like.kernel["name"], name)


FUNCTION = re.compile(
    r"^\t\.p2align\t2 +; -- Begin function (\w+)\n(.*?^\t\.size\t\1,.*?\n)", re.MULTILINE | re.DOTALL
)


def share_functions(assembly: str) -> str:
    """Name functions that are not kernels after their code, and give each a group of its own.

    Then a linker keeps one copy of those that several units have.
    """
    names = {}
    for name, code in FUNCTION.findall(assembly):
        plain = re.sub(r"\.(LBB|Lfunc_end)\d+", r".\1", re.sub(r" *;.*", "", code)).replace(name, "")
        named = re.sub(r"\W|\d", "", name)[-40:]
        names[name] = f"shared_{hashlib.sha256(plain.encode()).hexdigest()[:16]}_{named}"

    def grouped(found: re.Match[str]) -> str:
        name, code = found.groups()
        made = names[name]
        group = (
            f'\t.section\t.text.{made},"axG",@progbits,{made},comdat\n\t.globl\t{made}\n\t.hidden\t{made}\n'
        )
        return f"{group}\t.p2align\t2\n{code}\t.text\n"

    assembly = FUNCTION.sub(grouped, assembly)
    for name, made in names.items():
        assembly = assembly.replace(name, made)
    return assembly


def without_comments(text: str) -> str:
    r"""C++ without // comments and blank lines, which do not change what it compiles to.

    >>> without_comments('f("// a");  // b\n\n// c\ng();\n')
    'f("// a");\ng();'
    """
    found = re.sub(r'("(?:\\.|[^"\\\n])*")|//[^\n]*', lambda match: match[1] or "", text)
    return "\n".join(line.rstrip() for line in found.splitlines() if line.strip())


def read_files(rule: str) -> list[str]:
    r"""The files that a rule for make names after the colon.

    >>> read_files("unit.o: a.hpp \\\n  my\\ folder/b.hpp\n")
    ['a.hpp', 'my folder/b.hpp']
    """
    names = re.findall(r"(?:\\.|\S)+", rule.replace("\\\n", " ").split(": ", 1)[1])
    return [re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in names]


def link(tools: Toolchain, units: Sequence[Compiled], arch: str) -> tuple[str, bytes]:
    """The assembly and the code object of an architecture's units."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        objects = [scratch / f"{number}.o" for number in range(len(units))]
        for file, unit in zip(objects, units, strict=True):
            file.write_bytes(unit.code)
        note, target = scratch / "metadata.s", scratch / f"hipgemm_{arch}.co"
        note.write_text(_metadata(units))
        tools.assemble(note, arch, scratch / "metadata.o")
        tools.link([*objects, scratch / "metadata.o"], target)
        return "".join(unit.assembly for unit in units), target.read_bytes()


def build(
    tools: Toolchain, source: Path, instances: Iterable[Instance], arch: str, cache: Path
) -> tuple[str, bytes]:
    """Compile and link kernels for one architecture; returns the assembly and the code object."""
    return link(tools, Compiler(tools, source, cache).compile(split(instances, arch)), arch)


def _metadata(units: Sequence[Compiled]) -> str:
    kernels = "".join(unit.kernels for unit in units)
    return f"{units[0].header}{METADATA}---\n{KERNELS}{kernels}{units[0].footer}"
