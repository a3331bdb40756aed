"""Out of memory and threads: every such call fails once, and no HIP call crashes,
hangs, loses the error or leaks memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import asm
import pytest

SOURCE = Path(__file__).parent / "failing_calls.c"
ADD_LANE = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_lshlrev_b32 v1, 2, v0
    s_lshl_b32 s6, s2, 8
    v_add_u32 v1, s6, v1
    s_waitcnt lgkmcnt(0)
    global_load_dword v2, v1, s[4:5]
    v_lshrrev_b32 v3, 2, v1
    s_waitcnt vmcnt(0)
    v_add_u32 v2, v2, v3
    global_store_dword v1, v2, s[4:5]
"""
CHECKED = {"HIPGEMM_EMULATOR_CHECK": "all", "HIPGEMM_EMULATOR_COUNT": "1"}
EAGER = {"HIPGEMM_EMULATOR_ASYNC": "eager"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if not os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("the program replaces functions of glibc")
    folder = tmp_path_factory.mktemp("failing_calls")
    binary, code = folder / "failing_calls", folder / "kernel.co"
    code.write_bytes(asm.assemble({"add_lane": asm.Snippet(ADD_LANE, kernarg=8)}))
    flags = ["-O1", "-rdynamic", "-Wall", "-Wextra", "-Werror"]
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        *flags,
        "-o",
        str(binary),
        str(SOURCE),
        "-ldl",
        "-lpthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [str(binary), str(asm.LIBRARY), str(code)]


@pytest.mark.parametrize(
    ("mode", "step", "environment"),
    [
        ("threads", 1, {}),
        ("threads", 1, EAGER | CHECKED),
        ("once", 1, {}),
        ("once", 3, EAGER),
        ("once", 17, CHECKED),
        ("on", 3, {}),
        ("on", 23, EAGER | CHECKED),
    ],
    ids=["threads", "threads_checked", "once", "once_eager", "once_checked", "on", "on_checked"],
)
def test_no_call_for_memory_or_threads_may_matter(
    program: list[str], mode: str, step: int, environment: dict[str, str]
) -> None:
    """`once` lets the n-th call fail, `on` all from it; `threads` counts those that start threads alone."""
    variables = os.environ | environment | {"HIPGEMM_EMULATOR_THREADS": "4"}
    done = subprocess.run(
        [*program, mode, "0", str(step)], capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = int(done.stdout.split()[-1])
    assert tried >= (4 if mode == "threads" else 150 // step), done.stdout
