"""Runs the other tests here with eight emulated devices, which must be set before a process starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.emulator("several devices in a process")
@pytest.mark.skipif("HIPGEMM_EMULATOR_DEVICES" in os.environ, reason="has several devices already")
@pytest.mark.parametrize("peers", ["on", "off"])
def test_with_eight_devices(peers: str) -> None:
    environment = {**os.environ, "HIPGEMM_EMULATOR_DEVICES": "8", "HIPGEMM_TEST_PEERS": peers}
    files = sorted(map(str, HERE.glob("test_sharding*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    if peers == "off":  # of the interrupted calls those that copy from device to device
        command += ["-k", "not (each_instruction or follows) or resident and k] or across"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
