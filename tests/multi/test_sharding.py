"""Products over devices: within the bound, the same bits on every run, for every split."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.distributed import sharding
from hipgemm.formats.scaled import packed_data
from hipgemm.runtime import hip as _hip
from hipgemm.runtime import staging as _staging
from hipgemm.testing import assert_gemm_close, exact_grid, random_matrix

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [(64, 48, 96), (37, 53, 200), (3, 5, 7), (257, 130, 65)]
STAGED = [(split, glu) for split in ("m", "n", "k", "batch") for glu in (None, "interleaved")]
STAGED += [("m", "halves"), ("k", "halves"), ("batch", "halves")]
ALIASED = np.zeros((4, 8), np.float32)
AXES: dict[str, tuple[int | None, int | None]] = {"m": (0, None), "n": (None, 1), "k": (1, 0)}


def operands(m: int, n: int, k: int, rng: np.random.Generator, exact: bool = False) -> tuple[Any, Any]:
    make = exact_grid if exact else random_matrix
    return make((m, k), rng, dtype=BF16), make((n, k), rng, dtype=BF16).T


@pytest.mark.parametrize("split", ["m", "n", "k"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_within_the_bound(split: Any, shape: tuple[int, int, int], rng: Any, devices: list[int]) -> None:
    a, b = operands(*shape, rng)
    columns = shape[1]
    epilogue = {
        "alpha": 0.75,
        "col_scale": rng.standard_normal(columns).astype(np.float32),
        "bias": rng.standard_normal(columns).astype(np.float32),
    }
    out = hg.sharded_matmul(a, b, split=split, **epilogue)
    assert isinstance(out, np.ndarray)
    assert_gemm_close(out, a, b, **epilogue)
    again = hg.sharded_matmul(a, b, split=split, **epilogue)
    assert out.tobytes() == again.tobytes()


@pytest.mark.parametrize("split", ["m", "n", "k"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_exact_grids_are_exact(split: Any, dtype: Any, rng: Any, devices: list[int]) -> None:
    a, b = operands(70, 90, 100, rng, exact=True)
    out = hg.sharded_matmul(a, b, split=split, dtype=dtype)
    assert_gemm_close(out, a, b, exact=True)


@pytest.mark.parametrize("split", ["m", "n", "k"])
def test_stays_on_the_devices(split: Any, rng: Any, devices: list[int]) -> None:
    a, b = operands(80, 64, 128, rng)
    first, second = AXES[split]
    x, y = hg.shard(a, devices, axis=first), hg.shard(b, devices, axis=second)
    assert x.devices == tuple(devices)
    out = hg.sharded_matmul(x, y, split=split)
    assert isinstance(out, hg.ShardedArray)
    assert out.shape == (80, 64)
    assert out.axis == (-1 if split == "n" else -2)
    assert [part.device for part in out.parts] == devices
    assert_gemm_close(out.get(), a, b)
    assert _hip.current_device() == 0


def test_uneven_shards(rng: Any, devices: list[int]) -> None:
    a, b = operands(50, 40, 90, rng)
    some = (devices * 3)[:3]  # two may be the same
    for axis, other, split, sizes in ((0, None, "m", (0, 49, 1)), (1, 0, "k", (1, 80, 9))):
        x = hg.shard(a, some, axis=axis, sizes=sizes)
        y = hg.shard(b, some, axis=other, sizes=None if other is None else sizes)
        assert_gemm_close(hg.sharded_matmul(x, y, split=split).get(), a, b)  # type: ignore[arg-type]


def test_more_devices_than_rows(rng: Any, devices: list[int]) -> None:
    a, b = operands(2, 3, 4, rng)
    for split in ("m", "n", "k"):
        assert_gemm_close(hg.sharded_matmul(a, b, split=split), a, b)


def test_weight_gradient_over_split_rows(rng: Any, devices: list[int]) -> None:
    dy, x = random_matrix((333, 40), rng, dtype=BF16), random_matrix((333, 72), rng, dtype=BF16)
    cut = hg.shard(dy, devices, axis=0), hg.shard(x, devices, axis=0)
    out = hg.sharded_matmul(cut[0].T, cut[1], split="k", dtype=np.float32)
    assert_gemm_close(out.get(), dy.T, x)


@pytest.mark.parametrize("shared", [False, True])
def test_batch(shared: bool, rng: Any, devices: list[int]) -> None:
    a = random_matrix((10 * 33, 64), rng, dtype=BF16).reshape(10, 33, 64)
    b = random_matrix((64, 48), rng, dtype=BF16) if shared else np.stack([a[i, :24].T for i in range(10)])
    out = hg.sharded_matmul(a, b, split="batch", devices=devices)
    assert out.shape == (10, 33, b.shape[-1])
    for i in range(10):
        assert_gemm_close(out[i], a[i], b if shared else b[i])


@pytest.mark.parametrize("split", ["m", "n", "k"])
@pytest.mark.parametrize("form", ["fp8", "fp8 rows", "mxfp8", "mxfp6", "mxfp4"])
def test_quantized(split: Any, form: str, rng: Any, devices: list[int]) -> None:
    x, w = random_matrix((70, 160), rng, dtype=np.float32), random_matrix((50, 160), rng, dtype=np.float32)
    if form.startswith("fp8"):
        axis = -1 if form == "fp8 rows" else None
        a, b = hg.quantize_fp8(x, axis=axis), hg.quantize_fp8(w, axis=axis)
    else:
        quantize: Any = getattr(hg, f"quantize_{form}")
        a, b = quantize(x), quantize(w)
    out = hg.sharded_matmul(a, b.T, split=split, devices=devices, dtype=np.float32)
    assert_gemm_close(out, a, b.T)
    if form in ("mxfp6", "mxfp4"):
        p, q = (hg.ScaledArray(packed_data(y), y.scale, y.format, hadamard=y.hadamard) for y in (a, b))
        again = hg.sharded_matmul(p, q.T, split=split, devices=devices, dtype=np.float32)
        np.testing.assert_array_equal(again, out)


@pytest.mark.parametrize("split", ["m", "n", "batch"])
def test_in_pieces(split: Any, rng: Any, devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "_CHUNK_BYTES", 3000)
    a = random_matrix((9 * 21, 64), rng, dtype=BF16)
    a = a.reshape(9, 21, 64) if split == "batch" else a
    b, bias = random_matrix((64, 70), rng, dtype=BF16), rng.standard_normal(70).astype(np.float32)
    out = hg.sharded_matmul(a, b, split=split, devices=devices[:3], bias=bias)
    for got, x in zip(out, a, strict=True) if split == "batch" else [(out, a)]:
        assert_gemm_close(got, x, b, bias=bias)


@pytest.mark.parametrize("split", ["m", "k"])
def test_leading_axis(split: Any, rng: Any, devices: list[int]) -> None:
    a = random_matrix((3 * 50, 90), rng, dtype=BF16).reshape(3, 50, 90)
    b = random_matrix((90, 40), rng, dtype=BF16)
    x = hg.shard(a, devices, axis=-2 if split == "m" else -1)
    out = hg.sharded_matmul(x, b, split=split)
    assert out.axis == -2
    for i, got in enumerate(out.get()):
        assert_gemm_close(got, a[i], b)


def test_one_device_may_be_named_often(rng: Any) -> None:
    a, b = operands(30, 20, 50, rng)
    for split in ("m", "n", "k"):
        assert_gemm_close(hg.sharded_matmul(a, b, split=split, devices=[0, 0, 0]), a, b)


@pytest.mark.parametrize("split", ["m", "n", "k"])
@pytest.mark.parametrize("resident", [False, True])
def test_vectors_are_checked_whole(split: Any, resident: bool, rng: Any, devices: list[int]) -> None:
    """Not part by part: one that is too long would be truncated."""
    a, b = operands(4, 6, 16, rng)
    if resident:
        a, b = (hg.shard(x, devices[:2], axis=axis) for x, axis in zip((a, b), AXES[split], strict=True))
    where: dict[str, Any] = {} if resident else {"devices": devices[:2]}
    for length in (3, 7):
        with pytest.raises(
            ValueError, match=rf"^sharded_matmul: bias.shape must be \(N,\)=\(6,\); got \({length},\)"
        ):
            hg.sharded_matmul(a, b, split=split, bias=np.ones(length, np.float32), **where)
    with pytest.raises(TypeError, match=r"^sharded_matmul: col_scale must be a numpy.ndarray .*; got float"):
        hg.sharded_matmul(a, b, split=split, col_scale=1.0, **where)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["m", "n", "k", "batch"])
def test_calls_that_were_right_before(split: Any, rng: Any, devices: list[int]) -> None:
    """The second call of a kind uses the cached description; differences in it are still detected."""
    a, b = operands(20, 12, 64, rng, exact=True)
    axes = {**AXES, "batch": (0, 0)}[split]
    if split == "batch":
        a, b = np.stack([a] * 3), np.stack([b] * 3)
    x, y = (hg.shard(operand, devices[:2], axis=axis) for operand, axis in zip((a, b), axes, strict=True))
    bias = rng.integers(-9, 9, 12).astype(np.float32)
    sharding._plans.clear()

    def check(dtype: Any = BF16, **options: Any) -> None:
        made = hg.sharded_matmul(x, y, split=split, dtype=dtype, **options)
        assert made.dtype == made.get().dtype == dtype
        assert [part.device for part in made.parts] == list(made.devices) == devices[:2]
        assert (made.shape, made.axis) == ((*a.shape[:-1], 12), {"n": -1, "batch": -3}.get(split, -2))
        for out, one, other in (
            zip(made.get(), a, b, strict=True) if split == "batch" else [(made.get(), a, b)]
        ):
            assert_gemm_close(out, one, other, exact=True, **options)

    for _ in range(2):
        check()
        check(alpha=2.0)
        check(bias=bias)
        check(bias=-bias, col_scale=np.full(12, 2, np.float32))
        check(bias=bias.astype(np.float16))
        check(dtype=np.float32)
        assert len(sharding._plans) == 5
    for options, kind in (
        ({"bias": bias[:6]}, ValueError),
        ({"bias": hg.asarray(bias)}, TypeError),
        ({"bias": np.ma.array(bias)}, TypeError),
        ({"col_scale": bias.astype(np.float16)}, TypeError),
        ({"dtype": np.int8}, TypeError),
        ({"dtype": {}}, TypeError),
        ({"alpha": 1e39}, ValueError),
        ({"alpha": "1"}, TypeError),
        ({"timeout": -1}, ValueError),
        ({"devices": [99]}, ValueError),
    ):
        with pytest.raises(kind, match=r"^sharded_matmul: "):
            hg.sharded_matmul(x, y, split=split, **{"dtype": BF16, **options})
    for other in {"m", "n", "k"} - {split}:
        with pytest.raises(ValueError, match=f"for split={other}"):
            hg.sharded_matmul(x, y, split=other, dtype=BF16)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^sharded_matmul: .*\(K\) must equal"):
        hg.sharded_matmul(x, x, split=split, dtype=BF16)
    assert len(sharding._plans) == 5
    x.parts[0].free()
    with pytest.raises(ValueError, match=r"array (that )?was freed"):
        hg.sharded_matmul(x, y, split=split, dtype=BF16)


def test_leading_axes_broadcast(rng: Any, devices: list[int]) -> None:
    a = random_matrix((8, 16), rng, dtype=BF16)
    b = random_matrix((16, 5 * 6), rng, dtype=BF16).reshape(16, 5, 6).transpose(1, 0, 2)
    out = hg.sharded_matmul(hg.shard(a[None], devices, axis=1), b, split="m")
    assert out.shape == out.get().shape == (5, 8, 6)
    for i in range(5):
        assert_gemm_close(out.get()[i], a, b[i])


def test_sends_what_the_documents_say(rng: Any, devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    some = devices[:4]
    sent = dict.fromkeys(some, 0)
    between = _staging.copy_between_devices

    def counted(dst: int, to: int, arriving: int, src: int, source: int, leaving: int, nbytes: int) -> None:
        sent[source] += nbytes
        between(dst, to, arriving, src, source, leaving, nbytes)

    a, b = operands(96, 48, 96, rng)
    x, y = hg.shard(a, some, axis=1), hg.shard(b, some, axis=0)
    monkeypatch.setattr(_staging, "copy_between_devices", counted)
    assert_gemm_close(hg.sharded_matmul(x, y, split="k").get(), a, b)
    assert list(sent.values()) == [sharding.sent_bytes(96, 48, len(some))] * len(some)
    assert len(some) > 1
    assert min(sent.values()) > 0


def test_parts_that_are_there_already(rng: Any, devices: list[int]) -> None:
    dy, x = random_matrix((90, 16), rng, dtype=BF16), random_matrix((90, 24), rng, dtype=BF16)
    ends = [0, 50, 50, 89, 90]
    some = (devices * 4)[:4]

    def held(whole: Any) -> Any:
        cut = [hg.asarray(whole[a:b], device=d) for a, b, d in zip(ends, ends[1:], some, strict=False)]
        made = sharding.assemble(cut, axis=0)
        assert all(mine is given for mine, given in zip(made.parts, cut, strict=True))
        assert (made.shape, made.axis, made.offsets, made.devices) == (
            whole.shape,
            -2,
            tuple(ends),
            tuple(some),
        )
        assert (made.get() == whole).all()
        return made

    assert_gemm_close(hg.sharded_matmul(held(dy).T, held(x), split="k", dtype=np.float32).get(), dy.T, x)
    quantized = [
        hg.quantize_mxfp8(hg.asarray(x[a : a + 45], device=d)) for a, d in ((0, some[0]), (45, some[1]))
    ]
    weights = hg.quantize_mxfp8(random_matrix((8, 24), rng, dtype=np.float32))
    out = hg.sharded_matmul(sharding.assemble(quantized, axis=0), weights.T, split="m").get()
    assert_gemm_close(out, hg.quantize_mxfp8(x), weights.T)


def test_parts_that_do_not_fit(rng: Any, devices: list[int]) -> None:
    x = hg.asarray(random_matrix((6, 64), rng, dtype=BF16))
    make: Any = sharding.assemble
    for parts, axis, kind, text in (
        ([], 0, TypeError, "parts must be a list or tuple of one or more arrays; got list"),
        ([x, 1], 0, TypeError, "parts[1] must be a numpy.ndarray, a DeviceArray or a ScaledArray; got int"),
        ([x, x], 2, ValueError, "axis must be from -2 to 1; got 2"),
        ([x, x[:, :8]], 0, ValueError, "got bfloat16 (any, 64) and bfloat16 (any, 8)"),
        ([x, x[:3]], None, ValueError, "got bfloat16 (6, 64) and bfloat16 (3, 64)"),
        ([x, x[0]], 0, ValueError, "got bfloat16 (any, 64) and bfloat16 (64)"),
        ([x, x.view(np.float16)], 0, ValueError, "got bfloat16 (any, 64) and float16 (any, 64)"),
        (
            [hg.quantize_mxfp8(x[:, :48])] * 2,
            1,
            ValueError,
            "multiples of 32, the block of mxfp8_e4m3; got [0, 48, 96]",
        ),
    ):
        with pytest.raises(kind, match=re.escape(text)) as caught:
            make(parts, axis=axis)
        assert str(caught.value).startswith("assemble: ")


def test_nothing_leaks(rng: Any, devices: list[int]) -> None:
    a, b = operands(64, 64, 64, rng)
    free = []
    for _ in range(12):
        hg.sharded_matmul(a, b, split="k")
        with pytest.raises(ValueError, match="must equal"):
            hg.sharded_matmul(a, b[:32], split="k")
        left = []
        for device in devices:
            with _hip.on_device(device):
                left.append(int(_hip.runtime().hip.hipMemGetInfo()[1]))
        free.append(left)
    assert free[3:] == free[2:-1]


@pytest.mark.parametrize("result", ["new", "accumulate", "fp8_e4m3", "mxfp6_e2m3"])
@pytest.mark.parametrize("way", ["host", "sharded"])
@pytest.mark.parametrize(("split", "glu"), STAGED)
def test_what_follows_a_product(split, glu, way, result, rng):
    """The bits of one device's product, wherever the parts are: those of new, given and quantized results."""
    lead = (3,) if split == "batch" else ()
    a, b = exact_grid((*lead, 21, 64), rng), exact_grid((*lead, 64, 172), rng)
    shape = (*lead, 21, 86 if glu else 172)
    host = {"residual": exact_grid(shape, rng), "aux": np.zeros((*lead, 21, 172), BF16)}
    host["out"] = exact_grid(shape, rng).astype(np.float32) if result == "accumulate" else None
    stages: dict[str, Any] = {
        "bias": rng.integers(-3, 4, 172).astype(np.float32),
        "activation": "relu",
        "glu": glu,
    }
    stages |= {"accumulate": True} if result == "accumulate" else {}
    stages |= {"out_format": result} if "fp" in result else {}
    states = [hg.AmaxState(300.0) for _ in range(2)]
    more: list[dict[str, Any]] = [
        {"out_amax": x} if "fp8_" in result and "mx" not in result else {} for x in states
    ]
    want_arrays = {name: None if x is None else x.copy() for name, x in host.items()}
    want = hg.matmul(a, b, **want_arrays, **stages, **more[0])
    axes = {"m": (-2, None), "n": (None, -1), "k": (-1, -2), "batch": (-3, -3)}[split]
    devices: Any = [0, min(1, _hip.runtime().devices - 1), 0]
    given: dict[str, Any] = dict(host)
    if way == "sharded":
        sizes = [64, 64, 44] if split == "n" else None
        halved = [32, 32, 22] if sizes and glu else sizes
        a, b = hg.shard(a, devices, axis=axes[0]), hg.shard(b, devices, axis=axes[1], sizes=sizes)
        along = -2 if split == "k" else axes[split == "n"]
        for name, x in host.items():
            if x is not None:
                given[name] = hg.shard(x, devices, axis=along, sizes=sizes if name == "aux" else halved)
        devices = None
    got = hg.sharded_matmul(a, b, split=split, devices=devices, **given, **stages, **more[1])
    if result == "accumulate":
        assert got is given["out"]
    if way == "sharded":
        got = got.get()
        given["aux"] = given["aux"].get()
    np.testing.assert_array_equal(given["aux"], want_arrays["aux"])
    if "out_format" not in stages:
        np.testing.assert_array_equal(got, want)
        return
    for one, other in ((got.data, want.data), (got.scale, want.scale)):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    assert states[1].next.get() == states[0].next.get()


@pytest.mark.parametrize("way", ["host", "sharded", "sharded, to the host"])
@pytest.mark.parametrize("split", ["m", "n", "k", "batch"])
def test_a_given_result(split, way, rng):
    lead = (3,) if split == "batch" else ()
    a, b = exact_grid((*lead, 21, 64), rng), exact_grid((*lead, 64, 40), rng)
    axes = {"m": (-2, None), "n": (None, -1), "k": (-1, -2), "batch": (-3, -3)}[split]
    want = hg.matmul(a, b, dtype=np.float32)
    devices: Any = [0, min(1, _hip.runtime().devices - 1), 0]
    out: Any = np.full_like(want, np.nan).swapaxes(-1, -2).copy().swapaxes(-1, -2)
    if way == "sharded":
        along = -2 if split == "k" else axes[split == "n"]
        out = hg.shard(np.ascontiguousarray(out), devices, axis=along)
    if way != "host":
        a, b = hg.shard(a, devices, axis=axes[0]), hg.shard(b, devices, axis=axes[1])
        devices = None
    assert hg.sharded_matmul(a, b, out, split=split, devices=devices) is out
    np.testing.assert_array_equal(out.get() if way == "sharded" else out, want)


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["host", "sharded a", "sharded"])
@pytest.mark.parametrize("split", ["m", "n", "k", "batch"])
def test_can_use(split, way, rng):
    """It names the kernel of the parts, and what is applied where ranges of K are added."""
    lead = (2,) if split == "batch" else ()
    a, b = exact_grid((*lead, 64, 128), rng), exact_grid((*lead, 128, 64), rng)
    axes = {"m": (-2, None), "n": (None, -1), "k": (-1, -2), "batch": (-3, -3)}[split]
    options: dict[str, Any] = {"activation": "silu", "glu": "interleaved", "split": split}
    options["residual"] = exact_grid((*lead, 64, 32), rng)
    if way != "host":
        a = hg.shard(a, [0, 0], axis=axes[0])
    b = hg.shard(b, [0, 0], axis=axes[1]) if way == "sharded" else b
    options |= {"devices": [0, 0]} if way == "host" else {}
    answer = hg.can_use("sharded_matmul", a, b, **options)
    if answer.kernel == "plain_gemm":
        pytest.skip("needs matrix kernels")
    assert answer.stages == ("activation", "glu", "residual")
    assert ("split_reduce" in str(answer)) == (split == "k")
    hg.reset_usage()
    hg.sharded_matmul(a, b, **options)
    assert list(hg.usage().served) == [answer.kernel]
    refused = hg.can_use("sharded_matmul", a, b, **options | {"activation": "sine", "residual": 1})
    assert {reason.code for reason in refused.reasons} == {"option", "type"}


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("form", ["fp8", "fp8 rows", "fp8 blocks", "mxfp8", "mxfp6", "mxfp4"])
def test_quantized_parts_are_joined(form, axis, rng):
    x = random_matrix((200, 336), rng, dtype=np.float32)
    options = {"fp8 rows": {"axis": -1}, "fp8 blocks": {"block": (1, 128)}}.get(form, {})
    q = getattr(hg, f"quantize_{form.split()[0]}")(x, **options)
    got = hg.shard(q, [0, 0, 0], axis=axis).get()
    assert repr(got) == repr(q)
    for one, other in ((got.data, q.data), (got.scale, q.scale)):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"split": "n", "glu": "halves"}, hg.UnsupportedError, "glu must be interleaved for split=n"),
        ({"split": "m", "activation": "tanh"}, ValueError, "activation must be one of relu"),
        (
            {"split": "m", "residual": np.zeros((3, 5), np.float32)},
            ValueError,
            "residual.shape must be (4, 8)",
        ),
        ({"split": "k", "aux": np.zeros((4, 4), np.float32)}, ValueError, "aux.shape must be (4, 8)"),
        ({"split": "k", "accumulate": True}, ValueError, "accumulate=True needs an array out"),
        ({"split": "k", "out_format": "fp8_e4m3"}, ValueError, "out_amax must be given for fp8"),
        (
            {"split": "k", "out": ALIASED, "aux": ALIASED},
            ValueError,
            "aux must not overlap out; got arrays that share memory",
        ),
    ],
)
def test_stages_that_are_refused(options, kind, text):
    a, b = np.zeros((4, 32), ml_dtypes.bfloat16), np.zeros((32, 8), ml_dtypes.bfloat16)
    with pytest.raises(kind) as error:
        hg.sharded_matmul(a, b, devices=[0, 0], **options)
    assert text in str(error.value)
