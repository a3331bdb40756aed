"""HIP_VISIBLE_DEVICES and its kin hide and renumber devices as ROCm does."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import asm
import pytest
from cases import each

UUIDS = [f"GPU-hipgemm-emu-{n:04x}" for n in range(4)]
ALL = [0, 1, 2, 3]

# Variables, and the devices of four that are left, in the order of their new numbers.
CASES: list[tuple[dict[str, str], list[int]]] = [
    ({}, ALL),
    # HIP: order counts, repeats are skipped, what is wrong ends the list.
    ({"HIP_VISIBLE_DEVICES": "2"}, [2]),
    ({"HIP_VISIBLE_DEVICES": "3,0"}, [3, 0]),
    ({"HIP_VISIBLE_DEVICES": "1,1,2,1,0"}, [1, 2, 0]),
    ({"HIP_VISIBLE_DEVICES": "1,7,2"}, [1]),
    ({"HIP_VISIBLE_DEVICES": "1,x,2"}, [1]),
    ({"HIP_VISIBLE_DEVICES": "1,,2"}, [1]),
    ({"HIP_VISIBLE_DEVICES": "1, 2"}, [1]),
    ({"HIP_VISIBLE_DEVICES": "01,2"}, []),
    ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ({"HIP_VISIBLE_DEVICES": "none"}, []),
    ({"HIP_VISIBLE_DEVICES": "2,"}, [2]),
    ({"HIP_VISIBLE_DEVICES": f"{UUIDS[3]},0"}, [3, 0]),
    ({"HIP_VISIBLE_DEVICES": "GPU-hipgemm-emu-0009,0"}, []),
    ({"HIP_VISIBLE_DEVICES": ""}, ALL),
    # The next list of HIP's counts where the one before is empty.
    ({"CUDA_VISIBLE_DEVICES": "2,1"}, [2, 1]),
    ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "2"}, [2]),
    ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "2", "GPU_DEVICE_ORDINAL": "1"}, [3]),
    ({"GPU_DEVICE_ORDINAL": "1,3"}, [1, 3]),
    # ROCr: a repeat ends the list; numbers as strtol reads them; the beginning of a UUID, in either case.
    ({"ROCR_VISIBLE_DEVICES": "2,0"}, [2, 0]),
    ({"ROCR_VISIBLE_DEVICES": " 2 , 0x1"}, [2, 1]),
    ({"ROCR_VISIBLE_DEVICES": "2,2,1"}, [2]),
    ({"ROCR_VISIBLE_DEVICES": "1,4,0"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": "1,one,0"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": f"{UUIDS[2].upper()},1"}, [2, 1]),
    ({"ROCR_VISIBLE_DEVICES": "0,GPU-hipgemm-emu-"}, [0]),
    ({"ROCR_VISIBLE_DEVICES": "0,GPU-"}, [0]),
    ({"ROCR_VISIBLE_DEVICES": "0,GPU"}, [0]),
    ({"ROCR_VISIBLE_DEVICES": ""}, []),
    # HIP counts among those that ROCr has left.
    ({"ROCR_VISIBLE_DEVICES": "3,1,2", "HIP_VISIBLE_DEVICES": "1,0"}, [1, 3]),
    ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "2"}, []),
    ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": UUIDS[1]}, [1]),
    ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": UUIDS[0]}, []),
    ({"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, []),
]  # fmt: skip
NAMES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES")

# Each case in a process of its own, which opens the library; forked, since Python takes longer to start.
CODE = """
import ctypes, os
def show():
    lib = ctypes.CDLL({library!r})
    lib.hipgemm_emulator_last_report.restype = ctypes.c_char_p
    count = ctypes.c_int()
    code = lib.hipGetDeviceCount(ctypes.byref(count))
    found = [f"{{code}} {{count.value}}"]
    if code:
        found.append(lib.hipgemm_emulator_last_report().decode())
    for n in range(count.value):
        uuid, bus = ctypes.create_string_buffer(17), ctypes.create_string_buffer(64)
        assert lib.hipDeviceGetUuid(uuid, n) == 0
        assert lib.hipDeviceGetPCIBusId(bus, 64, n) == 0
        found.append(f"{{uuid.value.decode()}} {{bus.value.decode()}}")
    return found
for variables in {cases}:
    if not (child := os.fork()):
        os.environ.update(variables)
        print(show(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def shown() -> list[list[str]]:
    """What each case shows."""
    code = CODE.format(library=str(asm.LIBRARY), cases=[variables for variables, _ in CASES])
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment = clean | {"HIPGEMM_EMULATOR_DEVICES": "4"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return [ast.literal_eval(line) for line in done.stdout.splitlines()]


@each("number", range(len(CASES)), ids=lambda number: str(CASES[number][0]))
def test_visible_devices(shown: list[list[str]], number: int) -> None:
    variables, left = CASES[number]
    first, *rest = shown[number]
    if left:
        assert first == f"0 {len(left)}"
        assert rest == [f"hipgemm-emu-{n:04x} 0000:{n + 1:02x}:00.0" for n in left]
    else:
        assert first == "100 0", rest  # hipErrorNoDevice
        assert any(f"{name}='{value}'" in rest[0] for name, value in variables.items()), rest
