"""The manifest: the kernels that were built for each architecture. Uses no device."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ..errors import KernelNotFoundError
from ..formats.activations import ACTIVATIONS, GLU_ACTIVATIONS, GLUS
from ..formats.elements import FORMATS, QUANTIZED, SCALE_RULES, named_format

KERNEL_DIR = Path(__file__).parent
MAKE_LINE = "make kernels (in a source tree; else install hipgemm again)"
BRIDGE_ARCH = "sm_90a"  # of the portable kernels for the bridge
BRIDGE_LINE = "make bridge (in a source tree; an installed package has no bridge)"
ARCHS = ("gfx950", "gfx942", "gfx90a", "gfx1100", "gfx1201")  # with kernels
MATRIX_ARCHS = ("gfx950", "gfx942")  # with kernels that use matrix instructions
GEMMS = ("gemm", "scaled_gemm")  # operations of products
CHUNK_BYTES = 16  # bytes of one load of a lane


@dataclass(frozen=True)
class Argument:
    """One kernel argument."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True)
class Kernel:
    """A kernel of a code object."""

    name: str
    op: str
    arch: str
    threads: int
    tile: tuple[int, ...]
    args: tuple[Argument, ...] = field(repr=False)
    a: str = ""
    b: str = ""
    layout: str = ""
    element_bytes: int = 0
    schedule: str = ""
    mfma_rows: int = 16  # of a matrix instruction, if it has any
    by_name: bool = False  # whether it is never chosen
    mfma_bits: int = 0  # of an element that it multiplies
    lds: int = 0  # bytes per workgroup
    workgroups_per_cu: float = 0  # occupancy, limited by registers and LDS
    # Per wave and K tile.
    main_loop: Mapping[str, float] = field(default_factory=dict, hash=False, repr=False)

    @property
    def bits(self) -> int:
        """Bits of an operand's element; of the wider operand if they differ."""
        return max(named_format(name).bits for name in (self.a, self.b))

    def chunk(self, side: int) -> int:
        """Elements of the first (side 0) or second operand in a 16-byte chunk, or in several of 6 bits."""
        bits = named_format((self.a, self.b)[side]).bits
        return math.lcm(bits, 8 * CHUNK_BYTES) // bits


_KERNEL_FIELDS = [field.name for field in fields(Kernel)]


@dataclass(frozen=True)
class Codes:
    """The kernels' enumerations, by name."""

    formats: Mapping[str, int]
    scale_rules: Mapping[str, int]
    activations: Mapping[str, int]
    glus: Mapping[str, int]

    def of(self, name: str) -> int:
        """The code of a name that is not a format's."""
        return next(codes[name] for codes in (self.scale_rules, self.activations, self.glus) if name in codes)

    @property
    def missing(self) -> list[str]:
        """Names of the package that the enumeration lacks."""
        wanted = (
            ((*FORMATS, *QUANTIZED), self.formats),
            (SCALE_RULES, self.scale_rules),
            ((*ACTIVATIONS, *GLU_ACTIVATIONS), self.activations),
            (GLUS, self.glus),
        )
        return [name for names, codes in wanted for name in names if name not in codes]


@dataclass(frozen=True)
class LeftOut:
    """Products that `make demo` builds no kernels for."""

    op: str
    a: str
    b: str
    layout: str


@dataclass(frozen=True)
class CodeObject:
    """The kernels built for one architecture."""

    arch: str
    path: Path
    sha256: str
    kernels: dict[str, Kernel]
    codes: Codes
    left_out: tuple[LeftOut, ...] = ()
    left_out_tiles: tuple[str, ...] = ()  # that no kernel for products has

    @cached_property
    def orders_scales(self) -> bool:
        """Whether there are kernels that read reordered MX scales."""
        return any(kernel.op == "scaled_gemm" for kernel in self.kernels.values())

    def own_k_tile(self, form: str) -> int:
        """The K tile of products of an MX format with itself; 128 in all other products of MX formats."""
        return max((k.tile[2] for k in self.kernels.values() if k.layout and k.a == k.b == form), default=128)


def load_manifest(directory: Path | None = None, name: str = "manifest.json") -> dict[str, CodeObject]:
    """Read a manifest; empty if nothing was built."""
    path = (directory or KERNEL_DIR) / name
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        return {}
    return _read_manifest(path, stamp)


@lru_cache(maxsize=4)
def _read_manifest(path: Path, stamp: int) -> dict[str, CodeObject]:
    del stamp  # part of the cache's key only
    try:
        read = json.loads(path.read_text())
        codes = Codes(*(dict(read.get(kind.name, {})) for kind in fields(Codes)))
        built = {arch: _code_object(arch, entry, path, codes) for arch, entry in read["archs"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise KernelNotFoundError(
            f"the kernel manifest {path} is damaged ({error!r}); run: {MAKE_LINE}"
        ) from error
    if built and codes.missing:
        raise KernelNotFoundError(
            f"the kernels of {path} were built for another version of hipgemm, without "
            f"{', '.join(codes.missing)}; run: {MAKE_LINE}"
        )
    return built


def _code_object(arch: str, entry: dict[str, Any], path: Path, codes: Codes) -> CodeObject:
    lists = [tuple(Argument(**argument) for argument in listed) for listed in entry["args"]]

    def kernel(k: dict[str, Any]) -> Kernel:
        known = {name: k[name] for name in _KERNEL_FIELDS if name in k}
        return Kernel(**{**known, "arch": arch, "tile": tuple(k["tile"]), "args": lists[k["args"]]})

    kernels = {k["name"]: kernel(k) for k in entry["kernels"]}
    left_out = tuple(LeftOut(**product) for product in entry.get("left_out", ()))
    tiles = tuple(entry.get("left_out_tiles", ()))
    return CodeObject(arch, path.parent / entry["file"], entry["sha256"], kernels, codes, left_out, tiles)


def code_object(arch: str, directory: Path | None = None) -> CodeObject:
    """Return the code object of an architecture, or raise an error that says how to build it."""
    if arch.startswith("sm_"):  # under the bridge
        built = load_manifest(directory, "bridge.json")
        if arch not in built:
            advice = f"run: {BRIDGE_LINE}"
            if arch != BRIDGE_ARCH:
                advice = f"the bridge has kernels for {BRIDGE_ARCH} (H100, H200) only"
            made = ", ".join(built) or "none"
            raise KernelNotFoundError(f"no kernels for {arch}; built for the bridge: {made}; {advice}")
        return built[arch]
    built = load_manifest(directory)
    if arch not in built:
        raise KernelNotFoundError(no_kernels(arch, built))
    return built[arch]


def no_kernels(arch: str, built: Iterable[str]) -> str:
    """The message that no kernels are built for an architecture."""
    advice = f"run: {MAKE_LINE if arch == 'gfx950' else MAKE_LINE.replace('kernels', 'kernels-all', 1)}"
    if arch not in ARCHS:
        advice = f"hipgemm has kernels for {', '.join(ARCHS)} only"
    return f"no kernels for {arch}; architectures built: {', '.join(built) or 'none'}; {advice}"
