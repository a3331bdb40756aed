"""The tables of src_hip: formats against the package, rows that are wrong; what differs between builds."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from pathlib import Path

import pytest

from hipgemm.errors import KernelNotFoundError
from hipgemm.formats.activations import ACTIVATIONS, GLU_ACTIVATIONS
from hipgemm.formats.elements import BF16, FORMATS, MXFP4_E2M1, QUANTIZED, SCALE_RULES
from hipgemm.kernels.launch import Function, pack_format
from hipgemm.kernels.manifest import Argument, Codes, load_manifest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import code_object  # noqa: E402
import instances  # noqa: E402
import tables  # noqa: E402
from compare import compare  # noqa: E402
from toolchain import SOURCE, BuildError  # noqa: E402

KERNELS = ROOT / "hipgemm" / "kernels"
MANIFEST = json.loads((KERNELS / "manifest.json").read_text())


# ---- formats ---------------------------------------------------------------------------------------


def test_formats_are_those_of_the_package():
    """Names, bits and blocks; which formats need scales; the scale rules."""
    read = tables.read_formats()
    unscaled = {name: row for name, row in read.formats.items() if isinstance(row, tables.Format)}
    scaled = {name: row for name, row in read.formats.items() if type(row) is tables.ScaledFormat}
    blocks = [name for name, row in read.formats.items() if isinstance(row, tables.BlockFormat)]
    assert blocks == ["fp8_e4m3_block", "fp8_e5m2_block"]
    assert list(unscaled) == list(FORMATS)
    assert list(scaled) == list(QUANTIZED)
    assert {name: int(row.bits) for name, row in {**unscaled, **scaled}.items()} == {
        name: form.bits for name, form in {**FORMATS, **QUANTIZED}.items()
    }
    assert {name: int(row.block) for name, row in scaled.items()} == {
        name: form.block for name, form in QUANTIZED.items()
    }
    assert tuple(read.scale_rules) == SCALE_RULES


def test_activations_are_those_of_the_package():
    """And `none`, which has code 0: of arguments that are not given."""
    rows = tables.read_activations()
    glu = [row.name for row in rows if isinstance(row, tables.GluActivation)]
    assert glu == list(GLU_ACTIVATIONS)
    assert [row.name for row in rows] == ["none", *ACTIVATIONS, *glu]
    assert rows[0].code == "0"


def test_the_manifest_has_their_codes():
    codes = tables.read_codes()
    assert {kind: MANIFEST[kind] for kind in codes} == codes
    for kind in codes.values():
        assert len(set(kind.values())) == len(kind)
    built = load_manifest()["gfx950"].codes
    assert {kind: dict(getattr(built, kind)) for kind in codes} == codes


def test_arguments_are_packed_by_the_codes_of_the_manifest():
    """The package has no others."""
    args = tuple(
        Argument(name, "u32", 4 * i, 4) for i, name in enumerate(("out_type", "element", "rule", "m"))
    )
    codes = Codes({"bf16": 70, "mxfp4_e2m1": 71}, {"even": 72}, {}, {})
    kernel = Function("kernel", None, 64, (1,), args, struct.Struct(pack_format(args)), codes)
    packed = kernel.pack({"m": 73, "rule": "even", "element": MXFP4_E2M1, "out_type": BF16})
    assert struct.unpack("<4I", packed) == (70, 71, 72, 73)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("formats", "mxfp8_e5m2"), ("formats", "f32"), ("scale_rules", "rceil"), ("activations", "silu")],
)
def test_kernels_without_a_format_are_of_another_version(tmp_path, kind, name):
    codes = {**MANIFEST, kind: {key: code for key, code in MANIFEST[kind].items() if key != name}}
    (tmp_path / "manifest.json").write_text(json.dumps(codes))
    with pytest.raises(
        KernelNotFoundError,
        match=f"were built for another version of hipgemm, without {name}; run: make kernels",
    ):
        load_manifest(tmp_path)


def test_kernels_from_before_there_were_codes(tmp_path):
    old = {key: part for key, part in MANIFEST.items() if key not in tables.read_codes()}
    (tmp_path / "manifest.json").write_text(json.dumps(old))
    with pytest.raises(
        KernelNotFoundError, match=r"another version of hipgemm, without bf16, .*, even, .*; "
    ):
        load_manifest(tmp_path)


# ---- rows ------------------------------------------------------------------------------------------

ROWS = (SOURCE / "instances.def").read_text()


def test_every_pair_of_an_operation_has_a_kernel_in_each_of_its_tiles():
    listed = tables.read_kernels(tables.read_formats())
    names = {k["name"] for k in MANIFEST["archs"]["gfx950"]["kernels"]}
    wanted = {row.name for row in listed.passes}
    wanted |= {f"primitive_{row.name}" for row in listed.primitives if row.architectures != "gfx942"}
    for served in listed.serves:
        (product,) = [row for row in listed.products if row.operation == served.operation]
        wanted |= {
            f"{served.operation}_{pair.name}_{layout}_{size}x{pair.k}"
            for pair in listed.pairs
            if pair.family in served.families.split()
            for layout in served.layouts.split()
            for size in (served.tiles or product.tiles).split()
        }
    for one in listed.kernels:
        (pair,) = [row for row in listed.pairs if row.name == one.pair]
        rows = f"_mfma{one.mfma_rows}" if one.mfma_rows else ""
        wanted.add(f"{one.operation}_{pair.name}_{one.layout}_{one.size}x{pair.k}{rows}")
    assert names == wanted
    assert len(names) == len(MANIFEST["archs"]["gfx950"]["kernels"])


PAIR, SERVES = "PAIR(f16, half, f16, f16, 64, bf16)", "SERVES(gemm, mxfp4, nt, 14, 32)"
DEMO = "DEMO(half "


def more(operation, pair, layout, size):
    return f"KERNEL({operation}, {pair}, {layout}, {size}, 2, 2, DoubleBuffer, 2)\n{DEMO}"


WRONG = [
    (
        PAIR,
        "PAIRS()",
        "a row must be one of PAIR, TILE, PRODUCT, SERVES, KERNEL, STAGED_TILE, "
        "STAGED_SERVES, DEMO, PASS, PRIMITIVE; got PAIRS()",
    ),
    (PAIR, "PAIR(f16, half)", "PAIR(f16, half) must have the fields name, family, a, b, k, like"),
    (PAIR, "PAIR(f16, half, f16, f17, 64)", "f17, 64) names f17, which is no format"),
    (PAIR, "PAIR(f16, one, f16, f16, 64)", "names one, which is no family that a row SERVES has"),
    (PAIR, "PAIR(f16, half, f16, f16, 64, f16)", "f16) names f16, which is no pair that is compiled"),
    (PAIR, "PAIR(f16, half, f16, f16, 64, fp8_e5m2)", "family, K tile and bits of the pair that it is like"),
    (SERVES, "SERVES(gem, mxfp4, nt, 14, 32)", "32) names gem, which is no operation"),
    (SERVES, "SERVES(gemm, mxfp5, nt, 14, 32)", "32) names mxfp5, which is no family of pairs"),
    (SERVES, "SERVES(gemm, mxfp4, nt, 14)", "nt, 14) must have a limit for the tiles that are rings"),
    ("\nTILE(64x64, ", "\nTILE(64x65, ", "128x128 64x64 32x64) names 64x64, which is no tile"),
    (
        f"{DEMO}fp8 mxfp8 mxfp4 weight, 128x128 64x64 32x64)",
        "",
        "one row DEMO; got 0",
    ),
    (DEMO, "DEMO(hole ", "64x64 32x64) names hole, which is no family of pairs"),
    ("32x64)\n\n// PASS", "32x65)\n\n// PASS", "64x64 32x65) names 32x65, which is no tile"),
    (DEMO, more("gem", "bf16", "nt", "64x128"), "2) names gem, which is no operation"),
    (DEMO, more("gemm", "bf17", "nt", "64x128"), "2) names bf17, which is no pair"),
    (
        DEMO,
        more("gemm", "mxfp8_e4m3", "nn", "64x128"),
        "nn, which is no layout that a row SERVES has",
    ),
    (DEMO, more("gemm", "bf16", "nt", "64x64"), "2) is one of the operation's tiles already"),
    (
        DEMO,
        more("gemm", "mxfp4_e2m1", "nt", "64x64").replace("2)", "2, 8)"),
        "2, 8) may have no matrix instructions but those of 16 or 32 rows",
    ),
    (
        DEMO,
        more("gemm", "mxfp4_e2m1", "nt", "64x64").replace("2)", "2, 16)"),
        "2, 16) must have other matrix instructions than a tile of the operation",
    ),
    (
        " AmaxArgs, any, ",
        " AmaxArgs, all, ",
        "4, 64x128) names all, which is no architecture, nor a kind of them",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_wrong_rows_are_named(old, new, message):
    assert ROWS.count(old) == 1
    with pytest.raises(BuildError) as error:
        tables.read_kernels(tables.read_formats(), ROWS.replace(old, new))
    assert str(error.value).startswith("instances.def: ")
    assert str(error.value).endswith(message)


def test_one_more_kernel_is_one_row(monkeypatch):
    """For one pair and layout, within the limits that its layout has."""
    row = "KERNEL(gemm, bf16, nn, 64x128, 2, 2, DoubleBuffer, 2)"
    formats = tables.read_formats()
    listed = tables.read_kernels(formats, f"{ROWS}\n{row}\n")
    args = dict.fromkeys(name for p in listed.products for name in (p.args, p.scaled_args))
    *_, made = instances._products(listed, formats, args)
    assert made.kernel["name"] == "gemm_bf16_nn_64x128x64"
    assert (made.unit, made.demo) == ("dense_half", False)
    assert made.kernel["limits"] == {"waves_per_simd": 2, "valu_salu": 16}
    assert "bf16, bf16, 16, nn, 64, 128, 64, 2, 2, DoubleBuffer, 2)" in made.row


def test_a_kernel_with_other_matrix_instructions_is_one_row():
    """In addition to that of the same tile; with the formats of the pair that it is like."""
    row = "KERNEL(gemm, mxfp6_e2m3, nt, 128x128, 2, 2, DoubleBuffer, 2, 32)"
    formats = tables.read_formats()
    listed = tables.read_kernels(formats, f"{ROWS}\n{row}\n")
    args = dict.fromkeys(name for p in listed.products for name in (p.args, p.scaled_args))
    *_, made = instances._products(listed, formats, args)
    assert made.kernel["name"] == "gemm_mxfp6_e2m3_nt_128x128x128_mfma32"
    assert (made.kernel["mfma_rows"], made.kernel["by_name"]) == (32, True)
    assert "mxfp6_e2m3, mxfp6_e2m3, 32, nt, 128, 128, 128, 2, 2, DoubleBuffer, 2)" in made.row
    assert made.like.kernel["name"] == "gemm_mxfp6_e3m2_nt_128x128x128_mfma32"


# ---- what differs between two builds ---------------------------------------------------------------


def test_a_build_is_as_itself():
    counts = {arch: len(entry["kernels"]) for arch, entry in MANIFEST["archs"].items()}
    assert list(compare(KERNELS, KERNELS)) == [
        f"{arch}: {count} of {count} kernels have the machine code that they had"
        for arch, count in counts.items()
    ]


@pytest.mark.packaging  # of two architectures
def test_other_code_is_reported(tmp_path):
    """One bit in the code of the last kernel of the file; and a kernel that is not listed."""
    for path in KERNELS.glob("*.co"):
        shutil.copy(path, tmp_path)
    file = tmp_path / MANIFEST["archs"]["gfx942"]["file"]
    image = bytearray(file.read_bytes())
    listed = json.loads(json.dumps(MANIFEST))
    changed = listed["archs"]["gfx942"]["kernels"][3]
    symbol = code_object.read(bytes(image)).symbols[changed["name"]]
    image[symbol.offset + symbol.size - 1] ^= 1
    file.write_bytes(image)
    changed["vgpr"] += 2
    gone = listed["archs"]["gfx950"]["kernels"].pop(0)["name"]
    (tmp_path / "manifest.json").write_text(json.dumps(listed))
    message = list(compare(KERNELS, tmp_path))
    assert len(message) == len(MANIFEST["archs"]) + 2
    (line,) = [line for line in message if line.startswith("gfx942 ")]
    size, vgpr = changed["code_bytes"], changed["vgpr"]
    assert line.startswith(
        f"gfx942 {changed['name']}: bytes {size} -> {size}, VGPR {vgpr - 2} -> {vgpr}, SGPR "
    )
    count = len(listed["archs"]["gfx942"]["kernels"])
    assert f"gfx942: {count - 1} of {count} kernels have the machine code that they had" in message
    assert f"gfx950 {gone}: only before" in message
