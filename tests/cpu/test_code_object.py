"""The built kernels: what the manifest says, what the code object holds, and what the sources promise."""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cases import each

from hipgemm.kernels.manifest import MATRIX_ARCHS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import code_object  # noqa: E402
import units  # noqa: E402
from archs import ARCHS  # noqa: E402
from figures import complete  # noqa: E402
from instances import all_instances, instances_for, is_gemm  # noqa: E402
from kernels import CACHE  # noqa: E402
from limits import MAX_BYTES, faults, file_faults  # noqa: E402
from loops import bodies, classify, main_loop  # noqa: E402
from probe import find_toolchain  # noqa: E402
from toolchain import SOURCE, BuildError, NoCompilerError  # noqa: E402

KERNELS = ROOT / "hipgemm" / "kernels"
MANIFEST = json.loads((KERNELS / "manifest.json").read_text())
ALL = [
    (arch, kernel | {"args": entry["args"][kernel["args"]]})
    for arch, entry in MANIFEST["archs"].items()
    for kernel in entry["kernels"]
]
GEMMS = [(arch, kernel) for arch, kernel in ALL if is_gemm(kernel)]


def of_each(cases):
    """A test for each architecture, which tries all its kernels."""
    return each("arch, kernel", cases, by="arch", ids=lambda x: x if isinstance(x, str) else x["name"])


every_kernel, every_gemm = of_each(ALL), of_each(GEMMS)


@pytest.fixture(scope="module")
def built():
    """Code objects by architecture, as bytes and parsed."""
    content = {arch: (KERNELS / entry["file"]).read_bytes() for arch, entry in MANIFEST["archs"].items()}
    return {arch: (data, code_object.read(data)) for arch, data in content.items()}


@pytest.fixture(scope="module")
def toolchain():
    try:
        return find_toolchain()
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def compiled(toolchain):
    """Assembly and code object by architecture, from the sources as they are."""
    source = SOURCE / "kernels.hip"
    listed = {arch: instances_for(toolchain, ARCHS[arch]) for arch in MANIFEST["archs"]}
    return {arch: units.build(toolchain, source, listed[arch], arch, CACHE) for arch in listed}


@pytest.fixture(scope="module")
def assembly(compiled):
    return {arch: text for arch, (text, _) in compiled.items()}


# ---- manifest and code object ----------------------------------------------------------------------


def test_file_is_the_one_the_manifest_names(built):
    for arch, (data, _) in built.items():
        assert hashlib.sha256(data).hexdigest() == MANIFEST["archs"][arch]["sha256"]


def test_manifest_and_code_object_have_the_same_kernels(built):
    for arch, (_, parsed) in built.items():
        listed = {k["name"] for k in MANIFEST["archs"][arch]["kernels"]}
        assert listed == set(parsed.kernels)
        defined = {s.name for s in parsed.symbols.values() if s.section != 0}
        assert listed <= defined
        assert {f"{name}.kd" for name in listed} <= defined


@pytest.mark.parametrize("arch", ARCHS)
def test_each_architecture_has_code_of_its_own(built, arch):
    """What a runtime checks: the machine in the file's flags, the target in its metadata."""
    data, parsed = built[arch]
    (flags,) = struct.unpack_from("<I", data, 0x30)
    assert flags & 0xFF == ARCHS[arch].mach
    assert parsed.metadata["amdhsa.target"] == f"amdgcn-amd-amdhsa--{arch}"


@pytest.mark.packaging
def test_portable_kernels_are_built_for_every_architecture(toolchain):
    """The same ones with the same arguments and tiles, so that the host need not know for which it packs."""
    portable = {i.kernel["name"]: i.kernel for i in all_instances(toolchain) if i.architectures == "any"}
    assert set(MANIFEST["archs"]) == set(ARCHS)
    for arch in ARCHS:
        kernels = {k["name"]: k for of, k in ALL if of == arch}
        wanted = [instance.kernel["name"] for instance in instances_for(toolchain, ARCHS[arch])]
        assert list(kernels) == wanted, arch
        assert set(portable) <= set(wanted)
        for name, kernel in portable.items():
            assert all(kernels[name][key] == kernel[key] for key in ("args", "tile", "threads")), (arch, name)


@pytest.mark.parametrize("arch", ARCHS)
def test_no_fp8_instruction_where_it_means_another_format(assembly, arch):
    """gfx942's formats are FNUZ: the same bits have half the value."""
    found = re.search(r"v_cvt\w*_(fp8|bf8|fp6|bf6|fp4)", assembly[arch])
    assert bool(found) == (arch == "gfx950")


@every_kernel
def test_arguments_agree(built, arch, kernel):
    meta = built[arch][1].kernels[kernel["name"]]
    visible = [a for a in meta[".args"] if not a[".value_kind"].startswith("hidden_")]
    kinds = {"ptr": "global_buffer", "i64": "by_value", "u32": "by_value", "f32": "by_value"}
    expected = [(a["offset"], a["size"], kinds[a["type"]]) for a in kernel["args"]]
    assert [(a[".offset"], a[".size"], a[".value_kind"]) for a in visible] == expected
    end = kernel["args"][-1]["offset"] + kernel["args"][-1]["size"]
    assert meta[".kernarg_segment_size"] >= end
    assert len({a["name"] for a in kernel["args"]}) == len(kernel["args"])


@every_kernel
def test_resources_agree(built, arch, kernel):
    data, parsed = built[arch]
    meta = parsed.kernels[kernel["name"]]
    assert kernel["threads"] == meta[".max_flat_workgroup_size"]
    assert meta[".wavefront_size"] == ARCHS[arch].wave == MANIFEST["archs"][arch]["wave"]
    assert kernel["lds"] <= (160 if ARCHS[arch].matrix else 64) * 1024
    assert kernel["waves_per_simd"] >= 1
    assert kernel["lds"] == meta[".group_segment_fixed_size"]
    assert kernel["vgpr"] == meta[".vgpr_count"]
    # The kernel descriptor, which the hardware reads. In .rodata, offsets are addresses.
    descriptor = parsed.symbols[f"{kernel['name']}.kd"]
    assert descriptor.size == 64
    lds, scratch = struct.unpack_from("<II", data, descriptor.value)
    assert (lds, scratch) == (kernel["lds"], 0)
    rsrc3, rsrc1 = struct.unpack_from("<II", data, descriptor.value + 44)
    asked = ((rsrc1 & 63) + 1) * 8
    granule = 8 if ARCHS[arch].wave == 64 else 24
    assert asked >= kernel["vgpr"] + kernel["agpr"]
    assert kernel["vgpr_allocated"] == -(-asked // granule) * granule
    if ARCHS[arch].wave == 64:  # AGPRs follow the VGPRs
        assert kernel["vgpr"] <= ((rsrc3 & 63) + 1) * 4 <= asked - kernel["agpr"]


def test_the_architectures_with_matrix_kernels_are_those_announced():
    assert set(MATRIX_ARCHS) == {name for name, arch in ARCHS.items() if arch.matrix}


@every_kernel
def test_occupancy_is_what_fits_of_what_is_allocated(arch, kernel):
    """Workgroups are placed on a compute unit (RDNA: on two) until it is full."""
    registers, slots, lds, granule, units = {
        "gfx950": (512, 8, 163840, 1280, 1),
        "gfx942": (512, 8, 65536, 512, 1),
        "gfx90a": (512, 8, 65536, 512, 1),
        "gfx1100": (1536, 16, 131072, 512, 2),
        "gfx1201": (1536, 16, 131072, 512, 2),
    }[arch]
    waves, groups, simds = kernel["threads"] // ARCHS[arch].wave, 0, [0] * 4
    while True:
        for _ in range(waves):
            simds[simds.index(min(simds))] += 1
        lds -= -(-kernel["lds"] // granule) * granule
        if lds < 0 or max(simds) > slots or max(simds) * kernel["vgpr_allocated"] > registers:
            break
        groups += 1
    assert kernel["workgroups_per_cu"] == groups / units
    assert kernel["waves_per_simd"] == groups * waves / 4


def test_rings_are_limited_by_lds():
    """Not by registers, whose padding cost up to half of the workgroups."""
    rings = [k for arch, k in GEMMS if k["schedule"].startswith("Ring")]
    assert rings
    machine = ARCHS["gfx950"]
    for kernel in rings:
        lds = -(-kernel["lds"] // machine.lds_granule) * machine.lds_granule
        assert kernel["workgroups_per_cu"] == machine.lds // lds, kernel["name"]


WAVES = {  # per SIMD: 8 if they fit, 7 with up to 72 registers, 6 with up to 80
    **dict.fromkeys(("copy_strided_b1", "copy_strided_b2", "copy_strided_b4", "dequantize"), 8),
    **dict.fromkeys(("quantize_mxfp8", "split_reduce", "mx_gemm_scale", "mx_group_scale"), 8),
    **dict.fromkeys(("pack_mx_scales", "elementwise"), 8),
    **dict.fromkeys(("amax", "quantize_fp8", "quantize_mxfp8_groups", "sum_rows", "sum_groups"), 7),
    **dict.fromkeys(("quantize_mxfp8_f32", "quantize_mxfp4_f32", "softmax"), 6),
    **dict.fromkeys(("rms_norm", "rms_norm_fp8", "rms_norm_mxfp8", "rms_norm_mx"), 4),  # whole rows
    **dict.fromkeys(("amax_gradient", "quantize_fp8_gradient", "quantize_mxfp4_gradient"), 5),
    **dict.fromkeys(("quantize_mxfp8_groups_gradient", "sum_rows_gradient", "sum_groups_gradient"), 5),
    **dict.fromkeys(("quantize_mxfp8_gradient", "quantize_fp8_blocks_gradient", "activation_gradient"), 4),
    **dict.fromkeys(("quantize_mxfp4", "quantize_mxfp4_f16"), 4.5),  # a thread has 64 values, as in mxfp6
    "quantize_mxfp6": 4,
    "quantize_mxfp6_f32": 3,
}


@pytest.mark.parametrize("name", WAVES)
def test_passes_fill_a_compute_unit(name):
    (kernel,) = [k for arch, k in ALL if (arch, k["name"]) == ("gfx950", name)]
    assert kernel["waves_per_simd"] == WAVES[name]


@every_kernel
def test_no_spill_and_within_its_limits(arch, kernel):
    assert kernel["vgpr_spills"] == kernel["sgpr_spills"] == kernel["scratch"] == 0
    assert faults(kernel, ARCHS[arch]) == []


def test_build_reports_every_broken_limit():
    _, kernel = GEMMS[0]
    bad = json.loads(json.dumps(kernel))
    bad.update(vgpr_spills=3, scratch=16, waves_per_simd=1)
    bad["main_loop"].update(valu=400)
    found = faults(bad, ARCHS["gfx950"])
    assert len(found) == 4
    assert all(f.startswith(kernel["name"]) for f in found)
    assert any("VGPR spills 3" in f for f in found)
    (fault,) = file_faults("x.co", bytes(MAX_BYTES + 1))
    assert fault == "x.co: 10485761 bytes, must be at most 10485760"
    assert not file_faults("x.co", bytes(MAX_BYTES))


def test_build_compares_the_arguments(built, assembly):
    _, kernel = GEMMS[0]
    changed = json.loads(json.dumps(kernel))
    changed["args"][1]["offset"] += 4
    with pytest.raises(BuildError, match="argument layout"):
        complete(changed, ARCHS["gfx950"], built["gfx950"][1], assembly["gfx950"])


def test_build_reports_padded_registers(built, assembly):
    """What the compiler does given a maximum of waves too; the descriptor has the result."""

    def padded(name, registers):
        _, parsed = built["gfx950"]
        descriptor = parsed.descriptors[name]
        rsrc1 = descriptor.rsrc1 & ~63 | registers // 8 - 1
        descriptors = parsed.descriptors | {name: replace(descriptor, rsrc1=rsrc1)}
        kernel = json.loads(json.dumps(next(k for arch, k in ALL if (arch, k["name"]) == ("gfx950", name))))
        complete(kernel, ARCHS["gfx950"], replace(parsed, descriptors=descriptors), assembly["gfx950"])
        return kernel

    kernel = padded("gemm_bf16_nt_32x64x64", 264)
    assert (kernel["vgpr_allocated"], kernel["workgroups_per_cu"], kernel["waves_per_simd"]) == (264, 2, 1)
    assert faults(kernel, ARCHS["gfx950"]) == [
        "gemm_bf16_nt_32x64x64: 2 workgroups per CU, since 264 VGPR are allocated; "
        f"the {kernel['vgpr']} in use and 49152 bytes of LDS leave room for 3"
    ]
    kernel = padded("split_reduce", 176) | {"vgpr": 170}
    assert faults(kernel, ARCHS["gfx950"]) == [
        "split_reduce: 2 waves per SIMD (176 VGPR allocated, 1104 bytes of LDS), must be at least 4"
    ]


@pytest.mark.parametrize("arch", ARCHS)
def test_build_is_current(built, toolchain, compiled, arch):
    if toolchain.version() != MANIFEST["compiler"]:
        pytest.skip("built by another compiler")
    _, content = compiled[arch]
    assert content == built[arch][0], "run `make kernels`"
    assert str(ROOT).encode() not in content


@pytest.mark.parametrize("arch", ARCHS)
def test_build_is_reproducible(toolchain, assembly, tmp_path, arch):
    """A unit compiled again equals the cached one: of those with products, if there are any, the shortest."""
    parts = units.split(instances_for(toolchain, ARCHS[arch]), arch)
    part = min(parts, key=lambda unit: (not is_gemm(unit.instances[0].kernel), len(unit.source)))
    again, _ = units.build(toolchain, SOURCE / "kernels.hip", part.instances, arch, tmp_path)
    assert again in assembly[arch]
    assert len(list(tmp_path.iterdir())) == 3  # assembly, object, and dependencies


def test_several_metadata_notes_are_refused(built):
    # Such a file comes from linking several objects; the runtimes would see the first one's kernels.
    note = struct.pack("<III8s", 7, 1, code_object.NT_AMDGPU_METADATA, b"AMDGPU\0\0") + b"\x80\0\0\0"
    names = struct.pack("<IIQQQQIIQQ", 0, code_object.SHT_NOTE, 0, 0, 64, 2 * len(note), 0, 0, 4, 0)
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 0x28, 64 + 2 * len(note))
    struct.pack_into("<HH", header, 0x3A, 64, 1)
    with pytest.raises(ValueError, match="several metadata notes"):
        code_object.read(bytes(header) + 2 * note + names)


# ---- generated code --------------------------------------------------------------------------------


@every_gemm
def test_instructions_stay_in_their_phase(assembly, arch, kernel):
    """No compiler may move an MFMA or LDS read over a barrier: operands could be overwritten, or late."""
    body = bodies(assembly[arch])[kernel["name"]]
    phases = [Counter(map(classify, part.splitlines())) for part in body.split("\ts_barrier\n")]
    loop = kernel["main_loop"]
    if kernel["schedule"] == "SingleBuffer":  # the first stores; tiles of two phases; the last tile
        mfma, reads, writes = (int(loop[name]) for name in ("mfma", "ds_read", "ds_write"))
        tiles = {1: 1, 2: 3}[loop["tiles"]]  # after a loop of two comes one more, if their number is even
        wanted = [(0, 0, writes), *[(mfma // 2, reads, 0), (mfma // 2, 0, writes)] * tiles, (mfma, reads, 0)]
        found = [(phase["mfma"], phase["ds_read"], phase["ds_write"]) for phase in phases]
        assert sorted(found[: len(wanted)]) == sorted(wanted)  # a loop may begin in its middle
        assert not any(phase["mfma"] for phase in phases[len(wanted) :])
        return
    tiles = 5  # the odd one, two in the loop, the last two
    if kernel["schedule"] == "LineRing":
        tiles = sum(
            first + 4 for first in range(1, 5)
        )  # for each remainder by four, some and the loop of four
    assert sum(phase["mfma"] for phase in phases) == tiles * loop["mfma"]
    assert sum(phase["ds_read"] for phase in phases) >= tiles * loop["ds_read"] - 4
    if kernel["schedule"] in ("PingPong", "LineRing"):
        step = loop["mfma"] // 4
        assert {phase["mfma"] for phase in phases} == {0, step}
        for phase in phases:
            assert not (phase["mfma"] and (phase["ds_read"] or phase["dma"])), "memory in a compute phase"
    else:
        assert {phase["mfma"] for phase in phases} == {0, loop["mfma"]}
        assert {phase["ds_read"] for phase in phases} == {0, loop["ds_read"]}


def vector_waits(loop):
    """The number of loads that each wait of a loop leaves in flight."""
    return [int(n) for n in re.findall(r"vmcnt\((\d+)\)", "\n".join(loop))]


@of_each([(arch, k) for arch, k in GEMMS if k["schedule"].startswith("Ring")])
def test_a_ring_keeps_its_tiles_on_their_way(assembly, arch, kernel):
    """Two tiles less than its stages; two where scales are needed, which are loaded one tile before."""
    waits = vector_waits(main_loop(assembly[arch], kernel["name"]))
    fetches = int(kernel["main_loop"]["dma"])
    assert waits.count((int(kernel["schedule"].removeprefix("Ring")) - 2) * fetches) >= 2
    assert min(waits) >= 2 * fetches


@of_each([(arch, k) for arch, k in GEMMS if k["schedule"] == "PingPong"])
def test_ping_pong_never_drains_its_fetches(assembly, arch, kernel):
    waits = vector_waits(main_loop(assembly[arch], kernel["name"]))
    # Two tiles of four steps; all fetches of the last four steps may be in flight. So may the scales
    # loaded in the first step of a tile, but not beyond it.
    loads = int(2 * kernel["main_loop"]["vmem"])
    split = [loads // 2] * 2 if kernel.get("block") and kernel["tile"][2] == 256 else [loads, 0]
    if kernel.get("block") == 128:  # exponents for two tiles, and multipliers for each
        exponents = 0 if kernel["a"] == "bf16" else 2 + (kernel["layout"] == "nn")  # one for each part
        each = (loads - exponents) // 2
        split = [each + exponents, each]
    fetches = kernel["main_loop"]["dma"]
    assert waits == [fetches + more for tile in split for more in (tile, tile, tile, 0)]


@of_each([(arch, k) for arch, k in GEMMS if k["schedule"] == "LineRing"])
def test_a_ring_of_lines_never_drains_its_fetches(assembly, arch, kernel):
    """Six DMAs or more are in flight: those of a K tile."""
    waits = vector_waits(main_loop(assembly[arch], kernel["name"]))
    assert len(waits) == 4 * kernel["main_loop"]["tiles"]
    assert min(waits) >= kernel["main_loop"]["dma"] == 6


@of_each([(arch, k) for arch, k in GEMMS if arch == "gfx950" and k.get("block") and k["a"] != "bf16"])
def test_scales_are_never_scalars(assembly, arch, kernel):
    """The instruction would read an exponent from bits that a scalar operand does not have."""
    body = bodies(assembly[arch])[kernel["name"]]
    operands = re.findall(r"v_mfma_scale\w+ (.*?)(?: op_sel| cbsz| blgp|\n)", body)
    assert operands
    for found in operands:
        assert re.search(r", v\d+, v\d+$", found), found


# ---- index arithmetic, the kernels' own headers compiled for this machine --------------------------


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    source = folder / "host.cpp"
    source.write_text(
        """
        #include "common/scale_layout.hpp"
        #include "common/swizzle.hpp"
        #include "gemm/tile_order.hpp"
        using namespace hipgemm;
        extern "C" void order(u32 tiles_m, u32 tiles_n, u32* out) {
          for (u32 i = 0; i < tiles_m * tiles_n; i++) {
            const TilePosition p = tile_of_workgroup(i, tiles_m, tiles_n);
            out[2 * i] = p.m, out[2 * i + 1] = p.n;
          }
        }
        extern "C" u32 swizzled(u32 workgroup, u32 count) { return swizzled_workgroup(workgroup, count); }
        extern "C" void range(u32 tiles, u32 begin, u32 end, u32* out) {
          const KRange r = k_range(tiles, begin, end);
          out[0] = r.tiles, out[1] = r.origin + r.first, out[2] = r.origin + r.second, out[3] = r.first_index;
        }
        extern "C" u32 iteration(u32 step, u32 k, u32 tile_steps) {
          return scale_iteration(step, k, tile_steps);
        }
        extern "C" u32 step(u32 iteration, u32 k, u32 tile_steps) {
          return step_of_iteration(iteration, k, tile_steps);
        }
        extern "C" u64 offset(u32 row, u32 iteration, u32 block, u32 step_rows) {
          return scale_offset(row, iteration, block, step_rows);
        }
        extern "C" u32 swizzle(u32 chunks, u32 distance, u32 row, u32 chunk) {
          if (chunks == 4) return swizzled_chunk<4, 1>(row, chunk);
          if (chunks == 16) return swizzled_chunk<16, 4>(row, chunk);
          return distance == 1 ? swizzled_chunk<8, 1>(row, chunk) : swizzled_chunk<8, 2>(row, chunk);
        }
        """
    )
    compiler = ["c++"] if shutil.which("c++") else [sys.executable, "-m", "ziglang", "cc"]
    library = folder / "host.so"
    subprocess.run(
        [
            *compiler,
            "-std=c++20",
            "-O1",
            "-shared",
            "-fPIC",
            f"-I{SOURCE}",
            str(source),
            "-o",
            str(library),
        ],
        check=True,
    )
    return ctypes.CDLL(str(library))


def order(headers, m, n):
    out = (ctypes.c_uint32 * (2 * m * n))()
    headers.order(m, n, out)
    return list(zip(out[::2], out[1::2], strict=True))


SPANS = (1, 2, 3, 7, 8, 9, 16, 17, 31, 63, 64, 65)


@pytest.mark.parametrize("m", SPANS)
def test_tile_order_is_a_bijection(headers, m):
    for n in (*SPANS, 511, 512, 513):
        assert sorted(order(headers, m, n)) == [(i, j) for i in range(m) for j in range(n)], n


def test_tile_order_keeps_operands_within_an_xcd(headers):
    """Distinct operand panels an XCD touches in a round of 32 tiles: near the square's 8 + 4."""
    tiles = order(headers, 32, 32)
    for xcd in range(8):
        mine = tiles[xcd::8]
        assert Counter(len(mine[i : i + 32]) for i in range(0, len(mine), 32)) == {32: 4}
        for start in range(0, len(mine), 32):
            some = mine[start : start + 32]
            assert len({m for m, _ in some}) + len({n for _, n in some}) <= 12


def test_small_products_of_a_batch_stay_within_an_xcd(headers):
    """64 products of 16 tiles: an XCD computes complete ones, four of every span."""
    tiles, count = 16, 64 * 16
    swizzled = [headers.swizzled(i, count) for i in range(count)]
    assert sorted(swizzled) == list(range(count))
    for xcd in range(8):
        served = Counter(index // tiles for index in swizzled[xcd::8])
        assert set(served.values()) == {tiles}


@pytest.mark.parametrize("k_tiles", range(1, 12))
def test_splits_of_k_take_every_tile_once(headers, k_tiles):
    """In the order of the loop: the last tile, then all others."""
    in_order = [k_tiles - 1, *range(k_tiles - 1)]
    iterations = k_tiles + k_tiles % 2
    for split_tiles in range(2, iterations + 1, 2):
        found = []
        for begin in range(0, iterations, split_tiles):
            out = (ctypes.c_uint32 * 4)()
            headers.range(k_tiles, begin, min(iterations, begin + split_tiles), out)
            count, first, second, index = out
            assert index == len(found)
            assert count > 0
            assert (index + count + k_tiles % 2) % 2 == 0, "a split ends with an odd iteration"
            found += [first, *range(second, second + count - 1)]
        assert found == in_order


@pytest.mark.parametrize(("chunks", "distance"), [(4, 1), (8, 1), (8, 2), (16, 4)])
def test_swizzle_is_a_permutation_of_each_row(headers, chunks, distance):
    swizzle = partial(headers.swizzle, chunks, distance)
    for row in range(64):
        assert sorted(swizzle(row, c) for c in range(chunks)) == list(range(chunks))
        assert all(swizzle(row, swizzle(row, c)) == c for c in range(chunks))


@pytest.mark.parametrize(
    ("chunks", "distance", "reads", "size"),
    [(8, 1, 2, 16), (4, 1, 1, 16), (8, 1, 3, 8), (8, 2, 2, 16), (16, 4, 4, 16)],
)
def test_fragment_reads_have_no_bank_conflict(headers, chunks, distance, reads, size):
    """What ds_read_b128 (16 lanes) and ds_read_b64 (32 lanes) serve at a time must touch all 64 banks once.

    Reads of 8 bytes: 6-bit elements, of which a lane has 24 bytes in one run.
    """
    half = [[*range(4), *range(12, 16), *range(20, 28)], [*range(4, 12), *range(16, 20), *range(28, 32)]]
    served = [[lane + shift for lane in lanes] for shift in (0, 32) for lanes in half]
    phases = served if size == 16 else [list(range(32)), list(range(32, 64))]

    def address(lane, read):
        row, group = lane % 16, lane // 16
        byte = (group * reads + read if size == 8 or distance > 1 else read * 4 + group) * size
        return (row * chunks + headers.swizzle(chunks, distance, row, byte // 16)) * 16 + byte % 16

    for read in range(reads):
        for lanes in phases:
            banks = [(address(lane, read) // 4 + i) % 64 for lane in lanes for i in range(size // 4)]
            assert sorted(banks) == list(range(64))


@pytest.mark.parametrize("tile_steps", [1, 2])
def test_scales_come_in_the_order_of_the_k_loop(headers, tile_steps):
    """The last tile, which may be partial, then all others; the loop's end is the end of a unit."""
    for k in (1, 128, 129, 256, 384, 512, 640, 1000, 1280):
        tiles = -(-k // (128 * tile_steps))
        tile_order = [tiles - 1, *range(tiles - 1)]
        steps = [tile * tile_steps + i for tile in tile_order for i in range(tile_steps)]
        first = -len(steps) % 2
        assert [headers.step(first + i, k, tile_steps) for i in range(len(steps))] == steps
        assert [headers.iteration(step, k, tile_steps) for step in steps] == [
            *range(first, first + len(steps))
        ]
        if first:
            assert ctypes.c_uint32(headers.step(0, k, tile_steps)).value == 0xFFFFFFFF


def test_every_scale_has_an_offset_of_its_own(headers):
    rows, iterations = 48, 6
    offsets = {
        headers.offset(r, i, b, rows) for r in range(rows) for i in range(iterations) for b in range(4)
    }
    assert offsets == set(range(rows * iterations * 4))
    # A lane's fragments are rows four apart: two iterations of two of them are one word.
    assert [
        headers.offset(r, i, 1, rows) - headers.offset(16, 0, 1, rows) for r in (16, 20) for i in (0, 1)
    ] == [*range(4)]
