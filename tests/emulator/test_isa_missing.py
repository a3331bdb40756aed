"""Instructions without semantics: those that the docs list, and executing one is an error that names it."""

from __future__ import annotations

import re
from pathlib import Path

import asm
from test_decode import ROWS, seeds

DOCS = Path(__file__).parents[2] / "docs/trust/emulator.md"


def test_each_has_semantics_or_is_listed() -> None:
    table = DOCS.read_text().split("| without semantics |")[1].split("\n\n")[0]
    listed = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    kernels = {}
    for row in ROWS:
        _, words, _ = next(iter(seeds(row)))
        kernels[row.name] = asm.Snippet(".long " + ", ".join(f"{w:#x}" for w in words), lds=512, scratch=64)
    reports = {}
    with asm.Module({f"k_{name}": kernel for name, kernel in kernels.items()}) as module:
        for name in kernels:
            try:
                module.run(f"k_{name}")
            except asm.LaunchError as error:
                reports[name] = error.report
    missing = {name for name, text in reports.items() if "no semantics for this instruction" in text}
    assert missing == kernels.keys() & listed
    assert all(name in reports[name] for name in missing)
