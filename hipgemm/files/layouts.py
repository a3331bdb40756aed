"""The layouts of arrays in checkpoints: hipgemm's own record of them, and published ones by names and shapes.

Published layouts, with the weight (N, K) or with further axes before:

===================== =============================== ==================================================
from                  elements                        scales
===================== =============================== ==================================================
gpt-oss               ``x_blocks`` U8 (N, K/32, 16)   ``x_scales`` U8 (N, K/32)
compressed-tensors    ``x_packed`` U8 (N, K/2)        ``x_scale`` U8 (N, K/32)
Quark                 ``x`` U8 (N, K/2) or (N, 3K/4)  ``x_scale`` U8 (N, K/32)
MX of 8 bits          ``x`` F8_E4M3 or F8_E5M2        ``x_scale`` U8 (N, K/32)
DeepSeek-V3           ``x`` F8_E4M3                   ``x_scale_inv`` F32 (N/128, K/128), rounded up
per tensor or channel ``x`` F8_E4M3 or F8_E5M2        ``x_scale`` F32, F16 or BF16 (), (1,), (N,), (N, 1)
===================== =============================== ==================================================

All scales multiply. The bytes of MX scales may also have the dtype F8_E8M0, and 4-bit elements F4 (N, K).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..errors import requirement, shown
from ..formats.checks import FP8_BLOCKS, is_int
from ..formats.elements import (
    BLOCK,
    FP8_E4M3,
    FP8_E5M2,
    MXFP4_E2M1,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    QUANTIZED,
    Format,
    fnuz_hint,
)
from ..formats.philox import MAX_SEED
from ..formats.scaled import HADAMARD, block_scale_shape, scale_shape
from .header import DTYPES, Entry, is_shape

RECORD = "hipgemm"  # the name of the record in the metadata of a file
VERSION = 1
Axes = tuple[int, ...]
Block = tuple[int, int] | None
_FP8 = {"F8_E4M3": (FP8_E4M3, MXFP8_E4M3), "F8_E5M2": (FP8_E5M2, MXFP8_E5M2)}
_E8M0 = ("U8", "F8_E8M0")
_FLOAT = ("F32", "F16", "BF16")
_SCALES = ("_scale_inv", "_scale", "_scales")
_PACKED = (("_blocks", "_scales"), (".blocks", ".scales"), ("_packed", "_scale"))
_GPT_OSS = ("_blocks", ".blocks")


@dataclass(frozen=True)
class Stored:
    """The tensors of an array, and what they mean. The axis along which elements share a scale is the last.

    Attributes
    ----------
    data, scale, amax : str or None
        Names of tensors.
    form : Format or None
        The format; None for a plain array.
    shape : tuple of int
        The shape in elements, as stored.
    scales : tuple of int
        The shape of the scales of the array as stored.
    axis : int
        Where the last axis belongs.
    unpacked : bool
        Whether elements of fewer than 8 bits took a byte each before they were saved.
    signs_start : int
        Of a slice: where it begins among the elements that got signs.
    """

    data: str
    shape: Axes
    form: Format | None = None
    scale: str | None = None
    scales: Axes = ()
    block: Block = None
    axis: int = -1
    hadamard: bool = False
    signs: int | None = None
    amax: str | None = None
    unpacked: bool = False
    signs_start: int = 0

    @property
    def parts(self) -> list[str]:
        """The names of its tensors."""
        return [part for part in (self.data, self.scale, self.amax) if part is not None]

    @property
    def stored_shape(self) -> Axes:
        """The shape of the elements, packed if they have fewer than 8 bits."""
        if self.form is None or not self.form.is_packed:
            return self.shape
        return *self.shape[:-1], self.form.packed_bytes(self.shape[-1])


class Fault(str):
    """Why an array cannot be loaded."""

    __slots__ = ()


Layouts = dict[str, Stored | Fault]


# ---- published layouts -----------------------------------------------------------------------------


def recognize(entries: Mapping[str, Entry], config: Callable[[], dict[str, Any]]) -> Layouts:
    """Find the arrays that tensors make up; `config` returns that of the model."""
    quantized = {name: _quantized(entry, entries, config) for name, entry in entries.items()}
    scales = {name for x in quantized.values() if x is not None for name in x[1]}
    found: Layouts = {}
    for name, entry in entries.items():
        key, _, stored = quantized[name] or (name, (), _plain(entry))
        if name not in scales:
            found[key] = Fault(_twice(key)) if key in found else stored
    return found


def _twice(key: str) -> str:
    return requirement(f"one array must have the name {shown(key)}", "two: one as it is, and one quantized")


def _plain(entry: Entry) -> Stored | Fault:
    hint = fnuz_hint(DTYPES[entry.dtype])
    if hint or DTYPES[entry.dtype].itemsize * math.prod(entry.shape) != entry.end - entry.begin:
        required = f"tensor {shown(entry.name)} must have scales, or elements of whole bytes of an OCP type"
        names = ", ".join(shown(entry.name + suffix) for suffix in _SCALES)
        return Fault(requirement(required, str(entry), hint or f"looked for {names}"))
    return Stored(entry.name, entry.shape)


def _quantized(
    entry: Entry, entries: Mapping[str, Entry], config: Callable[[], dict[str, Any]]
) -> tuple[str, list[str], Stored | Fault] | None:
    """The name, the scales and the layout of the array that a tensor holds the elements of, if it does."""
    name = entry.name
    for suffix, scale in _PACKED:
        key = name.removesuffix(suffix)
        if key in ("", name):
            continue
        if key + scale in entries and (entry.dtype == "U8" or suffix == "_packed"):
            return key, [key + scale], _mx(entry, entries[key + scale], suffix in _GPT_OSS, config)
        if entry.dtype == "U8" and (suffix == "_packed" or entry.shape[-1:] == (BLOCK // 2,)):
            required = f"tensor {shown(name)} must have scales"
            return key, [], Fault(requirement(required, str(entry), f"looked for {shown(key + scale)}"))
    scales = [name + suffix for suffix in _SCALES if name + suffix in entries]
    if not scales or entry.dtype not in ("U8", "F4", *_FP8):
        return None
    if len(scales) > 1:
        required = f"tensor {shown(name)} must have one tensor of scales"
        return name, scales, Fault(requirement(required, ", ".join(map(shown, scales))))
    scaled = entries[scales[0]]
    return name, scales, _fp8(entry, scaled) if entry.dtype in _FP8 else _mx(entry, scaled, False, config)


def _mx(entry: Entry, scale: Entry, in_blocks: bool, config: Callable[[], dict[str, Any]]) -> Stored | Fault:
    """The layout of packed elements with a scale for each 32."""
    what, inner = "U8 or F4 (..., K/2) or (..., 3K/4)", entry.shape[-1:]
    if in_blocks:  # the 16 bytes of a block are an axis of their own
        what, inner = "U8 (..., K/32, 16)", entry.shape[-2:]
    rows, count = entry.shape[: len(entry.shape) - len(inner)], math.prod(scale.shape[-1:])
    bits = math.prod(inner) * {"F4": 4, "U8": 8}.get(entry.dtype, 0)  # of a row
    forms = [form for form in (MXFP4_E2M1, MXFP6_E2M3) if bits and bits == BLOCK * form.bits * count]
    odd_block = in_blocks and (entry.dtype != "U8" or inner[-1:] != (BLOCK // 2,))
    if not forms or odd_block or scale.shape != (*rows, count) or scale.dtype not in _E8M0:
        required = f"tensor {shown(entry.name)} must be {what}, with scales U8 (..., K/32)"
        return Fault(requirement(required, f"{entry} with {shown(scale.name)} {scale}"))
    form: Format | None = forms[0]
    if form is MXFP6_E2M3:
        form = _six_bits(entry.name.removesuffix("_packed").removesuffix(".weight"), config())
    if form is None:
        required = f"a config.json next to the file must name the elements of tensor {shown(entry.name)}"
        advice = "looked for fp6_e2m3 or fp6_e3m2 in its quantization_config"
        return Fault(requirement(required, f"{entry}: elements of 6 bits", advice))
    elements = (*rows, BLOCK * count)
    return Stored(entry.name, elements, form, scale.name, scale_shape(elements, -1, BLOCK))


def _six_bits(layer: str, config: dict[str, Any]) -> Format | None:
    """The format that Quark's config names for the weight of a layer."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    layers = quantization.get("layer_quant_config")
    schemes = [
        scheme
        for pattern, scheme in (layers.items() if isinstance(layers, dict) else ())
        if fnmatchcase(layer, pattern)
    ]
    for scheme in (*schemes, quantization.get("global_quant_config")):
        weight = scheme.get("weight") if isinstance(scheme, dict) else None
        weight = weight[0] if isinstance(weight, list) and weight else weight
        if isinstance(weight, dict):
            return {"fp6_e2m3": MXFP6_E2M3, "fp6_e3m2": MXFP6_E3M2}.get(str(weight.get("dtype")))
    return None


def _fp8(entry: Entry, scale: Entry) -> Stored | Fault:
    """The layout of fp8 elements with scales of any kind."""
    shape, form, mx = entry.shape, *_FP8[entry.dtype]
    kinds: list[tuple[str, Axes, Stored]] = []

    def add(what: str, given: Axes, scales: Axes, kind: Format = form, block: Block = None) -> None:
        kinds.append((what, given, Stored(entry.name, shape, kind, scale.name, scales, block)))

    blocks = [(block, block_scale_shape(shape, block)) for block in FP8_BLOCKS[::-1] if len(shape) > 1]
    if scale.dtype in _E8M0 and shape:
        scales = scale_shape(shape, -1, BLOCK)
        add(f"blocks of {BLOCK}", scales, scales, mx)
    elif scale.dtype in _FLOAT and shape and not scale.name.endswith("_scale_inv"):
        rows = scale_shape(shape, -1, 0)
        add("one", (), ())
        add("one", (1,), ())
        add("rows", shape[:-1], rows)
        add("rows", rows, rows)
        if len(shape) == 3:
            add("matrices", (shape[0],), (shape[0], 1, 1))
            add("matrices", (shape[0], 1, 1), (shape[0], 1, 1))
    if scale.dtype in (*_E8M0, *_FLOAT):
        for block, scales in blocks:
            add(f"blocks of {block[0]} x {block[1]}", scales, scales, block=block)
    for _, given, stored in kinds:
        if scale.shape == given:
            return stored
    allowed = " or ".join(f"{given} ({what})" for what, given, _ in kinds) or "U8, F8_E8M0, F32, F16 or BF16"
    required = f"tensor {shown(scale.name)} must be {allowed}"
    return Fault(requirement(required, str(scale), f"{shown(entry.name)} is {entry}"))


# ---- hipgemm's record ------------------------------------------------------------------------------


def write_record(arrays: Mapping[str, Stored]) -> str:
    """Write the record of the quantized arrays of a file."""
    records = {}
    for name, stored in arrays.items():
        assert stored.form is not None
        record: dict[str, Any] = {"format": stored.form.name, "data": stored.data, "scale": stored.scale}
        if stored.form.is_packed:
            record |= {"shape": stored.shape, "unpacked": stored.unpacked}
        given = {"block": stored.block, "signs": stored.signs, "amax": stored.amax}
        record |= {field: value for field, value in given.items() if value is not None}
        record |= {"axis": stored.axis} if stored.axis != -1 else {}
        record |= {"signs_start": stored.signs_start} if stored.signs_start else {}
        records[name] = record | ({"hadamard": True} if stored.hadamard else {})
    return json.dumps({"version": VERSION, "arrays": records}, separators=(",", ":"))


def read_record(text: str, entries: Mapping[str, Entry]) -> Layouts:
    """The arrays of a file that `hipgemm.save` wrote."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    records = record.get("arrays") if isinstance(record, dict) else None
    if not isinstance(records, dict) or not isinstance(record, dict) or record.get("version") != VERSION:
        required = f"the metadata {RECORD!r} must be a record of version {VERSION}"
        return dict.fromkeys(entries, Fault(requirement(required, shown(text))))
    found: Layouts = {}
    at: dict[str, dict[str, Stored]] = {}  # by the tensor of elements
    for name, fields in records.items():
        stored = _read_array(fields, entries) if isinstance(fields, dict) else None
        if stored is not None:
            at.setdefault(stored.data, {})[name] = stored
        else:
            required = f"the record of array {shown(name)} must fit its tensors"
            found[name] = Fault(requirement(required, shown(fields)))
    used = {part for arrays in at.values() for stored in arrays.values() for part in stored.parts}
    for name, entry in entries.items():
        found |= at.get(name, {})
        if name not in used:
            found.setdefault(name, _plain(entry))
    return found


def _read_array(fields: dict[str, Any], entries: Mapping[str, Entry]) -> Stored | None:
    """Read the record of one array; None if something is wrong."""
    names = [fields.get(field) for field in ("data", "scale", "amax")]
    parts = [entries.get(name) if isinstance(name, str) else None for name in names]
    data, scale, amax = parts
    form = QUANTIZED.get(str(fields.get("format")))
    if data is None or scale is None or form is None or (names[2] is not None and amax is None):
        return None
    block = fields.get("block")
    sides = next((x for x in FP8_BLOCKS if block == list(x)), None)
    hadamard, unpacked = fields.get("hadamard", False), fields.get("unpacked", False)
    axis, signs, shape = fields.get("axis", -1), fields.get("signs"), _shape(fields, data, form)
    if shape is None or not isinstance(hadamard, bool) or not isinstance(unpacked, bool):
        return None
    if not is_int(axis) or not -len(shape) <= axis < 0 or (block is not None and sides is None):
        return None
    if hadamard and (form is not MXFP4_E2M1 or shape[-1] % HADAMARD):
        return None
    if signs is not None and not (hadamard and is_int(signs) and 0 <= signs <= MAX_SEED):
        return None
    start = fields.get("signs_start", 0)
    if not (is_int(start) and 0 <= start < 2**32 and start % BLOCK == 0) or (start and signs is None):
        return None
    if sides is not None and (form.block or len(shape) < 2 or axis < -2):
        return None
    allowed = [scale_shape(shape, -1, form.block)]
    if sides is not None:
        allowed = [block_scale_shape(shape, sides)]
    elif not form.block:
        allowed += [(), (shape[0], 1, 1)] if len(shape) == 3 else [()]
    dtypes = _E8M0 if form.block else ("F32",) if sides is None else ("F32", "F8_E8M0")
    if scale.shape not in allowed or scale.dtype not in dtypes:
        return None
    if amax is not None and amax.dtype != "F32":
        return None
    return Stored(
        data.name,
        shape,
        form,
        scale.name,
        scale.shape,
        sides,
        axis,
        hadamard,
        signs,
        names[2],
        unpacked,
        start,
    )


def _shape(fields: dict[str, Any], data: Entry, form: Format) -> Axes | None:
    """The shape in elements of the array that a tensor holds; None if it is not as large."""
    if not form.is_packed:
        return data.shape if data.shape and DTYPES[data.dtype] == form.dtype else None
    shape = fields.get("shape")
    if data.dtype != "U8" or not is_shape(shape) or not shape:
        return None
    size = math.prod(shape[:-1]) * form.packed_bytes(shape[-1])
    return tuple(shape) if size == data.end - data.begin else None
