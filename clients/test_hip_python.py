"""hip-python's examples, where make test-clients could fetch them, and programs that call what they call."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HIP_PYTHON = (
    HERE.parent / "build/hip-python"
)  # the version of the examples; make test-clients installs it there
EXAMPLES = HERE.parent / "build/hip-python-examples/examples"
# What the examples call, but for other libraries.
FUNCTIONS = """
    hipDeviceGetAttribute hipDeviceSynchronize hipEventCreate hipEventDestroy hipEventElapsedTime
    hipEventRecord hipEventSynchronize hipFree hipGetDeviceCount hipGetDeviceProperties hipMalloc
    hipMemcpy hipMemcpyAsync hipMemsetAsync hipModuleGetFunction hipModuleLaunchKernel hipModuleLoadData
    hipModuleUnload hipSetDevice hipStreamCreate hipStreamDestroy hipStreamSynchronize
    hiprtcCompileProgram hiprtcCreateProgram hiprtcDestroyProgram hiprtcGetBitcode hiprtcGetBitcodeSize
    hiprtcGetCode hiprtcGetCodeSize hiprtcGetProgramLog hiprtcGetProgramLogSize hiprtcLinkAddData
    hiprtcLinkComplete hiprtcLinkCreate hiprtcLinkDestroy
"""
RACE = "2_Advanced/hip_jacobi.py"
ALL = ("all", "gfx950")
OF_GFX90A = ("race,bounds,uninit", "gfx90a")  # the table of hazards is that of gfx950
EXAMPLES_THAT_NEED_ONLY_HIP = {
    "0_Basic_Usage/hip_deviceattributes.py": ALL,
    "0_Basic_Usage/hip_deviceproperties.py": ALL,
    "0_Basic_Usage/hip_stream.py": ALL,
    "0_Basic_Usage/hiprtc_launch_kernel_args.py": ALL,
    "0_Basic_Usage/hiprtc_launch_kernel_no_args.py": ALL,
    "1_CUDA_Interop/cuda_stream.py": ALL,
    "1_CUDA_Interop/cuda_error_hallucinate_enums.py": ALL,
    RACE: ("hazard,bounds,uninit", "gfx950"),  # see the next test
    "2_Advanced/hiprtc_linking_device_functions.py": ALL,
    "2_Advanced/hiprtc_jit_with_llvm_ir.py": OF_GFX90A,
    "2_Advanced/hiprtc_linking_llvm_ir.py": OF_GFX90A,
}
# The last copies of two examples go from a device to the host.
WRONG, RIGHT = (
    f"xh, xd, f32 * size, hip.hipMemcpyKind.hipMemcpy{way}" for way in ("HostToDevice", "DeviceToHost")
)


def sanitize(
    program: Path, *arguments: Path | str, checks: str = "all", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A program under checks."""
    command = ["-m", "hipgemm", "sanitize", "--check", checks, "--", sys.executable, program, *arguments]
    paths = [environment.pop("PYTHONPATH", ""), str(HERE.parent)]
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_programs(arch: str, tmp_path: Path) -> None:
    machine = {"HIPGEMM_EMULATOR_ARCH": arch, "HIPGEMM_EMULATOR_DEVICES": "2"}
    done = sanitize(HERE / "hip_programs.py", tmp_path / "calls.json", **machine)
    assert (done.returncode, done.stderr) == (0, "sanitize: 0 findings in 0 kernels\n"), done.stdout
    assert set(FUNCTIONS.split()) <= set(json.loads((tmp_path / "calls.json").read_text()))


@pytest.fixture
def examples() -> Path:
    if not EXAMPLES.is_dir():
        pytest.skip("hip-python's repository could not be fetched")
    return EXAMPLES


def test_functions_of_the_examples(examples: Path) -> None:
    source = "".join(path.read_text() for path in examples.rglob("*.py"))
    assert set(re.findall(r"\bhip(?:rtc)?\.(hip[A-Za-z]+)\(", source)) == set(FUNCTIONS.split())


@pytest.mark.parametrize("name", EXAMPLES_THAT_NEED_ONLY_HIP)
def test_examples(name: str, examples: Path, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text((examples / name).read_text().replace(WRONG, RIGHT))
    checks, arch = EXAMPLES_THAT_NEED_ONLY_HIP[name]
    done = sanitize(
        program,
        checks=checks,
        PYTHONPATH=str(HIP_PYTHON),
        HIPGEMM_EMULATOR_ARCH=arch,
        HIP_PYTHON_cudaError_t_HALLUCINATE="1",  # as one of them asks for
    )
    assert (done.returncode, done.stderr) == (0, "sanitize: 0 findings in 0 kernels\n"), done.stdout
    assert done.stdout.strip().endswith("ok")


def test_a_race_of_an_example(examples: Path, tmp_path: Path) -> None:
    """Workgroups read `x` while others write it; fewer steps show it as well."""
    program = tmp_path / "example.py"
    program.write_text((examples / RACE).read_text().replace("n, iter = 512, 1000", "n, iter = 512, 2"))
    done = sanitize(program, checks="race", PYTHONPATH=str(HIP_PYTHON))
    assert done.returncode == 1
    assert done.stderr.startswith("race: kernel jacobi_gpu")
