"""Products of arrays on the host: how they are uploaded before, and the result downloaded after.

Small ones go up through one pinned buffer and one block of device memory, in one copy each way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray
from ..array.placement import Placement
from ..array.transfer import download
from ..formats.elements import QUANTIZED
from ..formats.operand import Operand
from ..formats.scaled import ScaledArray, packed_data
from ..runtime import hip, staging, tally
from .layout import host_copies, is_column_major, uploaded
from .operation import Arguments
from .plan import Plan
from .problem import Problem

Host = npt.NDArray[Any]
Execute = Callable[..., None]  # run.execute
SMALL = 1 << 20  # bytes of operands and result that share one buffer
_ALIGNMENT = 256
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True)
class HostPlan:
    """How the arrays of one call reach the device, and the result the host.

    `places` are those of the operands, each followed by that of its scales, then of col_scale, bias and
    offsets: None for what is not there, or on the device already.
    """

    places: tuple[Placement | None, ...]
    out: Placement
    copies: tuple[tuple[str, str], ...]  # that NumPy makes on the way, and why
    upload: int  # bytes that go up together; 0 for arrays too large for that
    total: int

    def run(
        self,
        plan: Plan,
        execute: Execute,
        a: Any,
        b: Any,
        out: Any,
        alpha: Any,
        col_scale: Any,
        bias: Any,
        offsets: Any,
        stream: int,
    ) -> Host:
        """Upload, multiply, download; nothing is pending when this returns."""
        result: Host = np.empty(plan.shape, plan.out_format.dtype) if out is None else out
        if plan.nbytes == 0:
            return result
        for name, reason in self.copies:
            tally.count_copy(plan.op.name, name, reason)
        if type(offsets) is DeviceArray:
            offsets = offsets.get()
        run = self._together if self.upload else self._apart
        arguments = plan, execute, (a, b), (col_scale, bias, offsets), alpha, result, stream
        if hip.current_device() == plan.device:
            run(*arguments)
        else:
            with hip.on_device(plan.device):
                run(*arguments)
        return result

    def _together(
        self,
        plan: Plan,
        execute: Execute,
        operands: tuple[Any, Any],
        vectors: tuple[Any, Any, Any],
        alpha: Any,
        result: Host,
        stream: int,
    ) -> None:
        """Go through one pinned buffer and one block."""
        block = hip.allocate(self.total, plan.device, stream)
        base = block.ptr
        sources = (*_parts(operands[0]), *_parts(operands[1]), *vectors)
        there = [
            x if place is None else place.array(block, base)
            for x, place in zip(sources, self.places, strict=True)
        ]
        out = self.out.array(block, base)
        with staging.borrowed(plan.device, self.total, stream) as buffer:
            memory = buffer.array
            for x, place in zip(sources, self.places, strict=True):
                if place is not None:
                    place.write(memory, x)
            if plan.accumulate:
                self.out.write(memory, result)
            hip.copy("HostToDevice", base, buffer.ptr, self.upload, stream)
            x, y = _joined(operands[0], *there[:2]), _joined(operands[1], *there[2:4])
            execute(plan, x, y, out, alpha, *there[4:], stream)
            at = self.out.offset
            hip.copy("DeviceToHost", buffer.ptr + at, base + at, self.out.nbytes, stream)
            hip.synchronize(stream)
            self.out.read(memory, result)

    def _apart(
        self,
        plan: Plan,
        execute: Execute,
        operands: tuple[Any, Any],
        vectors: tuple[Any, Any, Any],
        alpha: Any,
        result: Host,
        stream: int,
    ) -> None:
        """Go array by array, piece by piece."""
        try:
            there = []
            sources = (*_parts(operands[0]), *_parts(operands[1]))
            for x, place in zip(sources, self.places[:4], strict=True):
                if place is None:
                    there.append(x)
                    continue
                place = replace(place, offset=0)
                block = hip.allocate(place.nbytes, plan.device, stream)
                place.queue(np.asarray(x), block.ptr, stream)
                there.append(place.array(block, block.ptr))
            out = plan.new_out(plan.device, stream)
            if plan.accumulate:
                replace(self.out, offset=0).queue(result, out.ptr, stream)
            x, y = _joined(operands[0], *there[:2]), _joined(operands[1], *there[2:])
            execute(plan, x, y, out, alpha, *vectors, stream)
            download(out.ptr, out.shape, out.strides, result, stream)
        except BaseException:
            hip.quiesce(stream)  # or it would write into an array that is gone
            raise


def _parts(x: Any) -> tuple[Any, Any]:
    """The arrays of an operand, as a device holds them."""
    return (packed_data(x), x.scale) if type(x) is ScaledArray else (x, None)


def _joined(x: Any, data: Any, scale: Any) -> Any:
    """The operand `x` of arrays on the device."""
    if type(x) is not ScaledArray:
        return data
    form = QUANTIZED[x.format]
    offsets = x.group_offsets
    return ScaledArray._make(data, scale, form, x.axis, x.shape, hadamard=x.hadamard, group_offsets=offsets)


def plan(p: Problem, call: Arguments) -> HostPlan:
    """Decide how the arrays of a call reach the device."""
    assert p.given is not None
    placed: list[Placement | None] = []
    for x, given, k_axis in zip((call.a, call.b), p.given, p.op.k_axes, strict=True):
        placed += _operand(x, given, p.k, k_axis)
    for vector, dtype in ((call.col_scale, None), (call.bias, None), (call.offsets, _INT32)):
        on_host = isinstance(vector, np.ndarray)
        placed.append(Placement.contiguous(vector.shape, dtype or vector.dtype) if on_host else None)
    out = Placement.contiguous(p.shape, p.out_format.dtype)
    total = 0
    for i, place in enumerate(placed):
        if place is not None:
            placed[i] = replace(place, offset=total)
            total += _aligned(place.nbytes)
    upload, total = total, total + out.nbytes
    out = replace(out, offset=upload)
    upload = total if p.accumulate else upload
    return HostPlan(tuple(placed), out, tuple(host_copies(p)), max(1, upload) if total <= SMALL else 0, total)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _operand(x: Any, given: Operand, k: int, k_axis: int) -> list[Placement | None]:
    """Where the elements of an operand go, and its scales."""
    there = uploaded(given, k)
    columns = is_column_major(there)
    data, scale = _parts(x)
    ndim = len(data.shape)
    shape, strides = data.shape, there.strides[-ndim:]
    if k_axis == -2:
        strides, columns = (*strides[:-2], *strides[:-3:-1]), not columns
    placed = Placement.in_lines(shape, strides, data.dtype, columns)
    if scale is None:
        return [placed, None]
    along_k = k_axis == -1 or x.group_offsets is not None or len(scale.shape) < 2
    return [placed, Placement.contiguous(scale.shape, scale.dtype, columns=not along_k)]
