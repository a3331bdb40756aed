"""The mutants of tools/mutant_table.py are of these sources and these tests."""

from __future__ import annotations

import os
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
@pytest.mark.parametrize("arch", sorted({mutant.arch for mutant in MUTANTS}))
def test_tests_exist(arch):
    tests = sorted({test for mutant in MUTANTS if mutant.arch == arch for test in mutant.tests})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=os.environ | {"HIPGEMM_EMULATOR_ARCH": arch},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
