"""Pictures of a replay: what each wave issues when, as PNG or as JSON for a trace viewer."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np

from . import cycles

SLOT = 4  # clocks between two issues of a SIMD
ROW, GAP = 12, 2  # pixels of a wave, and between waves; a column is a clock
MOST_COLUMNS = 4096
# By the beginning of the mnemonic; the first that fits.
COLOURS = {
    "v_mfma": (70, 120, 200),
    "ds_": (230, 150, 50),
    "buffer_": (190, 70, 70),
    "global_": (190, 70, 70),
    "v_": (110, 180, 220),
    "s_waitcnt": (60, 60, 60),
    "s_barrier": (0, 0, 0),
    "s_": (150, 190, 120),
}
OTHER, NOTHING = (200, 120, 200), (245, 245, 245)


def write(x: cycles.Replay, loop: cycles.Loop, file: Path) -> None:
    """Write a picture of two turns of the loop (.png), or all that issues (.json)."""
    file.write_bytes(png(x, loop) if file.suffix == ".png" else json.dumps(trace(x)).encode())


def trace(x: cycles.Replay) -> dict[str, object]:
    """What issues when, in the format of Chrome's trace viewer: a row for each wave, a clock is 1 us."""
    names = [i.text.split()[0] for i in x.instructions]
    events = [
        {
            "name": names[op],
            "ph": "X",
            "pid": int(wave) % cycles.SIMDS,
            "tid": int(wave),
            "ts": int(clock),
            "dur": max(SLOT, x.instructions[op].matrix_clocks),
            "args": {"text": x.instructions[op].text},
        }
        for wave, op, clock in x.issues
    ]
    labels = [
        {"name": "process_name", "ph": "M", "pid": simd, "args": {"name": f"SIMD {simd}"}}
        for simd in range(cycles.SIMDS)
    ]
    return {"traceEvents": [*labels, *events]}


def png(x: cycles.Replay, loop: cycles.Loop) -> bytes:
    """Two turns of the loop in its steady state: a row for each wave, those of a SIMD together."""
    begin = x.clocks // 2
    columns = max(1, min(MOST_COLUMNS, x.clocks - begin, int(2 * loop.clocks)))
    waves = int(x.issues["wave"].max()) + 1
    rows = {wave: i for i, wave in enumerate(sorted(range(waves), key=lambda w: (w % cycles.SIMDS, w)))}
    image = np.full((waves * (ROW + GAP), columns, 3), NOTHING, np.uint8)
    for wave, op, clock in x.issues:
        at = int(clock) - begin
        if 0 <= at < columns:
            name = x.instructions[op].text
            colour = next((c for start, c in COLOURS.items() if name.startswith(start)), OTHER)
            length = max(SLOT - 1, x.instructions[op].matrix_clocks - 1)
            top = rows[int(wave)] * (ROW + GAP)
            # A matrix instruction as long as its pipe is busy, below what issues meanwhile.
            half = slice(top + ROW // 2, top + ROW) if length > SLOT else slice(top, top + ROW // 2)
            image[half, at : at + length] = colour
    return encode(image)


def encode(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """An image (rows, columns, RGB) as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = image.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with a filter: none
    lines[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
