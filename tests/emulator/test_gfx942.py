"""The emulator as a gfx942: the tests of what differs from gfx950, in a process of that architecture.

The instructions that both have share their semantics. Their tests run as gfx942 by
`HIPGEMM_EMULATOR_ARCH=gfx942 python -m pytest tests/emulator/test_isa_*.py tests/emulator/test_check_*.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asm
import pytest

pytestmark = pytest.mark.packaging

FOLDER = Path(__file__).parent
FILES = (
    "test_decode.py",  # bytes to text and back, by clang's assembler for gfx942
    "test_isa_mfma.py",
    "test_isa_missing.py",
    "test_isa_sparse.py",
    "test_isa_valu_small.py",  # conversions
    "test_check_hazard.py",
    "test_check_distances.py",  # clang's wait states for gfx942
    "test_check_uninit.py",
    "test_check_race.py",
    "test_counters.py",
)
# These have no architecture in them, start processes, or need matrix kernels.
ELSEWHERE = "not random_bytes and not cpu_level and not past_the_end and not what_can_be"
ELSEWHERE += " and not device_memory and (not test_counters.py or clocks)"


@pytest.mark.skipif(asm.ARCH != "gfx950", reason="chooses an architecture itself")
def test_what_differs() -> None:
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", ELSEWHERE]
    done = subprocess.run(
        [*command, *(FOLDER / file for file in FILES)],
        env=os.environ | {"HIPGEMM_EMULATOR_ARCH": "gfx942"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    for file in FILES:
        assert f"{file} ." in done.stdout, "none of its tests has run"


DEVICE = """
import asm, ctypes
lib, name, value, total = asm.library(), ctypes.create_string_buffer(64), ctypes.c_int(), ctypes.c_size_t()
lib.hipDeviceGetName(name, 64, 0), lib.hipDeviceTotalMem(ctypes.byref(total), 0)
print(name.value.decode(), total.value <= 192 << 30)
for attribute in (63, 10018, 74, 23, 61, 5):  # CUs, XCDs, LDS, version, kHz
    lib.hipDeviceGetAttribute(ctypes.byref(value), attribute, 0)
    print(value.value, end=" ")
"""


def test_device(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n{DEVICE}"
    done = run_python(code, HIPGEMM_EMULATOR_ARCH="gfx942")
    assert done.stdout.splitlines() == [
        "AMD Instinct MI300X (hipgemm emulator) True",
        "304 8 65536 9 4 2100000 ",
    ], done.stderr
    assert (
        "206158430208 (192 GiB)"
        in run_python(
            f"import sys; sys.path.insert(0, {str(FOLDER)!r})\nimport asm; asm._call('hipInit', 0)",
            HIPGEMM_EMULATOR_ARCH="gfx942",
            HIPGEMM_EMULATOR_DEVICE_BYTES=str((192 << 30) + 1),
        ).stderr
    )


# What an architecture lacks, as bytes of the other's assembler.
FOREIGN = {
    "gfx942": ("0x7e0ab701", "v_cvt_f32_bf16_e32 v5, v1", "gfx950"),
    "gfx950": ("0xd3be0000, 0x04021104", "v_mfma_f32_16x16x8_xf32 v[0:3], v[4:5], v[8:9], v[0:3]", "gfx942"),
}


@pytest.mark.parametrize("arch", FOREIGN)
def test_instruction_of_the_other(
    arch: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    words, text, other = FOREIGN[arch]
    code = f"""
import sys; sys.path.insert(0, {str(FOLDER)!r})
import asm, numpy as np
try:
    asm.run(".long {words}", np.zeros(64, np.uint32))
except asm.LaunchError as error:
    print(error.report)
"""
    done = run_python(code, HIPGEMM_EMULATOR_ARCH=arch)
    assert f"illegal instruction: an instruction of {other} that {arch} does not have;" in done.stdout
    assert f"] {text};" in done.stdout, done.stdout + done.stderr


def test_lds_and_dma(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """64 KiB, and 4 bytes for each lane."""
    code = f"""
import sys; sys.path.insert(0, {str(FOLDER)!r})
import asm, numpy as np
for body, lds in (("s_nop 0", 65536), ("s_nop 0", 65540), (".long 0xe05d1000, 0x80020000", 1024)):
    try:
        asm.run(asm.Snippet(body, lds=lds), np.zeros(64, np.uint32))
        print("ran")
    except asm.LaunchError as error:
        print(error.report)
"""
    ran, too_much, dma = run_python(code, HIPGEMM_EMULATOR_ARCH="gfx942").stdout.splitlines()
    assert ran == "ran"
    assert "65540 bytes of LDS" in too_much
    assert "of gfx950 that gfx942 does not have" in dma
    assert "buffer_load_dwordx4 v0, s[8:11], 0 offen lds" in dma
