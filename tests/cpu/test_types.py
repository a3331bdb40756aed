"""The types of the public functions, as a type checker infers them."""

import subprocess
import sys
from pathlib import Path

import pytest

import hipgemm

CODE = """
from typing import Any, assert_type
import numpy as np
import numpy.typing as npt
import hipgemm as hg

Host = npt.NDArray[Any]

def products(
    host: Host, resident: hg.DeviceArray, either: Host | hg.DeviceArray, quantized: hg.ScaledArray
) -> None:
    assert_type(hg.matmul(host, host, alpha=np.float32(2)), Host)
    assert_type(hg.matmul(resident, resident, alpha=resident), hg.DeviceArray)
    assert_type(hg.matmul(either, either, alpha=0.5), Host | hg.DeviceArray)
    assert_type(hg.matmul(host, quantized), Host)
    assert_type(hg.matmul(resident, quantized), hg.DeviceArray)
    assert_type(hg.matmul(either, quantized), Host | hg.DeviceArray)
"""


def test_products(tmp_path):
    pytest.importorskip("mypy")
    path = tmp_path / "user.py"
    path.write_text(CODE)
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--no-error-summary"]
    where = Path(hipgemm.__file__).parents[1]
    done = subprocess.run(
        [*command, "--python-version=3.11", str(path)], capture_output=True, text=True, cwd=where
    )
    assert done.stdout == "", done.stdout
    assert done.returncode == 0, done.stderr
