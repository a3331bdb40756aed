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
Execute = Callable[..., Any]  # run.execute
Queue = Callable[[list[Any], DeviceArray | None], Any]
SMALL = 1 << 20  # bytes of operands and result that share one buffer
_ALIGNMENT = 256
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True)
class HostPlan:
    """How the arrays of a call are copied to the device, and the result to the host.

    `placements` are those of the operands, each followed by that of its scales, then of col_scale, bias,
    offsets, residual and aux; None if an array is missing or on the device already.
    """

    placements: tuple[Placement | None, ...]
    out: Placement | None  # None: quantized, and downloaded by itself
    copies: tuple[tuple[str, str], ...]  # that NumPy makes before the upload, and why
    upload: int  # bytes that are uploaded in one copy; 0 if the arrays are too large for that
    total: int

    def run(
        self, plan: Plan, execute: Execute, a: Any, b: Any, out: Any, more: tuple[Any, ...], stream: int
    ) -> Any:
        """Upload, multiply, download; nothing is pending when this returns."""
        result: Any = None
        if self.out is not None:
            result = np.empty(plan.shape, plan.problem.out_format.dtype) if out is None else out
            if plan.nbytes == 0:
                return result
        for name, reason in self.copies:
            tally.count_copy(plan.op.name, name, reason)
        alpha, *vectors, offsets, residual, aux, state = more if len(more) > 4 else (*more, None, None, None)
        if offsets is not None:
            offsets = np.asarray(offsets.get() if type(offsets) is DeviceArray else offsets, _INT32)
        sources = [*_parts(a), *_parts(b), *vectors, offsets, residual, aux]

        def queue(arrays: list[Any], target: DeviceArray | None) -> Any:
            x, y = _joined(a, *arrays[:2]), _joined(b, *arrays[2:4])
            then = (*arrays[7:], state) if plan.staged else ()
            return execute(plan, x, y, target, (alpha, *arrays[4:7], *then), stream)

        run = self._run_in_one_buffer if self.upload else self._run_separately
        with hip.on_device(plan.device):
            return run(plan, sources, queue, result, stream)

    def _run_in_one_buffer(
        self, plan: Plan, sources: list[Any], queue: Queue, result: Any, stream: int
    ) -> Any:
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
            if plan.problem.accumulate and self.out is not None:
                self.out.write(memory, result)
            hip.copy("HostToDevice", base, buffer.ptr, self.upload, stream)
            made = queue(arrays, None if self.out is None else self.out.array(block, base))
            written = [(self.placements[-1], sources[-1]), (self.out, result)]  # aux, and what follows it
            found = [(placement, x) for placement, x in written if placement is not None]
            if found:
                at = found[0][0].offset
                hip.copy("DeviceToHost", buffer.ptr + at, base + at, self.total - at, stream)
            hip.synchronize(stream)
            for placement, x in found:
                placement.read(memory, x)
        return made.get() if self.out is None else result

    def _run_separately(self, plan: Plan, sources: list[Any], queue: Queue, result: Any, stream: int) -> Any:
        """Copy each array by itself, in chunks."""

        def upload(placement: Placement | None, x: Any) -> Any:
            if placement is None:
                return x
            block = hip.allocate(placement.nbytes, plan.device, stream)
            start = block.ptr - placement.offset
            placement.upload(np.asarray(x), start, stream)
            return placement.array(block, start)

        try:
            pairs = list(zip(self.placements, sources, strict=True))
            arrays = [upload(*pair) for pair in pairs]
            out = None if self.out is None else plan.new_out(stream)
            if out is not None and self.out is not None and plan.problem.accumulate:
                self.out.upload(result, out.ptr - self.out.offset, stream)
            made = queue(arrays, out)
            for x, target in ((arrays[-1], sources[-1]), (out, result)):
                if x is not None:
                    download(x.ptr, x.shape, x.strides, target, stream)
            return made.get() if out is None else result
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
    offsets = None if call.offsets is None else np.asarray(call.offsets, _INT32)
    for x in (call.col_scale, call.bias, offsets, call.residual, call.aux):
        placed.append(Placement.contiguous(x.shape, x.dtype) if isinstance(x, np.ndarray) else None)
    total = 0
    for i, placement in enumerate(placed):
        if placement is not None:
            placed[i] = replace(placement, offset=total)
            total += _aligned(placement.nbytes)
    upload, out = total, None
    if not (p.stages and p.stages.quantized):
        out = replace(Placement.contiguous(p.shape, p.out_format.dtype), offset=total)
        total += out.nbytes
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
