"""Products with everything that may follow them; the cases together hold every pair of choices.

A result is held to its bound element by element, a quantized one to the bits of the quantizer of the float32
result of the same call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from fuzz import BF16, F16, F32, U8, Operand, kernel_formats, operand, parted
from fuzz_groups import part
from placed import Placed, place
from test_stages import FORMATS, QUANTIZERS, activated, assert_within, rounded

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.activations import ACTIVATIONS
from hipgemm.kernels.manifest import GEMMS, code_object
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, gemm_bound

OPERANDS = {  # formats, and rows of blocks of fp8
    "bf16": (("bf16", "bf16"), (0, 0)),
    "f16": (("f16", "f16"), (0, 0)),
    "fp8": (("fp8_e4m3", "fp8_e5m2"), (0, 0)),
    "fp8 blocks": (("fp8_e4m3", "fp8_e4m3"), (1, 128)),
    "fp8 in blocks of a": (("fp8_e4m3", "fp8_e5m2"), (1, 0)),
    "mxfp8": (("mxfp8_e4m3", "mxfp8_e5m2"), (0, 0)),
    "mxfp6": (("mxfp6_e2m3", "mxfp6_e3m2"), (0, 0)),
    "mxfp4": (("mxfp4_e2m1", "mxfp4_e2m1"), (0, 0)),
    "mxfp8 x mxfp4": (("mxfp8_e4m3", "mxfp4_e2m1"), (0, 0)),
    "bf16 x fp8": (("bf16", "fp8_e4m3"), (0, 0)),
    "bf16 x fp8 blocks": (("bf16", "fp8_e4m3"), (0, 128)),
    "bf16 x mxfp8": (("bf16", "mxfp8_e4m3"), (0, 0)),
    "bf16 x mxfp6": (("bf16", "mxfp6_e2m3"), (0, 0)),
    "bf16 x mxfp4": (("bf16", "mxfp4_e2m1"), (0, 0)),
}
SHAPES = {  # M, N, K
    "whole tiles": (64, 128, 128),
    "several tiles": (260, 72, 32),
    "ragged": (37, 74, 100),
    "few rows": (3, 132, 256),
    "narrow": (33, 2, 64),
    "long K": (20, 40, 520),
    "no K": (5, 12, 0),
}
TYPES = {"bf16": BF16, "f16": F16, "f32": F32}
CHOICES: dict[str, tuple[Any, ...]] = {
    "operands": tuple(OPERANDS),
    "shape": tuple(SHAPES),
    "batch": ("none", "three", "shared b", "groups", "groups and rows of none"),
    "layout a": ("rows", "columns", "any"),
    "layout b": ("rows", "columns", "any"),
    "alpha": ("none", "number", "array"),
    "col_scale": (False, True),
    "bias": ("none", *TYPES, "each"),
    "activation": (None, *ACTIVATIONS, "swiglu_oss"),
    "glu": (None, "interleaved", "halves"),
    "aux": ("none", *TYPES),
    "residual": ("none", *TYPES, "out"),
    "accumulate": (False, True),
    "out": ("new", "rows", "columns", "any", *FORMATS, "fp8_e4m3", "fp8_e5m2"),
    "dtype": tuple(TYPES),
    "where": ("host", "device", "device exactly"),
    "kernel": ("chosen", "plain", "any tile", "parts of K"),
    "exact": (False, True),
}
QUANTIZED = CHOICES["out"][4:]


@cache
def possible(name: str, x: Any, other: str, y: Any) -> bool:
    """Whether two choices can be in one call."""
    pair = {name: x, other: y}
    groups = str(pair.get("batch", "groups")).startswith("groups")
    forced = pair.get("kernel", "chosen") != "chosen"
    quantized, onto = pair.get("out") in QUANTIZED, pair.get("residual") == "out"
    return not (
        (pair.get("activation") == "swiglu_oss" and pair.get("glu", 1) is None)
        or (pair.get("accumulate") and (quantized or pair.get("out") == "new"))
        or (onto and pair.get("out", "rows") != "rows")
        or (quantized and (pair.get("exact") is False or pair.get("dtype", "f32") != "f32"))
        or (pair.get("exact") is False and pair.get("dtype") == "f16")  # values of any size
        or (pair.get("dtype") == "f16" and (pair.get("glu") or pair.get("activation") == "swiglu_oss"))
        or (pair.get("bias") == "each" and not groups)
        or (forced and "batch" in pair and groups)
        or (forced and pair.get("bias") == "each")
    )


@cache
def cases() -> list[dict[str, Any]]:
    """Choices for calls, that together hold every possible pair."""
    rng = np.random.default_rng(0)
    items = [(name, x) for name, among in CHOICES.items() for x in among]
    pairs = itertools.combinations(items, 2)
    missing = dict.fromkeys((p, q) for p, q in pairs if p[0] != q[0] and possible(*p, *q))
    found = []
    while missing:
        tried = []
        must = next(iter(missing))
        for _ in range(3):
            case = dict(must)
            for name in rng.permutation([name for name in CHOICES if name not in case]):
                open_ = [x for x in CHOICES[name] if all(possible(name, x, *y) for y in case.items())]
                if not open_:
                    break
                new = [sum(_pair((name, x), y) in missing for y in case.items()) for x in open_]
                best = [x for x, n in zip(open_, new, strict=True) if n == max(new)]
                case[str(name)] = best[rng.integers(len(best))]
            else:
                held = {_pair(p, q) for p, q in itertools.combinations(case.items(), 2)} & missing.keys()
                tried.append((len(held), len(tried), case, held))
        assert tried, f"impossible: {must}"
        _, _, case, held = max(tried, key=lambda x: x[:2])
        for pair in held:
            del missing[pair]
        found.append(case)
    return found


_ORDER = {name: i for i, name in enumerate(CHOICES)}


def _pair(p: tuple[str, Any], q: tuple[str, Any]) -> Any:
    return (p, q) if _ORDER[p[0]] < _ORDER[q[0]] else (q, p)


@dataclass
class Case:
    """One call."""

    seed: int
    how: dict[str, Any]

    def __str__(self) -> str:
        return f"case {self.seed}: {self.how}"


def make(seed: int) -> Case:
    """Make the case of a seed."""
    known = cases()
    return Case(seed, known[seed % len(known)])


def put(layout: str, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, **more: Any) -> Placed:
    """Choose a layout with contiguous rows or columns, or any."""
    while True:
        x = place(rng, shape, dtype, tame=0.0 if layout == "any" else 1.0, **more)
        if layout == "any" or min(shape[-2:]) < 2 or (x.strides[-1] <= x.strides[-2]) == (layout == "rows"):
            return x


def run(case: Case) -> None:
    """Run a case twice and check it."""
    how, rng = case.how, np.random.default_rng(case.seed)
    (m, n, k), glu, exact = SHAPES[how["shape"]], how["glu"], how["exact"]
    formats, blocks = OPERANDS[how["operands"]]
    groups = how["batch"].startswith("groups")
    lead = (3,) if how["batch"] in ("three", "shared b") else ()
    b_lead = lead if how["batch"] == "three" else (4,) if groups else ()
    a, b = (
        operand(rng, form, shape, axis, exact, False, rows, put=partial(put, how[f"layout {name}"]))
        for name, form, shape, axis, rows in zip(
            "ab", formats, ((*lead, m, k), (*b_lead, k, n)), (-1, -2), blocks, strict=True
        )
    )
    for x in (a, b):
        _finite(x)
    offsets = None
    if groups:
        end = m - min(m, 5) if how["batch"].endswith("none") else m
        offsets = np.array([0, *np.sort(rng.integers(0, end + 1, 3)), end], np.int32)
    shape, full = (*lead, m, n // 2 if glu else n), (*lead, m, n)
    dtype = TYPES[how["dtype"]]
    out = None
    if how["out"] in ("rows", "columns", "any"):
        out = put(how["out"], rng, shape, dtype, output=True)
    integers = lambda shape, dtype: rng.integers(-6, 7, shape).astype(dtype)  # noqa: E731
    old = integers(shape, dtype)
    aux = None if how["aux"] == "none" else put("rows", rng, full, TYPES[how["aux"]], output=True)
    if aux is not None and not exact and aux.dtype == F16:
        aux = put("rows", rng, full, F32, output=True)
    residual = None
    if how["residual"] in TYPES:
        residual = put("rows", rng, shape, TYPES[how["residual"]])
        residual.host[...] = integers(shape, residual.dtype)
    epilogue: dict[str, Any] = {}
    if how["alpha"] != "none":
        epilogue["alpha"] = 0.5 if exact else float(F32.type(rng.standard_normal()))
    if how["col_scale"]:
        scale = np.exp2(rng.integers(-1, 2, n)) if exact else rng.standard_normal(n)
        epilogue["col_scale"] = scale.astype(F32)
    if how["bias"] != "none":
        each = how["bias"] == "each"
        epilogue["bias"] = integers((4, n) if each else (n,), F32 if each else TYPES[how["bias"]])
    stages = {
        "activation": how["activation"],
        "glu": glu,
        "accumulate": how["accumulate"],
        "out_format": how["out"] if how["out"] in QUANTIZED else None,
    }
    given = a, b, offsets, out, old, aux, residual, epilogue, stages, dtype
    made = [_call(case, *given) for _ in range(2)]
    for one, other in zip(*made, strict=True):
        assert one.tobytes() == other.tobytes(), "other bits the second time"
    got, kept = made[0][0], made[0][-1] if aux is not None else None

    added = [] if residual is None else [residual.host]
    added += [old] * (how["residual"] == "out") + [old] * how["accumulate"]
    for where, one, other, rest, live in _products(a, b, offsets, epilogue, m):
        t = reference.matmul(reference.values(one), reference.values(other), **rest) if live else None
        if kept is not None:
            if live:
                assert_gemm_close(kept[where], one, other, exact=exact, **rest)
            else:
                assert (kept[where].view(U8) == 255).all(), "aux of rows of no group"
        if stages["out_format"]:
            continue
        if not live:
            want = old[where] if how["accumulate"] else np.zeros_like(got[where])
            assert got[where].tobytes() == np.ascontiguousarray(want).tobytes(), "rows of no group"
            continue
        slack = np.zeros_like(t) if exact else gemm_bound(one, other, dtype=F32, **rest)
        y, bound = activated(t, slack, how["activation"], glu)
        for x in added:
            x = x[where].astype(np.float64)
            bound = bound + 2.0**-23 * (abs(y) + abs(x))
            y = y + x
        if y.size:
            assert_within(got[where], y, rounded(bound, y, dtype))


def _finite(x: Operand) -> None:
    """Replace what is not finite."""
    host = x.data.host
    if host.dtype != U8:
        host[~np.isfinite(host.astype(F32))] = 1
    if x.scale is not None and x.scale.dtype == U8:
        x.scale.host[x.scale.host == 255] = 127


def _products(a: Operand, b: Operand, offsets: Any, epilogue: dict[str, Any], m: int) -> Any:
    """The products of a call: rows, operands, what follows, and whether they are in a group."""
    if offsets is None:
        yield ..., a.host, b.host, epilogue, True
        return
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        rest = dict(epilogue)
        if np.ndim(rest.get("bias")) == 2:
            rest["bias"] = rest["bias"][g]
        yield slice(begin, end), part(a.host, slice(begin, end)), part(b.host, g), rest, True
    yield slice(offsets[-1], m), None, None, {}, False


def _call(
    case: Case,
    a: Operand,
    b: Operand,
    offsets: Any,
    out: Placed | None,
    old: np.ndarray,
    aux: Placed | None,
    residual: Placed | None,
    epilogue: dict[str, Any],
    stages: dict[str, Any],
    dtype: Any,
) -> list[np.ndarray]:
    """The result, as elements and scales if it is quantized, and aux; what lies around is checked."""
    how = case.how
    there, exactly = how["where"] != "host", how["where"].endswith("exactly")
    on = (lambda x: x.device(exactly)) if there else lambda x: x.host
    given = [on(a), on(b)] + ([hg.asarray(offsets) if there else offsets] if offsets is not None else [])
    options = dict(epilogue)
    for name in options:
        if there and (name != "alpha" or how["alpha"] == "array"):
            options[name] = hg.asarray(np.asarray(options[name], F32 if name == "alpha" else None))
    target, extra = None, None
    if out is not None:
        out.memory.fill(255)
        out.host[...] = old
        target = on(out)
    if aux is not None:
        aux.memory.fill(255)
        extra = on(aux)
    options |= {**stages, "aux": extra, "residual": target if how["residual"] == "out" else None}
    if residual is not None:
        options["residual"] = on(residual)
    state = hg.AmaxState(30.0) if str(how["out"]).startswith("fp8") else None
    if out is None and not stages["out_format"]:
        options["dtype"] = dtype
    function = "matmul" if offsets is None else "grouped_matmul"
    call = getattr(hg, function)
    with _kernel(case, a, b):
        more = {"out_amax": state} if state else {}
        want = hg.can_use(function, *given, target, **options, **more)
        got = call(*given, target, **options, **more)
        if stages["out_format"]:
            options |= {"out_format": None, "dtype": F32, "aux": None}
            plain = call(*given, **options)
    assert want, want
    found = []
    if stages["out_format"]:
        form = stages["out_format"]
        rest = {"format": form} if "fp4" not in form else {"hadamard": False}
        quantize = (
            partial(hg.quantize_fp8, amax=hg.AmaxState(30.0)) if state else QUANTIZERS[form.split("_")[0]]
        )
        wanted = quantize(plain, **rest)
        for name in ("data", "scale", *(("amax",) if state else ())):
            one, other = (_host(getattr(q, name)) for q in (got, wanted))
            np.testing.assert_array_equal(one.view(U8), other.view(U8), name)
            found.append(one)
    else:
        found.append(_host(got).copy())
    for x, array in ((out, target), (aux, extra)):
        if x is None:
            continue
        memory = x.memory
        if there:
            memory = hg.DeviceArray(array._block, array.ptr - x.offset, x.memory.shape, (1,), U8).get()
        assert x.outside(memory), "bytes around an output were changed"
    if aux is not None:
        found.append(_host(extra).copy())
    return found


def _host(x: Any) -> np.ndarray:
    return np.ascontiguousarray(x.get() if isinstance(x, hg.DeviceArray) else x)


@contextmanager
def _kernel(case: Case, a: Operand, b: Operand) -> Iterator[None]:
    """Select the kernel of a case."""
    name, parts = None, 0
    if case.how["kernel"] == "plain":
        name = "plain"
    elif case.how["kernel"] != "chosen":
        known = code_object(_hip.arch(0)).kernels.values()
        served = [x.name for x in known if x.op in GEMMS and (x.a, x.b) == kernel_formats(a, b)]
        name = served[case.seed % len(served)] if served else None
        parts = 3 if name and case.how["kernel"] == "parts of K" else 0
    with hg.config(kernel=name) if name else nullcontext(), parted(parts):
        yield
