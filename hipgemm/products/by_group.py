"""grouped_wgrad of fp8 with blocks: one product for each group, because no kernel serves all at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ..array.device_array import DeviceArray
from ..errors import raise_reasons
from ..formats.elements import BLOCK_SIDE
from ..formats.groups import offset_reasons
from ..formats.scaled import ScaledArray
from ..formats.strides import padded_pitch
from ..kernels.launch import copy_strided
from ..runtime import hip, tally
from .operation import GROUPED_WGRAD, MATMUL

_CUT = "groups end inside blocks"


def wgrad(
    product: Callable[..., Any],
    dy: ScaledArray,
    x: ScaledArray,
    out: DeviceArray,
    offsets: Any,
    stream: int,
    accumulate: bool,
) -> None:
    """Queue the products of all groups on the current device; this waits for offsets on the device.

    `product` computes each of them: `run`.
    """
    if isinstance(offsets, DeviceArray):
        offsets = offsets.get()
        raise_reasons(GROUPED_WGRAD.name, offset_reasons(offsets, len(x)))
    for g, (begin, end) in enumerate(pairwise(offsets.tolist())):
        first = begin // BLOCK_SIDE * BLOCK_SIDE
        last = min(len(x), -(-end // BLOCK_SIDE) * BLOCK_SIDE)
        if (begin, end) == (first, last) or begin == end:
            rows = [q[begin:end] if begin < end else q[:0] for q in (dy, x)]
        else:
            rows = [
                _whole_blocks(name, q, begin, end, first, last, stream)
                for name, q in zip(GROUPED_WGRAD.operands, (dy, x), strict=True)
            ]
        product(MATMUL, rows[0].T, rows[1], out[g], stream=stream, accumulate=accumulate)


def _whole_blocks(
    name: str, q: ScaledArray, begin: int, end: int, first: int, last: int, stream: int
) -> ScaledArray:
    """The rows of a group with those of the blocks that it shares with others, which are zero."""
    count, columns = last - first, q.shape[1]
    pitch = padded_pitch(count, 1)
    block = hip.allocate(columns * pitch, q.data.device, stream)
    hip.clear(block.ptr, columns * pitch, stream)
    data = q.data
    data._block.begin_read(stream)
    row, column = data.strides
    source, target = (data.ptr + begin * row, column, row), (block.ptr + begin - first, pitch, 1)
    copy_strided(data.device, stream, 1, source, target, columns, end - begin)
    tally.count_copy(GROUPED_WGRAD.name, name, _CUT, columns * pitch)
    made = DeviceArray(block, block.ptr, (columns, count), (pitch, 1), data.dtype, padded=True)
    scale = q.scale
    if q.block is not None:
        scale = scale[first // BLOCK_SIDE : -(-last // BLOCK_SIDE)]
    return q._with(made.T, scale, q.axis, (count, columns), amax=None)
