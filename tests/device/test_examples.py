"""The examples run as users run them, and the real model agrees with float32 NumPy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart() -> None:
    assert "every element inside the bound" in run("quickstart.py")


def test_sentence_embeddings() -> None:
    """bf16 linear layers change the embeddings' direction by next to nothing."""
    out = run("sentence_embeddings.py")
    match = re.fullmatch(r"mean_cosine=(\d\.\d{5})", out.splitlines()[-1])
    assert match, out
    assert float(match[1]) >= 0.9999
    assert "run by gemm_bf16_nt" in out
