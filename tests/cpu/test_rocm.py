"""Where ROCm's library is searched for, what hipgemm needs of it, and which hip-python matches it."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hipgemm.runtime import rocm as _rocm

PACKAGE = Path(_rocm.__file__).parents[1]
# By hip-python's names; of structs the fields that it fills in.
NOT_FUNCTIONS = {
    "hipDeviceProp_t",
    "hipStreamCaptureMode",
    "hipMemcpyKind",
    "hipPointerAttribute_t",
    "ihipStream_t",
}
RENAMED = {"hipGetDeviceProperties": "hipGetDevicePropertiesR0600"}


def test_every_function_that_is_called_is_asked_for():
    called = set()
    for path in PACKAGE.rglob("*.py"):
        if path.stem != "rocm":
            called |= set(re.findall(r"(?:\.|[\"'])(i?hip[A-Z]\w+)", path.read_text()))
    called = {
        name
        for name in called - NOT_FUNCTIONS
        if not re.match("hip(Error|MemcpyDevice|StreamCaptureMode)", name)
    }
    assert sorted(RENAMED.get(name, name) for name in called) == sorted(_rocm.FUNCTIONS)


# ---- search


@pytest.fixture
def opt(tmp_path, monkeypatch) -> Path:
    """An empty /opt, and no variable that names a tree."""
    monkeypatch.setattr(_rocm, "OPT", tmp_path / "opt")
    monkeypatch.setattr(_rocm, "_in_packages", lambda: None)
    for name in ("ROCM_PATH", "ROCM_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "opt"


def tree(root: Path, *names: str, folder: str = "lib") -> Path:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name in names or ("libamdhip64.so",):
        (root / folder / name).touch()
    return root / folder


def test_without_any_tree_the_loader_is_asked(opt):
    assert _rocm.candidates() == ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"]


def test_the_named_tree_comes_first(opt, tmp_path, monkeypatch):
    tree(opt / "rocm")
    home, path = tree(tmp_path / "home"), tree(tmp_path / "path")
    monkeypatch.setenv("ROCM_HOME", str(home.parent))
    assert _rocm.candidates() == [f"{home}/libamdhip64.so"]
    monkeypatch.setenv("ROCM_PATH", str(path.parent))
    assert _rocm.candidates() == [f"{path}/libamdhip64.so"]


@pytest.mark.parametrize("variable", ["ROCM_PATH", "ROCM_HOME"])
def test_a_named_tree_without_the_library_is_an_error(opt, tmp_path, monkeypatch, variable):
    """An error; no other library is used instead."""
    tree(opt / "rocm")
    tree(tmp_path / "path", "libamdhip64.a", "libamdhip64.so.txt", "libhiprtc.so.7")
    monkeypatch.setenv(variable, str(tmp_path / "path"))
    with pytest.raises(
        _rocm.UnusableError, match=rf"^{variable}={tmp_path}/path has no lib/libamdhip64\.so or "
    ):
        _rocm.candidates()


def test_versions_side_by_side(opt):
    for name in ("rocm-6.4.1", "rocm-7.0.2", "rocm-7.10.0", "rocm-7.2.0", "rocm/extras-10"):
        tree(opt / name)
    assert _rocm.candidates() == [f"{opt}/rocm-7.10.0/lib/libamdhip64.so"]
    tree(opt / "rocm" / "core-10.0", "libamdhip64.so.7")
    assert _rocm.candidates() == [f"{opt}/rocm/core-10.0/lib/libamdhip64.so.7"]
    (opt / "rocm" / "core").symlink_to(opt / "rocm-7.0.2")
    assert _rocm.candidates() == [f"{opt}/rocm/core/lib/libamdhip64.so"]
    (opt / "rocm" / "lib").symlink_to(opt / "rocm-6.4.1" / "lib")  # the alternatives system's choice
    assert _rocm.candidates() == [f"{opt}/rocm/lib/libamdhip64.so"]


def test_an_empty_newest_tree_is_passed_over(opt):
    tree(opt / "rocm-6.4.1")
    (opt / "rocm-7.2.0" / "bin").mkdir(parents=True)
    assert _rocm.candidates() == [f"{opt}/rocm-6.4.1/lib/libamdhip64.so"]


def test_without_the_development_package(opt):
    folder = tree(opt / "rocm", "libamdhip64.so.6", "libamdhip64.so.6.4.43484")
    assert _rocm.candidates() == [f"{folder}/libamdhip64.so.6"]
    tree(opt / "rocm", "libamdhip64.so.7", "libamdhip64.so.7.0.70000")
    assert _rocm.candidates() == [f"{folder}/libamdhip64.so.7"]
    tree(opt / "rocm")
    assert _rocm.candidates() == [f"{folder}/libamdhip64.so"]


def test_lib64(opt):
    folder = tree(opt / "rocm", folder="lib64")
    assert _rocm.candidates() == [f"{folder}/libamdhip64.so"]


def test_the_library_of_rocm_s_python_packages(opt, tmp_path, monkeypatch):
    (tmp_path / "rocm_sdk.py").write_text(
        f"def find_libraries(name):\n    return [f'{tmp_path}/lib{{name}}.so.7']\n"
    )
    monkeypatch.undo()
    for name in ("ROCM_PATH", "ROCM_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_rocm, "OPT", tree(opt / "rocm").parents[1])
    assert _rocm.candidates() == [f"{tmp_path}/libamdhip64.so.7"]
    sys.modules.pop("rocm_sdk")


# ---- hip-python

HIP_PYTHON_6 = _rocm.Bindings("6.4.4.555.40", (6, 4))
HIP_PYTHON_7 = _rocm.Bindings("7.2.2.562.43", (7, 2))
HIP_PYTHON_10 = _rocm.Bindings("10.0.0.0.1.2", (7, 15))


@pytest.mark.parametrize(
    ("version", "bindings", "wanted"),
    [
        ((6, 4), HIP_PYTHON_6, ""),
        ((6, 2), HIP_PYTHON_6, ""),
        ((7, 0), HIP_PYTHON_7, ""),
        ((7, 2), HIP_PYTHON_7, ""),
        ((7, 15), HIP_PYTHON_10, ""),
        ((7, 13), HIP_PYTHON_10, ""),
        ((7, 0), HIP_PYTHON_10, "hip-python>=7.0,<8"),
        ((7, 15), HIP_PYTHON_7, "hip-python>=10,<11"),
    ],
)
def test_advice(version, bindings, wanted):
    message = _rocm.advice((*version, 1), bindings)
    assert message.endswith(f"run: pip install '{wanted}'" if wanted else ""), message
    assert bool(message) == bool(wanted)
    _rocm._require_match("lib.so", (*version, 1), [], ["a GPU, gfx950"], bindings)  # it works


@pytest.mark.parametrize(
    ("version", "bindings", "lacks", "reported"),
    [
        (
            (6, 4, 1),
            HIP_PYTHON_10,
            [],
            "made for HIP 7.15, does not match lib.so, HIP 6.4 (of a GPU, gfx950); run: ",
        ),
        ((6, 4, 1), HIP_PYTHON_7, [], "run: pip install 'hip-python>=6.4,<7'"),
        ((7, 0, 1), HIP_PYTHON_6, [], "run: pip install 'hip-python>=7.0,<8'"),
        ((7, 15, 1), HIP_PYTHON_6, [], "run: pip install 'hip-python>=10,<11'"),
        ((8, 0, 1), HIP_PYTHON_10, [], "lib.so (HIP 8.0) is newer than this version of hipgemm supports"),
        ((5, 7, 1), HIP_PYTHON_7, ["hipFree"], "lib.so (HIP 5.7) is too old: hipgemm needs ROCm 6 or newer"),
        (
            (7, 0, 1),
            HIP_PYTHON_10,
            ["hipFree"],
            "lib.so (HIP 7.0) lacks hipFree, which hipgemm calls through hip-python 10",
        ),
        ((7, 0, 1), HIP_PYTHON_10, ["hipFree", "hipMalloc"], "lacks hipFree and 1 more, which"),
    ],
)
def test_what_does_not_go_together(version, bindings, lacks, reported):
    with pytest.raises(_rocm.UnusableError, match=re.escape(reported)):
        _rocm._require_match("lib.so", version, lacks, ["a GPU, gfx950"], bindings)


# ---- the probe


def test_a_child_that_cannot_be_killed_is_left(monkeypatch):
    """As a process that waits in the driver."""
    child = subprocess.Popen(["sleep", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    monkeypatch.setattr(child, "kill", lambda: None)
    began = time.monotonic()
    _rocm._kill(child)
    assert time.monotonic() - began < 10
    assert child.poll() is not None  # no later wait blocks
    os.kill(child.pid, 9)
    os.waitpid(child.pid, 0)
