"""The bridge from HIP to the CUDA driver, on a fake driver that executes on the emulator."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hipgemm.runtime import rocm as _rocm

pytestmark = pytest.mark.emulator("the machine of the bridge's driver")
ROOT = Path(__file__).resolve().parents[2]
DRIVER = "build/bridge/libcuda.so.1"
TESTS = (
    *(
        "tests/device/test_streams.py",
        "tests/device/test_interchange.py",
        "tests/device/test_kernels_elementwise.py",
        "tests/device/test_graphs.py",
    ),
    *("tests/bridge/test_driver.py", "tests/multi/test_sharding.py", "tests/device/test_primitives.py"),
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process on the bridge, which is built if need be."""
    done = subprocess.run(
        ["make", "-s", "bridge", DRIVER],
        cwd=ROOT,
        env=os.environ | {"BUILD_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    machine = tmp_path_factory.mktemp("machine") / "machine.so"  # not a second library of HIP's name
    shutil.copy(ROOT / "hipgemm/_emulator/libamdhip64.so", machine)
    return {
        "HIPGEMM_RUNTIME": "bridge",
        "LD_LIBRARY_PATH": str(ROOT / DRIVER.rpartition("/")[0]),
        "HIPGEMM_TEST_MACHINE": str(machine),
        "HIPGEMM_TEST_CODE": str(ROOT / "hipgemm/kernels/hipgemm_gfx942.co"),
        "HIPGEMM_EMULATOR_ARCH": "gfx942",
    }


def test_every_function_that_is_used_is_exported(environment, run_python):
    code = (
        "import ctypes, sys\n"
        f"library = ctypes.CDLL({str(ROOT / 'hipgemm/_bridge/libamdhip64.so')!r})\n"
        f"print([name for name in {_rocm.FUNCTIONS} if not hasattr(library, name)])\n"
    )
    done = run_python(code)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(environment):
    """The manifest's entry, and the text."""
    entry = json.loads((ROOT / "hipgemm/kernels/bridge.json").read_text())["archs"]["sm_90a"]
    return entry, (ROOT / "hipgemm/kernels" / entry["file"]).read_text()


def test_all_portable_kernels_are_cuda_too(built):
    """The same sources compile to PTX; the differences are in hip_device.hpp."""
    entry, text = built
    listed = (ROOT / "src_hip" / "instances.def").read_text()
    passes = re.findall(r"^PASS\((\w+), \w+, [\w/.]+, \w+, (?:any|special),", listed, re.MULTILINE)
    primitives = re.findall(r"^PRIMITIVE\((\w+), [\w/.]+, any,", listed, re.MULTILINE)
    portable = {*passes, *(f"primitive_{name}" for name in primitives)}
    assert len(portable) > 50
    assert {kernel["name"] for kernel in entry["kernels"]} == portable
    assert set(re.findall(r"\.entry (\w+)", text)) == portable
    assert ".local" not in text, "arrays in memory"
    # By default CUDA's compiler contracts to FMA what must be rounded twice.
    assert not re.search(r"\b(add|sub|mul)\.f32", text), "free to be fused"


def test_kernels_take_the_arguments_of_the_manifest(built):
    """In their order, each at a multiple of its size: the driver does not repack them."""
    entry, text = built
    for kernel in entry["kernels"]:
        (parameters,) = re.findall(rf"\.entry {kernel['name']}\(\n([^)]*)\)", text)
        sizes = [int(bits) // 8 for bits in re.findall(r"\.param \.[buf](\d+)", parameters)]
        arguments = entry["args"][kernel["args"]]
        assert sizes == [argument["size"] for argument in arguments]
        end = 0
        for argument in arguments:
            size = argument["size"]
            assert argument["offset"] == -(-end // size) * size
            end = argument["offset"] + size


NO_DEVICE = """
import hipgemm as hg
try:
    hg.zeros(1, 'f4')
except hg.RuntimeNotFoundError as error:
    print(error)
print(hg.info().runtime)
"""


def no_device(run_python, libraries=None):
    """The error for a driver that is missing or unusable."""
    done = run_python(NO_DEVICE, HIPGEMM_RUNTIME="bridge", LD_LIBRARY_PATH=libraries)
    message, runtime = done.stdout.splitlines()
    assert runtime == "None"
    found = re.fullmatch(
        r"\S*_bridge/libamdhip64\.so reports no device \(hipErrorNoDevice: hipGetDeviceCount: (.*)\); "
        r"HIPGEMM_RUNTIME=bridge needs an NVIDIA GPU and its driver",
        message,
    )
    assert found, message
    return found[1]


@pytest.mark.skipif(bool(ctypes.util.find_library("cuda")), reason="there is a driver")
def test_without_a_driver(environment, run_python):
    message = no_device(run_python)
    assert message == "libcuda.so.1: cannot open shared object file: No such file or directory"


def test_with_a_driver_that_is_too_old(environment, run_python, tmp_path):
    shutil.copy(environment["HIPGEMM_TEST_MACHINE"], tmp_path / "libcuda.so.1")  # has none of its functions
    message = no_device(run_python, str(tmp_path))
    assert re.fullmatch(r"libcuda\.so\.1 lacks cu\w+: it is too old", message)


def test_not_built(run_python):
    code = (
        "from pathlib import Path\nfrom hipgemm.runtime import loader\nloader.BRIDGE = Path('/none.so')\n"
        + NO_DEVICE
    )
    done = run_python(code, HIPGEMM_RUNTIME="bridge")
    assert done.stdout.splitlines() == [
        "the bridge is not built: /none.so is missing; run: make bridge (in a source tree; an installed "
        "package has no bridge)",
        "None",
    ], done.stderr


@pytest.mark.parametrize("devices", ["1", "2"])
def test_on_a_driver(environment, devices):
    """All in one process: one file does not affect the next."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env=os.environ | environment | {"HIPGEMM_EMULATOR_DEVICES": devices},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
