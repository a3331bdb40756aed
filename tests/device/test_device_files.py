"""Files of arrays on devices: round trips, host memory, progress."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.formats.elements import QUANTIZED
from hipgemm.runtime import hip as _hip

BF16 = np.dtype(ml_dtypes.bfloat16)


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def same(x: Any, y: Any) -> None:
    """Equal in everything but the place, bit for bit."""
    if isinstance(x, hg.ScaledArray):
        for name in ("format", "shape", "axis", "hadamard", "signs", "block"):
            assert getattr(x, name) == getattr(y, name), name
        assert (x.amax is None) == (y.amax is None)
        for part in ["data", "scale"] if x.amax is None else ["data", "scale", "amax"]:
            same(getattr(x, part), getattr(y, part))
        return
    x, y = (a.get() if isinstance(a, hg.DeviceArray) else np.asarray(a) for a in (x, y))
    assert (x.shape, x.dtype, x.tobytes()) == (y.shape, y.dtype, y.tobytes())


X, EXPERTS = numbers(130, 160), numbers(3, 64, 160)
BLOCKS: list[dict[str, Any]] = [{}, {"axis": -1}, {"axis": 0}, {"block": (128, 128)}, {"block": (1, 128)}]


def quantized(x: Any, experts: Any) -> dict[str, Any]:
    """Arrays of every format, along the last and the first axis."""
    found: dict[str, Any] = {}
    for format in ("fp8_e4m3", "fp8_e5m2"):
        for options in BLOCKS:
            found[f"{format} {options}"] = hg.quantize_fp8(x, format=format, **options)
        found[f"{format} columns"] = hg.quantize_fp8(x, format=format, block=(1, 128)).T
    for format in QUANTIZED:
        if format.startswith("mx"):
            found[format], columns = hg.quantize_both(x[:128], format)
            found[f"{format} columns"], found[f"{format} transposed"] = columns, found[format].T
    found["odd"] = hg.quantize_mxfp6(x[:, :45])
    found["experts"] = hg.quantize_mxfp4(experts, hadamard=False)
    found["experts columns"] = hg.quantize_mxfp4(experts, axis=-2, signs=7)
    found["experts by the first axis"] = hg.quantize_mxfp8(experts, axis=0)
    return found


PLAIN = {
    "bf16": X.astype(BF16),
    "f16": X.astype(np.float16),
    "f32": X,
    "columns first": X.T,
    "e5m2": X.astype(ml_dtypes.float8_e5m2),
    "0-d": np.float32([3]).reshape(()),
    "empty": np.zeros((0, 5), np.float32),
    "bool": X > 0,
}


@pytest.mark.parametrize("saved_on", ["host", "device"])
@pytest.mark.parametrize("device", [None, 0])
def test_every_format_round_trips(saved_on: str, device: int | None, tmp_path: Path) -> None:
    arrays = PLAIN | quantized(X, EXPERTS)
    given = arrays
    if saved_on == "device":
        given = {name: hg.asarray(x) for name, x in arrays.items()}
        given |= quantized(hg.asarray(X), hg.asarray(EXPERTS))
        given["sliced"] = given["f32"][1::2, ::3]
    hg.save(tmp_path / "x", given)
    loaded = hg.load(tmp_path / "x", device=device)
    assert list(loaded) == list(given)
    for name, x in given.items():
        y = loaded[name]
        assert isinstance(y, np.ndarray) or y.device == device
        if device is None:
            x = x.get() if getattr(x, "device", None) == 0 else x
            same(x, y.get() if isinstance(y, hg.ScaledArray) else y)
        else:
            same(x if saved_on == "device" else hg.asarray(x), y)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["mxfp4_e2m1", "mxfp6_e3m2 columns", "fp8_e4m3 {'block': (128, 128)}"])
def test_products_read_what_was_loaded_in_place(name: str, tmp_path: Path) -> None:
    """Rows have the layout that `asarray` gives them, and nothing is copied for a product."""
    w = quantized(X, EXPERTS)[name]
    hg.save(tmp_path / "x", {"w": w})
    loaded, uploaded = hg.load(tmp_path / "x", device=0)["w"], hg.asarray(w)
    assert (loaded.data.strides, loaded.data.padded) == (uploaded.data.strides, uploaded.data.padded)
    if loaded.axis == -1:
        loaded, uploaded = loaded.T, uploaded.T
    x = hg.asarray(numbers(64, loaded.shape[0]).astype(BF16))
    if w.block is not None:
        x = hg.quantize_fp8(x, axis=-1)
    elif w.hadamard:
        x = hg.quantize_mxfp4(x)
    want = hg.matmul(x, uploaded)
    hg.reset_usage()
    same(hg.matmul(x, loaded), want)
    assert not hg.usage().copies


def test_host_memory_is_bounded(run_python: Callable[..., Any], tmp_path: Path) -> None:
    """Beyond what the device itself takes on the emulator: pinned buffers, and a part of the file."""
    size = 384 << 20
    path = tmp_path / "x"
    hg.save(path, {"x": np.zeros(size, np.uint8)})
    done = run_python(
        "import resource, hipgemm as hg, numpy as np\n"
        "hg.asarray(np.zeros(64 << 20, np.uint8)).free(); hg.trim()\n"
        "def resident(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n"
        "before = resident()\n"
        f"x = hg.load({str(path)!r}, device=0)['x']\n"
        "loaded = resident()\n"
        f"hg.save({str(path)!r} + '2', {{'x': x}})\n"
        "print(loaded - before, resident() - before, hg.info().runtime)"
    )
    assert done.returncode == 0, done.stderr
    loaded, saved, runtime = done.stdout.split()
    device = size if runtime == "emulator" else 0
    assert int(loaded) < device + (128 << 20)
    assert int(saved) < device + (192 << 20)


def test_no_device_memory_is_lost(tmp_path: Path, free_bytes: Callable[[], int]) -> None:
    hg.save(tmp_path / "x", PLAIN | quantized(X, EXPERTS))
    (tmp_path / "y").write_bytes((tmp_path / "x").read_bytes()[:-1])
    hg.load(tmp_path / "x", device=0)
    gc.collect()
    hg.synchronize()
    before = hg.memory_stats().used
    for _ in range(5):
        hg.load(tmp_path / "x", device=0)
        with pytest.raises(ValueError, match="truncated"):
            hg.load(tmp_path / "y", device=0)
    gc.collect()
    hg.synchronize()
    assert hg.memory_stats().used == before


def test_devices(tmp_path: Path) -> None:
    hg.save(tmp_path / "x", {"x": X})
    count = _hip.runtime().devices
    for device in (count, -1):
        with pytest.raises(ValueError, match=f"^load: device must be 0 to {count - 1}; got {device}"):
            hg.load(tmp_path / "x", device=device)
    x = hg.asarray(X)
    x.free()
    with pytest.raises(
        ValueError, match=r"^save: arrays\['x'\] must be in memory; got an array that was freed"
    ):
        hg.save(tmp_path / "x", {"x": x})
    with pytest.raises(TypeError, match=r"^save: arrays\['x'\] must be .*got ShardedArray"):
        hg.save(tmp_path / "x", {"x": hg.shard(X, [0, 0], axis=0)})
