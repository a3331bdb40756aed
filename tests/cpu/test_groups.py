"""Groups of rows: offsets, and the reference for them."""

import ml_dtypes
import numpy as np
import pytest

from hipgemm import reference
from hipgemm.formats.groups import most_blocks, offset_reasons, same_offsets, straddling
from hipgemm.formats.scaled import ScaledArray, group_blocks

E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)


def offsets(*values, dtype=np.int32):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (offsets(1, 2), ValueError, "group_offsets[0] must be 0; got 1"),
        (offsets(-1, 2), ValueError, "group_offsets[0] must be 0; got -1"),
        (
            offsets(0, 4, 9, 7, 3),
            ValueError,
            "group_offsets must not decrease; got group_offsets[3]=7 after group_offsets[2]=9",
        ),
        (
            offsets(0, 4, 101, 200),
            ValueError,
            "group_offsets must be at most 100, the number of rows; got group_offsets[2]=101",
        ),
        (
            offsets(0, 101),
            ValueError,
            "group_offsets must be at most 100, the number of rows; got group_offsets[1]=101",
        ),
        (
            offsets(0, 2**33, dtype=np.int64),
            ValueError,
            f"group_offsets must be at most 100, the number of rows; got group_offsets[1]={2**33}",
        ),
        (offsets(0, 4).astype(np.float32), TypeError, "group_offsets.dtype must be int32; got float32"),
        (offsets(0, 4)[None], ValueError, "group_offsets.shape must be (G+1,); got (1, 2)"),
        (offsets(), ValueError, "group_offsets.shape must be (G+1,); got (0,)"),
        (
            [0, 4],
            TypeError,
            "group_offsets must be a numpy.ndarray or a hipgemm.DeviceArray; got list; "
            "convert it with numpy.asarray",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_with_offsets(given, kind, text):
    assert [(reason.kind, reason.text) for reason in offset_reasons(given, 100)] == [(kind, text)]


def test_number_of_groups():
    (reason,) = offset_reasons(offsets(0, 1, 2), 8, groups=3)
    assert reason.text == "group_offsets.shape must be (G+1,)=(4,); got (3,)"
    assert offset_reasons(offsets(0, 1, 2), 8, groups=2) == []
    assert offset_reasons(offsets(0), 8) == []
    assert offset_reasons(offsets(0, 0, 8, 8, dtype=np.uint64), 8) == []


def test_same_offsets():
    assert same_offsets(offsets(0, 3), offsets(0, 3, dtype=np.int64))
    assert not same_offsets(offsets(0, 3), offsets(0, 4))
    assert not same_offsets(offsets(0, 3), None)


def test_blocks():
    lengths = np.random.default_rng(0).integers(0, 70, (50, 9))
    for each in lengths:
        o = np.concatenate(([0], np.cumsum(each)))
        blocks = group_blocks(o)
        assert blocks[-1] == sum(-(-n // 32) for n in each) <= most_blocks(int(o[-1]), 9)
    assert straddling(offsets(0, 32, 32, 96)) is None
    assert straddling(offsets(0, 32, 95)) == 2


def test_blocks_begin_with_each_group(rng):
    x = rng.standard_normal((140, 5)).astype(np.float32) * np.exp2(rng.integers(-9, 9, (140, 1)))
    o = offsets(0, 33, 33, 128)
    q = reference.quantize_mxfp8(x.astype(np.float32), axis=0, group_offsets=o)
    assert (q.shape, q.scale.shape) == ((140, 5), (5, 5))
    assert q.data[128:].astype(np.float32).any() == np.False_
    values = reference.values(q)
    for begin, end in ((0, 33), (33, 128)):
        alone = reference.quantize_mxfp8(x[begin:end].astype(np.float32), axis=0)
        np.testing.assert_array_equal(values[begin:end], reference.values(alone))
    np.testing.assert_array_equal(reference.values(q.T), values.T)
    np.testing.assert_array_equal(reference.dequantize(q), values.astype(np.float32))
    assert "3 groups" in repr(q)


def test_quantizing_groups_needs_their_axis():
    with pytest.raises(ValueError, match="group_offsets needs a matrix and axis=0; got axis=-1"):
        reference.quantize_mxfp8(np.ones((8, 8), np.float32), group_offsets=offsets(0, 8))
    with pytest.raises(ValueError, match=r"group_offsets\[0\] must be 0; got 3"):
        reference.quantize_mxfp8(np.ones((8, 8), np.float32), axis=0, group_offsets=offsets(3, 8))


def test_reference_is_a_loop_over_groups(rng):
    o = offsets(0, 3, 3, 7)
    x, w = rng.standard_normal((9, 4)), rng.standard_normal((3, 4, 5))
    y = reference.grouped_matmul(x, w, o)
    np.testing.assert_allclose(y[:3], x[:3] @ w[0])
    np.testing.assert_allclose(y[3:7], x[3:7] @ w[2])
    assert not y[7:].any()
    dy = rng.standard_normal((9, 5))
    dw = reference.grouped_wgrad(dy, x, o)
    assert dw.shape == (3, 5, 4)
    assert not dw[1].any()
    np.testing.assert_allclose(dw[2], dy[3:7].T @ x[3:7])
    onto = rng.standard_normal(dw.shape)
    np.testing.assert_allclose(reference.grouped_wgrad(dy, x, o, onto=onto), onto + dw)


def test_a_scale_for_each_matrix_of_a_stack():
    codes = np.ones((2, 3, 4), ml_dtypes.float8_e4m3fn)
    q = ScaledArray(codes, np.array([2.0, 3.0], np.float32).reshape(2, 1, 1), "fp8_e4m3")
    assert reference.values(q.mT)[:, 0, 0].tolist() == [2.0, 3.0]
    with pytest.raises(ValueError, match=r"scale.shape must be \(2, 3, 1\) or \(\) or \(2, 1, 1\)"):
        ScaledArray(codes, np.ones((3, 1, 1), np.float32), "fp8_e4m3")
