"""The build of the kernels: what is compiled again after an edit, and what `make demo` leaves out."""

from __future__ import annotations

import doctest
import json
import shutil
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.errors import KernelNotFoundError
from hipgemm.inspect.explain import explanation
from hipgemm.kernels import manifest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import archs  # noqa: E402
import kernels  # noqa: E402
import units  # noqa: E402
from archs import ARCHS  # noqa: E402
from instances import instances_for, lay_out  # noqa: E402
from probe import find_toolchain  # noqa: E402
from toolchain import SOURCE, BuildError, NoCompilerError  # noqa: E402

QUICK = ("copy", "pack_mx_scales", "split_reduce")  # units that compile at once


@pytest.fixture(scope="module")
def toolchain():
    try:
        return find_toolchain()
    except NoCompilerError as error:
        pytest.skip(str(error))


# ---- what is compiled again -----------------------------------------------------------------------------


def test_an_edit_concerns_the_units_that_read_the_file(toolchain, tmp_path):
    source = tmp_path / "a folder" / "src_hip"
    shutil.copytree(SOURCE, source)
    listed = units.split(instances_for(toolchain, ARCHS["gfx950"]), "gfx950")
    quick = [unit for unit in listed if unit.instances[0].unit in QUICK]

    def compiler():
        return units.Compiler(toolchain, source / "kernels.hip", source.parent / "cache")

    def stale():
        return [unit.instances[0].unit for unit in quick if not compiler().has(unit)]

    assert len(quick) == len(stale()) == len(QUICK)
    counted = []
    compiler().compile(quick, lambda done, of: counted.append((done, of)))
    kernels_of = sum(len(unit.instances) for unit in quick)
    assert counted[-1] == (kernels_of, kernels_of)
    assert not stale()
    for file, concerned in (
        ("portable/copy.hpp", ["copy"]),
        ("common/scale_layout.hpp", ["pack_mx_scales"]),
        ("gemm/mfma.hpp", []),
        ("common/memory.hpp", sorted(QUICK)),
    ):
        before = (source / file).read_text()
        (source / file).write_text(before.replace("//", "// and", 1) + "\n")
        assert not stale(), "a comment"
        (source / file).write_text(before + "static_assert(true);\n")
        assert sorted(stale()) == concerned, file
        (source / file).write_text(before)
        assert not stale()
    (source / "portable/copy.hpp").unlink()
    assert stale() == ["copy"]


def test_an_argument_of_another_type_is_named():
    with pytest.raises(BuildError, match=r"^argument rows: its type must be ptr, i64, u32, f32; got u8$"):
        lay_out([("ptr", "src"), ("u8", "rows")])


def test_doctests_of_the_build():
    assert doctest.testmod(units) == doctest.TestResults(failed=0, attempted=2)


# ---- make demo ------------------------------------------------------------------------------------------


def test_the_gpu_at_hand(tmp_path):
    assert archs.local_arch(tmp_path) is None
    for node, version in ((0, 0), (10, 90402), (2, 90500)):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(f"simd_count 8\ngfx_target_version {version}\n")
    (tmp_path / "1" / "properties").mkdir(parents=True)  # what cannot be read
    assert archs.local_arch(tmp_path) == "gfx950"
    (tmp_path / "1" / "properties").rmdir()
    for version, arch in ((90010, "gfx90a"), (110000, "gfx1100"), (120001, "gfx1201")):
        (tmp_path / "1").mkdir(exist_ok=True)
        (tmp_path / "1" / "properties").write_text(f"gfx_target_version {version}\n")
        assert archs.local_arch(tmp_path) == arch


class Kept:
    """A compiler that has these units."""

    def __init__(self, has):
        self.has = has


@pytest.mark.parametrize(
    ("gpu", "built"), [(None, "gfx950"), ("gfx950", "gfx950"), ("gfx942", "gfx942"), ("gfx1030", "gfx950")]
)
def test_the_demo_is_for_one_architecture(toolchain, monkeypatch, gpu, built):
    """All tiles for a GPU; small ones where the emulator serves."""
    monkeypatch.setattr(kernels, "local_arch", lambda: gpu)
    every = {arch: instances_for(toolchain, machine) for arch, machine in ARCHS.items()}
    planned = kernels.plan(Kept(lambda unit: False), every, "demo")
    assert list(planned) == [built]
    chosen = [i for unit in planned[built] for i in unit.instances]
    demo = {kernels._product(i.kernel) for i in every[built] if i.demo}
    assert {kernels._product(i.kernel) for i in chosen} == demo
    if gpu in ARCHS:
        assert len(chosen) == sum(kernels._product(i.kernel) in demo for i in every[built])
    else:
        assert all(i.demo for i in chosen)
    everything = kernels.plan(Kept(lambda unit: False), every)
    assert {unit.name for unit in planned[built]} <= {unit.name for unit in everything[built]}
    # What is compiled stays: a demo after `make kernels` takes nothing away.
    again = kernels.plan(Kept(lambda unit: True), every, "demo")
    assert {unit.name for unit in again[built]} == {unit.name for unit in everything[built]}
    assert list(again) == list(everything)


@pytest.mark.parametrize(
    ("part", "gpu", "archs"),
    [
        ("local", None, ["gfx950"]),
        ("local", "gfx942", ["gfx950", "gfx942"]),
        ("local", "gfx1100", ["gfx950", "gfx1100"]),
        ("local", "gfx1030", ["gfx950"]),
    ],
)
def test_what_a_part_builds(toolchain, monkeypatch, part, gpu, archs):
    monkeypatch.setattr(kernels, "local_arch", lambda: gpu)
    every = {arch: instances_for(toolchain, machine) for arch, machine in ARCHS.items()}
    planned = kernels.plan(Kept(lambda unit: False), every, part)
    assert list(planned) == archs
    assert {arch: sum(len(unit.instances) for unit in planned[arch]) for arch in planned} == {
        arch: len(every[arch]) for arch in planned
    }


def test_what_is_left_out_is_reported(tmp_path, monkeypatch):
    """The call raises, with the command that builds it; the plain kernel is not used silently."""
    built = json.loads((manifest.KERNEL_DIR / "manifest.json").read_text())
    listed = built["archs"]["gfx950"]["kernels"]
    dropped = [k for k in listed if k.get("a") == "f16"]
    built["archs"] = {"gfx950": built["archs"]["gfx950"]}
    built["archs"]["gfx950"]["kernels"] = [k for k in listed if k not in dropped]
    built["archs"]["gfx950"]["left_out"] = kernels._left_out(listed, built["archs"]["gfx950"]["kernels"])
    built["archs"]["gfx950"]["left_out_tiles"] = ["256x256"]
    (tmp_path / "manifest.json").write_text(json.dumps(built))
    monkeypatch.setattr(manifest, "KERNEL_DIR", tmp_path)
    half, brain = (np.ones((64, 64), dtype) for dtype in (np.float16, ml_dtypes.bfloat16))
    served = hg.can_use("matmul", brain, brain, arch="gfx950")
    (line,) = str(served).splitlines()[1:]
    assert (
        line == "  not built, may be faster: tiles 256x256; run: make kernels (in a source tree; else "
        "install hipgemm again)"
    )
    assert explanation(served, 1.0).count("not built") == 1
    with hg.config(kernel=served.kernel):
        assert not hg.can_use("matmul", brain, brain, arch="gfx950").not_built
    answer = hg.can_use("matmul", half, half, arch="gfx950")
    (reason,) = answer.reasons
    line = "run: make kernels (in a source tree; else install hipgemm again)"
    assert str(reason) == (
        f"kernels for f16 and f16 must be built; got a build for the examples only; {line}"
    )
    assert reason.kind is KernelNotFoundError
    (reason,) = hg.can_use("matmul", brain, brain, arch="gfx942").reasons
    all_line = line.replace("kernels", "kernels-all", 1)
    assert str(reason) == f"no kernels for gfx942; architectures built: gfx950; {all_line}"
    message = kernels.summary(built, 7.4)
    count = len(listed) - len(dropped)
    start = f"kernels: built in 7 s: gfx950 {count}; left out until `make kernels`: f16 by f16, "
    assert message.startswith(start)
    assert message.endswith(
        "f16 by f16, tile 256x256; left out until `make kernels-all`: gfx942, gfx90a, gfx1100, gfx1201"
    )
