"""Reading arrays from files, to the host or straight to a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, asarray, new, new_padded
from ..array.transfer import enqueue_upload
from ..errors import message, requirement, shown
from ..formats.checks import Checks
from ..formats.elements import E8M0, Format
from ..formats.scaled import ScaledArray, unpack_along
from ..formats.strides import padded_pitch
from ..runtime import hip as _hip
from .checkpoint import Checkpoint
from .header import DTYPES, Entry
from .layouts import RECORD, Fault, Layouts, Stored, read_record, recognize
from .progress import Progress

Host = npt.NDArray[Any]
Axes = tuple[int, ...]
_SPAN = 32 << 20  # bytes from one report of progress to the next
_U8, _F32 = np.dtype(np.uint8), np.dtype(np.float32)


def load(path: Any, names: Any = None, device: int | None = None) -> dict[str, Any]:
    """Read arrays from a safetensors file, or from a checkpoint of several.

    Files that `save` wrote give the arrays that were saved. In other files, published layouts of quantized
    weights become ScaledArrays with the same bits, and are not quantized again: those of gpt-oss
    (``*_blocks``, ``*_scales``), DeepSeek-V3 (``weight_scale_inv``), compressed-tensors and Quark
    (``weight_packed`` or ``weight``, with ``weight_scale``), and fp8 with a scale per tensor or per channel.
    Their names lose ``_blocks`` or ``_packed``, and the scales are not listed. Other tensors, and fp8
    without scales, become arrays of their dtype.

    On the host, arrays are the mapped file: pages are read when they are used, and elements of fewer than 8
    bits stay packed, unless they were saved with one in each byte. Writing to an array does not change the
    file, and a later `save` under the same name does not change the array; a program that writes into the
    file would. To a device the file is copied through pinned buffers, without an array on the host. What
    takes longer than a second reports its progress on standard error, unless ``HIPGEMM_PROGRESS=off``.

    Parameters
    ----------
    path : str or path-like
        A file; an index (``*.safetensors.index.json``); or a folder with an index or files.
    names : sequence of str, optional
        The arrays to read. Default: all.
    device : int, optional
        The device to copy to. Default: none, for NumPy arrays.

    Returns
    -------
    dict of str to numpy.ndarray, DeviceArray or ScaledArray
        In the order of `names`, or of the file.

    Raises
    ------
    OSError
        If a file cannot be opened, such as FileNotFoundError.
    ValueError
        If a file is damaged, has no array of that name, or has a layout that is not known. The message names
        the tensor and what was looked for.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
    >>> w = hg.quantize_mxfp8(np.ones((4, 64), np.float32))
    >>> hg.save(path, {"up.weight": w, "up.bias": np.zeros(4, np.float32)})
    >>> hg.load(path)["up.weight"]
    ScaledArray(shape=(4, 64), format='mxfp8_e4m3', block=32, axis=-1, host)
    >>> hg.load(path, ["up.bias"], device=0)
    {'up.bias': DeviceArray(shape=(4,), dtype=float32, device=0)}
    """
    checks = Checks("load")
    file = checks.path(path)
    wanted = None if names is None else checks.names(names)
    target = None if device is None else checks.value_or(_hip.parse_device(device), 0)
    checks.raise_all()
    assert file is not None
    checkpoint = Checkpoint(file, writeable=target is None)
    arrays = _choose(checkpoint, wanted)
    total = sum(checkpoint.size_of(part) for stored in arrays.values() for part in stored.parts)
    with Progress(f"load: {file}", total) as progress:
        if target is None:
            return {name: _on_host(checkpoint, x, progress) for name, x in arrays.items()}
        with _hip.on_device(target):
            upload = _Upload(checkpoint, target, progress)
            try:
                return {name: upload.array(stored) for name, stored in arrays.items()}
            finally:
                _hip.synchronize(0)


def _choose(checkpoint: Checkpoint, names: list[str] | None) -> dict[str, Stored]:
    """Find arrays by name; raise if one is missing, or its layout is not known."""
    layouts: Layouts = {}
    published: dict[str, Entry] = {}
    for file in checkpoint.files:
        if RECORD in file.metadata:
            layouts |= read_record(file.metadata[RECORD], file.entries)
        else:
            published |= file.entries
    layouts |= recognize(published, lambda: checkpoint.config)
    missing = [name for name in names or () if name not in layouts]
    if missing:
        some = ", ".join(map(shown, list(layouts)[:5])) + (", ..." if len(layouts) > 5 else "")
        required = f"names must be among the {len(layouts)} arrays of the file"
        got = ", ".join(map(shown, missing[:5]))
        raise checkpoint.damaged(requirement(required, got, f"there are {some}"))
    arrays = {name: layouts[name] for name in (layouts if names is None else names)}
    faults = [f"{checkpoint.path}: {x}" for x in arrays.values() if isinstance(x, Fault)]
    if faults:
        raise ValueError(message("load", faults[:10]))
    return {name: stored for name, stored in arrays.items() if isinstance(stored, Stored)}


# ---- to the host -----------------------------------------------------------------------------------


def _on_host(checkpoint: Checkpoint, stored: Stored, progress: Progress) -> Host | ScaledArray:
    """Make an array of the mapped file."""
    data = _aligned(_part(checkpoint, stored.data, _dtype(checkpoint, stored), stored.stored_shape))
    for part in stored.parts:
        progress.add(checkpoint.size_of(part))
    if stored.form is None:
        return data
    if stored.unpacked:
        data = unpack_along(data, stored.form, -1, stored.shape[-1])
    scale = _aligned(_scales(checkpoint, stored))
    amax = None if stored.amax is None else _aligned(_amax(checkpoint, stored.amax))
    return _scaled(stored, stored.form, data, scale, amax)


def _part(checkpoint: Checkpoint, name: str, dtype: np.dtype[Any], shape: Axes) -> Host:
    flat = checkpoint.bytes_of(name)
    if dtype == np.bool_ and (flat > 1).any():
        required = f"tensor {shown(name)} of BOOL must hold bytes of 0 and 1"
        raise checkpoint.damaged(requirement(required, int(flat.max())))
    return flat.view(dtype).reshape(shape)


def _aligned(x: Host) -> Host:
    """An array of which each element is aligned; a copy if the file's are not."""
    return x if x.__array_interface__["data"][0] % x.dtype.alignment == 0 else x.copy()


def _dtype(checkpoint: Checkpoint, stored: Stored) -> np.dtype[Any]:
    """The dtype of an array's elements; bytes if they are packed."""
    if stored.form is None:
        return DTYPES[checkpoint.entries[stored.data].dtype]
    return _U8 if stored.form.is_packed else stored.form.dtype


def _scales(checkpoint: Checkpoint, stored: Stored) -> Host:
    """The scales of an array as float32 or e8m0."""
    assert stored.scale is not None
    dtype = DTYPES[checkpoint.entries[stored.scale].dtype]
    scale = _part(checkpoint, stored.scale, E8M0 if dtype == _U8 else dtype, stored.scales)
    return scale if dtype in (_U8, E8M0, _F32) else scale.astype(_F32)


def _amax(checkpoint: Checkpoint, name: str) -> Host:
    return _part(checkpoint, name, _F32, checkpoint.entries[name].shape)


def _scaled(stored: Stored, form: Format, data: Any, scale: Any, amax: Any) -> ScaledArray:
    """Make a ScaledArray of its parts, with the axis of the scales where it belongs."""
    axis = stored.axis
    shape = list(stored.shape)
    shape.insert(len(shape) + axis, shape.pop())
    block = stored.block[::-1] if stored.block is not None and axis == -2 else stored.block
    data, scale = _move_last(data, axis), _move_last(scale, axis)
    options: dict[str, Any] = {"hadamard": stored.hadamard, "signs": stored.signs, "block": block}
    options["signs_start"] = stored.signs_start
    return ScaledArray._make(data, scale, form, axis, tuple(shape), amax=amax, **options)


def _move_last(x: Any, axis: int) -> Any:
    """Move the last axis of an array to another place, without a copy."""
    if axis == -1 or not x.shape:
        return x
    if isinstance(x, np.ndarray):
        return np.moveaxis(x, -1, axis)
    if axis == -2:
        return x.mT
    order = list(range(x.ndim))
    order.insert(x.ndim + axis, order.pop())
    return x._view(x.ptr, tuple(x.shape[i] for i in order), tuple(x.strides[i] for i in order))


# ---- to a device -----------------------------------------------------------------------------------


class _Upload:
    """Copies arrays to the current device, as `asarray` places them."""

    def __init__(self, checkpoint: Checkpoint, device: int, progress: Progress):
        self._checkpoint, self._device, self._progress = checkpoint, device, progress

    def array(self, stored: Stored) -> DeviceArray | ScaledArray:
        """Make an array on the device."""
        checkpoint = self._checkpoint
        dtype = _dtype(checkpoint, stored)
        host = _part(checkpoint, stored.data, dtype, stored.stored_shape)
        if stored.form is None:
            return self._mapped(stored.data, host, False)
        # Rows that products read in place.
        data = self._mapped(stored.data, host, host.ndim > 1 and stored.axis >= -2)
        scale, amax = _scales(checkpoint, stored), None
        assert stored.scale is not None
        if checkpoint.size_of(stored.scale) == scale.nbytes:
            placed = self._mapped(stored.scale, scale, False)
        else:
            placed = asarray(scale, device=self._device)
        if stored.amax is not None:
            amax = self._mapped(stored.amax, _amax(checkpoint, stored.amax), False)
        return _scaled(stored, stored.form, data, placed, amax)

    def _mapped(self, name: str, x: Host, padded: bool) -> DeviceArray:
        """Copy a tensor, whose pages are not used again."""
        made = (new_padded if padded else new)(x.shape, x.dtype, self._device, 0)
        width = x.shape[-1] * x.dtype.itemsize if padded else 0
        pitch = padded_pitch(x.shape[-1], x.dtype.itemsize) if padded else 0
        for at, part in _spans(x, width):
            enqueue_upload(part, made.ptr + (at // width * pitch if width else at), 0, pitch)
            self._checkpoint.release(name, part)
            self._progress.add(part.nbytes)
        return made


def _spans(x: Host, width: int) -> Iterator[tuple[int, Host]]:
    """The bytes of a contiguous array in parts, whole rows of `width` bytes if given: where, and the part."""
    flat = x.reshape(-1).view(_U8)
    step = max(_SPAN // width, 1) * width if width else _SPAN
    for at in range(0, flat.size, step):
        part = flat[at : at + step]
        yield at, part.reshape(-1, width) if width else part
