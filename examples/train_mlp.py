"""Train a small network on handwritten digits in several recipes, and in float32 for comparison.

A multilayer perceptron on scikit-learn's bundled digits (1797 images of 8 x 8). The products of all layers,
forward and backward, are ``hipgemm.linear`` and ``hipgemm.linear_backward``, ReLU included; loss and
optimizer (Adam on float32 weights) are NumPy. Every recipe starts from the same weights and sees the same
batches. Prints a table of the final accuracy and saves the loss curves.

Needs the extra ``hipgemm[examples]``.

A recipe with ``+sr`` rounds the gradients dy stochastically. ``--roundings N`` prints instead how far the
mean of N such roundings to mxfp4 is from dy.

Run: python examples/train_mlp.py [--recipes float32 bf16 fp8 fp8_block mxfp8 mxfp4 mxfp4+sr] [--epochs 16]
     [--rate 2e-3] [--seeds 3] [--plot train_mlp.png] [--roundings N]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from tqdm import tqdm

import hipgemm as hg

Floats = NDArray[np.float32]
SIZES = (64, 256, 128, 10)
BATCH = 128
RECIPES = ("float32", "bf16", "fp8", "mxfp8", "mxfp4")


class Float32Layer:
    """The yardstick: float32 products in NumPy."""

    saved_bytes = 0

    def __init__(self, w: Floats, b: Floats, activation: str | None) -> None:
        self.parameters, self.activation = [w, b], activation

    def forward(self, x: Floats, training: bool = True) -> Floats:
        """Apply the layer to (rows, K)."""
        w, b = self.parameters
        t = np.asarray(x @ w.T + b)
        if training:
            self.x, self.t = x, t
            self.saved_bytes = x.nbytes + w.nbytes + (t.nbytes if self.activation else 0)
        return np.maximum(t, 0) if self.activation else t

    def backward(self, dy: Floats) -> tuple[Floats, list[Floats]]:
        """Return the gradients with respect to the input, and to weights and bias."""
        return self.products(dy * (self.t > 0) if self.activation else dy)

    def products(self, dt: Floats) -> tuple[Floats, list[Floats]]:
        """Return them from the gradient before the activation."""
        return dt @ self.parameters[0], [dt.T @ self.x, dt.sum(0)]


class HipLayer(Float32Layer):
    """The same through hipgemm."""

    def __init__(
        self, w: Floats, b: Floats, activation: str | None, recipe: str, seeds: Iterator[int]
    ) -> None:
        super().__init__(w, b, activation)
        self.recipe, _, rounding = recipe.partition("+")
        self.seeds = seeds if rounding == "sr" else None
        # fp8 scales by the amax of the previous step; MX formats need none.
        self.states = {name: hg.AmaxState() for name in ("x", "w", "dy")} if self.recipe == "fp8" else {}

    def forward(self, x: Floats, training: bool = True) -> Floats:
        """Apply the layer to (rows, K)."""
        w, b = self.parameters
        states = self.states if training else {}
        y, saved = hg.linear(
            x,
            w,
            recipe=self.recipe,
            bias=b,
            activation=self.activation,
            dtype=np.float32,
            x_amax=states.get("x"),
            w_amax=states.get("w"),
        )
        if training:
            self.saved, self.saved_bytes = saved, saved.nbytes
        return np.asarray(y)

    def backward(self, dy: Floats) -> tuple[Floats, list[Floats]]:
        """Return the gradients with respect to the input, and to weights and bias."""
        grads = hg.linear_backward(
            dy,
            self.saved,
            dy_amax=self.states.get("dy"),
            rounding="nearest" if self.seeds is None else "stochastic",
            seed=None if self.seeds is None else next(self.seeds),
            dtype=np.float32,
            dw_dtype=np.float32,
        )
        for state in self.states.values():
            state.step()
        return grads.dx, [grads.dw, grads.dbias]


class Adam:
    """The optimizer, on float32 parameters in place; its rate falls to 0 along a cosine."""

    def __init__(self, parameters: list[Floats], total: int, rate: float) -> None:
        self.parameters, self.rate, self.total, self.steps = parameters, rate, total, 0
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]

    def step(self, grads: list[Floats]) -> None:
        """Move every parameter against its gradient."""
        self.steps += 1
        rate = self.rate * (1 + np.cos(np.pi * self.steps / self.total)) / 2
        rate *= np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for p, g, (mean, square) in zip(self.parameters, grads, self.moments, strict=True):
            mean += 0.1 * (g - mean)
            square += 0.001 * (g * g - square)
            p -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(1e-8))


@dataclass
class Digits:
    """Images with zero mean and unit spread, a quarter of them kept for the test."""

    train_x: Floats
    train_y: NDArray[np.int64]
    test_x: Floats
    test_y: NDArray[np.int64]

    @staticmethod
    def load() -> Digits:
        """Read scikit-learn's digits and split them, always the same way."""
        digits = load_digits()
        x = (digits.data / 16).astype(np.float32)
        order = np.random.default_rng(0).permutation(len(x))
        train, test = order[450:], order[:450]
        x = (x - x[train].mean()) / x[train].std()
        return Digits(x[train], digits.target[train], x[test], digits.target[test])


class Network:
    """Linear layers with ReLU between them."""

    def __init__(
        self, make: Callable[[Floats, Floats, str | None], Float32Layer], rng: np.random.Generator
    ) -> None:
        self.layers = []
        for k, n in itertools.pairwise(SIZES):
            w = (rng.standard_normal((n, k)) * np.sqrt(2 / k)).astype(np.float32)
            self.layers.append(make(w, np.zeros(n, np.float32), None if n == SIZES[-1] else "relu"))

    def logits(self, x: Floats, training: bool = False) -> Floats:
        """Apply all layers."""
        for layer in self.layers:
            x = layer.forward(x, training)
        return x

    def loss_and_grads(self, x: Floats, labels: NDArray[np.int64]) -> tuple[float, list[Floats]]:
        """Cross-entropy of a batch and its gradients, in the order of `parameters`."""
        logits = self.logits(x, training=True)
        logits = logits - logits.max(1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        rows = np.arange(len(x))
        dy = np.exp(logs)
        dy[rows, labels] -= 1
        dy /= len(x)
        grads: list[Floats] = []
        for layer in reversed(self.layers):
            dy, own = layer.backward(dy)
            grads = own + grads
        return float(-logs[rows, labels].mean()), grads

    @property
    def parameters(self) -> list[Floats]:
        """Weights and bias of each layer."""
        return [p for layer in self.layers for p in layer.parameters]


@dataclass
class Run:
    """What came of one recipe."""

    losses: list[list[float]] = field(default_factory=list)  # of each seed, step by step
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    saved_bytes: int = 0


def batches(count: int, epochs: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Draw batches, each epoch in an order of its own; what does not fill one is left for the next."""
    for _ in range(epochs):
        order = rng.permutation(count)
        yield from (order[i : i + BATCH] for i in range(0, count - BATCH + 1, BATCH))


def train(recipe: str, data: Digits, epochs: int, rate: float, seed: int, run: Run, bar: Any) -> None:
    """Train one network and add what came of it to `run`."""
    rng = np.random.default_rng(seed)
    seeds = itertools.count()  # another one for each layer and step

    def layer(w: Floats, b: Floats, activation: str | None) -> Float32Layer:
        if recipe == "float32":
            return Float32Layer(w, b, activation)
        return HipLayer(w, b, activation, recipe, seeds)

    network = Network(layer, rng)
    adam = Adam(network.parameters, epochs * (len(data.train_x) // BATCH), rate)
    start, losses = time.perf_counter(), []
    for rows in batches(len(data.train_x), epochs, rng):
        loss, grads = network.loss_and_grads(data.train_x[rows], data.train_y[rows])
        adam.step(grads)
        losses.append(loss)
        bar.set_description(f"{recipe:9}")
        bar.update()
    run.seconds += time.perf_counter() - start
    run.losses.append(losses)
    run.accuracies.append(float(np.mean(network.logits(data.test_x).argmax(1) == data.test_y)))
    run.saved_bytes = sum(layer.saved_bytes for layer in network.layers)


def print_roundings(data: Digits, count: int) -> None:
    """Print the error of dy of each layer after one rounding to mxfp4, and that of the mean of several.

    Of dy blocked along the batch, as for dw; in float32 layers with their first weights.
    """
    given: list[Floats] = []

    class Recorder(Float32Layer):
        def products(self, dt: Floats) -> tuple[Floats, list[Floats]]:
            given.insert(0, dt)
            return super().products(dt)

    network = Network(Recorder, np.random.default_rng(0))
    network.loss_and_grads(data.train_x[:BATCH], data.train_y[:BATCH])
    print(f"error of dy, relative    one rounding             mean of {count}")
    print("layer                  nearest  stochastic    nearest  stochastic")
    for i, dy in enumerate(given):
        errors = []
        for n in (1, count):
            several = [
                hg.dequantize(hg.quantize_mxfp4(dy, axis=0, rounding="stochastic", seed=seed))
                for seed in range(n)
            ]
            nearest = hg.dequantize(hg.quantize_mxfp4(dy, axis=0))
            errors += [
                np.linalg.norm(x - dy) / np.linalg.norm(dy) for x in (nearest, np.mean(several, axis=0))
            ]
        print(f"{i:<20}" + "{:8.1%} {:11.1%}   {:8.1%} {:11.1%}".format(*errors))


def plot(runs: dict[str, Run], path: Path) -> None:
    """Save the loss curves, means over the seeds."""
    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for recipe, run in runs.items():
        axes.plot(np.mean(run.losses, axis=0), label=recipe, linewidth=1)
    axes.set(xlabel="step", ylabel="cross-entropy of the batch", yscale="log", title="Digits, by recipe")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train in every recipe; print the table, save the curves."""
    parser = argparse.ArgumentParser(description="Train a small network in low precision")
    parser.add_argument("--recipes", nargs="+", default=RECIPES, metavar="RECIPE")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-3, help="Adam's, at the first step")
    parser.add_argument(
        "--roundings", type=int, metavar="N", help="measure N roundings of dy, and train nothing"
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="networks per recipe, whose accuracies are averaged"
    )
    parser.add_argument("--plot", type=Path, default=Path("train_mlp.png"), help="where the loss curves go")
    args = parser.parse_args()

    print("on", hg.info().summary)
    data = Digits.load()
    if args.roundings:
        print_roundings(data, args.roundings)
        return
    runs = {recipe: Run() for recipe in ("float32", *args.recipes)}  # float32 once, first
    steps = len(data.train_x) // BATCH * args.epochs
    with tqdm(total=steps * args.seeds * len(runs), unit="step", disable=None) as bar:  # None: on a terminal
        for recipe, run in runs.items():
            for seed in range(args.seeds):
                train(recipe, data, args.epochs, args.rate, seed, run, bar)
    plot(runs, args.plot)

    exact = np.mean(runs["float32"].accuracies)
    print("recipe     accuracy  points to float32  deviation  final loss  saved bytes  seconds")
    for recipe, run in runs.items():
        accuracy = np.mean(run.accuracies)
        loss = np.mean([losses[-10:] for losses in run.losses])
        print(
            f"{recipe:9} {100 * accuracy:8.2f}% {100 * (accuracy - exact):+18.2f} "
            f"{100 * np.std(run.accuracies):10.2f} {loss:11.4f} "
            f"{run.saved_bytes:12,} {run.seconds:8.1f}"
        )
    print("deviation: of the accuracies, from seed to seed")
    print(f"{steps} steps of {BATCH} images, {args.seeds} seeds, {len(data.test_x)} test images; {args.plot}")


if __name__ == "__main__":
    main()
