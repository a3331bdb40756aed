"""Random calls of `rms_norm`, `softmax` and the arithmetic of arrays, generated from a seed and checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fuzz import BF16, F16, F32
from test_elementwise import assert_same, some_index
from test_normalize import QUANTIZERS, assert_near

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED

TYPES = (BF16, F16, F32)
LENGTHS = (
    1,
    2,
    8,
    16,
    31,
    32,
    33,
    64,
    100,
    128,
    511,
    512,
    513,
    1000,
    1024,
    1025,
    2048,
    2880,
    4100,
    16384,
    16400,
)


@dataclass
class Case:
    """A call."""

    operation: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)


def make(seed: int) -> Case:
    """Make a case."""
    rng = np.random.default_rng(seed)

    def some(*among: Any) -> Any:
        return among[rng.integers(len(among))]

    operation = some("softmax", "rms_norm", "rms_norm", "arithmetic")
    lead = tuple(int(n) for n in rng.integers(0 if rng.random() < 0.1 else 1, 7, rng.integers(0, 3)))
    shape = (*lead, some(*LENGTHS))
    case = Case(operation, shape, some(*TYPES), some("dense", "rows of more", "transposed", "reversed"), seed)
    if operation == "softmax":
        case.options = {"scale": some(1.0, 0.125, -2.0), "causal": len(shape) > 1 and bool(rng.integers(2))}
        if not case.options["causal"]:
            case.options["axis"] = int(rng.integers(-len(shape), len(shape)))
    elif operation == "rms_norm":
        case.options = {
            "eps": some(1e-6, 0.5),
            "weight": some(*TYPES),
            "residual": some(None, None, *TYPES),
            "out_format": some(None, *QUANTIZED),
        }
    return case


def placed(x: Any, layout: str) -> hg.DeviceArray:
    """The values of x on the device, among NaN or in another order."""
    if layout == "rows of more":
        wide = hg.asarray(np.full((*x.shape[:-1], x.shape[-1] + 5), np.nan, x.dtype))
        wide[..., 3:-2] = x
        return wide[..., 3:-2]
    if layout == "transposed":
        return hg.asarray(np.ascontiguousarray(x.T)).T
    if layout == "reversed":
        return hg.asarray(np.ascontiguousarray(x[::-1]))[::-1]
    return hg.asarray(x)


def run(case: Case) -> None:
    """Run a case, twice, and check it."""
    rng = np.random.default_rng(case.seed)
    x = (rng.standard_normal(case.shape) * np.exp2(rng.uniform(-3, 3))).astype(case.dtype)
    given = placed(x, case.layout)
    {"softmax": _softmax, "rms_norm": _rms_norm, "arithmetic": _arithmetic}[case.operation](
        case, rng, x, given
    )


def _softmax(case: Case, rng: np.random.Generator, x: Any, given: hg.DeviceArray) -> None:
    got = hg.softmax(given, **case.options).get()
    spread = np.abs(x.astype(F32)).max(initial=0) * abs(case.options["scale"])
    assert_near(got, reference.softmax(x, **case.options), case.dtype, 48 + 4 * spread)
    again = hg.softmax(given, **case.options).get()
    assert got.tobytes() == again.tobytes()


def _rms_norm(case: Case, rng: np.random.Generator, x: Any, given: hg.DeviceArray) -> None:
    options = dict(case.options)
    weight = rng.standard_normal(case.shape[-1]).astype(options.pop("weight"))
    added, form = options.pop("residual"), options.pop("out_format")
    wide = x.astype(F32)
    if added is not None:
        r = rng.standard_normal(case.shape).astype(added)
        options["residual"] = placed(r, case.layout)
        wide = wide + r.astype(F32)
    total_type = case.dtype if added == case.dtype else F32
    made = hg.rms_norm(given, weight, **options)
    y, total = made if added is not None else (made, None)
    assert_near(y.get(), reference.rms_norm(wide, weight, eps=options["eps"]), case.dtype, 24)
    if total is not None:
        assert_same(total, wide.astype(total_type))
    if form is None:
        return
    states = () if QUANTIZED[form].block else (hg.AmaxState(3.0), hg.AmaxState(3.0))
    made = hg.rms_norm(given, weight, **options, out_format=form, out_amax=states[0] if states else None)
    q = (made if added is None else made[0]).get()
    exact = hg.rms_norm(hg.asarray(wide), weight, eps=options["eps"])
    want = QUANTIZERS[form.split("_")[0]](exact, *states[1:], format=form).get()
    assert q.data.tobytes() == want.data.tobytes()
    assert q.scale.tobytes() == want.scale.tobytes()


def _arithmetic(case: Case, rng: np.random.Generator, x: Any, given: hg.DeviceArray) -> None:
    shape = tuple(1 if rng.random() < 0.3 else n for n in case.shape)[int(rng.integers(len(case.shape))) :]
    y = rng.standard_normal(shape).astype(case.dtype)
    other = placed(y, case.layout) if len(shape) == len(case.shape) else hg.asarray(y)
    assert_same(given + other, (x.astype(F32) + y.astype(F32)).astype(case.dtype))
    assert_same(other * given, (y.astype(F32) * x.astype(F32)).astype(case.dtype))
    for to in TYPES:
        assert_same(given.astype(to), x.astype(to))
    if x.size:
        index = some_index(rng, case.shape)
        given[index] = given[index] + 1
        x[index] = (x[index].astype(F32) + 1).astype(case.dtype)
        assert_same(given, x)
