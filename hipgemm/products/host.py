"""Products of host arrays: upload of the operands, and download of the result.

Small arrays share one pinned buffer and one block of device memory, with one copy in each direction.
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
from ..formats.operand import Operand
from ..formats.scaled import ScaledArray, packed_data
from ..formats.strides import swap_last_axes
from ..runtime import hip, staging, tally
from .layout import host_copies, is_column_major, uploaded
from .operation import Arguments
from .plan import Plan
from .problem import Problem

Host = npt.NDArray[Any]
Execute = Callable[..., None]  # run.execute
Queue = Callable[[list[Any], DeviceArray], None]
SMALL = 1 << 20  # bytes of operands and result that share one buffer
_ALIGNMENT = 256
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True)
class HostPlan:
    """How the arrays of a call are copied to the device, and the result to the host.

    `placements` are those of the operands, each followed by that of its scales, then of col_scale, bias and
    offsets; None if an array is missing or on the device already.
    """

    placements: tuple[Placement | None, ...]
    out: Placement
    copies: tuple[tuple[str, str], ...]  # that NumPy makes before the upload, and why
    upload: int  # bytes that are uploaded in one copy; 0 if the arrays are too large for that
    total: int

    def run(
        self, plan: Plan, execute: Execute, a: Any, b: Any, out: Any, more: tuple[Any, ...], stream: int
    ) -> Host:
        """Upload, multiply, download; nothing is pending when this returns."""
        result: Host = np.empty(plan.shape, plan.problem.out_format.dtype) if out is None else out
        if plan.nbytes == 0:
            return result
        for name, reason in self.copies:
            tally.count_copy(plan.op.name, name, reason)
        alpha, *vectors = more
        if type(vectors[-1]) is DeviceArray:
            vectors[-1] = vectors[-1].get()
        sources = [*_parts(a), *_parts(b), *vectors]

        def queue(arrays: list[Any], target: DeviceArray) -> None:
            x, y = _joined(a, *arrays[:2]), _joined(b, *arrays[2:4])
            execute(plan, x, y, target, (alpha, *arrays[4:]), stream)

        run = self._run_in_one_buffer if self.upload else self._run_separately
        with hip.on_device(plan.device):
            run(plan, sources, queue, result, stream)
        return result

    def _run_in_one_buffer(
        self, plan: Plan, sources: list[Any], queue: Queue, result: Host, stream: int
    ) -> None:
        """Copy all arrays through one pinned buffer and one block."""
        block = hip.allocate(self.total, plan.device, stream)
        base = block.ptr
        pairs = list(zip(sources, self.placements, strict=True))
        arrays = [x if placement is None else placement.array(block, base) for x, placement in pairs]
        with staging.acquired(plan.device, self.total, stream) as buffer:
            memory = buffer.array
            for x, placement in pairs:
                if placement is not None:
                    placement.write(memory, x)
            if plan.problem.accumulate:
                self.out.write(memory, result)
            hip.copy("HostToDevice", base, buffer.ptr, self.upload, stream)
            queue(arrays, self.out.array(block, base))
            at = self.out.offset
            hip.copy("DeviceToHost", buffer.ptr + at, base + at, self.out.nbytes, stream)
            hip.synchronize(stream)
            self.out.read(memory, result)

    def _run_separately(
        self, plan: Plan, sources: list[Any], queue: Queue, result: Host, stream: int
    ) -> None:
        """Copy each array by itself, in chunks."""

        def upload(placement: Placement | None, x: Any) -> Any:
            if placement is None:
                return x
            block = hip.allocate(placement.nbytes, plan.device, stream)
            start = block.ptr - placement.offset
            placement.upload(np.asarray(x), start, stream)
            return placement.array(block, start)

        try:
            arrays = [
                upload(placement, x) for placement, x in zip(self.placements[:4], sources[:4], strict=True)
            ]
            out = plan.new_out(stream)
            if plan.problem.accumulate:
                self.out.upload(result, out.ptr - self.out.offset, stream)
            queue([*arrays, *sources[4:]], out)
            download(out.ptr, out.shape, out.strides, result, stream)
        except Exception:
            hip.quiesce(stream)
            raise  # no wait for KeyboardInterrupt: buffers in use are released by their events


def _parts(x: Any) -> tuple[Any, Any]:
    """The elements and scales of an operand, packed as on a device."""
    return (packed_data(x), x.scale) if type(x) is ScaledArray else (x, None)


def _joined(x: Any, data: Any, scale: Any) -> Any:
    """The operand `x` with its arrays on the device."""
    if type(x) is not ScaledArray:
        return data
    return x._with(data, scale, amax=None)


def plan(p: Problem, call: Arguments) -> HostPlan:
    """Plan how the arrays of a call are copied to the device."""
    assert p.given is not None
    placed: list[Placement | None] = []
    for x, given, k_axis in zip((call.a, call.b), p.given, p.op.k_axes, strict=True):
        placed += _operand(x, given, p.k, k_axis)
    for vector, dtype in ((call.col_scale, None), (call.bias, None), (call.offsets, _INT32)):
        on_host = isinstance(vector, np.ndarray)
        placed.append(Placement.contiguous(vector.shape, dtype or vector.dtype) if on_host else None)
    out = Placement.contiguous(p.shape, p.out_format.dtype)
    total = 0
    for i, placement in enumerate(placed):
        if placement is not None:
            placed[i] = replace(placement, offset=total)
            total += _aligned(placement.nbytes)
    upload, total = total, total + out.nbytes
    out = replace(out, offset=upload)
    upload = total if p.accumulate else upload
    return HostPlan(tuple(placed), out, tuple(host_copies(p)), max(1, upload) if total <= SMALL else 0, total)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _operand(x: Any, given: Operand, k: int, k_axis: int) -> list[Placement | None]:
    """The placements of an operand's elements and scales."""
    target = uploaded(given, k)
    columns = is_column_major(target)
    data, scale = _parts(x)
    ndim = len(data.shape)
    shape, strides = data.shape, target.strides[-ndim:]
    if k_axis == -2:
        strides, columns = swap_last_axes(strides), not columns
    placed = Placement.pitched(shape, strides, data.dtype, columns)
    if scale is None:
        return [placed, None]
    if len(scale.shape) < 2 or x.group_offsets is not None:
        return [placed, Placement.contiguous(scale.shape, scale.dtype)]
    steps = target.scale_strides[-len(scale.shape) :]
    steps = swap_last_axes(steps) if k_axis == -2 else steps
    return [placed, Placement.contiguous(scale.shape, scale.dtype, steps, columns=k_axis == -2)]
