"""A host with ROCm: `.ci/rocm`, and the commands of docs/use/rocm.md. ROCm is faked here."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "70x64x96"


def run(*command: str | Path, rocm: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command with this ROCm; `.ci/rocm` with few kernels, two test files and a small shape only."""
    little = {
        "PRIMITIVES": "barrier mfma_bf16",
        "KERNELS": "gemm_bf16_nt gemm_mxfp8_e4m3_nt",
        "SHAPES": SHAPE,
        "TESTS": "tests/device/test_interchange.py tests/multi/test_sharding.py",
    }
    here = {"ROCM_PATH": str(rocm), "BUILD_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | little | here | more, capture_output=True, text=True, check=False
    )


def results(report: Path) -> dict[str, str]:
    """Each step's result, from the table of the summary."""
    rows = [
        line.split("|") for line in (report / "summary.md").read_text().splitlines() if line.startswith("| ")
    ]
    return {name.strip(): result.strip() for _, name, result, *_ in rows[1:]}


@pytest.fixture(scope="module")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rocm")
    subprocess.run([sys.executable, ROOT / "tests" / "fake_rocm.py", root], check=True)
    return root


@pytest.fixture(scope="module")
def report(rocm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    wrong = {"HIPGEMM_RUNTIME": "auto", "HIPGEMM_HIPCC": "/nowhere/amdclang++"}
    done = run("bash", ".ci/rocm", folder, rocm=rocm, **wrong)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


def test_everything_runs_on_rocm(rocm: Path, report: Path) -> None:
    found = results(report)
    assert set(found.values()) == {"ok"}
    assert {"machine", "build", "info", "primitives", "selftest", "tests"} <= set(found)
    assert {"matmul-bf16", "quantize_mxfp8", "tune"} <= set(found)
    (times,) = (report / "cache").iterdir()
    assert list(json.loads(times.read_text())["products"]) == [
        "70 64 96 --op matmul --format bf16 --layout nt --dtype bf16"
    ]
    variables = (report / "machine.txt").read_text()
    assert "HIPGEMM_RUNTIME=rocm" in variables
    assert "HIPGEMM_HIPCC" not in variables
    assert f"runtime     rocm  {rocm}" in (report / "info.txt").read_text()
    assert (report / "selftest.txt").read_text().endswith("selftest: all right\n")
    suite = ElementTree.parse(report / "tests.xml").getroot().find("testsuite")
    assert suite is not None
    assert int(suite.attrib["tests"]) > 5
    assert "on rocm: " in (report / "summary.md").read_text()
    for name in found:
        if name.startswith(("matmul", "grouped", "quantize")):
            assert json.loads((report / f"{name}.json").read_text())["about"]["runtime"] == "rocm", name
            with (report / f"{name}.csv").open() as table:
                rows = list(csv.DictReader(table))
            assert [row["name"] for row in rows] == [SHAPE]
            assert {row["check"] for row in rows} == {"ok"}, name


def test_a_step_that_fails_is_reported_and_the_rest_still_runs(rocm: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    failing = 'case "$*" in *selftest*|*"--format f16"*) exit 3 ;; esac'
    python.write_text(f'#!/bin/sh\n{failing}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = run("bash", ".ci/rocm", tmp_path, rocm=rocm, BUILD_PYTHON=str(python))
    assert done.returncode == 1
    found = results(tmp_path)
    failed = [name for name, result in found.items() if result == "FAIL"]
    assert failed == ["primitives", "selftest", "matmul-f16"]
    assert list(found)[-1] == "tune"


def test_without_a_gpu_it_ends_before_anything_runs(tmp_path: Path) -> None:
    done = run("bash", ".ci/rocm", tmp_path, rocm=Path("/nowhere"))
    assert done.returncode == 1
    assert results(tmp_path) == {"machine": "ok", "build": "ok", "info": "FAIL"}
    assert re.search(r"^problem +.+ \(HIPGEMM_RUNTIME=rocm\)$", done.stdout, re.MULTILINE)


# ---- docs/use/rocm.md ----------------------------------------------------------------------------------

# Commands whose output the report contains; others are run.
KEPT = {"info": "info.txt", "selftest": "selftest.txt", "test": "tests.txt", "--refcheck": "matmul-bf16.txt"}


def test_the_document_shows_what_commands_print(rocm: Path, report: Path) -> None:
    """Line by line, ignoring numbers and the distance between columns."""
    blocks = re.findall(
        r"^( *)```console\n\1\$ (.*)\n((?s:.*?))^ *```$", (ROOT / "docs/use/rocm.md").read_text(), re.M
    )
    commands = [command for _, command, _ in blocks]
    assert [command.split()[-1] for command in commands] == ["demo", *KEPT]
    for (_, command, shown), file in zip(blocks, ["", *KEPT.values()], strict=True):
        if file:
            printed = (report / file).read_text()
        else:
            done = run("make", "demo", rocm=rocm, HIPGEMM_RUNTIME="rocm")
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        pattern = _pattern(textwrap.dedent(shown))
        assert re.search(pattern, _plain(printed.replace(str(rocm), "/opt/rocm")), re.MULTILINE), command


def _plain(text: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d[\d.]*(e[-+]\d+)?", "0", text))


def _pattern(shown: str) -> str:
    """A line ... matches any lines, and ... at the end of a line its rest."""
    lines = _plain(shown).splitlines()
    return "^" + "".join(
        r"(?:.*\n)*?"
        if line == "..."
        else re.escape(line.removesuffix("...")) + ".*" * line.endswith("...") + r"\n"
        for line in lines
    )
