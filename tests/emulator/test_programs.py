"""Programs of others: compiled by hipcc, and under `python -m hipgemm sanitize`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from asm import ARCH
from hipapi import compile_hip

from hipgemm.__main__ import main
from hipgemm.inspect import sanitize

SOURCE = Path(__file__).parent / "program.hip"
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"


def bundle(code: bytes) -> bytes:
    """As clang-offload-bundler makes it: an empty entry for the host, and the code object."""
    entries = ((b"host-x86_64-unknown-linux-gnu", b""), (f"hipv4-amdgcn-amd-amdhsa--{ARCH}".encode(), code))
    offset, header = 4096, MAGIC + len(entries).to_bytes(8, "little")
    for name, image in entries:
        header += b"".join(n.to_bytes(8, "little") for n in (offset, len(image), len(name))) + name
    return header.ljust(offset, b"\0") + code


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linked with a library that has the name of ROCm's."""
    folder = tmp_path_factory.mktemp("program")
    code = compile_hip(SOURCE.read_text(), folder / "device.co", ARCH, "-gline-tables-only").read_bytes()
    (folder / "program.hipfb").write_bytes(bundle(code))
    (folder / "libamdhip64.so").symlink_to(sanitize.EMULATOR)
    host = ["-x", "hip", f"--offload-arch={ARCH}", "--offload-host-only", "-nogpuinc", "-nogpulib"]
    binary = ["-Xclang", "-fcuda-include-gpubinary", "-Xclang", str(folder / "program.hipfb")]
    zig = [sys.executable, "-m", "ziglang"]
    made = folder / "program"
    for command in (
        [*zig, "clang", *host, *binary, "-O1", "-c", str(SOURCE), "-o", f"{made}.o"],
        [*zig, "cc", f"{made}.o", str(folder / "libamdhip64.so"), "-o", str(made)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return made


def test_a_compiled_program(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Kernels and variables that it registers; nothing is found in it."""
    assert main(["sanitize", "--", str(program)]) == 0
    out, err = capfd.readouterr()
    assert out == "0 errors, 594, 100, 3, 4 bytes\n"
    assert err == "sanitize: 0 findings in 0 kernels\n"


def test_findings(program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All of a launch, with the lines of the source; the program runs to its end."""
    report = tmp_path / "report.json"
    assert main(["sanitize", "--json", str(report), "--", str(program), "faulty"]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("0 errors, ")
    assert "sanitize: 2 findings in 1 kernels\n" in err
    found = {record["kind"]: record for record in json.loads(report.read_text())}
    source = SOURCE.read_text().splitlines()
    assert set(found) == {"race", "uninit"}
    for kind, text in (("race", "// two waves"), ("uninit", "// which nothing has written")):
        record = found[kind]
        assert record["file"].endswith("device.hip")
        assert text in source[record["line"] - 1]
        assert f"{kind}: kernel {record['kernel']}, {record['file']}:{record['line']} +" in err
        assert record["workgroup"] == [0, 0, 0]
        assert record["what"] in err
    # Only one check; an exit code that the program has anyhow.
    assert main(["sanitize", "--check", "race", "--", str(program), "faulty"]) == 1
    assert "sanitize: 1 findings in 1 kernels\n" in capfd.readouterr().err


def test_conflicts(program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of each LDS instruction: 2 phases of 32 lanes take 2 clocks for each lane, instead of 2 in all."""
    report = tmp_path / "report.json"
    command = ["sanitize", "--check", "bounds", "--conflicts", "--json", str(report)]
    assert main([*command, "--", str(program), "one", "two"]) == 0
    err = capfd.readouterr().err
    records = json.loads(report.read_text())
    names = {record["instruction"].split()[0] for record in records}
    assert names == {"ds_read_b32", "ds_write_b32"}
    for record in records:
        assert (record["executions"], record["clocks"], record["conflict_clocks"]) == (3, 3 * 128, 3 * 124)
        assert f", {record['file']}:{record['line']} {record['offset']:+#x}, {record['instruction']}; " in err
        if record["instruction"].startswith("ds_write"):
            assert "// one bank" in SOURCE.read_text().splitlines()[record["line"] - 1]
    assert err.count("; 372 of 384 LDS clocks, executed 3 times\n") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "a command is needed after --"),
        (["--check", "races", "--", "true"], 2, "unknown check races; there are hazard, uninit, race"),
        (["--", "/nowhere/program"], 127, "/nowhere/program: No such file or directory"),
        (["--", sys.executable, "-c", "raise SystemExit(7)"], 7, "sanitize: 0 findings in 0 kernels"),
    ],
)
def test_other_ends(arguments: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sanitize", *arguments]) == code
    assert text in capfd.readouterr().err


@pytest.mark.parametrize("most", [None, 2, 9])
def test_how_many_findings_end_a_launch(program: Path, most: int | None) -> None:
    count = {} if most is None else {"HIPGEMM_EMULATOR_FINDINGS": str(most)}
    checked = {"HIPGEMM_EMULATOR_CHECK": "all", "HIPGEMM_EMULATOR_VERBOSE": "1"}
    environment = os.environ | checked | count | {"LD_LIBRARY_PATH": str(program.parent)}
    done = subprocess.run([program, "faulty"], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("719 errors, ")
    assert ("uninit: " in done.stderr) + ("race: " in done.stderr) == (1 if most is None else 2)
