"""Stochastic rounding and random signs of the reference quantizers."""

from fractions import Fraction

import numpy as np
import pytest

from hipgemm import ScaledArray, reference
from hipgemm.formats.elements import QUANTIZED, round_stochastic
from hipgemm.formats.philox import philox, random_signs, random_words

MX = ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4_e2m1", "mxfp6_e2m3", "mxfp6_e3m2"]
STOCHASTIC = {"rounding": "stochastic", "seed": 7}


def codes(q):
    return q.data.view(np.uint8)


def grid(form):
    """All finite numbers of a format, in order."""
    values = np.arange(1 << form.bits, dtype=np.uint8).view(form.dtype).astype(np.float32)
    return np.unique(values[np.isfinite(values)])


# ---- the generator -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known answers of the authors' library, Random123, for philox4x32 with 10 rounds
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers(counter, key, words):
    counter, key, words = ([int(word, 16) for word in text.split()] for text in (counter, key, words))
    assert philox(np.array(counter, np.uint32), tuple(key)).tolist() == words


def test_a_word_depends_on_its_index_and_the_seed():
    seed = 2**63 + 12345
    words = random_words((5, 7), seed)
    for i, word in enumerate(words.ravel()):
        counter = np.array([i >> 2, 0, 0, 0], np.uint32)
        assert word == philox(counter, (seed % 2**32, seed >> 32))[i & 3]
    np.testing.assert_array_equal(random_words((1000,), seed)[:35], words.ravel())
    assert (random_words((1000,), 0) != random_words((1000,), 2**32)).all()


# ---- one number --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", MX)
def test_the_upper_neighbour_has_the_probability_of_the_distance(format, rng):
    form = QUANTIZED[format]
    neighbours = grid(form)
    x = np.concatenate([rng.uniform(-1, 1, 60) * form.maximum * 2.0**-e for e in (0, 1, 3, 9)])
    x = np.concatenate((x, [form.smallest_subnormal * 2.0**-30, -(2.0**-140)])).astype(np.float32)
    words = np.arange(2**16, dtype=np.uint32) << 16
    for value in x:
        above = np.searchsorted(neighbours, value)
        low, high = neighbours[above - 1], neighbours[above]
        got = round_stochastic(np.full(words.shape, value), form, words).astype(np.float32)
        assert set(np.unique(got)) <= {low, high}
        share = Fraction(int((got == high).sum()), len(words))
        exact = (Fraction(float(value)) - Fraction(float(low))) / Fraction(float(high - low))
        assert abs(share - exact) <= Fraction(1, 2**16)


@pytest.mark.parametrize("word", [0, 2**31, 2**32 - 1])
@pytest.mark.parametrize("format", MX)
def test_numbers_of_the_format_stay(format, word):
    form = QUANTIZED[format]
    every = np.arange(1 << form.bits, dtype=np.uint8).view(form.dtype)
    every = every[np.isfinite(every.astype(np.float32))]  # both zeros included
    got = round_stochastic(every.astype(np.float32), form, np.full(every.shape, word, np.uint32))
    np.testing.assert_array_equal(got.view(np.uint8), every.view(np.uint8))
    beyond = np.array([form.maximum * 1.01, -np.inf], np.float32)
    got = round_stochastic(beyond, form, np.full(2, word, np.uint32))
    np.testing.assert_array_equal(got.astype(np.float32), [form.maximum, -form.maximum])
    nan = round_stochastic(np.array([np.nan], np.float32), form, np.full(1, word, np.uint32))
    assert nan.astype(np.float32) == 0 if form.is_packed else np.isnan(nan.astype(np.float32))


# ---- quantizers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", QUANTIZED)
def test_the_mean_over_seeds_is_the_number(format, rng):
    form, seeds = QUANTIZED[format], 200
    x = rng.standard_normal((4, 64)).astype(np.float32)
    x[0, ::5] *= 2.0**-7
    nearest = reference.quantize(x, format)
    made = [reference.quantize(x, format, rounding="stochastic", seed=seed) for seed in range(seeds)]
    assert all(q.scale.tobytes() == nearest.scale.tobytes() for q in made)
    value = x.astype(float) / reference._decoded(nearest)[1]
    value = np.clip(value, -form.maximum, form.maximum)
    neighbours = grid(form).astype(float)
    above = np.searchsorted(neighbours, value).clip(1)
    low, high = neighbours[above - 1], neighbours[above]
    p = (value - low) / (high - low)
    ups = np.sum([(q.data.astype(float) - low) / (high - low) for q in made], axis=0)
    # Bernstein's inequality; the product with the scale's inverse was rounded to 24 bits.
    variance, log = seeds * p * (1 - p), np.log(2 / 1e-9)
    resolution = seeds * (2.0**-16 + 2.0**-20)
    assert (np.abs(ups - seeds * p) <= log / 3 + np.sqrt(log**2 / 9 + 2 * log * variance) + resolution).all()
    assert abs((ups - seeds * p).sum()) <= 5 * np.sqrt(variance.sum()) + x.size * resolution


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("format", QUANTIZED)
def test_indices_are_those_of_the_array(format, axis, rng):
    x = rng.standard_normal((3, 34, 5)).astype(np.float32)
    form = QUANTIZED[format]
    q = reference.quantize(x, format, axis=axis, **STOCHASTIC)
    scale = reference._decoded(q)[1]
    words = random_words(x.shape, 7)
    if form.block:
        expected = round_stochastic((x / scale).astype(np.float32), form, words)
        np.testing.assert_array_equal(codes(q), expected.view(np.uint8))
    wide = np.zeros((3, 34, 15), np.float32)
    wide[:, :, ::3] = x
    for view in (wide[:, :, ::3], np.asfortranarray(x)):
        np.testing.assert_array_equal(
            codes(reference.quantize(view, format, axis=axis, **STOCHASTIC)), codes(q)
        )


@pytest.mark.parametrize("format", MX)
def test_both_axes_and_transposes(format, rng):
    x = rng.standard_normal((48, 80)).astype(np.float32)
    rows, columns = reference.quantize_both(x, format, **STOCHASTIC)
    hadamard = {"hadamard": True} if format == "mxfp4_e2m1" else {}
    for q, axis in ((rows, -1), (columns, 0)):
        np.testing.assert_array_equal(
            codes(q), codes(reference.quantize(x, format, axis=axis, **hadamard, **STOCHASTIC))
        )
    name = "transpose_quantize_" + format.split("_")[0]
    if hasattr(reference, name):
        q = getattr(reference, name)(x, format=format, **STOCHASTIC)
        np.testing.assert_array_equal(codes(q), codes(reference.quantize(x.T.copy(), format, **STOCHASTIC)))


def test_groups_count_elements_of_the_whole_array(rng):
    x = rng.standard_normal((96, 8)).astype(np.float32)
    whole = reference.quantize_mxfp8(x, axis=0, **STOCHASTIC)
    groups = reference.quantize_mxfp8(x, axis=0, group_offsets=np.array([0, 32, 96]), **STOCHASTIC)
    np.testing.assert_array_equal(codes(groups), codes(whole))


@pytest.mark.parametrize("axis", [0, 1])
def test_signs_are_applied_before_the_transform_and_undone(axis, rng):
    x = rng.standard_normal((64, 96)).astype(np.float32)
    signs = random_signs(x.shape[axis], 3)
    signed = x * (signs if axis else signs[:, None])
    q = reference.quantize_mxfp4(x, axis=axis, signs=3)
    plain = reference.quantize_mxfp4(signed, axis=axis)
    assert (q.signs, plain.signs, q.T.signs, q.get().signs) == (3, None, 3, 3)
    np.testing.assert_array_equal(codes(q), codes(plain))
    np.testing.assert_array_equal(q.scale.view(np.uint8), plain.scale.view(np.uint8))
    back = reference.dequantize(plain) * (signs if axis else signs[:, None])
    np.testing.assert_array_equal(reference.dequantize(q), back)
    assert repr(q).endswith("hadamard=True, signs=3, host)")


def test_signs_cancel_in_a_product(rng):
    a, b = (rng.standard_normal((8, 64)).astype(np.float32) for _ in range(2))
    qa, qb = (reference.quantize_mxfp4(x, signs=11) for x in (a, b))
    expected = reference.dequantize(qa).astype(float) @ reference.dequantize(qb).T.astype(float)
    np.testing.assert_allclose(reference.matmul(qa, qb.T), expected, atol=1e-4)


# ---- arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"rounding": "stochastic"}, ValueError, "seed must be given with rounding='stochastic'; got None"),
        ({"seed": 1}, ValueError, "seed must be None with rounding='nearest'; got 1"),
        ({"rounding": "up"}, ValueError, "rounding must be one of nearest, stochastic; got 'up'"),
        ({"rounding": None}, TypeError, "rounding must be one of nearest, stochastic; got None"),
        ({"rounding": "stochastic", "seed": -1}, ValueError, r"seed must be from 0 to 2\*\*64 - 1; got -1"),
        ({"rounding": "stochastic", "seed": 2**64}, ValueError, r"seed must be from 0 to 2\*\*64 - 1"),
        ({"rounding": "stochastic", "seed": True}, TypeError, "seed must be an int; got bool"),
        ({"rounding": "stochastic", "seed": 1.0}, TypeError, "seed must be an int; got float"),
    ],
)
@pytest.mark.parametrize("format", QUANTIZED)
def test_rounding_and_seed_belong_together(format, options, kind, message):
    with pytest.raises(kind, match=message):
        reference.quantize(np.ones((2, 32), np.float32), format, **options)


def test_signs_need_the_transform():
    x = np.ones((2, 32), np.float32)
    with pytest.raises(ValueError, match="signs must be None without the Hadamard transform; got 4"):
        reference.quantize_mxfp4(x, hadamard=False, signs=4)
    q = reference.quantize_mxfp4(x)
    with pytest.raises(ValueError, match="signs must be None without the Hadamard transform"):
        ScaledArray(q.data, q.scale, q.format, signs=4)
    with pytest.raises(TypeError, match="signs must be an int; got str"):
        ScaledArray(q.data, q.scale, q.format, hadamard=True, signs="4")
    assert (
        ScaledArray(q.data, q.scale, q.format, hadamard=True, signs=np.uint64(2**64 - 1)).signs == 2**64 - 1
    )
