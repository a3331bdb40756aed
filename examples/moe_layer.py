"""A mixture-of-experts layer, forward and backward, checked against a loop over experts.

A router sends each token to the best 2 of 8 experts, each a network of two linear layers. Rows are sorted by
expert, so that ``hipgemm.grouped_linear`` and ``hipgemm.grouped_linear_backward`` take all experts at once;
routing and ReLU are NumPy. The yardstick does one expert after the other in float64. The table says by how
much each recipe's results differ from it (signal to noise, dB). After a ReLU that is more than rounding:
some hidden numbers change sides. For bf16 every element of every product is held to its error bound besides.

Run: python examples/moe_layer.py [--tokens 512] [--recipe bf16|fp8|mxfp8|mxfp4|all]
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import hipgemm as hg
from hipgemm import testing

Array = NDArray[Any]
EXPERTS, TOP, WIDTH, HIDDEN = 8, 2, 128, 256
RECIPES = ("bf16", "fp8", "mxfp8", "mxfp4")


@dataclass
class Route:
    """Where rows go: row r is token ``token[r]``, and group e of the rows is expert e's."""

    token: Array
    choice: Array  # which of its token's choices a row is
    offsets: Array
    gates: Array  # (tokens, TOP): the weights of a token's choices
    experts: Array  # (tokens, TOP)

    @staticmethod
    def of(logits: Array) -> Route:
        """Choose the best experts of each token and sort the rows by expert."""
        experts = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
        best = np.take_along_axis(logits, experts, axis=1)
        gates = np.exp(best - best.max(1, keepdims=True))
        gates /= gates.sum(1, keepdims=True)
        order = np.argsort(experts.ravel(), kind="stable")
        counts = np.bincount(experts.ravel(), minlength=EXPERTS)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return Route(order // TOP, order % TOP, offsets, gates, experts)

    @property
    def gate(self) -> Array:
        """The weight of each row, as a column."""
        return np.asarray(self.gates[self.token, self.choice][:, None])


class Loop:
    """The yardstick's experts: one after the other, in float64."""

    def forward(self, x: Array, w: Array, offsets: Array) -> tuple[Array, Any]:
        """Apply each expert's weights (N, K) to its rows."""
        x, w = x.astype(np.float64), w.astype(np.float64)
        groups = list(itertools.pairwise(offsets))
        y = np.concatenate([x[begin:end] @ w[e].T for e, (begin, end) in enumerate(groups)])
        return y, (x, w, groups)

    def backward(self, dy: Array, saved: Any) -> tuple[Array, Array]:
        """Return the gradients with respect to rows and weights."""
        x, w, groups = saved
        dx = np.concatenate([dy[begin:end] @ w[e] for e, (begin, end) in enumerate(groups)])
        return dx, np.stack([dy[begin:end].T @ x[begin:end] for begin, end in groups])


class Grouped:
    """hipgemm's: all experts at once."""

    def __init__(self, recipe: str) -> None:
        self.recipe = recipe
        self.kept: list[tuple[Array, ...]] = []  # what went into each product, and what came out

    def forward(self, x: Array, w: Array, offsets: Array) -> tuple[Array, Any]:
        """Apply each expert's weights (N, K) to its rows."""
        y, saved = hg.grouped_linear(x.astype(np.float32), w, offsets, recipe=self.recipe, dtype=np.float32)
        self.kept.append((x, w, y))
        return y, saved

    def backward(self, dy: Array, saved: Any) -> tuple[Array, Array]:
        """Return the gradients with respect to rows and weights."""
        dy = dy.astype(np.float32)
        grads = hg.grouped_linear_backward(dy, saved, dtype=np.float32, dw_dtype=np.float32)
        self.kept.append((dy, grads.dx, grads.dw))
        return grads.dx, grads.dw

    def check(self, offsets: Array) -> int:
        """Hold each element of bf16's products to its bound, expert by expert; return how many those are."""
        first, second, second_back, first_back = self.kept
        count = 0
        for forward, back in ((first, first_back), (second, second_back)):
            (x, w, y), (dy, dx, dw) = forward, back
            x, w, dy = (a.astype(ml_dtypes.bfloat16) for a in (x, w, dy))
            for e, (begin, end) in enumerate(itertools.pairwise(offsets)):
                if begin == end:
                    assert not dw[e].any()
                    continue
                testing.assert_gemm_close(y[begin:end], x[begin:end], w[e].T)
                testing.assert_gemm_close(dx[begin:end], dy[begin:end], w[e])
                testing.assert_gemm_close(dw[e], dy[begin:end].T, x[begin:end])
                count += 3
        return count


class MoeLayer:
    """Router and experts."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.router = rng.standard_normal((EXPERTS, WIDTH), dtype=np.float32) / np.sqrt(WIDTH)
        self.router[0] *= 3  # an expert that many tokens choose
        self.up = self.weights((EXPERTS, HIDDEN, WIDTH), rng)
        self.down = self.weights((EXPERTS, WIDTH, HIDDEN), rng)

    @staticmethod
    def weights(shape: tuple[int, int, int], rng: np.random.Generator) -> Array:
        """Draw the weights of all experts."""
        return np.asarray(rng.standard_normal(shape, dtype=np.float32) * np.float32(np.sqrt(2 / shape[2])))

    def run(self, x: Array, dout: Array, experts: Loop | Grouped) -> tuple[dict[str, Array], Route]:
        """Return the output for tokens x (tokens, WIDTH), and all gradients given that of the output."""
        route = Route.of(x.astype(np.float64) @ self.router.T.astype(np.float64))
        h, saved_up = experts.forward(x[route.token], self.up, route.offsets)
        y, saved_down = experts.forward(np.maximum(h, 0), self.down, route.offsets)
        out = np.zeros(x.shape)
        np.add.at(out, route.token, route.gate * y)

        dy = dout[route.token]
        dh, d_down = experts.backward(route.gate * dy, saved_down)
        d_rows, d_up = experts.backward(dh * (h > 0), saved_up)
        dx = np.zeros(x.shape)
        np.add.at(dx, route.token, d_rows)
        # The gates are a softmax over the chosen logits.
        d_gates = np.zeros(route.gates.shape)
        d_gates[route.token, route.choice] = np.sum(dy * y, axis=1)
        d_best = route.gates * (d_gates - np.sum(route.gates * d_gates, axis=1, keepdims=True))
        d_logits = np.zeros((len(x), EXPERTS))
        np.put_along_axis(d_logits, route.experts, d_best, axis=1)
        dx += d_logits @ self.router
        results = {"out": out, "dx": dx, "d_up": d_up, "d_down": d_down, "d_router": d_logits.T @ x}
        return results, route


def sqnr(got: Array, exact: Array) -> float:
    """Signal to quantization noise, dB."""
    return float(20 * np.log10(np.linalg.norm(exact) / np.linalg.norm(got - exact)))


def main() -> None:
    """Compare each recipe with the loop."""
    parser = argparse.ArgumentParser(description="A mixture-of-experts layer in low precision")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--recipe", choices=[*RECIPES, "all"], default="all")
    args = parser.parse_args()

    print("on", hg.info().summary)
    rng = np.random.default_rng(0)
    layer = MoeLayer(rng)
    x = rng.standard_normal((args.tokens, WIDTH), dtype=np.float32)
    dout = rng.standard_normal(x.shape, dtype=np.float32)
    exact, route = layer.run(x, dout, Loop())
    print(f"{args.tokens} tokens, {TOP} of {EXPERTS} experts each; rows by expert: {np.diff(route.offsets)}")
    print("SQNR, dB  " + "".join(f"{name:>10}" for name in exact) + "   seconds")
    checked = 0
    for recipe in RECIPES if args.recipe == "all" else [args.recipe]:
        experts = Grouped(recipe)
        start = time.perf_counter()
        results, _ = layer.run(x, dout, experts)
        seconds = time.perf_counter() - start
        noise = "".join(f"{sqnr(got, exact[name]):10.1f}" for name, got in results.items())
        print(f"{recipe:10}{noise}{seconds:10.2f}")
        checked += experts.check(route.offsets) if recipe == "bf16" else 0
    if checked:
        print(f"bf16: every element of {checked} products inside its bound")
    print("kernels:", ", ".join(sorted(hg.usage().kernels)))


if __name__ == "__main__":
    main()
