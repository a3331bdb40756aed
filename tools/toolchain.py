"""The compiler: the pinned one of the package ziglang, or the one that HIPGEMM_HIPCC names."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src_hip"
VARIABLE = "HIPGEMM_HIPCC"
VERSION_SECONDS = 20  # limit for printing the version


class BuildError(Exception):
    """The toolchain failed."""


class NoCompilerError(BuildError):
    """There is no toolchain."""


@dataclass(frozen=True)
class Toolchain:
    """A clang driver and a linker."""

    clang: list[str]
    lld: list[str]
    origin: str = ""  # where it comes from; empty for the pinned one
    seconds: float | None = None  # limit of one command

    def compile(self, source: Path, arch: str, assembly: Path, *flags: str) -> None:
        """HIP source to assembly."""
        command = [*self.clang, *hip_flags(arch), *flags, "-S", source.name, "-o", str(assembly)]
        self._make(assembly, command, source.parent)

    def assemble(self, assembly: Path, arch: str, target: Path) -> None:
        """Assembly to an object file."""
        self._make(target, [*self.clang, *assembler_flags(arch), str(assembly), "-o", str(target)])

    def link(self, sources: Iterable[Path], target: Path) -> None:
        """Object files to code object."""
        self._make(target, [*self.lld, "-shared", "--strip-all", *map(str, sources), "-o", str(target)])

    def preprocess(self, text: str) -> str:
        """`text` with src_hip's lists expanded."""
        command = [*self.clang, "-x", "c++", "-E", "-P", f"-I{SOURCE}", "-"]
        return run(command, text=text, seconds=self.seconds)

    def _make(self, target: Path, command: list[str], folder: Path = SOURCE) -> None:
        run(command, folder, seconds=self.seconds)
        if not target.exists():
            raise BuildError(
                f"{' '.join(command)}\nerror: {command[0]} succeeded, but wrote no {target.name}"
            )

    def version(self) -> str:
        """The compiler's name and version."""
        found = re.search(
            r"(AMD )?clang version [\w.]+", run([*self.clang, "--version"], seconds=self.seconds)
        )
        return found.group() if found else "unknown"

    def refused(self, why: str) -> BuildError:
        """The error for a compiler that cannot be used: which one, why, and what to do."""
        return BuildError(f"{self.origin} ({self.version()}) {why}; {way_out(self.origin)}")


def hip_flags(arch: str) -> list[str]:
    """How kernels are compiled: no headers, no device library, no value-changing math."""
    bare = ("--offload-device-only", "-nogpuinc", "-nogpulib")
    warnings = ("-Wall", "-Wextra", "-Werror=return-type", "-Werror=switch")
    return ["-x", "hip", f"--offload-arch={arch}", *bare, "-std=c++20", "-I.", "-O3", *warnings]


def assembler_flags(arch: str) -> list[str]:
    """How assembly becomes an object file."""
    return ["-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c"]


def run(
    command: list[str], folder: Path = SOURCE, text: str | None = None, seconds: float | None = None
) -> str:
    """What a command prints; its warnings go on to ours, and its failure is a BuildError."""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=seconds is not None,
        )
    except OSError as error:
        raise BuildError(f"{' '.join(command)}\nerror: {error}") from error
    try:
        printed, complaints = process.communicate(text, seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with its children: a driver may be a script
        process.communicate()
        raise BuildError(f"{' '.join(command)}\nerror: no answer within {seconds:g} s") from None
    if process.returncode:
        raise BuildError(f"{' '.join(command)}\n{printed}{complaints}")
    if complaints:
        sys.stderr.write(complaints)
    return printed


def reason(error: BuildError) -> str:
    """Why a command failed: the first error that it printed, else its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((found[1] for line in lines if (found := re.search(r"\berror: (.*)", line))), lines[-1])


# ---- the choice -----------------------------------------------------------------------------------------


def pinned() -> str:
    """The requirement that names the pinned compiler; its one place is pyproject.toml."""
    found = re.search(r'"(ziglang==[\w.]+)"', (ROOT / "pyproject.toml").read_text())
    assert found
    return found[1]


def way_out(origin: str) -> str:
    """What to do about a compiler that cannot be used."""
    if origin.startswith(VARIABLE):
        return f"unset {VARIABLE} to use the pinned compiler (pip install {pinned()})"
    return f"install the pinned compiler: pip install {pinned()}"


def choose() -> Toolchain:
    """The compiler that HIPGEMM_HIPCC names, else the pinned one. ROCm's is used only if it is named."""
    wanted = os.environ.get(VARIABLE, "")
    return _ziglang() if wanted in ("", "ziglang") else _named(wanted)


def _ziglang() -> Toolchain:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise NoCompilerError(
            f"no compiler: {sys.executable} has no package ziglang; {way_out('')} (or set {VARIABLE} to "
            "ROCm's amdclang++)"
        )
    try:
        found = f"ziglang=={importlib.metadata.version('ziglang')}"
    except importlib.metadata.PackageNotFoundError:
        found = "a ziglang of unknown version"
    package = Path(spec.origin).parent
    zig, headers = str(package / "zig"), package / "lib"
    origin = "" if found == pinned() else found
    return Toolchain([zig, "clang", f"-resource-dir={headers}"], [zig, "ld.lld"], origin)


def _named(wanted: str) -> Toolchain:
    origin = f"{VARIABLE}={wanted}"
    clang = shutil.which(wanted)
    if not clang:
        what = "a file that cannot be executed" if Path(wanted).exists() else "no program"
        raise BuildError(f"{origin} names {what}; {way_out(origin)}")
    tools = Toolchain([clang], [], origin)
    try:
        version = replace(tools, seconds=VERSION_SECONDS).version()
    except BuildError as error:
        raise BuildError(f"{origin} does not print its version: {reason(error)}; {way_out(origin)}") from None
    if version == "unknown":
        raise BuildError(f"{origin} is no clang: `{wanted} --version` names none; {way_out(origin)}")
    lld = _lld_beside(Path(clang))
    if not lld:
        raise tools.refused("has no ld.lld next to it or in PATH")
    return replace(tools, lld=[lld])


def _lld_beside(clang: Path) -> str | None:
    for bin_dir in (clang.parent, clang.resolve().parent):
        for where in (".", "../llvm/bin", "../lib/llvm/bin"):
            if (found := bin_dir / where / "ld.lld").is_file():
                return str(found)
    return shutil.which("ld.lld")
