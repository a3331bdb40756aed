"""The state of delayed scaling: the greatest magnitude to scale by now, and the one for the next step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..array.device_array import DeviceArray, asarray, zeros
from ..formats.checks import Checks
from ..formats.elements import F32
from ..kernels.launch import launch_tiles
from ..runtime import hip as _hip


class AmaxState:
    """What `quantize_fp8` takes as `amax` to scale by the past, in one pass over the tensor.

    Each call scales by `current` and takes its tensor's own greatest magnitude into `next`; several
    calls may share a state. `step` then makes `next` current. Nothing is read back to the host.

    Parameters
    ----------
    value : float, optional
        The first `current`. Default: the first tensor's own, which costs that call a second pass.
    device : int, optional
        Default: the current device.

    Attributes
    ----------
    current, next : DeviceArray
        0-d, float32.

    Examples
    --------
    >>> import hipgemm as hg
    >>> state = hg.AmaxState(2.0)
    >>> q = hg.quantize_fp8(np.array([1.0, 4.0], np.float32), state, eps=0.0)
    >>> q.data.astype(float).tolist()  # 4 is beyond 2, and saturates
    [224.0, 448.0]
    >>> state.step()
    >>> float(state.current.get()), float(state.next.get())
    (4.0, 0.0)
    """

    __slots__ = ("_primed", "_values")

    def __init__(self, value: float | None = None, *, device: int | None = None):
        checks = Checks("AmaxState")
        number = None if value is None else checks.magnitude("value", value, "a number or None")
        device = checks.value_or(_hip.parse_device(device), 0)
        checks.raise_all()
        self._primed = number is not None
        if number is None:
            self._values = zeros(2, np.float32, device=device)
        else:
            self._values = asarray(np.array([number, 0], np.float32), device=device)

    @property
    def current(self) -> DeviceArray:
        """What the next call scales by."""
        return self._values[0]

    @property
    def next(self) -> DeviceArray:
        """The greatest magnitude since the last step."""
        return self._values[1]

    @property
    def device(self) -> int:
        """The device that holds it."""
        return self._values.device

    def step(self, *, stream: Any = None) -> None:
        """Make `next` current and start `next` at 0, behind the calls so far."""
        handle = _hip.stream_handle("AmaxState.step", stream)
        values = self._values
        with _hip.on_device(values.device):
            values._block.begin_write(handle)
            _hip.copy("DeviceToDevice", values.ptr, values.ptr + 4, 4, handle)
            _hip.clear(values.ptr + 4, 4, handle)

    def _take(self, own: int, stream: int) -> None:
        """Take in a tensor's own greatest magnitude, just written on `stream`; the first serves at once."""
        values = self._values
        values._block.begin_write(stream)
        if not self._primed:
            _hip.copy("DeviceToDevice", values.ptr, own, 4, stream)
            self._primed = True
        launch_tiles(
            values.device,
            "amax",
            1,
            1,
            stream,
            src=own,
            amax=values.ptr + 4,
            src_row_stride=4,
            src_col_stride=4,
            rows=1,
            cols=1,
            amax_step=0,
            in_type=F32,
        )

    def __repr__(self) -> str:
        return f"AmaxState(device={self.device})"
