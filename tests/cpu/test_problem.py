"""What `matmul` says about its arguments, word for word."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from describing import describe_matmul

from hipgemm import reference
from hipgemm.formats.arrays import Resident
from hipgemm.formats.operand import Operand, overlap
from hipgemm.formats.scaled import ScaledArray
from hipgemm.formats.strides import byte_range

BF16 = np.dtype(ml_dtypes.bfloat16)


class Fake(Resident):
    """An array on a device, with what a description needs."""

    def __init__(self, shape, dtype=BF16, device=0, ptr=4096, strides=None):
        self.shape, self.dtype, self.device = shape, np.dtype(dtype), device
        self.strides = np.empty(shape, dtype).strides if strides is None else strides
        self.readonly = self.padded = self.no_tail_padding = False
        self.address = ptr

    @property
    def ptr(self):
        return self.address

    @property
    def T(self):
        return Fake(self.shape[::-1], self.dtype, self.device, self.address, self.strides[::-1])

    def get(self, out=None):
        raise NotImplementedError


def zeros(*shape, dtype=BF16):
    return np.zeros(shape, dtype)


def faults(*args, **kwargs):
    return [str(reason) for reason in describe_matmul(*args, **kwargs)[1]]


def kinds(*args, **kwargs):
    return [reason.kind for reason in describe_matmul(*args, **kwargs)[1]]


def test_a_plain_product():
    problem, reasons = describe_matmul(zeros(3, 8), zeros(5, 8).T)
    assert not reasons
    assert (problem.m, problem.n, problem.k) == (3, 5, 8)
    assert (problem.a.format.name, problem.out_format.name) == ("bf16", "bf16")
    assert problem.device is None
    assert problem.b.rows_contiguous
    assert str(problem) == "(3, 8) @ (8, 5) bf16 -> bf16"


@pytest.mark.parametrize(
    ("dtype", "out", "expected"),
    [
        (None, None, "bf16"),
        (np.float16, None, "f16"),
        ("float32", None, "f32"),
        (None, np.float32, "f32"),
        (np.float16, np.float16, "f16"),
    ],
)
def test_result_type(dtype, out, expected):
    out = None if out is None else zeros(2, 4, dtype=out)
    problem, reasons = describe_matmul(zeros(2, 3), zeros(3, 4), out, dtype=dtype)
    assert not reasons
    assert problem.out_format.name == expected


def test_float16_gives_float16():
    problem, _ = describe_matmul(zeros(2, 3, dtype=np.float16), zeros(3, 4, dtype=np.float16))
    assert problem.out_format.name == "f16"


MESSAGES = [
    (
        (zeros(128, 4096), zeros(4100, 256)),
        {},
        "a.shape[1] (K) must equal b.shape[0] (K); got 4096 and 4100; "
        "a.shape=(128, 4096), b.shape=(4100, 256)",
    ),
    (
        ([[1.0]], zeros(1, 4)),
        {},
        "a must be a numpy.ndarray or a hipgemm.DeviceArray; got list; convert it with numpy.asarray",
    ),
    ((zeros(2, 3), None), {}, "b must be a numpy.ndarray or a hipgemm.DeviceArray; got NoneType"),
    ((zeros(3), zeros(3, 4)), {}, "a.ndim must be at least 2; got 1; a.shape=(3,)"),
    ((zeros(3, 4), zeros(4)), {}, "b.ndim must be at least 2; got 1; b.shape=(4,)"),
    (
        (zeros(2, 3, 4), zeros(5, 3, 4)),
        {},
        "a.shape[2] (K) must equal b.shape[1] (K); got 4 and 3; a.shape=(2, 3, 4), b.shape=(5, 3, 4)",
        "the axes of a and b before the last two must broadcast; got (2,) and (5,); "
        "a.shape=(2, 3, 4), b.shape=(5, 3, 4)",
    ),
    (
        (zeros(4, 2, 3), zeros(3, 4), zeros(2, 4)),
        {},
        "out.shape must be (batch.., M, N)=(4, 2, 4); got (2, 4); a.shape=(4, 2, 3), b.shape=(3, 4)",
    ),
    (
        (zeros(2, 3), zeros(3, 4)),
        {"dtype": np.int8},
        "dtype must be bfloat16, float16 or float32; got int8",
    ),
    (
        (zeros(2, 3), zeros(3, 4), zeros(2, 4)),
        {"dtype": np.float32},
        "out.dtype must be dtype=float32; got bfloat16",
    ),
    (
        (zeros(2, 3), zeros(3, 4), zeros(4, 2)),
        {},
        "out.shape must be (M, N)=(2, 4); got (4, 2); a.shape=(2, 3), b.shape=(3, 4)",
    ),
    (
        (zeros(2, 3), zeros(3, 4), zeros(2, 4, dtype=np.int32)),
        {},
        "out.dtype must be bfloat16, float16 or float32; got int32",
    ),
    (
        (zeros(2, 3), zeros(3, 4)),
        {"col_scale": zeros(4)},
        "col_scale.dtype must be float32; got bfloat16",
    ),
    (
        (zeros(2, 3), zeros(3, 4)),
        {"col_scale": np.ones(3, np.float32)},
        "col_scale.shape must be (N,)=(4,); got (3,)",
    ),
    (
        (zeros(2, 3), zeros(3, 4)),
        {"bias": [0.0] * 4},
        "bias must be a numpy.ndarray or a hipgemm.DeviceArray; got list; convert it with numpy.asarray",
    ),
    ((zeros(2, 3), zeros(3, 4)), {"bias": zeros(1, 4)}, "bias.shape must be (N,)=(4,); got (1, 4)"),
    (
        (zeros(2, 3), zeros(3, 4)),
        {"bias": np.ones(4)},
        "bias.dtype must be bfloat16, float16 or float32; got float64",
    ),
    (
        (zeros(2, 3), zeros(3, 4)),
        {"alpha": Fake((), BF16)},
        "alpha.dtype must be float32; got bfloat16",
    ),
    (
        (Fake((2, 3)), Fake((3, 4), device=1)),
        {},
        "a, b must be on the same device; got a on device 0, b on device 1; "
        "copy the others with hipgemm.asarray(x, device=0)",
    ),
    (
        (Fake((2, 3)), Fake((3, 4))),
        {"bias": Fake((4,), device=1)},
        "bias must be on device 0 like a; got device 1",
    ),
    (
        (Fake((2, 3)), Fake((3, 4))),
        {"bias": Fake((4,), strides=(4,), ptr=9000)},
        "bias on a device must be contiguous; got strides=(4,)",
    ),
]


@pytest.mark.parametrize("case", MESSAGES, ids=[case[2][:40] for case in MESSAGES])
def test_message(case):
    args, kwargs, *texts = case
    assert faults(*args, **kwargs) == texts


@pytest.mark.parametrize(
    ("args", "kwargs", "kind"),
    [
        ((zeros(2, 3, dtype=np.float32), zeros(3, 4)), {}, TypeError),
        ((zeros(2, 3), zeros(4, 4)), {}, ValueError),
        ((zeros(2, 3), Fake((3, 4))), {}, TypeError),
        ((zeros(2, 3), zeros(3, 4)), {"alpha": 1e39}, ValueError),
        ((zeros(2, 3), zeros(1, 4, 4)), {}, ValueError),
    ],
)
def test_kind(args, kwargs, kind):
    assert kinds(*args, **kwargs) == [kind]


def test_every_fault_is_listed():
    found = faults(zeros(2, 3), zeros(5, 4), zeros(1, 1), bias=np.ones(3), alpha="x", dtype=np.int32)
    for part in ("(K)", "out.shape", "bias.dtype", "bias.shape", "alpha", "dtype must be bfloat16"):
        assert any(part in text for text in found), (part, found)


@pytest.mark.parametrize(
    "alpha", [2, np.float32(2), np.int64(2), np.asarray(2.0), Fraction(4, 2), True, float("nan"), -np.inf]
)
def test_numbers_of_all_kinds_are_alphas(alpha):
    problem, reasons = describe_matmul(zeros(2, 3), zeros(3, 4), alpha=alpha)
    assert not reasons
    np.testing.assert_equal(problem.alpha, float(alpha))


def test_read_only_output():
    out = zeros(2, 4)
    out.flags.writeable = False
    assert faults(zeros(2, 3), zeros(3, 4), out) == ["out must be writeable; got a read-only array"]


def test_output_overlapping_itself():
    out = np.lib.stride_tricks.as_strided(zeros(4), (2, 4), (0, 2))
    assert faults(zeros(2, 3), zeros(3, 4), out)[0].startswith("out must not overlap itself")
    out = np.lib.stride_tricks.as_strided(zeros(16), (2, 4), (6, 2))
    assert faults(zeros(2, 3), zeros(3, 4), out)[0].startswith("out must not overlap itself")


def test_output_overlapping_an_input():
    store = zeros(8, 8)
    b = zeros(8, 8)
    assert faults(b[:4], store, store[::2]) == ["out must not overlap b; got arrays that share memory"]
    row = np.zeros((3, 4), np.float32)
    assert faults(zeros(2, 3), zeros(3, 4), row[:2], bias=row[1]) == [
        "out must not overlap bias; got arrays that share memory"
    ]


def test_interleaved_arrays_do_not_overlap():
    store = zeros(8, 16)
    assert faults(store[:, ::2], zeros(8, 8), store[:, 1::2]) == []
    assert faults(store[::2, :8].T, zeros(4, 8), store[1::2].reshape(8, 8)) == []


def test_overlap_needs_one_address_space():
    a = Fake((4, 8), ptr=4096)
    problem, reasons = describe_matmul(a, Fake((8, 4), ptr=8192), Fake((4, 4), ptr=4096, device=1))
    assert [reason.code for reason in reasons] == ["residency"]
    assert problem is not None


def test_empty_arrays_overlap_nothing():
    x = zeros(0, 8)
    assert faults(x, zeros(8, 4), x[:, :4]) == []


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous", "pitch"),
    [
        ((3, 4), (8, 2), True, 4),
        ((3, 4), (16, 2), True, 8),
        ((3, 4), (6, 2), False, None),
        ((3, 4), (-8, 2), False, None),
        ((3, 4), (2, 6), False, None),
        ((1, 4), (0, 2), True, 4),
        ((3, 1), (16, 999), True, 8),
        ((0, 4), (8, 2), True, 4),
    ],
)
def test_rows_contiguous(shape, strides, contiguous, pitch):
    from hipgemm.formats.elements import BF16

    operand = Operand(shape, strides, BF16, 0, 0)
    assert operand.rows_contiguous is contiguous
    if contiguous:
        assert operand.pitch == pitch


def test_byte_range_spans_negative_strides(rng):
    store = np.arange(200, dtype=np.uint8)
    x = store[10:190].reshape(9, 20)[::-2, 3:15:4]
    low, high = byte_range(x.shape, x.strides, 1, x.__array_interface__["data"][0])
    base = store.__array_interface__["data"][0]
    assert (low - base, high - base) == (int(x.min()), int(x.max()) + 1)


def test_overlap_agrees_with_numpy(rng):
    from hipgemm.formats.elements import BF16

    store = zeros(400)
    for _ in range(200):
        views = []
        for _ in range(2):
            start, rows, columns = (int(i) for i in rng.integers((0, 1, 1), (100, 6, 8)))
            strides = tuple(2 * int(s) for s in rng.integers(-8, 20, 2))
            first = store[200 + start :]
            views.append(np.lib.stride_tricks.as_strided(first, (rows, columns), strides))
        operands = [Operand(v.shape, v.strides, BF16, v.__array_interface__["data"][0], None) for v in views]
        assert overlap(*operands) == np.shares_memory(*views)


# ---- quantized operands

X = np.zeros((3, 64), np.float32)
FP8, FP8_ROWS = reference.quantize_fp8(X), reference.quantize_fp8(X, axis=-1)
MX8, MX8_COLUMNS = reference.quantize_mxfp8(X), reference.quantize_mxfp8(X, axis=0)
MX8_E5M2 = reference.quantize_mxfp8(X, format="mxfp8_e5m2")
MX4, MX4_HADAMARD = (reference.quantize_mxfp4(X, hadamard=h) for h in (False, True))


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (FP8, FP8.T, "(3, 64) @ (64, 3) fp8_e4m3 -> bf16"),
        (FP8_ROWS, FP8.T, "(3, 64) @ (64, 3) fp8_e4m3 -> bf16"),
        (FP8_ROWS, FP8_ROWS.T, "(3, 64) @ (64, 3) fp8_e4m3 -> bf16"),
        (MX8, MX8.T, "(3, 64) @ (64, 3) mxfp8_e4m3 -> bf16"),
        (MX8.T.T, MX8_E5M2.T, "(3, 64) @ (64, 3) mxfp8_e4m3 @ mxfp8_e5m2 -> bf16"),
        (MX8_COLUMNS.T, MX8_COLUMNS, "(64, 3) @ (3, 64) mxfp8_e4m3 -> bf16"),
        (MX8, MX4.T, "(3, 64) @ (64, 3) mxfp8_e4m3 @ mxfp4_e2m1 -> bf16"),
        (MX4, MX8_E5M2.T, "(3, 64) @ (64, 3) mxfp4_e2m1 @ mxfp8_e5m2 -> bf16"),
        (MX4_HADAMARD, MX4_HADAMARD.T, "(3, 64) @ (64, 3) mxfp4_e2m1 -> bf16"),
    ],
)
def test_quantized_products(a, b, text):
    problem, reasons = describe_matmul(a, b)
    assert not reasons
    assert str(problem) == text
    assert (problem.a.row_scales, problem.b.row_scales) == (a is FP8_ROWS, b.scale.shape == (1, 3))


RAW = np.zeros((64, 3), ml_dtypes.float8_e4m3fn)
ALIKE = (
    "a and b must have the same kind of format (both fp8, both MX, or neither; b alone may be quantized); "
    "got "
)


@pytest.mark.parametrize(
    ("a", "b", "kind", "text"),
    [
        (MX8, zeros(64, 3), TypeError, ALIKE + "mxfp8_e4m3 and bf16"),
        (MX8, FP8.T, TypeError, ALIKE + "mxfp8_e4m3 and fp8_e4m3"),
        (
            MX8_COLUMNS,
            MX8.T,
            ValueError,
            "a must be blocked along K, its axis -1; got axis=-2; quantize with quantize_mxfp8(x, axis=-1)",
        ),
        (
            FP8,
            reference.quantize_fp8(X.T, axis=-1),
            ValueError,
            "b must be scaled by rows along K, its axis -2; got axis=-1; "
            "quantize with quantize_fp8(x, axis=-2), or quantize_fp8(x.T).T",
        ),
        (
            MX4,
            MX4_HADAMARD.T,
            ValueError,
            "a and b must both have the Hadamard transform, or neither: otherwise it does not cancel; "
            "got a.hadamard=False, b.hadamard=True; quantize_mxfp4 has hadamard=False",
        ),
        (
            FP8,
            FP8,
            ValueError,
            "a.shape[1] (K) must equal b.shape[0] (K); got 64 and 3; a.shape=(3, 64), b.shape=(3, 64)",
        ),
    ],
)
def test_quantized_faults(a, b, kind, text):
    assert faults(a, b) == [text]
    assert kinds(a, b) == [kind]


def test_raw_bytes_are_refused():
    assert faults(RAW.T, zeros(64, 3)) == [
        "a.dtype must be bfloat16 or float16; got float8_e4m3fn; "
        "quantized elements need a scale: wrap both in a hipgemm.ScaledArray"
    ]
    fnuz = np.zeros((3, 64), ml_dtypes.float8_e4m3fnuz)
    assert faults(fnuz, zeros(64, 3)) == [
        "a.dtype must be bfloat16 or float16; got float8_e4m3fnuz; "
        "float8_e4m3fnuz is not the OCP type float8_e4m3fn: convert the values, never the bytes"
    ]


@pytest.mark.parametrize(
    ("a", "b", "batch", "text"),
    [
        ((5, 2, 3), (3, 4), (5,), "5 x (2, 3) @ (3, 4) bf16 -> bf16"),
        ((2, 3), (5, 3, 4), (5,), "5 x (2, 3) @ (3, 4) bf16 -> bf16"),
        ((6, 1, 2, 3), (5, 3, 4), (6, 5), "6 x 5 x (2, 3) @ (3, 4) bf16 -> bf16"),
        ((0, 2, 3), (1, 3, 4), (0,), "0 x (2, 3) @ (3, 4) bf16 -> bf16"),
    ],
)
def test_batches(a, b, batch, text):
    problem, reasons = describe_matmul(zeros(*a), zeros(*b))
    assert not reasons
    assert (problem.batch, str(problem)) == (batch, text)
    assert problem.a.shape == (*batch, 2, 3)
    assert problem.b.shape == (*batch, 4, 3)


def test_broadcast_axes_have_a_stride_of_0():
    problem, _ = describe_matmul(zeros(6, 1, 2, 3), zeros(5, 3, 4))
    assert problem.a.strides == (12, 0, 6, 2)
    assert problem.b.strides == (0, 24, 2, 8)


def test_scales_of_batches():
    x = np.zeros((5, 2, 64), np.float32)
    for q, strides in (
        (reference.quantize_mxfp8(x), (4, 2, 1)),
        (reference.quantize_mxfp8(x[:1]), (0, 2, 1)),
        (reference.quantize_fp8(x, axis=-1), (8, 4, 0)),
        (reference.quantize_fp8(x), (0, 0, 0)),
    ):
        problem, reasons = describe_matmul(q, q.mT)
        assert not reasons
        assert problem.a.scale_strides == strides
        assert problem.b.scale_strides == strides
    problem, _ = describe_matmul(reference.quantize_mxfp8(x), reference.quantize_mxfp8(x[0]).T)
    assert problem.b.scale_strides == (0, 2, 1)


def test_blocks_of_batches_lie_along_k():
    q = reference.quantize_mxfp8(np.zeros((5, 64, 64), np.float32), axis=0)
    assert kinds(q, q.mT) == [ValueError, ValueError]
    assert faults(q, q.mT)[1].endswith(
        "got axis=-3; quantize with quantize_mxfp8(x, axis=-2), or quantize_mxfp8(x.mT).mT"
    )


def test_out_may_not_lie_on_codes_or_scales():
    def make(data, scale):
        return ScaledArray(
            Fake((4, 64), ml_dtypes.float8_e4m3fn, ptr=data), Fake((4, 2), np.uint8, ptr=scale), "mxfp8_e4m3"
        )

    a, b = make(4096, 8192), make(12288, 16384).T
    for ptr, fault in ((4096, "a"), (8192, "a.scale"), (12288, "b"), (16384, "b.scale"), (20480, None)):
        found = faults(a, b, Fake((4, 4), ptr=ptr))
        assert found == ([f"out must not overlap {fault}; got arrays that share memory"] if fault else [])


def test_masks_are_not_lost():
    plain, masked = zeros(4, 4), np.ma.array(zeros(4, 4), mask=np.eye(4))
    vector = np.ma.array(np.ones(4, np.float32))
    required = "must be a numpy.ndarray or a hipgemm.DeviceArray; got MaskedArray"
    for name, args, kwargs in (
        ("a", (masked, plain), {}),
        ("b", (plain, masked), {}),
        ("out", (plain, plain, masked), {}),
        ("bias", (plain, plain), {"bias": vector}),
        ("col_scale", (plain, plain), {"col_scale": vector}),
    ):
        assert faults(*args, **kwargs) == [f"{name} {required}; masks are not supported: use .filled(value)"]
        assert kinds(*args, **kwargs) == [TypeError]


def test_other_subclasses_are_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.uint16, "w+", shape=(4, 4)).view(ml_dtypes.bfloat16)
    matrix = np.asmatrix(np.ones((4, 4), ml_dtypes.bfloat16))
    assert isinstance(mapped, np.memmap)
    assert faults(mapped, matrix) == []
