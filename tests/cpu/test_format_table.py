"""The table in docs/trust/formats.md is what its script prints."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script():
    spec = importlib.util.spec_from_file_location("format_table", ROOT / "tools" / "format_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_documented_table():
    printed = [cells(line) for line in script().table(2**19)]
    lines = (ROOT / "docs/trust/formats.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if "SQNR, dB" in line and line.startswith("|"))
    documented = [cells(line) for line in lines[start : start + len(printed)]]
    assert [row[:3] for row in documented] == [row[:3] for row in printed]
    # The document's has eight times the values. Heavy tails are noisy: the largest few carry the signal.
    for row, other in zip(documented[2:], printed[2:], strict=True):
        for i in (3, 5):
            assert float(row[i]) == pytest.approx(float(other[i]), abs=0.11), row
            assert float(row[i + 1][:-1]) == pytest.approx(float(other[i + 1][:-1]), abs=0.4), row
        assert float(row[7]) == pytest.approx(float(other[7]), abs=1.5), row
    assert not lines[start + len(printed)].startswith("|")
