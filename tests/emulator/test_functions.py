"""The functions of src_hip/common/functions.hpp, as machine code, against float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hipapi import Memory, check, compile_hip, hip, launch

from hipgemm.formats.activations import ACTIVATIONS, GLU_ACTIVATIONS

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Run = Callable[..., Floats]

SOURCE = r"""
#include "common/functions.hpp"
namespace hipgemm {
#define FUNCTION(name, value)                                            \
  HIPGEMM_KERNEL(256, 1) name(const f32* x, const f32* y, f32* out) {     \
    const u32 i = workgroup_index() * 256 + thread_index();               \
    const f32 t = x[i], up = y[i];                                        \
    out[i] = value;                                                       \
  }
#define ACTIVATION(name, code, functions)                 \
  FUNCTION(name, functions::of(t))                        \
  FUNCTION(name##_derivative, functions::derivative(t))   \
  FUNCTION(name##_glu, Glu<functions>::of(t, up))         \
  FUNCTION(name##_glu_by_gate, Glu<functions>::derivatives(t, up).gate) \
  FUNCTION(name##_glu_by_up, Glu<functions>::derivatives(t, up).up)
#define GLU_ACTIVATION(name, code, functions)                   \
  FUNCTION(name##_glu, functions::of(t, up))                          \
  FUNCTION(name##_glu_by_gate, functions::derivatives(t, up).gate)    \
  FUNCTION(name##_glu_by_up, functions::derivatives(t, up).up)
#include "common/activations.def"
FUNCTION(exp_, exp_nonpositive(t))
FUNCTION(reciprocal, reciprocal_1_to_2(t))
}
"""
FOLDER = Path(__file__).parents[2] / "src_hip"
ULPS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    image = tmp_path_factory.mktemp("functions") / "functions.co"
    compile_hip(SOURCE, image, "gfx950", f"-I{FOLDER}", "-std=c++20")
    module = check(hip.hipModuleLoad(str(image).encode()))

    def call(name: str, x: Floats, y: Floats | None = None) -> Floats:
        y = x if y is None else y
        padded = -(-x.size // 256) * 256
        function = check(hip.hipModuleGetFunction(module, name.encode()))
        with Memory(4 * padded, x) as a, Memory(4 * padded, y) as b, Memory(4 * padded) as out:
            launch(function, a.address, b.address, out.address, grid=(padded // 256, 1, 1), block=(256, 1, 1))
            return out.get(np.float32)[: x.size]

    return call


def sweep(seed: int, count: int = 2**17) -> Floats:
    """Floats of all exponents and both signs, many of them from -20 to 20, and the ends."""
    rng = np.random.default_rng(seed)
    bits = np.linspace(0, 2**32 - 1, count, dtype=np.uint64) + rng.integers(0, 2**14, count, dtype=np.uint64)
    near = rng.uniform(-20, 20, count).astype(np.float32)
    ends = [
        0.0,
        1e-45,
        2.0**-126,
        1.0,
        7.0,
        np.nextafter(np.float32(7), 8),
        10.0,
        104.0,
        3.4028235e38,
        np.inf,
    ]
    few = np.array([*ends, *np.negative(ends), np.nan], np.float32)
    return np.concatenate([bits.astype(np.uint32).view(np.float32), near, few])


def errors(got: Floats, expected: Doubles, *arguments: Floats) -> Doubles:
    """Distances in float32 units of the greatest of the arguments and the result."""
    scale = np.abs(expected).astype(np.float32)
    for x in arguments:
        scale = np.fmax(scale, np.abs(x))
    return np.abs(got - expected) / np.spacing(np.minimum(scale, np.float32(2**126)))


def assert_close(got: Floats, expected: Doubles, *arguments: Floats, ulps: float = ULPS) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    with np.errstate(over="ignore"):
        rounded = expected.astype(np.float32)
    finite = np.isfinite(rounded)
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(got[infinite], rounded[infinite])
    assert errors(got[finite], expected[finite], *(x[finite] for x in arguments)).max() <= ulps


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_activations(name: str, run: Run) -> None:
    x = sweep(1)
    t = x.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        expected = ACTIVATIONS[name].function(t)
        slope = ACTIVATIONS[name].derivative(t)
    got = run(name, x)
    assert_close(got, expected, x)
    with np.errstate(over="ignore", under="ignore"):
        rounded = expected.astype(np.float32)
    ends = (np.abs(x) > 10) & ((rounded == 0) | (rounded == x))
    assert ends.sum() > 2**15
    np.testing.assert_array_equal(got[ends], rounded[ends])
    assert_close(run(f"{name}_derivative", x), slope, x)


@pytest.mark.parametrize("name", [*ACTIVATIONS, *GLU_ACTIVATIONS])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_gated(name: str, run: Run) -> None:
    """Within the range where no product overflows."""
    gate, up = sweep(2), np.roll(sweep(3), 2**16 + 77)
    if name in ACTIVATIONS:
        gate, up = np.clip(gate, -1e18, 1e18), np.clip(up, -1e18, 1e18)
    g, u = gate.astype(np.float64), up.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        if name in ACTIVATIONS:
            function, derivative = ACTIVATIONS[name]
            expected, by_gate, by_up = function(g) * u, derivative(g) * u, function(g)
            factor = np.abs(u)
        else:
            function, derivatives = GLU_ACTIVATIONS[name]
            expected, (by_gate, by_up) = function(g, u), derivatives(g, u)
            factor = np.abs(np.clip(u, -7, 7) + 1)
    g = np.clip(g, None, 7.0) if name in GLU_ACTIVATIONS else g
    for what, value, scale in (
        ("", expected, np.abs(g) * factor),
        ("_by_gate", by_gate, np.maximum(np.abs(g), 1.2) * factor),
        ("_by_up", by_up, np.abs(g)),
    ):
        got = run(f"{name}_glu{what}", gate, up)
        # Of each factor, and one more for the product.
        with np.errstate(under="ignore", over="ignore"):
            assert_close(got, value, scale.astype(np.float32), ulps=2 * ULPS + 2)


def test_exponential(run: Run) -> None:
    x = sweep(4)
    x = np.concatenate([x[~(x > 0)], np.linspace(-105, 0, 2**16, dtype=np.float32)])
    with np.errstate(under="ignore", invalid="ignore"):
        assert_close(run("exp_", x), np.exp(x.astype(np.float64)), ulps=1)


def test_reciprocal(run: Run) -> None:
    x = np.linspace(1, 2, 2**16, dtype=np.float32)
    assert_close(run("reciprocal", x), 1 / x.astype(np.float64), ulps=1)
