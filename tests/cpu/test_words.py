"""The terms are those of the field: replaced words stay out of code, comments, documentation and messages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "hipgemm",
    "hipgemm_benchmarks",
    "tests",
    "docs",
    "examples",
    "emulator",
    "bridge",
    "src_hip",
    "tools",
)
SUFFIXES = {".py", ".md", ".toml", ".yml", ".c", ".cpp", ".h", ".hpp", ".hip", ".def"}

# A pattern, and the word to use.
BANNED = {
    r"heed(s|ed|ing)?": "respect",
    r"foretell(s|ing)?|foretold": "predict, report in advance",
    r"anew": "again; copied",
    r"dealt|deals? out|dealing out": "assigned round-robin, interleaved",
    r"the way back": "dequantize, download",
    r"told|tell(s|ing)?|told_by": "report, return, show; error_context",
    r"said": "message, text",
    r"turned|lies_turned": "transposed",
    r"(take|takes|taking|in) turns|count_turns|scale_turn|step_of_turn": "alternate; K iteration",
    r"(go|goes|went|going|bring|brings|brought) up": "upload",
    r"(go|goes|went|going|bring|brings|brought) down": "download",
    r"len[dt]s?|lending": "export, upload",
    r"trades? places": "XOR swizzle, swap",
    r"sees? to": "own, ensure",
    r"house": "layout",
    r"greatest magnitudes?": "amax",
    r"behind": "after",
    r"spoil(s|ed|t|ing)?": "corrupt, make NaN",
    r"guise": "as",
    r"settle(s|d)?": "decide, plan",
    r"nobody|somebody|whoever": "say which function, thread or library",
    r"beside": "next to, with",
    r"handed": "passed",
    r"at hand": "available",
    r"queue_rows|kept_as|join_lanes|place_of_workgroup|kDealt|kApart|detach_if": "see docs/glossary.md",
    r"BackPlan|take_over": "DequantizePlan, import_array",
    r"\w*\} it is:": "chosen:",
}
PATTERN = re.compile(rf"(?<![\w.])(?:{'|'.join(BANNED)})(?!\w)", re.IGNORECASE)


def files() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    for folder in FOLDERS:
        found += sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES and p != Path(__file__))
    return found


def test_banned_words_stay_out() -> None:
    assert len(files()) > 200
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r} in {line.strip()}"
        for path in files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in PATTERN.finditer(line)
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    ["the chosen kernel", "a house", "it lends", "told", "numbers behind it", "{name} it is: 3 clocks"],
)
def test_the_pattern_finds_words(text: str) -> None:
    assert bool(PATTERN.search(text)) == (text != "the chosen kernel")
