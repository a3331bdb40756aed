"""Faults of a linear layer's arguments are reported before any device is opened."""

from __future__ import annotations

import re
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.errors import UnsupportedError, message
from hipgemm.layers.problem import Layer, describe_backward, describe_layer
from hipgemm.layers.recipe import RECIPES

can_use = partial(hg.can_use, arch="gfx950")
F32 = np.float32
X, W = np.ones((4, 64), F32), np.ones((8, 64), F32)
FP8, MX8, MX4 = (
    function(X) for function in (reference.quantize_fp8, reference.quantize_mxfp8, reference.quantize_mxfp4)
)
PAIR = reference.quantize_both(X, "mxfp8_e4m3")


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (
            {"recipe": "fp16"},
            ValueError,
            "recipe must be one of bf16, fp8, fp8_block, mxfp8, mxfp4; got 'fp16'",
        ),
        ({"recipe": None}, TypeError, "recipe must be one of bf16, fp8, fp8_block, mxfp8, mxfp4; got None"),
        (
            {"x": [1.0]},
            TypeError,
            "x must be a numpy.ndarray, a hipgemm.DeviceArray or a hipgemm.ScaledArray",
        ),
        ({"x": X[0]}, ValueError, "x.ndim must be at least 2; got 1; x.shape=(64,)"),
        ({"x": X.astype(int)}, TypeError, "x.dtype must be bfloat16, float16 or float32; got int64"),
        (
            {"x": X.astype(ml_dtypes.float8_e4m3fnuz)},
            TypeError,
            "got float8_e4m3fnuz; float8_e4m3fnuz is not the OCP type float8_e4m3fn",
        ),
        ({"w": np.ones((2, 8, 64), F32)}, ValueError, "w.ndim must be 2; got 3; w.shape=(2, 8, 64)"),
        (
            {"w": W[:, :63]},
            ValueError,
            "x.shape[-1] (K) must equal w.shape[1] (K); got 64 and 63; x.shape=(4, 64)",
        ),
        ({"bias": np.ones(4, F32)}, ValueError, "bias.shape must be (N,)=(8,); got (4,)"),
        ({"w_post_scale": np.ones(8)}, TypeError, "w_post_scale.dtype must be float32; got float64"),
        ({"dtype": np.int8}, TypeError, "dtype must be bfloat16, float16 or float32; got int8"),
        (
            {"x_amax": 1.0},
            ValueError,
            "x_amax must be None for recipe bf16, which has block scales or none",
        ),
        ({"recipe": "fp8", "w_amax": -1.0}, ValueError, "w_amax must be finite and not negative; got -1.0"),
        (
            {"recipe": "fp8", "w_amax": "big"},
            TypeError,
            "w_amax must be a number, a float32 array or an AmaxState",
        ),
        ({"recipe": "fp8", "x_amax": np.ones(2, F32)}, ValueError, "x_amax.shape must be (); got (2,)"),
        ({"recipe": "fp8", "x_amax": np.ones(())}, TypeError, "x_amax.dtype must be float32; got float64"),
        (
            {"recipe": "fp8", "x": FP8, "x_amax": 1.0},
            ValueError,
            "x_amax must be None for a quantized operand",
        ),
        ({"recipe": "fp8", "scaling": "even"}, ValueError, "scaling must be None for recipe fp8; got even"),
        (
            {"recipe": "mxfp8", "scaling": "odd"},
            ValueError,
            "scaling must be one of unit, floor, rceil, even",
        ),
        (
            {"recipe": "mxfp8", "hadamard": True},
            ValueError,
            "hadamard must be None for recipe mxfp8; got True",
        ),
        ({"recipe": "mxfp4", "hadamard": 1}, TypeError, "hadamard must be True, False or None; got 1"),
        (
            {"recipe": "mxfp4", "hadamard": True},
            ValueError,
            "M must be a multiple of 16 for the Hadamard transform; got 4; omit hadamard",
        ),
        ({"x": FP8}, TypeError, "x must be bfloat16, float16 or float32 for recipe bf16; got fp8_e4m3"),
        (
            {"recipe": "fp8", "x": MX8},
            TypeError,
            "x must be fp8_e4m3 or fp8_e5m2 for recipe fp8; got mxfp8_e4m3",
        ),
        (
            {"recipe": "fp8", "x": reference.quantize_fp8(X, axis=-1)},
            ValueError,
            "x must have one scale for the tensor; got scale.shape=(4, 1)",
        ),
        (
            {"recipe": "mxfp8", "w": reference.quantize_mxfp8(W, axis=0)},
            ValueError,
            "w must be blocked along axis -1; got axis=-2; quantize with quantize_mxfp8(w, axis=-1)",
        ),
        ({"recipe": "fp8", "x": PAIR}, TypeError, "x must not be a pair for recipe fp8"),
        (
            {"recipe": "fp8_block", "x": FP8},
            ValueError,
            "x must have blocks of 128 along axis -1; got block=None; quantize with quantize_fp8(x, block=",
        ),
        (
            {"recipe": "fp8_block", "w": reference.quantize_fp8(W.T, block=(1, 128)).T},
            ValueError,
            "w must have blocks of 128 along axis -1; got block=(128, 1)",
        ),
        ({"w": MX8}, TypeError, "for recipe bf16; got mxfp8_e4m3; matmul takes bfloat16 times any quantized"),
        ({"recipe": "fp8_block", "x": MX8}, TypeError, "x must be fp8_e4m3 or fp8_e5m2 for recipe fp8_block"),
        ({"recipe": "fp8_block", "scaling": "even"}, ValueError, "scaling must be None for recipe fp8_block"),
        ({"recipe": "fp8_block", "x_amax": 1.0}, ValueError, "x_amax must be None for recipe fp8_block"),
        (
            {"recipe": "fp8", "x": reference.quantize_fp8(X, block=(1, 128))},
            ValueError,
            "x must have one scale for the tensor; got scale.shape=(4, 1); recipe fp8_block takes blocks",
        ),
        ({"recipe": "mxfp8", "x": PAIR[::-1]}, ValueError, "x[0] must be blocked along axis -1; got axis=-2"),
        (
            {"recipe": "mxfp8", "x": (PAIR[0], PAIR[1].T)},
            ValueError,
            "x must be a pair of matrices of one shape; got (4, 64) and (64, 4)",
        ),
        (
            {"recipe": "mxfp4", "x": MX4, "w": reference.quantize_mxfp4(W, hadamard=False)},
            ValueError,
            "x and w must both have the Hadamard transform, or neither: otherwise it does not cancel; got "
            "x.hada",
        ),
        (
            {"recipe": "mxfp8", "x": reference.quantize_mxfp8(X, axis=0, group_offsets=np.array([0, 1, 4]))},
            ValueError,
            "x must not be quantized by groups of rows",
        ),
    ],
)
def test_forward(change, kind, text):
    arguments = {"x": X, "w": W, **change}
    layer, reasons = describe_layer("linear", arguments.pop("x"), arguments.pop("w"), **arguments)
    assert layer is None
    assert [r.kind for r in reasons if text in r.text] == [kind], message("linear", reasons)
    assert all(re.search(r"; got ", r.text) for r in reasons)


def layer_of(recipe="mxfp8", lead=(2, 4)):
    return Layer(RECIPES[recipe], lead, 64, 32)


@pytest.mark.parametrize(
    ("recipe", "dy", "change", "kind", "text"),
    [
        ("bf16", X, {}, ValueError, "dy.shape must be (2, 4, 64), the shape of y; got (4, 64)"),
        ("bf16", "dy", {}, TypeError, "dy must be a numpy.ndarray"),
        ("bf16", MX8, {}, TypeError, "dy must be bfloat16, float16 or float32 for recipe bf16"),
        ("mxfp8", FP8, {}, TypeError, "dy must be mxfp8_e4m3 or mxfp8_e5m2 for recipe mxfp8; got fp8_e4m3"),
        (
            "fp8",
            None,
            {"format": "mxfp8_e5m2"},
            ValueError,
            "format must be fp8_e4m3 or fp8_e5m2 for recipe fp8",
        ),
        (
            "bf16",
            None,
            {"format": "fp8_e5m2"},
            ValueError,
            "format must be None for recipe bf16; got 'fp8_e5m2'",
        ),
        ("mxfp8", None, {"dy_amax": 1.0}, ValueError, "dy_amax must be None for recipe mxfp8"),
        ("fp8", None, {"dy_amax": -1}, ValueError, "dy_amax must be finite and not negative"),
        (
            "fp8",
            None,
            {"dw_dtype": "int8"},
            TypeError,
            "dw_dtype must be bfloat16, float16 or float32; got int8",
        ),
        (
            "mxfp8",
            MX8,
            {"format": "mxfp8_e5m2"},
            ValueError,
            "format must be None for a quantized dy",
        ),
    ],
)
def test_backward(recipe, dy, change, kind, text):
    dy = np.ones((2, 4, 64), F32) if dy is None else dy
    reasons = describe_backward(dy, layer_of(recipe), **change)
    assert [r.kind for r in reasons if text in r.text] == [kind], message("linear_backward", reasons)


def test_transforms_that_would_not_cancel():
    kept = reference.quantize_mxfp4(np.ones((64, 32), F32), axis=0)
    dy = reference.quantize_mxfp4(np.ones((8, 64), F32), hadamard=False)
    (reason,) = describe_backward(dy, layer_of("mxfp4"), (None, kept))
    assert "dy must have the Hadamard transform like saved.w" in reason.text
    dy = reference.quantize_mxfp4(np.ones((8, 64), F32))
    assert not describe_backward(dy, layer_of("mxfp4"), (None, kept))


def test_a_misnamed_recipe_hides_no_other_fault_and_makes_none():
    """What one of the recipes supports is not an error."""
    options = {"recipe": "mxfp9", "scaling": "even", "hadamard": False, "x_amax": 1.0}
    _, reasons = describe_layer("linear", X, W, **options)
    assert [r.code for r in reasons] == ["recipe"]
    _, reasons = describe_layer("linear", PAIR, W[:, :3], recipe="mxfp9", scaling="odd")
    assert [r.code for r in reasons] == ["recipe", "shape", "scaling"]


def test_what_layers_of_groups_differ_in():
    """M is never transformed, since dw of mxfp4 is a product in mxfp8; dy alone is blocked along its rows."""
    x, w, offsets = np.ones((50, 64), F32), np.ones((2, 48, 64), F32), np.array([0, 20, 50])
    layer, reasons = describe_layer("grouped_linear", x, w, offsets, recipe="mxfp4", hadamard=True)
    assert layer is not None, reasons
    assert layer.wgrad is RECIPES["mxfp8"]
    _, reasons = describe_layer("grouped_linear", x, w[:, :40], offsets, recipe="mxfp4", hadamard=True)
    assert [r.text[:30] for r in reasons] == ["N must be a multiple of 16 for"]
    dy = np.ones((50, 48), F32)
    one = reference.quantize_mxfp4(dy, axis=0, hadamard=False)
    (reason,) = describe_backward(one, layer, (None, None), offsets)
    assert reason.text.startswith("dy must be blocked along axis -1; got axis=-2")
    (reason,) = describe_backward(reference.quantize_both(dy, "mxfp4_e2m1", hadamard=False), layer)
    assert reason.text.startswith("dy must not be a pair for recipe mxfp4")


def test_all_faults_are_listed():
    _, reasons = describe_layer("linear", X[0], W.astype(int), recipe="fp7", bias=np.ones(3, F32))
    assert len(reasons) >= 4


def test_quantized_dy_may_be_flat():
    assert not describe_backward(reference.quantize_mxfp8(np.ones((8, 64), F32)), layer_of())
    assert not describe_backward(reference.quantize_both(np.ones((8, 64), F32), "mxfp8_e5m2"), layer_of())


@pytest.mark.parametrize("recipe", RECIPES)
def test_can_use(recipe):
    answer = can_use("linear", np.ones((2, 50, 64), F32), W, recipe=recipe, bias=np.ones(8, F32))
    assert answer, answer
    assert answer.kernel is not None
    assert answer.kernel.startswith(f"gemm_{recipe.removesuffix('_block')}")
    assert ("_block_" in answer.kernel) == (recipe == "fp8_block")
    answer = can_use("linear", X, W[:, :3], recipe=recipe, x_amax="big")
    assert [r.kind for r in answer.reasons] == [ValueError, TypeError if recipe == "fp8" else ValueError]
    with pytest.raises(TypeError, match=r"can_use: linear: got an unexpected keyword argument 'recipes'"):
        can_use("linear", X, W, recipes=recipe)


@pytest.mark.parametrize("recipe", RECIPES)
def test_can_use_grouped_linear(recipe):
    x, w, offsets = np.ones((50, 64), F32), np.ones((2, 48, 64), F32), np.array([0, 20, 50])
    answer = can_use("grouped_linear", x, w, offsets, recipe=recipe)
    assert answer.kernel is not None, answer
    assert answer.kernel.startswith(f"grouped_matmul_{recipe.removesuffix('_block')}")
    assert ("_block_" in answer.kernel) == (recipe == "fp8_block")
    answer = can_use("grouped_linear", x, w[..., :3], offsets + 1, recipe=recipe, dtype=np.int8)
    assert [r.code for r in answer.reasons] == ["shape", "dtype", "offsets"], answer


@pytest.mark.parametrize("arch", ["gfx90a"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_where_nothing_serves_groups(recipe, arch):
    x, w, offsets = np.ones((50, 64), F32), np.ones((2, 48, 64), F32), np.array([0, 20, 50])
    answer = can_use("grouped_linear", x, w, offsets, recipe=recipe, arch=arch)
    assert [(r.kind, str(r)) for r in answer.reasons] == [
        (UnsupportedError, "the GPU must have kernels for groups of rows: gfx950 or gfx942; got gfx90a")
    ]
