"""The cycle model of whole kernels against what others measured of theirs on MI355X: docs/change/model.md."""

import json
import re
import struct
import zlib

import pytest

from hipgemm.__main__ import main
from hipgemm.inspect import source_lines
from hipgemm.kernels.manifest import code_object
from hipgemm_benchmarks import cycle_kernels, cycle_lines, cycle_picture, cycle_report, cycles

pytestmark = [pytest.mark.arch("gfx950"), pytest.mark.emulator("cycle model")]


KERNELS = code_object("gfx950").kernels
TOO_FAR = {
    "gemm_bf16_nt_128x128x64",
    "gemm_mxfp4_e2m1_nt_256x256x256_mfma16",
}  # docs/change/model.md says by how much


def busy(name):
    return 100 * cycle_kernels.model(KERNELS[name]).loop.busy


@pytest.mark.parametrize(
    "loop", [x for x in cycle_report.PUBLISHED if x.kernel not in TOO_FAR], ids=lambda x: x.kernel
)
def test_loops_that_others_measured(loop):
    assert abs(busy(loop.kernel) - loop.busy) <= loop.points


def test_larger_matrix_instructions_lose_less_time_to_scales():
    """Measured: 79.6 and 98.9 % busy."""
    small, large = (busy(f"gemm_mxfp4_e2m1_nt_256x256x256{more}") for more in ("_mfma16", ""))
    assert small + 5 < large


def test_the_command(capsys, tmp_path):
    file = tmp_path / "trace.json"
    assert main(["model", "gemm_bf16_nt_128x128x64", "--trace", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("gemm_bf16_nt_128x128x64") and " memory " in line for line in lines)
    listed = [line for line in lines if "v_mfma" in line]
    assert len(listed) == 2 * KERNELS["gemm_bf16_nt_128x128x64"].main_loop["mfma"]
    events = json.loads(file.read_text())["traceEvents"]
    assert {e["tid"] for e in events if e["ph"] == "X"} == set(range(8))
    picture = file.with_suffix(".png")
    assert main(["model", "gemm_bf16_nt_128x128x64", "--trace", str(picture)]) == 0
    data = picture.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert height == 8 * (cycle_picture.ROW + cycle_picture.GAP)
    pixels = zlib.decompress(data[41 : data.index(b"IEND") - 8])
    assert len(pixels) == height * (1 + 3 * width)
    assert bytes(cycle_picture.COLOURS["v_mfma"]) * 15 in pixels, "16 clocks of a matrix instruction"
    assert main(["model", "gemm_of_nothing"]) == 2
    assert main(["model", "256", "256", "1024", "--format", "mxfp8"]) == 0
    assert main(["model", "--figures", "--check"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("too far") == len(TOO_FAR)
    assert all(f"\n{figure.name} " in printed for figure in cycles.figures())


def test_source_lines(capsys, tmp_path, monkeypatch):
    """Compiled where they are asked for; then listed without asking."""
    if not cycle_lines.COMPILE.exists():
        pytest.skip("no source tree")
    monkeypatch.setattr(cycle_lines, "FOLDER", tmp_path)
    name = "gemm_mxfp4_e2m1_nt_64x64x256"
    assert main(["model", name, "--lines"]) == 0
    listed = capsys.readouterr().out
    lines = re.findall(r"v_mfma.* mfma\.hpp:(\d+)\n", listed)
    assert len(lines) == listed.count("v_mfma") > 0
    source = (cycle_lines.ROOT / "src_hip" / "gemm" / "mfma.hpp").read_text().splitlines()
    assert all("__builtin_amdgcn_mfma" in source[int(line) - 1] for line in set(lines))
    monkeypatch.setattr(cycle_lines, "COMPILE", tmp_path / "none")
    assert main(["model", name]) == 0
    assert capsys.readouterr().out == listed
    assert main(["model", "gemm_bf16_nt_64x64x64", "--lines"]) == 0
    assert "\nno source lines: they need a source tree" in capsys.readouterr().out
    monkeypatch.setattr(source_lines, "code_size", lambda path, kernel: 4)
    assert main(["model", name]) == 0
    assert "\nno source lines: the code differs from what is built" in capsys.readouterr().out


def test_the_last_launch_of_a_script(capsys, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import sys
import numpy as np
import hipgemm as hg
from hipgemm.kernels.manifest import code_object
from hipgemm_benchmarks.model_check import launch
launch(code_object("gfx950").kernels[sys.argv[1]], 128, 128, 64 * 64)
hg.asarray(np.ones((3, 5))).T.get()
""")
    assert main(["model", str(script), "gemm_bf16_nt_128x128x64"]) == 0
    x = cycle_kernels.model(KERNELS["gemm_bf16_nt_128x128x64"])
    assert x.resident == 2
    clocks = f"{x.loop.clocks:.0f} clocks a turn of the main loop, {x.loop.matrix_clocks:.0f} of matrix pipes"
    assert capsys.readouterr().out.startswith(
        f"gemm_bf16_nt_128x128x64: {clocks}, {100 * x.loop.busy:.1f} % busy"
    )


def test_what_a_figure_that_is_not_measured_turns_round_is_undecided():
    kernels = code_object("gfx950").kernels
    found = [
        cycle_kernels.model(kernels[f"gemm_bf16_nt_{tile}x64"], ends=True)
        for tile in ("256x128", "128x256", "64x64")
    ]
    names = [f"gemm_bf16_nt_{tile}x64" for tile in ("256x128", "128x256")]
    lines = cycle_report.undecided(found)
    assert [line.partition(":")[0].split(", ") for line in lines] in ([], [names])
    measured = {f.name for f in cycles.figures() if f.kind in ("measured", "documented")}
    assert not measured & {name for name, _ in found[0].at_ends}
