"""The mutants of tools/mutant_table.py are of these sources and these tests."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cases import each

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from mutant_table import MUTANTS, Mutant  # noqa: E402
from mutants import find  # noqa: E402


def test_there_are_mutants_of_each_kind():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    kinds = Counter(mutant.name.split("-")[0] for mutant in MUTANTS)
    assert kinds.keys() == {"kernel", "python", "emulator"}
    assert min(kinds.values()) >= 10
    assert kinds.total() >= 40


@each("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_text_exists(mutant: Mutant):
    find(ROOT, mutant)
    assert mutant.old != mutant.new
    assert bool(mutant.kernels) == mutant.where.startswith("src_hip")


@pytest.mark.emulator("all tests are collected")
def test_tests_exist():
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
