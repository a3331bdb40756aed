"""The Hadamard transform near the top of float32: finite wherever its result is."""

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import MXFP4_E2M1, SCALE_RULES

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
TOP = float(np.finfo(F32).max)
H16 = np.array([[1.0]])
for _ in range(4):
    H16 = np.block([[H16, H16], [H16, -H16]])


def one_hot(value: float, at: int) -> np.ndarray:
    return np.where(np.arange(32) == at, value, 0.0)


# A block each; all but the last two fit after the transform.
BLOCKS = {
    "full": np.full(32, 2.2e37),
    "full, most that fits": np.full(32, TOP / 4),
    "one-hot": one_hot(8e37, 5),
    "one-hot, greatest": one_hot(TOP, 31),
    "alternating": np.where(np.arange(32) % 2, -8e37, 8e37),
    "half of a block": np.where(np.arange(32) < 16, 2.2e37, 1.0),
    "half, and tiny": np.where(np.arange(32) < 16, 5e37, -(2.0**-149)),
    "pairs that cancel": np.where(np.arange(32) % 3, 1.2e38, -1.2e38) * (np.arange(32) % 16 < 8),
    "too much": np.full(32, TOP / 3),
    "too much in one half": np.where(np.arange(32) < 16, 1.0, TOP),
}
FITTING = list(BLOCKS)[:-2]


def transformed(block: np.ndarray) -> np.ndarray:
    return (block.astype(F32).astype(np.float64).reshape(2, 16) @ H16).reshape(32) / 4


@pytest.mark.parametrize("name", BLOCKS)
def test_reference(name):
    x = BLOCKS[name].astype(F32)
    got, want = reference.hadamard(x), transformed(x)
    assert (np.abs(want) < 2.0**128).all() == (name in FITTING)
    if name in FITTING:
        np.testing.assert_allclose(got, want, rtol=0, atol=float(np.abs(x).max()) * 16 * 2.0**-24)
    else:
        assert not np.isfinite(got).all()


@pytest.mark.parametrize("power", [-149, -126, -100, 0, 100, 119])
def test_reference_keeps_the_bits_of_other_numbers(power, rng):
    x = (rng.standard_normal((64, 16)) * 2.0**power).astype(F32)
    sums = x
    for stride in (1, 2, 4, 8):
        parts = sums.reshape(64, 16 // (2 * stride), 2, stride)
        sums = np.stack((parts[:, :, 0] + parts[:, :, 1], parts[:, :, 0] - parts[:, :, 1]), axis=2).reshape(
            64, 16
        )
    np.testing.assert_array_equal(reference.hadamard(x).view("u4"), (sums * F32.type(0.25)).view("u4"))


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("axis", [-1, 0])
def test_quantize_mxfp4(rule, dtype, axis, rng):
    """All blocks among ordinary ones, at every position of a tile."""
    x = rng.standard_normal((96, 128)).astype(F32)
    x[::7, 32:64] = np.resize(np.stack(list(BLOCKS.values())), (14, 32))
    x[::5, 96:] = np.resize(np.stack(list(BLOCKS.values())), (20, 32))
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    x = x if axis == -1 else np.ascontiguousarray(x.T)
    got, want = (
        hg.quantize_mxfp4(x, scaling=rule, axis=axis),
        reference.quantize_mxfp4(x, scaling=rule, axis=axis),
    )
    np.testing.assert_array_equal(got.scale.view("u1"), want.scale.view("u1"))
    np.testing.assert_array_equal(got.data.view("u1"), want.data.view("u1"))
    both = hg.quantize_both(x, "mxfp4_e2m1", scaling=rule)[0 if axis == -1 else 1]
    np.testing.assert_array_equal(both.data.view("u1"), want.data.view("u1"))
    np.testing.assert_array_equal(both.scale.view("u1"), want.scale.view("u1"))


@pytest.mark.parametrize("name", BLOCKS)
def test_named_blocks(name):
    """Each value within a step of its block's scale; blocks that overflow, and no others, are NaN."""
    x = np.stack([BLOCKS[name], np.ones(32)]).astype(F32)
    q = hg.quantize_mxfp4(x, scaling="rceil")
    assert (q.scale.view("u1")[:, 0] == 255).tolist() == [name not in FITTING, False]
    if name in FITTING:
        scale = 2.0 ** (int(q.scale.view("u1")[0, 0]) - 127)
        decoded = q.data[0].astype(np.float64) * scale
        assert (np.abs(decoded - transformed(x[0])) <= scale).all()


def test_dequantize(rng):
    """Elements are transformed before they are scaled: exact, and finite wherever the result is."""
    codes = np.arange(16, dtype=np.uint8)[rng.integers(0, 16, (64, 64))].view(MXFP4_E2M1.dtype)
    codes[:32] = 0
    codes[np.arange(32), np.arange(32) * 2] = 6  # one in a block: each value is 1.5 after the transform
    byte = np.resize([254, 253, 252, 127, 1, 0], (64, 2)).astype(np.uint8)
    q = hg.ScaledArray(codes, byte, "mxfp4_e2m1", hadamard=True)
    scale = np.repeat(2.0 ** (byte.astype(np.int64) - 127), 32, axis=1)
    with np.errstate(over="ignore"):
        want = ((codes.astype(np.float64).reshape(64, 4, 16) @ H16).reshape(64, 64) / 4 * scale).astype(F32)
    assert np.isfinite(want[:32]).all()
    for got in (hg.dequantize(q), hg.dequantize(hg.asarray(q)).get()):
        np.testing.assert_array_equal(got, want)
