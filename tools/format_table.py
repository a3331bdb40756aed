"""Signal to quantization noise, and size, of each format and scale rule: the table in docs/trust/formats.md.

Run: python tools/format_table.py [--values 4194304]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hipgemm import reference
from hipgemm.formats.elements import SCALE_RULES
from hipgemm.formats.scaled import ScaledArray

Floats = npt.NDArray[np.float32]
ROW = 4096


def signals(count: int) -> dict[str, Floats]:
    """Three kinds of data: like weights, like activations that are not negative, and with heavy tails."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(count, dtype=np.float32)
    heavy = np.exp(2 * rng.standard_normal(count)) * rng.choice((-1.0, 1.0), count)
    data = {"normal": normal, "abs(normal)": np.abs(normal), "lognormal": heavy.astype(np.float32)}
    return {name: x.reshape(-1, ROW) for name, x in data.items()}


def recipes() -> Iterator[tuple[str, str, Any]]:
    """Every way to quantize: format, rule, and the function."""
    for fp8 in ("fp8_e4m3", "fp8_e5m2"):
        yield fp8, "one scale", lambda x, f=fp8: reference.quantize_fp8(x, format=f)
        yield fp8, "one per row", lambda x, f=fp8: reference.quantize_fp8(x, format=f, axis=-1)
        for block in ((1, 128), (128, 128)):
            yield (
                fp8,
                f"block {block}",
                lambda x, f=fp8, b=block: reference.quantize_fp8(x, format=f, block=b),
            )
    for mx in ("mxfp8_e4m3", "mxfp8_e5m2"):
        for rule in SCALE_RULES:
            yield mx, rule, lambda x, f=mx, r=rule: reference.quantize_mxfp8(x, format=f, scaling=r)
    for mx in ("mxfp6_e2m3", "mxfp6_e3m2"):
        for rule in SCALE_RULES:
            yield mx, rule, lambda x, f=mx, r=rule: reference.quantize_mxfp6(x, format=f, scaling=r)
    for rule in SCALE_RULES:
        yield "mxfp4_e2m1", rule, lambda x, r=rule: reference.quantize_mxfp4(x, scaling=r, hadamard=False)
    yield "mxfp4_e2m1", "even, Hadamard", reference.quantize_mxfp4
    yield "mxfp4_e2m1", "even, Hadamard, signs", lambda x: reference.quantize_mxfp4(x, signs=0)


def measure(x: Floats, q: ScaledArray) -> tuple[float, float]:
    """Signal to quantization noise in dB, and the share of values that became 0."""
    back = reference.dequantize(q)
    noise = np.sum((back.astype(np.float64) - x) ** 2)
    lost = np.mean((back == 0) & (x != 0))
    return float(10 * np.log10(np.sum(x.astype(np.float64) ** 2) / noise)), float(lost)


def table(count: int) -> list[str]:
    """The table in Markdown."""
    data = signals(count)
    lines = [
        "| format | scale | bytes | " + " | ".join(f"{name}: SQNR, dB | to 0" for name in data) + " |",
        "|---|---|--:|" + "--:|--:|" * len(data),
    ]
    for form, rule, quantize in recipes():
        cells = []
        for x in data.values():
            q = quantize(x)
            ratio, lost = measure(x, q)
            cells.append(f"{ratio:.1f} | {100 * lost:.1f}%")
        cells.insert(0, f"{q.nbytes / x.size:.3f}")
        lines.append(f"| {form} | {rule} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=2**22, help=f"how many, a multiple of {ROW}")
    print("\n".join(table(parser.parse_args().values)))


if __name__ == "__main__":
    main()
