"""The safetensors format: eight bytes with the length of a header, the header in JSON, and the elements.

The reader and the writer are hipgemm's own. The package ``safetensors`` has no NumPy types for 8 bits and
fewer, accepts files with duplicate names, and copies each array, while a device needs it chunk by chunk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import requirement, shown
from ..formats.checks import is_int
from ..formats.elements import BF16, E8M0, FP8_E4M3, FP8_E5M2, MXFP4_E2M1

HEADER_LIMIT = 100_000_000  # bytes; readers refuse longer ones
LENGTH = 8  # bytes of the header's length
_MOST_AXES = 32  # of NumPy 1

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind}{8 * n}": np.dtype(f"<{kind.lower()}{n}") for kind in "UI" for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": np.dtype(f"<f{n}") for n in (2, 4, 8)},
    "C64": np.dtype(np.complex64),
    "BF16": BF16.dtype,
    "F8_E4M3": FP8_E4M3.dtype,
    "F8_E5M2": FP8_E5M2.dtype,
    "F8_E8M0": E8M0,
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F4": MXFP4_E2M1.dtype,
    "F6_E2M3": np.dtype(ml_dtypes.float6_e2m3fn),
    "F6_E3M2": np.dtype(ml_dtypes.float6_e3m2fn),
}
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file."""

    name: str
    dtype: str  # the format's name of it
    shape: tuple[int, ...]
    begin: int  # bytes from the end of the header
    end: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


class Damaged(ValueError):
    """A file that is not in the format, or not complete. It is raised as a ValueError with the path."""


def read_length(first: bytes, size: int) -> int:
    """Read the length of the header from the first bytes of a file of `size` bytes."""
    if len(first) < LENGTH:
        raise Damaged(requirement(f"a file must begin with {LENGTH} bytes of length", f"{size} bytes"))
    length = int.from_bytes(first, "little")
    if length > HEADER_LIMIT:
        raise Damaged(requirement(f"the header must be of at most {HEADER_LIMIT} bytes", length))
    if length > size - LENGTH:
        got = f"a file of {size} bytes"
        raise Damaged(requirement(f"the file must hold a header of {length} bytes", got, "is it truncated?"))
    return length


def read_header(text: bytes, data_size: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """Read a header: the tensors in its order, and the metadata. `data_size` bytes follow it."""
    fields = _parse(text)
    metadata = fields.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
        raise Damaged(requirement("__metadata__ must hold text by name", shown(metadata)))
    entries = {name: _read_entry(name, value) for name, value in fields.items()}
    at, last = 0, "the header"
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at:
            required = f"tensor {shown(entry.name)} must begin at byte {at}, where {last} ends"
            raise Damaged(requirement(required, entry.begin, "holes and overlaps are not allowed"))
        at, last = entry.end, f"tensor {shown(entry.name)}"
    if at != data_size:
        context = "is the file truncated?" if at > data_size else "bytes after the last tensor"
        raise Damaged(requirement(f"{at} bytes must follow the header", data_size, context))
    return entries, metadata


def _parse(text: bytes) -> dict[str, Any]:
    """Parse a JSON object without duplicate names."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise Damaged(requirement("names in the header must differ", f"{shown(name)} twice"))
            found[name] = value
        return found

    def refuse(number: str) -> Any:
        raise Damaged(requirement("numbers in the header must be ints", shown(number)))

    if text[:1] != b"{":
        raise Damaged(requirement("the header must begin with {", shown(text[:8])))
    try:
        fields: dict[str, Any] = json.loads(
            text.decode(), object_pairs_hook=unique, parse_float=refuse, parse_constant=refuse
        )
        for name in fields:
            name.encode()
    except Damaged:
        raise
    except UnicodeError as error:
        raise Damaged(requirement("the header must be UTF-8", shown(error, str))) from None
    except RecursionError:
        raise Damaged(requirement("the header must be JSON", "one that is nested too deeply")) from None
    except ValueError as error:
        raise Damaged(requirement("the header must be JSON", shown(error, str))) from None
    return fields


def _read_entry(name: str, value: Any) -> Entry:
    where = f"tensor {shown(name)}"
    fields: dict[str, Any] = value if isinstance(value, dict) else {}
    if not {"dtype", "shape", "data_offsets"} <= set(fields):
        raise Damaged(requirement(f"{where} must have dtype, shape and data_offsets", shown(value)))
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Damaged(requirement(f"{where} must have one of the dtypes {', '.join(DTYPES)}", shown(dtype)))
    if not is_shape(shape):
        required = f"{where} must have a shape of at most {_MOST_AXES} ints, and fewer than 2**60 elements"
        raise Damaged(requirement(required, shown(shape)))
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Damaged(requirement(f"{where} must have two data_offsets in order", shown(offsets)))
    nbytes = size_of(dtype, tuple(shape))
    if offsets[1] - offsets[0] != nbytes:
        required = f"{where} of {dtype} {tuple(shape)} must have {nbytes} bytes"
        raise Damaged(requirement(required, offsets[1] - offsets[0]))
    return Entry(name, dtype, tuple(shape), *offsets)


def is_shape(value: object) -> bool:
    """Whether a value of JSON is the shape of an array that NumPy can make, if memory suffices."""
    return (
        isinstance(value, list)
        and len(value) <= _MOST_AXES
        and _are_sizes(value)
        and math.prod(max(n, 1) for n in value) < 2**60
    )


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(is_int(n) and 0 <= n < 2**63 for n in values)


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor.

    >>> size_of("BF16", (2, 3)), size_of("F4", (2, 3)), size_of("F32", ())
    (12, 3, 4)
    """
    return -(-math.prod(shape) * _BITS.get(dtype, 8 * DTYPES[dtype].itemsize) // 8)


def write_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """Make the first bytes of a file with tensors of these dtypes and shapes.

    Returns
    -------
    tuple of bytes, list of str
        The length and the header, and the names in the order of the elements: the widest first, so that all
        are aligned.
    """
    order = sorted(tensors, key=lambda name: -DTYPES[tensors[name][0]].itemsize)
    places, at = {}, 0
    for name in order:
        size = size_of(*tensors[name])
        places[name], at = [at, at + size], at + size
    fields: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, (dtype, shape) in tensors.items():
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": places[name]}
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH)
    return len(text).to_bytes(LENGTH, "little") + text, order
