"""The state of delayed scaling: the amax that is in use, and the amax for the next step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..array.device_array import DeviceArray, asarray, zeros
from ..formats.checks import Checks, checked
from ..formats.elements import F32, Format
from ..kernels.launch import launch_tiles
from ..runtime import hip as _hip


class AmaxState:
    """The state of delayed scaling, an `amax` argument of `quantize_fp8`. It needs one pass over the tensor.

    Each call scales by `current`, and updates `next` with the absolute maximum (amax) of its tensor. Several
    calls may share a state. `step` makes `next` current. Nothing is copied to the host.

    Parameters
    ----------
    value : float, optional
        The first `current`. Default: the amax of the first tensor, which needs a second pass in that call.
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
        """The amax by which the next call scales."""
        return self._values[0]

    @property
    def next(self) -> DeviceArray:
        """The amax since the last step."""
        return self._values[1]

    @property
    def primed(self) -> bool:
        """Whether it has a `current` yet."""
        return self._primed

    @property
    def device(self) -> int:
        """The device that holds it."""
        return self._values.device

    @property
    def freed(self) -> bool:
        """Whether its memory was freed."""
        return self._values.freed

    def step(self, *, stream: Any = None) -> None:
        """Make `next` current and reset `next` to 0, after the calls so far."""
        checked("AmaxState.step", lambda checks: checks.in_memory("the state", self))
        handle = _hip.stream_handle("AmaxState.step", stream)
        values = self._values
        with _hip.on_device(values.device):
            values._block.begin_write(handle)
            _hip.copy("DeviceToDevice", values.ptr, values.ptr + 4, 4, handle)
            _hip.clear(values.ptr + 4, 4, handle)

    def _copy_on(self, device: int) -> AmaxState:
        """A copy on another device."""
        made = AmaxState.__new__(AmaxState)
        made._primed, made._values = self._primed, asarray(self._values, device=device)
        return made

    def _merge(self, amax: DeviceArray) -> None:
        """Update `next` with a value that may be on another device."""
        with _hip.on_device(self.device):
            own = asarray(amax, device=self.device)
            own._block.begin_read(0)
            self._update(own.ptr, 0)

    def _update(self, own: int, stream: int) -> None:
        """Update `next` with a tensor's amax, written on `stream`; the first one also becomes `current`."""
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


def check_out_amax(checks: Checks, state: Any, form: Format | None, device: int | None, like: str) -> None:
    """Check the state that scales a result in a format; on the `device` of the operands `like`, if on one."""
    needed = form is not None and not form.block
    if state is None:
        if needed:
            checks.add(ValueError, "out_amax", "out_amax must be given for fp8", "out_amax=None")
    elif not isinstance(state, AmaxState):
        checks.wrong_type("out_amax", "an AmaxState", state)
    elif not needed:
        checks.add(ValueError, "out_amax", "out_amax must be omitted but for fp8", repr(state))
    elif checks.in_memory("out_amax", state):
        if not state.primed:
            required = "out_amax must have a value: AmaxState(value), or used by quantize_fp8 before"
            checks.add(ValueError, "out_amax", required, "none yet")
        if device is not None:
            checks.same_device("out_amax", state.device, device, like)
