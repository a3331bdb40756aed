"""Runs a program that uses HIP on the emulator, under its checks, and prints what they find."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config import environment, variable
from ..runtime.loader import EMULATOR
from . import source_lines

CHECKS = ("hazard", "uninit", "race", "bounds", "all")
_LIBRARIES = ("libamdhip64.so", "libhiprtc.so")
_VERSIONS = ("", ".6", ".7")  # programs ask for one with a number
_USAGE = "a command is needed after --, such as: python -m hipgemm sanitize -- python script.py"
_SUMMED = ("executions", "clocks", "conflict_clocks")
Record = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of the command."""
    parser.add_argument(
        "--check", default="all", help=f"some of {', '.join(CHECKS)}, with commas; default all"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings to a file, too")
    parser.add_argument("--notes", action="store_true", help="print notes, which are no errors, too")
    parser.add_argument(
        "--conflicts",
        action="store_true",
        help="count bank conflicts of LDS instructions, too (3 to 4 times slower)",
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="-- and the command")


def run(args: argparse.Namespace) -> int:
    """Run the command; return its exit code, or 1 if that is 0 and there are findings."""
    command = args.program[1:] if args.program[:1] == ["--"] else args.program
    if unknown := set(args.check.split(",")) - set(CHECKS):
        print(
            f"error: unknown check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}",
            file=sys.stderr,
        )
        return 2
    if not command:
        print(f"error: {_USAGE}", file=sys.stderr)
        return 2
    if not EMULATOR.exists():
        print("error: the emulator is not built; run: make emulator", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="hipgemm-sanitize-") as folder:
        code, records = _run_under_checks(command, args.check, Path(folder), args.conflicts)
    if code is None:
        return 127
    conflicts = [record for record in records if record["kind"] == "conflicts"]
    records = [record for record in records if record["kind"] != "conflicts"]
    counts = Counter(json.dumps(record) for record in records)
    found = [{**json.loads(text), "times": times} for text, times in counts.items()]
    slow = sum_conflicts(conflicts)
    if args.json:
        args.json.write_text(json.dumps(found + slow, indent=1) + "\n")
    errors = [record for record in found if record["kind"] != "note"]
    for record in found if args.notes else errors:
        print(describe(record), file=sys.stderr)
    for record in slow:
        print(describe_conflicts(record), file=sys.stderr)
    notes = len(found) - len(errors)
    kernels = len({record["kernel"] for record in errors})
    more = "" if args.notes or not notes else f"; {notes} notes (--notes)"
    print(f"sanitize: {len(errors)} findings in {kernels} kernels{more}", file=sys.stderr)
    return code or bool(errors)


def describe(record: Record) -> str:
    """A finding in two lines.

    >>> record = {"kind": "race", "what": "LDS at 0x0 is written twice", "kernel": "k", "offset": 8}
    >>> print(describe(record | {"instruction": "ds_write_b32 v0, v1", "workgroup": [0, 0, 0], "wave": 1}))
    race: kernel k +0x8, ds_write_b32 v0, v1; workgroup (0, 0, 0) wave 1
      LDS at 0x0 is written twice
    """
    times = f", {record['times']} times" if record.get("times", 1) > 1 else ""
    place = f"workgroup {tuple(record['workgroup'])} wave {record['wave']}"
    return f"{record['kind']}: {_instruction(record)}; {place}{times}\n  {record['what']}"


def sum_conflicts(records: Sequence[Record]) -> list[Record]:
    """One record for each instruction of all launches, those with the most conflicts first."""
    sums: dict[tuple[str, int], Record] = {}
    for record in records:
        total = sums.setdefault((record["kernel"], record["offset"]), record | dict.fromkeys(_SUMMED, 0))
        for name in _SUMMED:
            total[name] += record[name]
    return sorted(sums.values(), key=lambda record: -int(record["conflict_clocks"]))


def describe_conflicts(record: Record) -> str:
    """The bank conflicts of an instruction in a line.

    >>> record = {"kernel": "k", "offset": 8, "instruction": "ds_read_b32 v0, v1", "executions": 4}
    >>> print(describe_conflicts(record | {"clocks": 512, "conflict_clocks": 496}))
    conflicts: kernel k +0x8, ds_read_b32 v0, v1; 496 of 512 LDS clocks, executed 4 times
    """
    clocks = f"{record['conflict_clocks']} of {record['clocks']} LDS clocks"
    return f"conflicts: {_instruction(record)}; {clocks}, executed {record['executions']} times"


def _instruction(record: Record) -> str:
    """The kernel, and where in it."""
    at = f" {record['offset']:+#x}, {record['instruction']}" if "offset" in record else ""
    line = f", {record['file']}:{record['line']}" if record.get("line") else ""
    return f"kernel {record['kernel']}{line}{at}"


def _run_under_checks(
    command: Sequence[str], checks: str, folder: Path, conflicts: bool
) -> tuple[int | None, list[Record]]:
    """The exit code, None if there is no such program, and what the emulator has written."""
    report, codes, libraries = folder / "report", folder / "code", folder / "rocm/lib"
    codes.mkdir()
    libraries.mkdir(parents=True)
    for name in _LIBRARIES:
        for version in _VERSIONS:
            (libraries / (name + version)).symlink_to(EMULATOR.parent / name)
    paths = [str(libraries), variable("LD_LIBRARY_PATH") or ""]
    variables = {
        "HIPGEMM_RUNTIME": "emulator",
        "HIPGEMM_EMULATOR_CHECK": checks,
        "HIPGEMM_EMULATOR_REPORT": str(report),
        "HIPGEMM_EMULATOR_CODE": str(codes),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
        "ROCM_PATH": str(libraries.parent),
    }
    if find_spec("ziglang") and not variable("HIPGEMM_EMULATOR_LLVM"):  # for hiprtc
        variables["HIPGEMM_EMULATOR_LLVM"] = f"{shlex.quote(sys.executable)} -m ziglang"
    if conflicts:
        variables["HIPGEMM_EMULATOR_COUNT"] = "1"
    try:
        with environment(**variables) as env:
            code = subprocess.run(command, env=env, check=False).returncode
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        return None, []
    lines = report.read_text().splitlines() if report.exists() else []
    records = [json.loads(line) for line in lines]
    add_lines(records, codes)
    return code, records


def add_lines(records: Sequence[Record], codes: Path) -> None:
    """Add the source line to each record whose kernel is in a code object that has line tables."""
    for path in sorted(codes.glob("*.co")):
        if (lines := source_lines.read(path)) is None:
            continue
        for record in records:
            known = "offset" not in record or "line" in record
            if not known and (found := lines.at(record["kernel"], record["offset"])):
                record["file"], record["line"] = found
