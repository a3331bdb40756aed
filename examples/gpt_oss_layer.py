"""A mixture-of-experts layer of gpt-oss-20b on the device, from a file in the published layout.

32 experts, of which each token takes 4: two linear layers, 2880 wide, with MXFP4 weights, a bias for each
expert, and the clamped SwiGLU of gpt-oss in between. The example writes a file with random weights under the
published names. ``--file`` reads the real checkpoint instead: a file or its folder.

The router and the experts with their activation run on the device, bfloat16 times MXFP4. The host chooses the
experts from the router's logits, sorts the rows by expert, and adds up each token's results. The yardstick is
the same layer in float32 NumPy, with weights decoded from the bytes of the file: the difference must be 50 dB
below the result, and device memory at most 1.1 times the file.

Run: python examples/gpt_oss_layer.py [--file gpt-oss-20b --layer 0] [--tokens 64] [--small]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import hipgemm as hg

Array = NDArray[Any]
EXPERTS, TOP, WIDTH = 32, 4, 2880
SMALL_WIDTH = 192
BF16 = np.dtype(ml_dtypes.bfloat16)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
UP, DOWN, ROUTER = "experts.gate_up_proj", "experts.down_proj", "router.weight"
WEIGHTS = UP, DOWN, ROUTER
BIASES = f"{UP}_bias", f"{DOWN}_bias", "router.bias"
LIMIT = 7.0  # of the inputs of the activation
SLOPE = 1.702
LEAST = 50  # dB


def write_layer(path: Path, prefix: str, width: int, rng: np.random.Generator) -> None:
    """Write a layer with random weights: `save` gives experts in MXFP4 the names and shapes of gpt-oss."""

    def weights(rows: int) -> hg.ScaledArray:
        codes = rng.integers(0, 256, (EXPERTS, rows, width // 2), dtype=np.uint8)
        scales = rng.integers(118, 122, (EXPERTS, rows, width // 32), dtype=np.uint8)
        return hg.ScaledArray(codes, scales, "mxfp4_e2m1")

    def numbers(*shape: int, scale: float) -> Array:
        return np.asarray(scale * rng.standard_normal(shape, dtype=np.float32), BF16)

    arrays = {
        UP: weights(2 * width),
        f"{UP}_bias": numbers(EXPERTS, 2 * width, scale=0.5),
        DOWN: weights(width),
        f"{DOWN}_bias": numbers(EXPERTS, width, scale=0.5),
        ROUTER: numbers(EXPERTS, width, scale=width**-0.5),
        "router.bias": numbers(EXPERTS, scale=0.5),
    }
    hg.save(path, {prefix + name: x for name, x in arrays.items()})


def route(logits: Array) -> tuple[Array, Array, Array]:
    """Choose experts for each token: the token and the gate of each row, and where an expert's rows begin."""
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
    best = np.take_along_axis(logits, experts, axis=1)
    gates = np.exp(best - best.max(1, keepdims=True))
    gates /= gates.sum(1, keepdims=True)
    order = np.argsort(experts.ravel(), kind="stable")
    counts = np.bincount(experts.ravel(), minlength=EXPERTS)
    return order // TOP, gates.ravel()[order], np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def add_up(rows: Array, token: Array, gate: Array, tokens: int) -> Array:
    """Add the rows of each token, weighted by their gates."""
    out = np.zeros((tokens, rows.shape[1]), np.float32)
    np.add.at(out, token, gate[:, None] * rows)
    return out


class Layer:
    """The layer on a device."""

    def __init__(self, path: Path, prefix: str) -> None:
        weights = hg.load(path, [prefix + name for name in WEIGHTS], device=0)
        biases = hg.load(path, [prefix + name for name in BIASES])  # on the host: products add float32
        self.up, self.down, self.router = (weights[prefix + name] for name in WEIGHTS)
        self.up_bias, self.down_bias, self.router_bias = (
            hg.asarray(biases[prefix + name], np.float32, device=0) for name in BIASES
        )
        self.nbytes = sum(x.nbytes for x in (*weights.values(), *biases.values()))

    def __call__(self, x: Array) -> Array:
        """Return the output for tokens x (tokens, WIDTH)."""
        logits = hg.matmul(hg.asarray(x), self.router.T, bias=self.router_bias, dtype=np.float32).get()
        token, gate, offsets = route(logits)
        epilogue: dict[str, Any] = {"bias": self.up_bias, "activation": "swiglu_oss", "glu": "interleaved"}
        h = hg.grouped_matmul(hg.asarray(x[token]), self.up.mT, offsets, **epilogue)
        y = hg.grouped_matmul(h, self.down.mT, offsets, bias=self.down_bias, dtype=np.float32)
        return add_up(y.get(), token, gate, len(x))


class Decoded:
    """The same layer in float32, one expert after the other."""

    def __init__(self, path: Path, prefix: str) -> None:
        names = (*WEIGHTS, *BIASES)
        loaded = hg.load(path, [prefix + name for name in names])
        self.arrays = {name: loaded[prefix + name] for name in names}

    def weight(self, name: str, expert: int) -> Array:
        """Decode the weights of an expert: two 4-bit codes in a byte, the first in the low half."""
        q = self.arrays[name]
        codes, scales = q.data[expert], q.scale[expert].view(np.uint8)
        values = np.stack((FP4[codes & 15], FP4[codes >> 4]), axis=-1).reshape(*scales.shape, 32)
        values *= np.ldexp(np.float32(1), scales.astype(np.int32) - 127)[..., None]
        return np.asarray(values.reshape(len(codes), -1))

    def real(self, name: str) -> Array:
        """Return an array in float32."""
        return np.asarray(self.arrays[name].astype(np.float32))

    def __call__(self, x: Array) -> Array:
        """Return the output for tokens x (tokens, WIDTH)."""
        x = x.astype(np.float32)
        token, gate, offsets = route(x @ self.real(ROUTER).T + self.real("router.bias"))
        rows, parts = x[token], []
        for e in range(EXPERTS):
            t = rows[offsets[e] : offsets[e + 1]] @ self.weight(UP, e).T + self.real(f"{UP}_bias")[e]
            linear = np.clip(t[:, 1::2], -LIMIT, LIMIT)
            inner = np.minimum(t[:, ::2], LIMIT)
            h = inner / (1 + np.exp(-SLOPE * inner)) * (linear + 1)
            parts.append(h @ self.weight(DOWN, e).T + self.real(f"{DOWN}_bias")[e])
        return add_up(np.concatenate(parts), token, gate, len(x))


def sqnr(got: Array, exact: Array) -> float:
    """Signal to noise, dB."""
    return float(20 * np.log10(np.linalg.norm(exact) / np.linalg.norm(got - exact)))


def run(path: Path, prefix: str, tokens: int) -> None:
    """Run the layer both ways, and compare."""
    start = time.perf_counter()
    layer = Layer(path, prefix)
    loaded = time.perf_counter() - start
    width = layer.up.shape[2]
    size = layer.nbytes / 1e6
    shapes = f"{layer.up.shape} and {layer.down.shape} {layer.up.format}"
    print(f"loaded {size:.1f} MB in {loaded:.2f} s: {shapes}")
    x = np.random.default_rng(1).standard_normal((tokens, width), dtype=np.float32).astype(BF16)
    start = time.perf_counter()
    out = layer(x)
    print(f"{tokens} tokens, {TOP} experts each: {time.perf_counter() - start:.2f} s")
    peak = hg.memory_stats().peak
    print(f"peak device memory: {peak / 1e6:.1f} MB, {peak / layer.nbytes:.3f} times the layer's")
    print("kernels:", ", ".join(sorted(hg.usage().kernels)))
    ratio = sqnr(out, Decoded(path, prefix)(x))
    print(f"SQNR against float32: {ratio:.1f} dB")
    if not ratio >= LEAST:
        raise SystemExit(f"that is less than {LEAST} dB")


def main() -> None:
    """Read the arguments, and write a file if none is given."""
    parser = argparse.ArgumentParser(description="A mixture-of-experts layer of gpt-oss-20b")
    parser.add_argument("--file", type=Path, help="a checkpoint: a file, an index or a folder")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--small", action="store_true", help=f"{SMALL_WIDTH} wide instead of {WIDTH}")
    args = parser.parse_args()
    print("on", hg.info().summary)
    prefix = f"model.layers.{args.layer}.mlp."
    if args.file is not None:
        run(args.file, prefix, args.tokens)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_layer(path, prefix, SMALL_WIDTH if args.small else WIDTH, np.random.default_rng(0))
        print(f"wrote {path.stat().st_size / 1e6:.1f} MB of random weights")
        run(path, prefix, args.tokens)


if __name__ == "__main__":
    main()
