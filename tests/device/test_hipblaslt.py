"""`bench` next to hipBLASLt: a stand-in for the library checks every argument, and computes the product."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hipgemm.__main__ import main
from hipgemm.runtime import hip as _hip
from hipgemm_benchmarks import device_clock, hipblaslt

pytestmark = pytest.mark.emulator("its device memory, which the stand-in reads")
SOURCE = Path(__file__).with_name("hipblaslt.c")
COMPILER = [shutil.which("cc")] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lib")
    library = folder / "libhipblaslt.so.1"
    subprocess.run([*COMPILER, "-shared", "-fPIC", "-o", library, SOURCE, "-lm"], check=True)
    return folder


@pytest.fixture
def bench(folder, monkeypatch, tmp_path):
    """Run `bench` of a product as if on ROCm; return the row."""
    monkeypatch.setattr(_hip.runtime(), "kind", "rocm")
    monkeypatch.setattr(_hip.runtime(), "library", str(folder / "libamdhip64.so.7"))
    clock = device_clock.DeviceClock(1 << 16)
    monkeypatch.setattr(device_clock.DeviceClock, "of", lambda device: clock)
    monkeypatch.setattr(device_clock, "WARM_SECONDS", 0)

    def run(shape: str, form: str = "bf16") -> dict:
        file = tmp_path / "rows.json"
        command = ["bench", "--op", "matmul", "--shapes", shape, "--format", form, "--calls", "2"]
        assert main([*command, "--json", str(file)]) == 0
        content = json.loads(file.read_text())
        assert content["about"]["hipBLASLt"] == str(folder / "libhipblaslt.so.1")
        return content["rows"][0]

    return run


@pytest.mark.matrix
@pytest.mark.parametrize("form", ["bf16", "fp8_e4m3"])
def test_both_are_timed(bench, form, capsys):
    peaks, memory = {"gfx950": ((2516.6, 5033.2), 8e12), "gfx942": ((1307.4, 2614.9), 5.3e12)}[_hip.arch(0)]
    peak = peaks[form != "bf16"]
    row = bench("70x64x96", form)
    assert row["hipblaslt_us"] is not None
    assert row["hipblaslt_us"] > 0
    assert f"{row['hipblaslt_us']:.4g}" in capsys.readouterr().out
    flop, moved = 2 * 70 * 64 * 96, (70 + 64) * 96 * (2 if form == "bf16" else 1) + 70 * 64 * 2
    seconds = 1e-6 * row["median_us"]
    assert row["tflops"] == pytest.approx(flop / seconds / 1e12)
    assert row["percent_of_matrix"] == pytest.approx(100 * row["tflops"] / peak, rel=1e-4)
    assert row["percent_of_memory"] == pytest.approx(100 * moved / seconds / memory, rel=1e-3)


@pytest.mark.parametrize(
    ("shape", "form", "why"),
    [
        ("8x8x1024", "bf16", "it has no algorithm for bf16, 8 x 8 x 1024"),
        ("8x8x64", "mxfp8", "not compared in mxfp8_e4m3"),
    ],
)
@pytest.mark.matrix
def test_what_is_not_compared(bench, shape, form, why, capsys):
    assert bench(shape, form)["hipblaslt_us"] is None
    assert f"hipBLASLt: {shape}: {why}\n" in capsys.readouterr().out


def test_a_wrong_argument(bench, monkeypatch, capsys):
    monkeypatch.setattr(hipblaslt, "_OP_T", 111)
    assert bench("8x8x64")["hipblaslt_us"] is None
    assert "hipBLASLt: 8x8x64: hipblasLtMatmulAlgoGetHeuristic returned status 105" in capsys.readouterr().out


def test_a_wrong_result(bench, monkeypatch, capsys):
    monkeypatch.setattr(hipblaslt, "_pitch", lambda x: x.shape[1] + 1)
    assert bench("8x8x64")["hipblaslt_us"] is None
    assert "hipBLASLt: 8x8x64: " in capsys.readouterr().out


def test_no_library(tmp_path):
    (tmp_path / "libhipblaslt.so").write_text("no library")
    with pytest.raises(hipblaslt.HipBlasLtError, match=r"libhipblaslt\.so: .*(invalid ELF header|too short)"):
        hipblaslt.open_library(str(tmp_path / "libamdhip64.so"))


@pytest.mark.matrix
def test_no_rates_of_the_emulator(capsys):
    assert main(["bench", "--op", "matmul", "--shapes", "70x64x96", "--calls", "1"]) == 0
    out = capsys.readouterr().out
    assert "(emulated: times are the emulator's, and say nothing of a GPU)" in out
    (row,) = (line for line in out.splitlines() if line.startswith("70x64x96"))
    assert row.split()[8:13] == ["-"] * 5
    assert "hipBLASLt only on ROCm" in out
