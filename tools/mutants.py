"""Make each fault of mutant_table.py in a copy of the working tree: a test must find it.

python tools/mutants.py [--jobs N] [NAME ...]

First the tests of all mutants must pass on the unchanged copy. Then, for each mutant, its text is replaced,
what depends on it is built again, and one of its tests must fail by an assertion: not by an error of the
build, of the collection or of a fixture. Exits with 1 if a mutant survives or cannot be tried.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory

from archs import ARCHS
from instances import instances_for
from mutant_table import MUTANTS, Mutant
from probe import find_toolchain
from toolchain import ROOT, SOURCE, BuildError
from units import Compiler, link, split

# Copied with the sources.
BUILT = ("hipgemm/_emulator", "hipgemm/kernels", "build/cxx", "build/zig", "build/tests")
OBJECTS = ("hipgemm/_emulator", "build/cxx", "build/zig")  # of the emulator
SECONDS = 300  # that the tests of one mutant may take: a few, but for a fault that hangs
# How pytest reports that an assertion of a test failed.
ASSERTIONS = ("AssertionError", "assert ", "Failed: ")


class WrongError(Exception):
    """The reason why a mutant did not die."""


def find(tree: Path, mutant: Mutant) -> Path:
    """The file with a mutant's text, which must occur exactly once."""
    place = tree / mutant.where
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    found = [(file, count) for file in files if (count := _count(file, mutant.old))]
    if [count for _, count in found] == [1]:
        return found[0][0]
    times = sum(count for _, count in found)
    raise WrongError(f"its text must occur once in {mutant.where}; got {times} times: {mutant.old}")


def _count(file: Path, text: str) -> int:
    try:
        return file.read_text().count(text)
    except UnicodeDecodeError:  # what was built
        return 0


# ---- kernels ---------------------------------------------------------------------------------------------


class KernelBuilder:
    """Compiles some units from the sources of a copy, and links them with the others of the last build."""

    def __init__(self, arch: str) -> None:
        self._arch = arch
        self._tools = find_toolchain()
        self._units = split(instances_for(self._tools, ARCHS[arch]), arch)
        cache = ROOT / "build" / "kernels"
        self._compiled = Compiler(self._tools, SOURCE / "kernels.hip", cache).compile(self._units)
        self._lock = threading.Lock()  # for the compiler, which uses all cores

    def build(self, tree: Path, names: Sequence[str]) -> None:
        """Compile the units of these kernels, and build the code object of a copy."""
        place = {i.kernel["name"]: n for n, unit in enumerate(self._units) for i in unit.instances}
        if unknown := set(names) - set(place):
            raise WrongError(f"no such kernels: {', '.join(sorted(unknown))}")
        places = list({place[name] for name in names})
        compiled = list(self._compiled)
        with self._lock:
            compiler = Compiler(self._tools, tree / "src_hip" / "kernels.hip", tree / "build" / "kernels")
            changed = compiler.compile([self._units[n] for n in places])
        for n, unit in zip(places, changed, strict=True):
            compiled[n] = unit
        _, content = link(self._tools, compiled, self._arch)
        manifest = tree / "hipgemm" / "kernels" / "manifest.json"
        built = json.loads(manifest.read_text())
        entry = built["archs"][self._arch]
        (manifest.parent / entry["file"]).write_bytes(content)
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.write_text(json.dumps(built))


# ---- a copy of the working tree --------------------------------------------------------------------------


class Tree:
    """A copy of the working tree and of the last build, for one mutant at a time."""

    def __init__(self, path: Path, kernels: Mapping[str, KernelBuilder]) -> None:
        self.path = path
        self._kernels = kernels
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():  # a deleted file may still be in the index
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, path / name)
        for name in BUILT:
            _copy(ROOT / name, path / name)
        for levels in path.glob("build/*/levels"):
            levels.unlink()  # build for this CPU only
        self._make()
        self._kept = path / "build" / "kept"
        for name in (*OBJECTS, "hipgemm/kernels"):
            _copy(path / name, self._kept / name)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant and build what depends on it; restore everything at the end."""
        file = find(self.path, mutant)
        original, times = file.read_text(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
        part = file.relative_to(self.path).parts[0]
        built = {"emulator": OBJECTS, "src_hip": ("hipgemm/kernels",)}.get(part, ())
        try:
            file.write_text(original.replace(mutant.old, mutant.new))
            if part == "emulator":
                self._make()
            elif part == "src_hip":
                self._kernels[mutant.arch].build(self.path, mutant.kernels)
            yield
        finally:
            file.write_text(original)
            os.utime(file, ns=times)  # else make would build it again
            # Python takes what it compiled from another mutant of the same size in the same second.
            Path(cache_from_source(str(file))).unlink(missing_ok=True)
            for name in built:
                _copy(self._kept / name, self.path / name)

    def test(
        self, arch: str, selection: Iterable[str], seconds: float | None = None
    ) -> tuple[int, list[str], str]:
        """Run tests; return the exit status of pytest, the messages of failures, and the output."""
        report = self.path / "build" / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=short"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.path),
            "HIPGEMM_RUNTIME": "emulator",
            "HIPGEMM_EMULATOR_THREADS": "1",
            "HIPGEMM_EMULATOR_ARCH": arch,
        }
        run = _run([*command, f"--junitxml={report}", *selection], self.path, environment, seconds)
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
        failures = [f.get("message", "") for case in cases for f in case.findall("failure")]
        return run.returncode, failures, run.stdout

    def _make(self) -> None:
        environment = {name: x for name, x in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
        environment["BUILD_PYTHON"] = sys.executable
        made = _run(["make", "--no-print-directory", "emulator"], self.path, environment)
        if made.returncode:
            raise WrongError(f"it does not compile:\n{made.stdout}")


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        shutil.copytree(source, target, dirs_exist_ok=True)


def _run(
    command: list[str], folder: Path, environment: dict[str, str], seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command; stdout is all that it prints."""
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise WrongError(f"more than {seconds:g} s") from None


# ---- the run ---------------------------------------------------------------------------------------------


def kill(tree: Tree, mutant: Mutant) -> str:
    """Run the tests of a mutant; return the message of the one that fails."""
    with tree.mutated(mutant):
        status, failures, printed = tree.test(mutant.arch, mutant.tests, SECONDS)
    if status == 0:
        raise WrongError(f"SURVIVES {' '.join(mutant.tests)}")
    found = [message for message in failures if message.startswith(ASSERTIONS)]
    if status != 1 or not found:
        raise WrongError(f"its tests fail, but not by an assertion:\n{printed[-3000:]}")
    return found[0]


def baseline(tree: Tree, mutants: Iterable[Mutant]) -> None:
    """Run the tests of all mutants on the unchanged copy."""
    tests: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        tests.setdefault(mutant.arch, {}).update(dict.fromkeys(mutant.tests))
    for arch, selection in tests.items():
        status, _, printed = tree.test(arch, ["-rs", *selection])
        if status or "SKIPPED" in printed:
            raise WrongError(f"the tests must pass without a mutant:\n{printed[-6000:]}")


def run(mutants: Sequence[Mutant], jobs: int) -> int:
    """Try mutants in `jobs` copies in parallel; return how many died."""
    kernels = {arch: KernelBuilder(arch) for arch in {mutant.arch for mutant in mutants if mutant.kernels}}
    died = 0
    with TemporaryDirectory(prefix="mutants") as folder:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(jobs):
            trees.put(Tree(Path(folder) / str(number), kernels))
        tree = trees.get()
        baseline(tree, mutants)
        trees.put(tree)

        def attempt(mutant: Mutant) -> tuple[bool, str]:
            tree, started = trees.get(), time.monotonic()
            try:
                found = " ".join(kill(tree, mutant).split())
                return True, f"died in {time.monotonic() - started:.0f} s: {found[:90]}"
            except (WrongError, BuildError) as error:
                return False, str(error)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            for mutant, (dead, text) in zip(mutants, pool.map(attempt, mutants), strict=True):
                died += dead
                print(f"{mutant.name}: {text}", flush=True)
    return died


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="check that tests find faults")
    parser.add_argument("names", nargs="*", metavar="NAME", help="try only mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many to try in parallel")
    args = parser.parse_args()
    mutants = [m for m in MUTANTS if not args.names or any(name in m.name for name in args.names)]
    started = time.monotonic()
    os.nice(10)
    try:
        died = run(mutants, args.jobs)
    except (WrongError, BuildError) as error:
        print(f"tools/mutants.py: {error}", file=sys.stderr)
        return 1
    print(f"{died} of {len(mutants)} mutants died, in {time.monotonic() - started:.0f} s")
    return 0 if died == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
