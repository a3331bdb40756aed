"""Files of arrays: the format and its faults, published layouts, the package safetensors."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

import hipgemm as hg
from hipgemm import reference
from hipgemm.files import progress
from hipgemm.formats.scaled import packed_data

BF16, E8M0 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e8m0fnu)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SAFETENSORS = {"BF16": BF16, "F8_E8M0": E8M0, "F8_E4M3": E4M3, "F8_E5M2": E5M2}
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def codes(*shape: int, seed: int = 0) -> Any:
    """Random bytes without the NaN of fp8 and e8m0."""
    return np.random.default_rng(seed).integers(0, 120, shape, dtype=np.uint8)


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(path: Path, tensors: Tensors) -> Path:
    """Write a file by hand, in the order given."""
    header, data = {}, b""
    for name, (dtype, shape, part) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    path.write_bytes(file_of(header, data))
    return path


def tensor(dtype: str, x: Any, shape: tuple[int, ...] | None = None) -> tuple[str, tuple[int, ...], bytes]:
    return dtype, x.shape if shape is None else shape, x.tobytes()


def same(x: Any, y: Any) -> None:
    """Equal in everything, bit for bit."""
    if isinstance(x, hg.ScaledArray):
        for name in ("format", "shape", "axis", "hadamard", "signs", "block"):
            assert getattr(x, name) == getattr(y, name), name
        assert (x.amax is None) == (y.amax is None)
        for part in ["data", "scale"] if x.amax is None else ["data", "scale", "amax"]:
            same(getattr(x, part), getattr(y, part))
        return
    assert (x.shape, x.dtype, x.tobytes()) == (y.shape, y.dtype, y.tobytes())


X, EXPERTS = numbers(130, 160), numbers(3, 64, 160)
PLAIN: dict[str, Any] = {
    "bf16": X.astype(BF16),
    "f16": X.astype(np.float16),
    "f32": X,
    "f64": X.astype(np.float64),
    "e4m3": X.astype(E4M3),
    "e5m2": X.astype(E5M2),
    "e8m0": np.arange(256, dtype=np.uint8).view(E8M0),
    "bool": X > 0,
    "complex": X.astype(np.complex64),
    "0-d": np.float32([3]).reshape(()),
    "empty": np.zeros((0, 5), np.float32),
    "columns first": X.T,
    "sliced": X[::2, 1::3],
    **{name: np.arange(-5, 6).astype(name) for name in ("int8", "int16", "int32", "int64")},
    **{name: np.arange(11).astype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
}
FP8 = {
    f"{kind} of {format}": make(format)
    for format in ("fp8_e4m3", "fp8_e5m2")
    for kind, make in {
        "tensor": lambda f: reference.quantize_fp8(X, format=f),
        "rows": lambda f: reference.quantize_fp8(X, axis=-1, format=f),
        "columns": lambda f: reference.quantize_fp8(X, axis=-1, format=f).T,
        "blocks": lambda f: reference.quantize_fp8(X, block=(128, 128), format=f),
        "blocks of rows": lambda f: reference.quantize_fp8(X, block=(1, 128), format=f),
        "blocks of columns": lambda f: reference.quantize_fp8(X, block=(1, 128), format=f).T,
        "experts in blocks": lambda f: reference.quantize_fp8(EXPERTS, block=(128, 128), format=f),
    }.items()
}
QUANTIZED: dict[str, Any] = {
    **FP8,
    "matrices": hg.ScaledArray(EXPERTS.astype(E4M3), np.float32([[[2]], [[3]], [[4]]]), "fp8_e4m3"),
    "e8m0 blocks": hg.ScaledArray(X.astype(E4M3), codes(2, 2).view(E8M0), "fp8_e4m3", block=(128, 128)),
    **{f: reference.quantize(X, f) for f in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2")},
    **{f"{f} columns": reference.quantize(X, f).T for f in ("mxfp8_e4m3", "mxfp6_e2m3", "mxfp4_e2m1")},
    "mxfp8 by the first axis": reference.quantize_mxfp8(EXPERTS, axis=0),
    "mxfp6 of 45": reference.quantize_mxfp6(X[:, :45]),
    "mxfp4 of 45": reference.quantize_mxfp4(X[:, :45], hadamard=False),
    "mxfp4": reference.quantize_mxfp4(X, hadamard=False),
    "mxfp4 transformed": reference.quantize_mxfp4(X),
    "mxfp4 with signs": reference.quantize_mxfp4(X, signs=2**64 - 1),
    "experts": reference.quantize_mxfp4(EXPERTS, hadamard=False),
    "experts transformed": reference.quantize_mxfp4(EXPERTS, signs=5),
}
QUANTIZED["packed"] = hg.ScaledArray(packed_data(QUANTIZED["mxfp4"]), QUANTIZED["mxfp4"].scale, "mxfp4_e2m1")


# ---- round trips


def test_every_format_round_trips(tmp_path: Path) -> None:
    """In one file, in their order; and each alone."""
    arrays = {**PLAIN, **QUANTIZED}
    hg.save(tmp_path / "all.safetensors", arrays)
    loaded = hg.load(tmp_path / "all.safetensors")
    assert list(loaded) == list(arrays)
    for name, x in arrays.items():
        same(x, loaded[name])
        hg.save(tmp_path / "one", {name: x})
        same(x, hg.load(tmp_path / "one", [name])[name])


def test_other_sources_of_arrays(tmp_path: Path) -> None:
    """Another byte order, scalars, subclasses; saved over the file that they are from."""
    path = tmp_path / "x.safetensors"
    hg.save(path, {"big": X.astype(">f4"), "scalar": np.float16(2), "matrix": np.asmatrix(X)})
    loaded = hg.load(path)
    same(loaded["big"], X)
    same(loaded["scalar"], np.array(2, np.float16))
    same(loaded["matrix"], X)
    hg.save(path, loaded | {"more": loaded["big"] + 1})
    same(loaded["big"], X)
    same(hg.load(path)["more"], X + 1)


def test_arrays_can_be_written_to_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    hg.save(path, {"x": X})
    before = path.read_bytes()
    loaded = hg.load(path)["x"]
    path.unlink()
    path.write_bytes(before)
    loaded += 1
    same(loaded, X + 1)
    assert path.read_bytes() == before


def test_what_is_named_alone_is_read(tmp_path: Path) -> None:
    hg.save(tmp_path / "x", {"a": X, "b": X, "c": X})
    assert list(hg.load(tmp_path / "x", ("c", "a"))) == ["c", "a"]
    assert hg.load(tmp_path / "x", []) == {}
    with pytest.raises(ValueError, match="must be among the 3 arrays of the file; got 'd'; there are"):
        hg.load(tmp_path / "x", ["a", "d"])


def test_nothing_is_read_before_it_is_used(tmp_path: Path) -> None:
    """A file of 64 GiB of zeros: loading it takes neither memory nor time."""
    path, size = tmp_path / "sparse", 1 << 36
    header = {"x": {"dtype": "U8", "shape": [1 << 16, 1 << 20], "data_offsets": [0, size]}}
    path.write_bytes(file_of(header))
    os.truncate(path, path.stat().st_size + size)
    tracemalloc.start()
    x = hg.load(path)["x"]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert x.shape == (1 << 16, 1 << 20)
    assert x[-1, -1] == 0


def test_loading_opens_no_gpu_library(run_python: Callable[..., Any], tmp_path: Path) -> None:
    done = run_python(
        "import sys, hipgemm, hipgemm.reference, numpy as np\n"
        f"path = {str(tmp_path / 'x')!r}\n"
        "hipgemm.save(path, {'x': hipgemm.reference.quantize_mxfp8(np.zeros((2, 32), np.float32))})\n"
        "print(hipgemm.load(path)['x'].shape, 'hip' in sys.modules)"
    )
    assert done.stdout == "(2, 32) False\n", done.stderr


# ---- the package safetensors


def test_files_of_the_package_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    mine = {name: x for name, x in PLAIN.items() if x.dtype.isbuiltin == 1 and x.flags.c_contiguous}
    save_file(mine, path, metadata={"format": "np"})
    loaded = hg.load(path)
    assert set(loaded) == set(mine)
    for name, x in mine.items():
        same(loaded[name], x)


def test_the_package_reads_files_of_save(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {**PLAIN, **QUANTIZED}
    hg.save(path, arrays)
    found = dict(safetensors.deserialize(path.read_bytes()))
    for name, x in PLAIN.items():
        dtype = SAFETENSORS.get(found[name]["dtype"])
        assert dtype is None or x.dtype == dtype
        assert tuple(found[name]["shape"]) == x.shape
        assert bytes(found[name]["data"]) == np.ascontiguousarray(x).tobytes()
    hg.save(path, {"x": X, "i": np.arange(3)})
    theirs = load_file(path)
    same(theirs["x"], X)
    same(theirs["i"], np.arange(3))


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("rows of fp8_e4m3", {"w": "F8_E4M3", "w_scale": "F32", "w_amax": "F32"}),
        ("blocks of fp8_e4m3", {"w": "F8_E4M3", "w_scale_inv": "F32", "w_amax": "F32"}),
        ("e8m0 blocks", {"w": "F8_E4M3", "w_scale_inv": "F8_E8M0"}),
        ("mxfp8_e5m2", {"w": "F8_E5M2", "w_scale": "U8"}),
        ("mxfp6_e2m3", {"w": "U8", "w_scale": "U8"}),
        ("mxfp4", {"w_packed": "U8", "w_scale": "U8"}),
        ("experts", {"w_blocks": "U8", "w_scales": "U8"}),
    ],
)
def test_names_and_bytes_are_those_of_published_layouts(
    name: str, tensors: dict[str, str], tmp_path: Path
) -> None:
    """Without the record, everything that the layouts have is found by names and shapes."""
    q = QUANTIZED[name]
    hg.save(tmp_path / "x", {"w": q})
    found = dict(safetensors.deserialize((tmp_path / "x").read_bytes()))
    assert {name: x["dtype"] for name, x in found.items()} == tensors
    bare = {n: (x["dtype"], tuple(x["shape"]), bytes(x["data"])) for n, x in found.items()}
    quantized = {"global_quant_config": {"weight": {"dtype": "fp6_e2m3"}}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": quantized}))
    loaded = hg.load(write(tmp_path / "y", bare))["w"]
    assert loaded.format == q.format
    np.testing.assert_array_equal(hg.dequantize(loaded), hg.dequantize(q))


# ---- published layouts


def gpt_oss(layer: str = "model.layers.0.mlp") -> Tensors:
    """The experts and the router of a layer."""
    up, down = f"{layer}.experts.gate_up_proj", f"{layer}.experts.down_proj"
    return {
        f"{up}_bias": tensor("BF16", numbers(4, 128).astype(BF16)),
        f"{up}_blocks": tensor("U8", codes(4, 128, 2, 16)),
        f"{up}_scales": tensor("U8", codes(4, 128, 2, seed=1)),
        f"{down}_bias": tensor("BF16", numbers(4, 64).astype(BF16)),
        f"{down}_blocks": tensor("U8", codes(4, 64, 2, 16, seed=2)),
        f"{down}_scales": tensor("U8", codes(4, 64, 2, seed=3)),
        f"{layer}.router.weight": tensor("BF16", numbers(4, 64).astype(BF16)),
        f"{layer}.router.bias": tensor("BF16", numbers(4).astype(BF16)),
    }


FP4 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_gpt_oss(tmp_path: Path) -> None:
    loaded = hg.load(write(tmp_path / "x", gpt_oss()))
    prefix = "model.layers.0.mlp."
    names = ["experts.gate_up_proj", "experts.down_proj", "router.weight"]
    biases = ["experts.gate_up_proj_bias", "experts.down_proj_bias", "router.bias"]
    assert set(loaded) == {prefix + name for name in names + biases}
    up = loaded[f"{prefix}experts.gate_up_proj"]
    assert (up.format, up.shape, up.axis, up.hadamard) == ("mxfp4_e2m1", (4, 128, 64), -1, False)
    blocks, scales = codes(4, 128, 2, 16), codes(4, 128, 2, seed=1)
    assert np.shares_memory(up.data, up.data.base)  # of the mapped file
    values = np.stack((FP4[blocks & 15], FP4[blocks >> 4]), axis=-1).reshape(4, 128, 2, 32)
    values = values * np.ldexp(np.float32(1), scales.astype(np.int32) - 127)[..., None]
    np.testing.assert_array_equal(hg.dequantize(up), values.reshape(4, 128, 64))
    same(loaded[f"{prefix}router.bias"], numbers(4).astype(BF16))


def test_the_first_names_of_gpt_oss(tmp_path: Path) -> None:
    blocks, scales = codes(4, 8, 3, 16), codes(4, 8, 3)
    tensors = {"block.0.mlp1_weight.blocks": blocks, "block.0.mlp1_weight.scales": scales}
    path = write(tmp_path / "x", {name: tensor("U8", x) for name, x in tensors.items()})
    loaded = hg.load(path)
    assert list(loaded) == ["block.0.mlp1_weight"]
    same(loaded["block.0.mlp1_weight"].data, blocks.reshape(4, 8, 48))


def test_deepseek(tmp_path: Path) -> None:
    weight, scale = codes(200, 300), np.abs(numbers(2, 3)) + 0.1
    names = {"a.weight": tensor("F8_E4M3", weight), "a.weight_scale_inv": tensor("F32", scale)}
    loaded = hg.load(write(tmp_path / "x", names))
    assert list(loaded) == ["a.weight"]
    q = loaded["a.weight"]
    assert (q.format, q.shape, q.block) == ("fp8_e4m3", (200, 300), (128, 128))
    scales = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:200, :300]
    np.testing.assert_array_equal(hg.dequantize(q), weight.view(E4M3).astype(np.float32) * scales)


@pytest.mark.parametrize("given", [(), (1,), (200,), (200, 1), (1, 1), (2, 3), (200, 3)])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("element", ["F8_E4M3", "F8_E5M2"])
def test_fp8_scales(given: tuple[int, ...], dtype: str, element: str, tmp_path: Path) -> None:
    """Per tensor, per channel, and in blocks."""
    weight, scale = codes(200, 300), 1 + np.arange(np.prod(given, dtype=int), dtype=np.float32).reshape(given)
    stored = scale.astype({"F32": np.float32, "BF16": BF16, "F16": np.float16}[dtype])
    names = {"w.weight": tensor(element, weight), "w.weight_scale": tensor(dtype, stored)}
    if given == (1, 1):
        with pytest.raises(ValueError, match=r"'w.weight_scale' must be .*got .* \(1, 1\); 'w.weight' is"):
            hg.load(write(tmp_path / "x", names))
        return
    q = hg.load(write(tmp_path / "x", names | {"w.input_scale": tensor("F32", np.float32(2))}))
    assert list(q) == ["w.weight", "w.input_scale"]
    q = q["w.weight"]
    assert q.block == {(2, 3): (128, 128), (200, 3): (1, 128)}.get(given)
    assert q.scale.dtype == np.float32
    full = stored.astype(np.float32)
    if given in ((200,), (200, 1)):
        full = full.reshape(200, 1)
    elif len(given) == 2:
        full = full.repeat(1 if given[0] == 200 else 128, 0).repeat(128, 1)[:200, :300]
    values = weight.view(SAFETENSORS[element]).astype(np.float32) * full
    np.testing.assert_array_equal(hg.dequantize(q), values)


@pytest.mark.parametrize("name", ["weight", "weight_packed"])
@pytest.mark.parametrize("scale", ["U8", "F8_E8M0"])
def test_packed_mx(name: str, scale: str, tmp_path: Path) -> None:
    """compressed-tensors and Quark."""
    names = {f"a.{name}": tensor("U8", codes(6, 48)), "a.weight_scale": tensor(scale, codes(6, 3))}
    loaded = hg.load(write(tmp_path / "x", names))
    assert list(loaded) == ["a.weight"]
    assert (loaded["a.weight"].format, loaded["a.weight"].shape) == ("mxfp4_e2m1", (6, 96))
    same(loaded["a.weight"].data, codes(6, 48))


def test_packed_elements_with_a_type_of_their_own(tmp_path: Path) -> None:
    names = {"w": tensor("F4", codes(6, 48), (6, 96)), "w_scale": tensor("F8_E8M0", codes(6, 3))}
    loaded = hg.load(write(tmp_path / "x", names))["w"]
    assert (loaded.format, loaded.shape) == ("mxfp4_e2m1", (6, 96))


@pytest.mark.parametrize(("element", "format"), [("F8_E4M3", "mxfp8_e4m3"), ("F8_E5M2", "mxfp8_e5m2")])
def test_mxfp8(element: str, format: str, tmp_path: Path) -> None:
    names = {"w": tensor(element, codes(6, 96)), "w_scale": tensor("U8", codes(6, 3))}
    loaded = hg.load(write(tmp_path / "x", names))["w"]
    assert (loaded.format, loaded.shape) == (format, (6, 96))


QUARK = {
    "quant_method": "quark",
    "global_quant_config": {"weight": {"dtype": "fp6_e3m2", "qscheme": "per_group", "group_size": 32}},
    "layer_quant_config": {"*.down_proj": {"weight": {"dtype": "fp6_e2m3"}}},
}


def test_elements_of_6_bits_need_a_config(tmp_path: Path) -> None:
    names = {"up_proj.weight": codes(6, 72), "0.down_proj.weight": codes(6, 72, seed=2)}
    tensors = {name: tensor("U8", x) for name, x in names.items()}
    tensors |= {f"{name}_scale": tensor("U8", codes(6, 3)) for name in names}
    path = write(tmp_path / "x", tensors)
    with pytest.raises(ValueError, match=r"(?s)2 faults.*config.json .* tensor 'up_proj.weight'; got U8"):
        hg.load(path)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": QUARK}))
    loaded = hg.load(path)
    assert {name: q.format for name, q in loaded.items()} == {
        "up_proj.weight": "mxfp6_e3m2",
        "0.down_proj.weight": "mxfp6_e2m3",
    }
    assert loaded["up_proj.weight"].shape == (6, 96)
    unpacked = hg.unpack_fp6(codes(6, 72), "mxfp6_e3m2").astype(np.float32)
    scales = np.ldexp(np.float32(1), codes(6, 3).astype(np.int32) - 127).repeat(32, 1)
    np.testing.assert_array_equal(hg.dequantize(loaded["up_proj.weight"]), unpacked * scales)


def test_what_is_no_layout_stays_as_it_is(tmp_path: Path) -> None:
    """fp8 and uint8 without scales; scales without elements; other types with something called scale."""
    names = {
        "w": tensor("F8_E4M3", codes(4, 8)),
        "mask": tensor("U8", codes(4, 8)),
        "k_scale": tensor("F32", np.float32(2)),
        "x": tensor("BF16", X.astype(BF16)),
        "x_scale": tensor("F32", np.float32([2])),
        "y_blocks": tensor("F32", X),
    }
    loaded = hg.load(write(tmp_path / "x", names))
    assert list(loaded) == list(names)
    assert not any(isinstance(x, hg.ScaledArray) for x in loaded.values())
    same(loaded["w"], codes(4, 8).view(E4M3))
    # What was saved as plain arrays comes as these, whatever they are called.
    arrays = {"w": codes(4, 32).view(E4M3), "w_scale": codes(4, 1), "v_blocks": codes(4, 2, 16)}
    hg.save(tmp_path / "y", arrays | {"v_scales": codes(4, 2)})
    loaded = hg.load(tmp_path / "y")
    for name, x in arrays.items():
        same(loaded[name], x)


NOT_KNOWN: dict[str, tuple[Tensors, str]] = {
    "blocks without scales": (
        {"w_blocks": tensor("U8", codes(4, 2, 16))},
        r"tensor 'w_blocks' must have scales; got U8 \(4, 2, 16\); looked for 'w_scales'",
    ),
    "packed without scales": (
        {"w_packed": tensor("U8", codes(4, 16))},
        "tensor 'w_packed' must have scales; .*looked for 'w_scale'",
    ),
    "packed int4": (
        {"w_packed": tensor("I32", codes(4, 16).view(np.int32)), "w_scale": tensor("F32", X[:4, :1])},
        r"tensor 'w_packed' must be U8 or F4 .* with scales U8 \(..., K/32\); got I32",
    ),
    "nvfp4": (
        {"w": tensor("U8", codes(4, 16)), "w_scale": tensor("F8_E4M3", codes(4, 2))},
        "tensor 'w' must be U8.*got U8 .* with 'w_scale' F8_E4M3",
    ),
    "blocks of 64": (
        {"w": tensor("F8_E4M3", codes(256, 256)), "w_scale_inv": tensor("F32", numbers(4, 4))},
        r"tensor 'w_scale_inv' must be \(2, 2\) \(blocks of 128 x 128\).*got F32 \(4, 4\); 'w' is F8_E4M3",
    ),
    "scales of a wrong type": (
        {"w": tensor("F8_E4M3", codes(4, 8)), "w_scale": tensor("I32", np.zeros(1, np.int32))},
        "tensor 'w_scale' must be U8, F8_E8M0, F32, F16 or BF16; got I32",
    ),
    "two scales": (
        {"w": tensor("F8_E4M3", codes(4, 8)), "w_scale": tensor("F32", np.float32(1)),
         "w_scale_inv": tensor("F32", np.float32(1))},
        "tensor 'w' must have one tensor of scales; got 'w_scale_inv', 'w_scale'",
    ),
    "two of one name": (
        {"w": tensor("F32", X), "w_packed": tensor("U8", codes(4, 16)), "w_scale": tensor("U8", codes(4, 1))},
        "one array must have the name 'w'; got two",
    ),
    "fnuz": (
        {"w": tensor("F8_E4M3FNUZ", codes(4, 16))},
        "tensor 'w' .*is not the OCP type float8_e4m3fn: convert the values",
    ),
    "fp6 of its own type": ({"w": tensor("F6_E2M3", codes(4, 3), (4, 4))}, "tensor 'w' must have scales"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_KNOWN)
def test_layouts_that_are_not_known(kind: str, tmp_path: Path) -> None:
    tensors, text = NOT_KNOWN[kind]
    path = write(tmp_path / "x", tensors | {"other": tensor("F32", X)})
    with pytest.raises(ValueError, match=f"^load: .*x: {text}"):
        hg.load(path)
    same(hg.load(path, ["other"])["other"], X)  # the rest is good


# ---- checkpoints of several files


def checkpoint(folder: Path) -> dict[str, str]:
    """Two files: a weight is in one and its scales in the other."""
    parts = list(gpt_oss().items())
    places = {}
    for i, half in enumerate((parts[:2], parts[2:])):
        name = f"model-0000{i + 1}-of-00002.safetensors"
        write(folder / name, dict(half))
        places |= {tensor: name for tensor, _ in half}
    return places


def test_folder_and_index(tmp_path: Path) -> None:
    places = checkpoint(tmp_path)
    alone = hg.load(write(tmp_path / "alone", gpt_oss()))
    index = tmp_path / "model.safetensors.index.json"
    for given in (tmp_path, index, str(index), os.fsencode(tmp_path)):
        if given == index:
            index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
        loaded = hg.load(given)
        assert set(loaded) == set(alone)
        for name, x in alone.items():
            same(loaded[name], x)
    assert set(hg.load(tmp_path)) == set(alone)  # through the index now


def test_faults_of_an_index(tmp_path: Path) -> None:
    places = checkpoint(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    other = "model-00002-of-00002.safetensors"
    for value, text in (
        ([], "must hold a JSON object"),
        ({}, "weight_map must have"),
        ({"weight_map": {"a": "../x.safetensors"}}, "in the same folder"),
        ({"weight_map": {"a": 1}}, "in the same folder"),
        ({"weight_map": {"a": other}}, "must hold tensor 'a'"),
        ({"weight_map": {next(iter(places)): other}}, "must hold tensor"),
    ):
        index.write_text(json.dumps(value))
        with pytest.raises(ValueError, match=f"^load: .*{text}"):
            hg.load(tmp_path)
    index.write_text('{"weight_map": ')
    with pytest.raises(ValueError, match=r"^load: .*index\.json: the file must be JSON"):
        hg.load(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "missing.safetensors"}}))
    with pytest.raises(FileNotFoundError):
        hg.load(tmp_path)
    index.unlink()
    write(tmp_path / "model-3.safetensors", {next(iter(places)): tensor("F32", X)})
    with pytest.raises(ValueError, match=r"^load: .*names of tensors in a checkpoint must differ"):
        hg.load(tmp_path)


# ---- paths, and arguments of save


def test_paths_fail_as_open_does(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(FileNotFoundError, match=r"x\.safetensors"):
        hg.load(path)
    with pytest.raises(FileNotFoundError, match="no file with the suffix"):
        hg.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        hg.save(tmp_path / "missing" / "x", {})
    with pytest.raises(IsADirectoryError):
        hg.save(tmp_path, {})
    for function in (lambda: hg.load("/dev/null"), lambda: hg.save("/dev/null", {})):
        with pytest.raises(ValueError, match=r"(load|save): .*path must be that of a file"):
            function()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="path must be that of a file; got a device, a pipe"):
        hg.load(path)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "x")
    hg.save(tmp_path / "link", {"x": X})
    assert (tmp_path / "link").is_symlink()
    same(hg.load(tmp_path / "x")["x"], X)


@pytest.mark.parametrize(
    ("arrays", "error", "text"),
    [
        ([X], TypeError, "arrays must be a mapping of names to arrays; got list"),
        ({1: X}, TypeError, "names of arrays must be str; got 1"),
        ({"__metadata__": X}, ValueError, "names of arrays must be Unicode, and not __metadata__"),
        ({"\ud800": X}, ValueError, "names of arrays must be Unicode"),
        ({"x": [1.0]}, TypeError, r"arrays\['x'\] must be a numpy.ndarray .* got list; convert it"),
        ({"x": np.ma.array(X)}, TypeError, r"arrays\['x'\] must be .* masks are not supported"),
        ({"x": np.array(["a"])}, TypeError, r"arrays\['x'\].dtype must be .*got <U1"),
        ({"x": X.astype(ml_dtypes.float8_e4m3fnuz)}, TypeError, ".* is not the OCP type"),
        ({"x": X.astype(ml_dtypes.float4_e2m1fn)}, TypeError, ".* fewer than 8 bits need scales"),
        ({"x": QUANTIZED["mxfp8_e4m3"], "x_scale": X}, ValueError,
         r"the tensors of arrays\['x_scale'\] must have names of their own; got 'x_scale' twice"),
        ({"x": reference.quantize_mxfp8(X, axis=0, group_offsets=np.array([0, 5, 130]))}, ValueError,
         r"arrays\['x'\] must be quantized without group_offsets"),
    ],
)  # fmt: skip
def test_what_save_refuses(arrays: Any, error: type[Exception], text: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=f"^save: {text}"):
        hg.save(tmp_path / "x", arrays)
    assert not list(tmp_path.iterdir())


class Interrupted(Exception):
    pass


def test_a_file_is_complete_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    hg.save(path, {"x": X})
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(progress.Progress, "add", fail)
    with pytest.raises(Interrupted):
        hg.save(path, {"x": X + 1})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# ---- progress


def test_progress_is_reported_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = seconds = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    def slow(self: Any, nbytes: int) -> None:
        nonlocal now
        now += seconds
        add(self, nbytes)

    add = progress.Progress.add
    monkeypatch.setattr(progress, "time", Clock)
    monkeypatch.setattr(progress.Progress, "add", slow)
    path = tmp_path / "x"
    for each in (0.3, 0.6):
        seconds = each
        hg.save(path, {"x": X, "y": X, "z": X})
        text = capsys.readouterr().err
        assert bool(text) == (each > 0.5)
        hg.load(path)
        text += capsys.readouterr().err
    assert text.startswith(f"save: {path}: 0.00 of 0.00 GB, 0.00 GB/s\n")
    assert f"load: {path}: " in text
    with hg.config(progress=False):
        hg.load(path)
    assert capsys.readouterr().err == ""


# ---- damaged files

ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
DAMAGED = {
    "empty": (b"", "must begin with 8 bytes of length; got 0 bytes"),
    "seven bytes": (b"\x02" + bytes(6), "must begin with 8 bytes of length; got 7 bytes"),
    "header too long": (struct.pack("<Q", 100_000_001) + b"{}", "at most 100000000 bytes; got 100000001"),
    "huge length": (struct.pack("<Q", 2**64 - 1) + b"{}", "at most 100000000 bytes"),
    "truncated header": (file_of({"x": ENTRY}, bytes(4))[:20], "hold a header of .*is it truncated"),
    "truncated data": (file_of({"x": ENTRY}, bytes(3)), "4 bytes must follow the header; got 3; is the file"),
    "trailing bytes": (file_of({"x": ENTRY}, bytes(5)), "4 bytes must follow the header; got 5"),
    "no header": (file_of(b""), "must begin with {"),
    "space first": (file_of(b" {}"), "must begin with {"),
    "list": (file_of([]), "must begin with {"),
    "no JSON": (file_of(b"{]"), "the header must be JSON"),
    "two values": (file_of(b"{}{}"), "the header must be JSON"),
    "nested": (file_of(b'{"x":' + b"[" * 200_000), "nested too deeply|must be JSON"),
    "no UTF-8": (file_of(b'{"\xff": 1}'), "must be UTF-8"),
    "half a surrogate": (file_of(b'{"\\ud800": 1}'), "must be UTF-8"),
    "twice": (file_of(b'{"x":1,"x":1}'), "names in the header must differ; got 'x' twice"),
    "twice inside": (file_of(b'{"x":{"dtype":"U8","dtype":"I8"}}'), "must differ; got 'dtype' twice"),
    "NaN": (file_of(b'{"x":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}'), "must be ints; got 'NaN'"),
    "digits": (file_of(b'{"x":{"dtype":"U8","shape":[' + b"9" * 5000 + b"]}}"), "must be JSON"),
    "float": (file_of(b'{"x":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}}'), "must be ints; got '4.0'"),
    "metadata": (file_of({"__metadata__": {"a": 1}}), "__metadata__ must hold text"),
    "metadata list": (file_of({"__metadata__": [1]}), "__metadata__ must hold text"),
    "no object": (file_of({"x": 1}), "tensor 'x' must have dtype, shape and data_offsets; got 1"),
    "no shape": (file_of({"x": {"dtype": "U8", "data_offsets": [0, 4]}}), "must have dtype, shape and"),
    "dtype": (file_of({"x": ENTRY | {"dtype": "F128"}}, bytes(4)), "one of the dtypes .*got 'F128'"),
    "dtype list": (file_of({"x": ENTRY | {"dtype": ["U8"]}}, bytes(4)), "one of the dtypes"),
    "negative": (file_of({"x": ENTRY | {"shape": [-4]}}, bytes(4)), "a shape of at most 32 ints"),
    "true": (file_of({"x": ENTRY | {"shape": [True, 4]}}, bytes(4)), "must have a shape"),
    "many axes": (file_of({"x": ENTRY | {"shape": [4] + [1] * 40}}, bytes(4)), "a shape of at most 32"),
    "huge": (file_of({"x": ENTRY | {"shape": [2**40, 2**40, 0]}}), "fewer than 2\\*\\*60 elements"),
    "size": (file_of({"x": ENTRY | {"shape": [5]}}, bytes(4)), r"U8 \(5,\) must have 5 bytes; got 4"),
    "overflow": (file_of({"x": ENTRY | {"shape": [2**32, 2**32]}}, bytes(4)), "fewer than"),
    "offsets": (file_of({"x": ENTRY | {"data_offsets": [4, 0]}}, bytes(4)), "two data_offsets in order"),
    "negative offset": (file_of({"x": ENTRY | {"data_offsets": [-4, 0]}}, bytes(4)), "two data_offsets"),
    "three offsets": (file_of({"x": ENTRY | {"data_offsets": [0, 4, 4]}}, bytes(4)), "two data_offsets"),
    "hole before": (file_of({"x": ENTRY | {"data_offsets": [1, 5]}}, bytes(5)),
                    "'x' must begin at byte 0, where the header ends; got 1; holes and overlaps"),
    "hole between": (file_of({"x": ENTRY, "y": ENTRY | {"data_offsets": [5, 9]}}, bytes(9)),
                     "'y' must begin at byte 4, where tensor 'x' ends; got 5"),
    "overlap": (file_of({"x": ENTRY, "y": ENTRY | {"data_offsets": [3, 7]}}, bytes(7)), "'y' must begin at"),
    "same bytes": (file_of({"x": ENTRY, "y": ENTRY}, bytes(4)), "'y' must begin at byte 4"),
    "bool": (file_of({"x": ENTRY | {"dtype": "BOOL"}}, b"\0\1\2\0"), "of BOOL must hold bytes of 0 and 1"),
    "record": (file_of({"__metadata__": {"hipgemm": "{"}, "x": ENTRY}, bytes(4)), "a record of version 1"),
    "version": (file_of({"__metadata__": {"hipgemm": '{"version":2,"arrays":{}}'}, "x": ENTRY}, bytes(4)),
                "must be a record of version 1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    content, text = DAMAGED[kind]
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=f"^load: .*x: .*(?:{text})"):
        hg.load(tmp_path / "x")


WRONG: dict[str, list[dict[str, Any]]] = {
    "mxfp6 of 45": [
        {"shape": [130, 44]}, {"shape": [130, 48]}, {"shape": [65, 90]}, {"shape": []}, {"hadamard": True},
        {"block": [128, 128]}, {"unpacked": 1}, {"scale": "x"}, {"data": "x_scale"},
    ],
    "mxfp4 transformed": [
        {"signs": -1}, {"signs": 2**64}, {"signs": 1.5}, {"hadamard": 1}, {"format": "mxfp6_e2m3"},
    ],
    "rows of fp8_e4m3": [
        {"format": "fp8_e5m2"}, {"format": "mxfp8_e4m3"}, {"block": [1, 128]}, {"amax": "y"}, {"amax": "x"},
        {"axis": 0}, {"axis": -3}, {"axis": True}, {"format": 1},
    ],
    "blocks of fp8_e4m3": [{"block": [128, 1]}, {"block": None}, {"block": 128}, {"axis": -3}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "change"), [(name, x) for name, changes in WRONG.items() for x in changes])
def test_records_that_do_not_fit(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    hg.save(tmp_path / "x", {"x": QUANTIZED[name]})
    content = (tmp_path / "x").read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    record = json.loads(header["__metadata__"]["hipgemm"])
    record["arrays"]["x"] |= change
    header["__metadata__"]["hipgemm"] = json.dumps(record)
    (tmp_path / "x").write_bytes(file_of(header, content[8 + length :]))
    with pytest.raises(ValueError, match=r"^load: .*the record of array 'x' must fit its tensors"):
        hg.load(tmp_path / "x")


WORDS: list[Any] = [
    0,
    1,
    2,
    3,
    4,
    16,
    32,
    33,
    44,
    47,
    48,
    64,
    96,
    -1,
    -2,
    -3,
    2**31,
    2**62,
    10**30,
    1.5,
    True,
    None,
]
WORDS += [
    "U8",
    "F4",
    "F8_E4M3",
    "F8_E8M0",
    "F6_E2M3",
    "F32",
    "BF16",
    "BOOL",
    "w",
    "w_scale",
    "u",
    "axis",
    [4, 64],
]
WORDS += ["mxfp6_e2m3", "fp8_e5m2", [1, 128], [128, 128], [0, 0], [6, 96], [6, 3], 2**64, "", [], {}]


def replace_part(x: Any, rng: np.random.Generator, inside: bool = False) -> Any:
    """Replace, remove or rename one part of a value of JSON."""
    if isinstance(x, str) and x.startswith("{"):
        return json.dumps(replace_part(json.loads(x), rng))
    if not isinstance(x, (dict, list)) or not x or (inside and rng.integers(8) == 0):
        return deepcopy(WORDS[rng.integers(len(WORDS))])
    keys = list(x) if isinstance(x, dict) else list(range(len(x)))
    key = keys[rng.integers(len(keys))]
    kind = rng.integers(12)
    if kind == 0:
        del x[key]
    elif kind == 1 and isinstance(x, dict):
        x[str(WORDS[rng.integers(len(WORDS))])] = x.pop(key)
    else:
        x[key] = replace_part(x[key], rng, True)
    return x


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """Change bytes of a file, or parts of its header."""
    (length,) = struct.unpack_from("<Q", content)
    header, data = content[8 : 8 + length], content[8 + length :]
    kind, at, byte = rng.integers(8), int(rng.integers(len(content))), bytes([rng.integers(256)])
    if kind == 0:
        return content[:at] + byte + content[at + 1 :]
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + byte + content[at:]
    if kind == 3:
        at %= length
        header = header[:at] + header[at + int(rng.integers(1, 9)) :]
        return struct.pack("<Q", len(header)) + header + data
    parts = json.loads(header)
    for _ in range(rng.integers(1, 4)):
        parts = replace_part(parts, rng)
    return file_of(parts, data)


def sources(tmp_path: Path) -> list[bytes]:
    """Files with a record, in published layouts, and of plain arrays."""
    small = {"e4": X[:3, :4].astype(E4M3), "b": X[:2, :2] > 0, "f": X[:3], "z": np.zeros((0, 2), np.float64)}
    hg.save(tmp_path / "a", small)
    hg.save(tmp_path / "b", {
        "w": reference.quantize_mxfp4(X[:4, :64], signs=3), "v": reference.quantize_mxfp6(X[:4, :45]),
        "u": reference.quantize_fp8(X[:4], block=(1, 128)), "t": reference.quantize_fp8(X[:4], axis=-1).T,
        "s": reference.quantize_mxfp8(EXPERTS, axis=0),
    })  # fmt: skip
    write(tmp_path / "c", gpt_oss())
    write(tmp_path / "d", {
        "w": tensor("F8_E4M3", codes(6, 96)), "w_scale": tensor("U8", codes(6, 3)),
        "v_packed": tensor("U8", codes(6, 48)), "v_scale": tensor("U8", codes(6, 3)),
        "u": tensor("F8_E5M2", codes(6, 96)), "u_scale_inv": tensor("F32", numbers(1, 1)),
        "t": tensor("U8", codes(6, 72)), "t_scale": tensor("U8", codes(6, 3)),
    })  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": QUARK}))
    return [(tmp_path / name).read_bytes() for name in "abcd"]


def test_mutated_files_load_right_or_raise(tmp_path: Path) -> None:
    """What loads is what the package safetensors reads from it; nothing else happens, and memory is small."""
    contents = sources(tmp_path)
    rng = np.random.default_rng(18)
    path = tmp_path / "x"
    loaded = 0
    tracemalloc.start()
    for i in range(4000):
        if i == 1000:
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
            tracemalloc.stop()
        content = mutate(contents[i % len(contents)], rng)
        path.write_bytes(content)
        try:
            arrays = hg.load(path)
        except ValueError as error:
            message = str(error)
            assert message.startswith("load: "), content
            continue
        loaded += 1
        theirs = dict(safetensors.deserialize(content))
        for name, x in arrays.items():
            if isinstance(x, hg.ScaledArray):
                try:
                    hg.dequantize(x)
                except ValueError as error:
                    pytest.fail(f"{error} for {content!r}")
            else:
                assert x.tobytes() == bytes(theirs[name]["data"]), content
                assert x.shape == tuple(theirs[name]["shape"]), content
    assert 300 < loaded < 3000
