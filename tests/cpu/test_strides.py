"""Strides of views, as NumPy has them."""

import numpy as np
import pytest

from hipgemm.formats.strides import restride

SHAPES = [(24,), (2, 12), (12, 2), (2, 3, 4), (4, 1, 6), (1, 24, 1), (2, 2, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_restride_is_numpy_s(shape, rng):
    """A view in another shape wherever NumPy makes one, and none where NumPy copies."""
    for _ in range(100):
        steps = rng.choice([-2, -1, 1, 2, 3], len(shape))
        base = np.zeros([n * abs(int(step)) for n, step in zip(shape, steps, strict=True)], np.int16)
        view = base[tuple(slice(None, None, int(step)) for step in steps)]
        view = view.transpose(rng.permutation(view.ndim))
        for extents in SHAPES:
            expected = view.reshape(extents)
            found = restride(view.shape, view.strides, extents)
            assert (found is not None) == np.shares_memory(view, expected), (view.shape, view.strides)
            for n, ours, numpy_s in zip(extents, found or (), expected.strides, strict=found is not None):
                assert n == 1 or ours == numpy_s, (view.shape, view.strides)
