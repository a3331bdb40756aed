"""What a host with an AMD GPU runs, `.ci/rocm`, with a stand-in for ROCm and without any."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHAPES = "70x64x96,64x64x64"


def run(report: Path, rocm: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run the script on little: one file of tests, small shapes."""
    little = {"SHAPES": SHAPES, "TESTS": "tests/device/test_interchange.py"}
    return subprocess.run(
        ["bash", ROOT / ".ci" / "rocm", report],
        env=os.environ | little | {"ROCM_PATH": str(rocm), "BUILD_PYTHON": python, "HIPGEMM_RUNTIME": "auto"},
        capture_output=True,
        text=True,
        check=False,
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


@pytest.mark.install
def test_everything_runs_on_rocm(rocm: Path, tmp_path: Path) -> None:
    done = run(tmp_path, rocm)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = results(tmp_path)
    assert set(found.values()) == {"ok"}
    assert {"machine", "build", "info", "selftest", "tests", "matmul-bf16", "quantize_mxfp8"} <= set(found)
    assert f"runtime     rocm  {rocm}" in (tmp_path / "info.txt").read_text()
    assert (tmp_path / "selftest.txt").read_text().endswith("selftest: all right\n")
    suite = ElementTree.parse(tmp_path / "tests.xml").getroot().find("testsuite")
    assert suite is not None
    assert int(suite.attrib["tests"]) > 5
    assert "on rocm: " in (tmp_path / "summary.md").read_text()
    for name in found:
        if name.startswith(("matmul", "grouped", "quantize")):
            about = json.loads((tmp_path / f"{name}.json").read_text())["about"]
            assert about["runtime"] == "rocm", name
            with (tmp_path / f"{name}.csv").open() as table:
                rows = list(csv.DictReader(table))
            assert [row["name"] for row in rows] == SHAPES.split(",")
            assert {row["check"] for row in rows} == {"ok"}, name


@pytest.mark.install
def test_a_step_that_fails_is_told_and_the_rest_still_runs(rocm: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    failing = 'case "$*" in *selftest*|*"--format f16"*) exit 3 ;; esac'
    python.write_text(f'#!/bin/sh\n{failing}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = run(tmp_path, rocm, str(python))
    assert done.returncode == 1
    found = results(tmp_path)
    assert [name for name, result in found.items() if result == "FAIL"] == ["selftest", "matmul-f16"]
    assert list(found)[-1] == "quantize_mxfp8"


def test_without_a_gpu_it_ends_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, Path("/nowhere"))
    assert done.returncode == 1
    assert results(tmp_path) == {"machine": "ok", "build": "ok", "info": "FAIL"}
    assert re.search(r"^problem +.+ \(HIPGEMM_RUNTIME=rocm\)$", done.stdout, re.MULTILINE)
