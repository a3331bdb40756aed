"""The sentence transformer of sentence_embeddings.py with activations that stay on the device.

Tokens' embeddings are uploaded once, the last layer's activations downloaded once, for pooling. In between,
products add bias and residual or apply GELU before their result is stored; attention is two batched products
and `hipgemm.softmax`. LayerNorm is `hipgemm.rms_norm` of centred rows: their means come from a product with
ones. All sentences share the linear layers, as rows of one matrix without padding.

Needs what sentence_embeddings.py needs.

Run: python examples/transformer.py
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from sentence_embeddings import (
    SENTENCES,
    Encoder,
    Floats,
    HipLinear,
    NumpyLinear,
    cosine,
    model_directory,
    tokenize,
)

import hipgemm as hg

BF16, F32 = ml_dtypes.bfloat16, np.float32


class DeviceEncoder:
    """A BERT encoder with mean pooling, in bfloat16 with sums and the residual stream in float32."""

    def __init__(self, weights: dict[str, Floats], config: dict[str, Any]) -> None:
        self.tables = {name: x for name, x in weights.items() if name.startswith("embeddings.")}
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.epsilon = config["layer_norm_eps"]
        self.device = {
            name: hg.asarray(x, BF16 if x.ndim == 2 else F32)
            for name, x in weights.items()
            if x.ndim <= 2 and (x.ndim == 1 or not name.startswith("embeddings."))
        }
        self.ones = hg.asarray(np.ones((config["hidden_size"], 1), BF16))

    def __call__(self, ids: list[NDArray[np.int64]]) -> Floats:
        """Embed sentences of token ids to unit vectors (sentences, hidden)."""
        ends = np.cumsum([len(one) for one in ids]).tolist()
        spans = list(zip([0, *ends], ends, strict=False))
        x = self.norm(hg.asarray(self.embedded(ids)), "embeddings.LayerNorm")
        for i in range(self.layers):
            prefix = f"encoder.layer.{i}"
            attended = self.attention(x.astype(BF16), spans, f"{prefix}.attention.self")
            x = self.linear(attended, f"{prefix}.attention.output.dense", residual=x, dtype=F32)
            x = self.norm(x, f"{prefix}.attention.output.LayerNorm")
            hidden = self.linear(x.astype(BF16), f"{prefix}.intermediate.dense", activation="gelu")
            x = self.linear(hidden, f"{prefix}.output.dense", residual=x, dtype=F32)
            x = self.norm(x, f"{prefix}.output.LayerNorm")
        tokens = x.get()
        mean = np.stack([tokens[begin:end].mean(0) for begin, end in spans])
        return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True), F32)

    def embedded(self, ids: list[NDArray[np.int64]]) -> Floats:
        """Look up the embeddings of all tokens, on the host."""
        table = {
            kind: self.tables[f"embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        }
        rows = [table["word"][one] + table["position"][: len(one)] for one in ids]
        return np.asarray(np.concatenate(rows) + table["token_type"][0], F32)

    def linear(self, x: hg.DeviceArray, layer: str, **rest: Any) -> hg.DeviceArray:
        """Multiply rows by a layer's weights, add its bias, and do the rest in the same kernel."""
        weight, bias = self.device[f"{layer}.weight"], self.device[f"{layer}.bias"]
        y: hg.DeviceArray = hg.matmul(x, weight.T, bias=bias, **rest)
        return y

    def attention(self, x: hg.DeviceArray, spans: list[tuple[int, int]], prefix: str) -> hg.DeviceArray:
        """Multi-head self-attention, sentence by sentence."""
        parts = [self.linear(x, f"{prefix}.{name}") for name in ("query", "key", "value")]
        result = hg.empty(x.shape, BF16)
        for begin, end in spans:
            query, key, value, out = (self.by_head(part[begin:end]) for part in (*parts, result))
            scores = hg.matmul(query, key.mT)
            scores = hg.softmax(scores, scale=1 / math.sqrt(query.shape[-1]))
            hg.matmul(scores, value, out)
        return result

    def by_head(self, x: hg.DeviceArray) -> hg.DeviceArray:
        """View rows (tokens, heads * n) as (heads, tokens, n)."""
        return x.reshape(x.shape[0], self.heads, -1).T.mT.T

    def norm(self, x: hg.DeviceArray, name: str) -> hg.DeviceArray:
        """LayerNorm over the last axis, of float32 rows."""
        mean = hg.matmul(x.astype(BF16), self.ones, alpha=-1 / x.shape[-1], dtype=F32)
        normed: hg.DeviceArray = hg.rms_norm(x + mean, self.device[f"{name}.weight"], eps=self.epsilon)
        result: hg.DeviceArray = normed + self.device[f"{name}.bias"]
        return result


def main() -> None:
    """Print similarities, times, and the mean cosine to float32."""
    print("on", hg.info().summary)
    directory = model_directory()
    weights: dict[str, Floats] = load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    ids, mask = tokenize(directory, SENTENCES)
    exact = Encoder(weights, config, NumpyLinear(weights))(ids, mask)

    encoder = DeviceEncoder(weights, config)
    sentences = [row[: int(length)] for row, length in zip(ids, mask.sum(1), strict=True)]
    encoder(sentences)  # loads kernels and plans products
    start = time.perf_counter()
    embeddings = encoder(sentences)
    seconds = time.perf_counter() - start

    linear = HipLinear(weights, "bf16")
    linear.judge = lambda *_: None  # type: ignore[method-assign]
    there_and_back = Encoder(weights, config, linear)
    there_and_back(ids, mask)
    start = time.perf_counter()
    there_and_back(ids, mask)
    before = time.perf_counter() - start

    print("Similarity (cosine x 100):")
    for sentence, row in zip(SENTENCES, embeddings @ embeddings.T, strict=True):
        print("  " + " ".join(f"{100 * value:4.0f}" for value in row) + f"   {sentence}")
    print(f"{len(SENTENCES)} sentences, {int(mask.sum())} tokens; kernels: {', '.join(hg.usage().kernels)}")
    print(f"on the device {seconds:.2f} s; linear layers alone there (sentence_embeddings.py) {before:.2f} s")
    print(f"mean_cosine={cosine(embeddings, exact):.5f}")


if __name__ == "__main__":
    main()
