"""`make test` runs the tests on the requested runtime, or ends at once; here on tests/fake_rocm.py."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fake_rocm
import pytest
import session_runtime

ROOT = Path(__file__).resolve().parents[2]
SHORT = "tests/device/test_overhead.py"
pytestmark = pytest.mark.emulator("runs of the tests on each runtime")


@pytest.fixture(scope="module")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rocm")
    fake_rocm.make(root)
    return root


def run_tests(*arguments: str, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    variables = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def test_header_and_summary_tell_what_ran(rocm):
    """Even where a test of the emulator's API is selected in the same process: it is skipped."""
    done = run_tests("tests/emulator/test_api.py", SHORT, HIPGEMM_RUNTIME="rocm", ROCM_PATH=rocm)
    assert done.returncode == 0, done.stdout + done.stderr
    device = "AMD Instinct (tests/fake_rocm.py), gfx950"
    line = f"hipgemm on rocm: {device}; HIP 7.0.0; driver 7.0.0; {rocm}/lib/libamdhip64.so"
    lines = done.stdout.splitlines()
    assert lines.count(line) == 2, done.stdout
    assert lines.index(line) < 4
    (passed,) = re.findall(
        r"^tests of device, multi and bridge on rocm: (\d+) passed$", done.stdout, re.MULTILINE
    )
    assert f" {passed} passed" in lines[-1]
    assert "tests that need the emulator are not among these" in done.stdout
    assert re.search(r"^SKIPPED .*: needs the emulator$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("variable", ["rocm", "bridge"])
def test_what_cannot_be_had_ends_the_run_at_once(variable, tmp_path):
    """Although the emulator is available."""
    libraries = {"ROCM_PATH": tmp_path, "LD_LIBRARY_PATH": tmp_path, "CUDA_VISIBLE_DEVICES": ""}
    done = run_tests(SHORT, HIPGEMM_RUNTIME=variable, **libraries)
    assert done.returncode == 2, done.stdout + done.stderr
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("Exit: ")]
    assert message.startswith(f"Exit: HIPGEMM_RUNTIME={variable}, but the tests would run on none: ")
    assert "collected" not in done.stdout
    assert " passed" not in done.stdout


def test_parts_add_up(rocm):
    def collected(*arguments: str, **environment: str | Path) -> list[str]:
        done = run_tests("-q", "--collect-only", "tests/device/test_explain.py", *arguments, **environment)
        return [line for line in done.stdout.splitlines() if "::" in line]

    every, emulated, others = collected(), collected("--part=emulated"), collected("--part=others")
    assert every == sorted(emulated + others, key=every.index)
    assert min(len(emulated), len(others)) > 0
    asked = {"HIPGEMM_RUNTIME": "rocm", "ROCM_PATH": rocm}
    assert collected(**asked) == others
    assert collected("--part=emulated", **asked) == emulated


def test_needs_are_listed():
    done = run_tests("--needs", "tests/device/test_explain.py", "tests/emulator/test_decode.py")
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(
        re.findall(
            r"^(needs the emulator: [\w ]+|runs on any runtime) \((\d+) tests", done.stdout, re.MULTILINE
        )
    )
    assert set(found) == {
        "needs the emulator: counters",
        "needs the emulator: it is the emulator that is tested",
        "runs on any runtime",
    }
    assert re.search(
        r"^    tests/device/test_explain\.py::test_parts_of_k_as_counted$", done.stdout, re.MULTILINE
    )
    assert "passed" not in done.stdout


def test_a_need_has_a_reason():
    def item(marker, *fixtures):
        return SimpleNamespace(nodeid="a test", fixturenames=fixtures, get_closest_marker=lambda name: marker)

    assert session_runtime._needed(item(None)) == ""
    assert session_runtime._needed(item(SimpleNamespace(args=("counters",)), "emulator")) == "counters"
    with pytest.raises(pytest.UsageError, match="a test uses the fixture emulator, but has no marker"):
        session_runtime._needed(item(None, "emulator"))
    with pytest.raises(pytest.UsageError, match="a test: the marker emulator takes the reason, one text"):
        session_runtime._needed(item(SimpleNamespace(args=())))


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_each_process_starts_with_long_tests(processes):
    files = [Path(f"packaging/{name}") for name in "abcde"] + [Path(f"cpu/{n}") for n in range(90)]
    items = [SimpleNamespace(path=path, n=n) for path in files for n in range(3)]
    made = session_runtime.spread(items[::-1], processes)
    assert sorted(made, key=items.index) == items
    ends = [len(items) * n // processes for n in range(processes + 1)]
    for begin, end in itertools.pairwise(ends):
        long = [item.path.parent.name == "packaging" for item in made[begin:end]]
        assert long == sorted(long, reverse=True)
        assert len({item.path for item in made[begin:end] if item.path in files[:5]}) <= -(-5 // processes)


def test_asking_for_the_emulator_needs_the_marker(tmp_path):
    """A test that sets its variables and is not marked would not test the GPU there."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['emulator(reason)']\n")
    for name in ("conftest.py", "session_runtime.py"):
        (folder / name).write_text((ROOT / "tests" / name).read_text())
    (folder / "test_one.py").write_text(
        "import pytest\n"
        "def test_a(run_python):\n    run_python('', HIPGEMM_RUNTIME='emulator')\n"
        "def test_b(run_python):\n    run_python('', HIPGEMM_EMULATOR_DEVICES='2')\n"
        "@pytest.mark.emulator('to see')\n"
        "def test_c(run_python):\n    run_python('', HIPGEMM_RUNTIME='emulator')\n"
    )
    done = run_tests(str(folder))
    assert done.stdout.count("a test that asks for the emulator needs the marker emulator(reason)") >= 2
    assert "2 failed, 1 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("runtime", "ends", "status", "runs"),
    [
        ("rocm", {}, 0, ["others", "emulated"]),
        ("rocm", {"others": 1}, 2, ["others", "emulated"]),
        ("rocm", {"emulated": 1}, 2, ["others", "emulated"]),
        ("rocm", {"others": 5, "emulated": 5}, 0, ["others", "emulated"]),
        ("rocm", {"others": 2}, 2, ["others"]),
        ("emulator", {}, 0, ["all"]),
        ("emulator", {"all": 1}, 2, ["all"]),
        ("emulator", {"all": 5}, 0, ["all"]),
    ],
)
def test_status_of_make_test(rocm, tmp_path, runtime, ends, status, runs):
    """make's own is 2 for any failure. No second part after a first that ended early, as without a GPU."""
    python, record = tmp_path / "python", tmp_path / "record"
    parts = "".join(
        f"  *--part={part}*) echo {part} >> {record}; exit {ends.get(part, 0)} ;;\n"
        for part in ("all", "others", "emulated")
    )
    python.write_text(f'#!/bin/sh\ncase "$*" in\n{parts}esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    variables = {"BUILD_PYTHON": str(python), "HIPGEMM_RUNTIME": runtime, "ROCM_PATH": str(rocm)}
    done = subprocess.run(
        ["make", "-s", "test"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert record.read_text().split() == runs
