"""Each public function with an array that was freed: the error names the function and the argument."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hostile import (
    F32,
    NONE,
    ROWS,
    Row,
    arrays_in,
    case,
    just,
    numbers,
    offsets,
    on_device,
    path,
    resident,
    saved,
)

import hipgemm as hg
from hipgemm.products.run import plans


def uploaded(x: Any) -> Any:
    """An argument, with all its arrays on the device."""
    on_host = isinstance(x, np.ndarray) or (isinstance(x, hg.ScaledArray) and x.device is None)
    return hg.asarray(x) if on_host else x


def ones(*shape: int) -> Callable[[], hg.DeviceArray]:
    return lambda: hg.asarray(np.ones(shape, F32))


_kept: list[hg.DeviceArray] = []


def offsets_on_device() -> hg.DeviceArray:
    """The same array each time, as for the operands of a product; another one if it was freed."""
    if not _kept or _kept[-1].freed:
        _kept.append(hg.asarray(offsets()))
    return _kept[-1]


def in_groups(*shape: int) -> Callable[[], hg.ScaledArray]:
    """Blocked by groups."""
    return lambda: hg.quantize_mxfp8(hg.asarray(numbers(*shape)), axis=0, group_offsets=offsets_on_device())


def pair(*shape: int) -> Callable[[], Any]:
    return lambda: hg.quantize_both(hg.asarray(numbers(*shape)), "mxfp8_e4m3")


def sharded(rows: int, columns: int, axis: int | None) -> Callable[[], hg.ShardedArray]:
    """Blocked along the longer axis."""
    blocked = int(columns > rows)
    return lambda: hg.shard(hg.quantize_mxfp8(numbers(rows, columns), axis=blocked), [0, 0], axis=axis)


# Other paths to the same functions: other operands, caches of reordered scales, epilogues on the device.
OFFSETS = {"group_offsets": offsets_on_device}
WEIGHTS = {"b": resident(32, 8, axis=0), "col_scale": NONE, "bias": NONE}
PATHS = [
    path("matmul", "vectors on the device", out=ones(4, 8), dtype=NONE, alpha=ones()),
    path("matmul", "weight-only", **WEIGHTS),
    path("matmul", "batched", **WEIGHTS | {"a": resident(2, 4, 32), "b": resident(2, 32, 8, axis=1)}),
    path(
        "matmul",
        "fp8 blocks",
        a=lambda: hg.quantize_fp8(hg.asarray(numbers(4, 256)), block=(1, 128)),
        b=lambda: hg.quantize_fp8(hg.asarray(numbers(8, 256)), block=(128, 128)).T,
    ),
    path("grouped_matmul", "mxfp8", x=resident(8, 32), w=resident(3, 32, 16, axis=1), **OFFSETS),
    path("grouped_matmul", "weight-only", w=resident(3, 32, 16, axis=1), **OFFSETS),
    path("grouped_wgrad", "mxfp8", dy=in_groups(8, 16), x=in_groups(8, 32), **OFFSETS),
    path("grouped_wgrad", "accumulate", out=ones(3, 16, 32), recipe=just("mxfp8"), accumulate=just(True)),
    *(
        path(
            "sharded_matmul of parts",
            f"mxfp8, {split}",
            a=sharded(4, 64, a),
            b=sharded(64, 8, b),
            split=just(split),
        )
        for split, a, b in (("m", 0, None), ("n", None, 1), ("k", 1, 0))
    ),
    path("linear fp8", "states", x_amax=hg.AmaxState, w_amax=hg.AmaxState),
    path("linear_backward", "fp8", saved=lambda: saved(recipe="fp8"), dy_amax=hg.AmaxState),
    path("linear_backward", "quantized", dy=pair(4, 8), saved=lambda: saved(recipe="mxfp8")),
    path("quantize_fp8", "amax of rows", amax=ones(4, 1), axis=just(-1)),
    path("quantize_fp8", "blocks", x=on_device(4, 256), amax=NONE, block=just((1, 128))),
    path("quantize_mxfp8 by groups", "on the device", **OFFSETS),
]
PLAIN = {
    "pack_fp4",
    "unpack_fp4",
    "pack_fp6",
    "unpack_fp6",
    "DeviceArray.free",
    "can_use",
}  # of no such array
TAKEN = [x for x in ROWS if x.name.split(".")[0] not in ("reference", "testing") and x.name not in PLAIN]


def arguments(taken: Row, to_device: bool) -> dict[str, Any]:
    return {name: uploaded(make()) if to_device else make() for name, make in taken.arguments.items()}


@pytest.mark.parametrize("taken", [case(x) for x in (*TAKEN, *PATHS)])
@pytest.mark.parametrize("when", ["first call", "planned", "after a call with it"])
def test_the_error_names_the_array(taken: Row, when: str) -> None:
    to_device = taken.function not in (hg.ScaledArray, hg.DeviceArray.get)  # which take arrays of the host
    for name, x in arguments(taken, to_device).items():
        for part in (["itself"] if isinstance(x, hg.DeviceArray) else []) + list(arrays_in(x)):
            if when == "first call":
                plans.clear()
            else:
                taken.call(arguments(taken, to_device))
            values = arguments(taken, to_device)
            if when == "after a call with it":
                taken.call(values)
            (values[name] if part == "itself" else arrays_in(values[name])[part]).free()
            with pytest.raises(ValueError, match="must be in memory; got an array that was freed") as caught:
                taken.call(values)
            named = "the array|the state|parts" if name == "self" else rf"{name}\S*"
            assert re.fullmatch(
                rf"{taken.prefix}: ({named}) must be in memory; got an array that was freed",
                str(caught.value),
            ), f"{name}, {part}"
            hg.synchronize()
