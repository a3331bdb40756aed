"""Both selftests on the emulator in each of its modes, for both architectures with matrix kernels.

python tools/selftest_modes.py [--jobs 16] [--arch gfx950] [--mode TEXT] [--products NAME] [--primitives NAME]

prints a table: right, or how many failed, and seconds. Then follow the failures, and it exits with 1.
Only modes, kernels and primitives whose name has a given text are tried.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARCHS = ("gfx950", "gfx942")
TESTS = {"products": [], "primitives": ["--primitives"]}
CHECKED = {"CHECK": "all"}
# Each value of what changes when or in which order something happens; with all checks, but for one.
MODES: dict[str, dict[str, str]] = {
    "default, unchecked": {},
    "default": CHECKED,
    **{f"memory {x}": {"MEMORY": x} | CHECKED for x in ("early", "random:1", "late-vm", "late-lgkm")},
    **{f"waves {x}": {"WAVES": x} | CHECKED for x in ("reverse", "random:1", "lockstep")},
    "memory late-vm, waves lockstep": {"MEMORY": "late-vm", "WAVES": "lockstep"} | CHECKED,
    "memory random:2, waves random:2": {"MEMORY": "random:2", "WAVES": "random:2"} | CHECKED,
    "async eager": {"ASYNC": "eager"} | CHECKED,
}


@dataclass(frozen=True)
class Result:
    """One selftest: its verdict, the seconds it took, and what it printed."""

    verdict: str
    seconds: float
    output: str


def run(mode: str, arch: str, test: str, name: str) -> Result:
    """One selftest in one mode."""
    variables = {"ARCH": arch, "DEVICES": "2", "THREADS": "1", **MODES[mode]}
    with tempfile.TemporaryDirectory() as cache:  # failures of one do not count for the next
        environment = {
            **os.environ,
            **{f"HIPGEMM_EMULATOR_{name}": value for name, value in variables.items()},
            "HIPGEMM_RUNTIME": "emulator",
            "HIPGEMM_CACHE_DIR": cache,
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "hipgemm", "selftest", *TESTS[test], *([name] if name else [])]
        start = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    failed = re.search(r"^selftest: (\d+) failures$|^primitives: (\d+) of", output, re.M)
    verdict = (
        "right" if done.returncode == 0 else f"{failed[1] or failed[2]} failed" if failed else "no result"
    )
    return Result(verdict, time.monotonic() - start, output)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="both selftests in each mode of the emulator")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--arch", action="append", choices=ARCHS)
    for option in ("--mode", "--products", "--primitives"):
        parser.add_argument(option, default="", metavar="NAME")
    args = parser.parse_args(argv)
    columns = [(arch, test) for arch in args.arch or ARCHS for test in TESTS]
    modes = [mode for mode in MODES if args.mode in mode]
    names = {"products": args.products, "primitives": args.primitives}
    with ThreadPoolExecutor(args.jobs) as pool:
        started = {
            (mode, arch, test): pool.submit(run, mode, arch, test, names[test])
            for mode in modes
            for arch, test in columns
        }
        print(f"{'':32}" + "".join(f"{arch + ' ' + test:>19}" for arch, test in columns))
        for mode in modes:
            results = [started[mode, arch, test].result() for arch, test in columns]
            print(f"{mode:32}" + "".join(f"{r.verdict:>12}{r.seconds:5.0f} s" for r in results), flush=True)
    wrong = {key: found for key, future in started.items() if (found := future.result()).verdict != "right"}
    for key, found in wrong.items():
        lines = found.output.splitlines()
        failures = [line for line in lines if line.startswith(("FAIL", " "))]
        print("", f"{', '.join(key)}: {found.verdict}", *(failures or lines[-20:]), sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
