"""The rows of formats.def and activations.def (src_hip/common), and of src_hip/instances.def.

The files say what their fields mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from archs import ARCHS
from toolchain import SOURCE, BuildError


class Element(NamedTuple):
    """An element of a format with scales."""

    name: str
    code: str  # of the matrix instruction
    bits: str


class Format(NamedTuple):
    """A format without scales."""

    name: str
    code: str
    bits: str


class ScaledFormat(NamedTuple):
    """A format with scales."""

    name: str
    code: str
    bits: str
    element: str
    block: str


class BlockFormat(ScaledFormat):
    """A format of matrix kernels, with float scales of blocks."""


class ScaleRule(NamedTuple):
    """How the scale of a block follows from its amax."""

    name: str
    code: str


class Activation(NamedTuple):
    """An activation."""

    name: str
    code: str
    struct: str


class GluActivation(Activation):
    """A function of gate and up."""


class Glu(NamedTuple):
    """Which columns are gate and up."""

    name: str
    code: str


class Pair(NamedTuple):
    """The formats of two operands."""

    name: str
    family: str
    a: str
    b: str
    k: str
    like: str = ""


class Tile(NamedTuple):
    """A tile of C, and how a workgroup computes it.

    small_rows: of the matrix instructions of two MX formats of 6 and 4 bits.
    six_bits: the schedule of two formats of 6 bits.
    """

    size: str
    waves_m: str
    waves_n: str
    schedule: str
    waves_per_simd: str
    small_rows: str = "16"
    six_bits: str = ""

    @property
    def is_ring(self) -> bool:
        """Whether the K loop counts where in LDS a K tile is."""
        return "Ring" in self.schedule


class StagedTile(Tile):
    """One where operands come into LDS through registers."""


class Product(NamedTuple):
    """A GEMM: an operation by matrix instructions."""

    operation: str
    header: str
    args: str
    scaled_args: str
    tiles: str


class Serves(NamedTuple):
    """The layouts in which an operation takes some pairs, with limits of the main loop."""

    operation: str
    families: str
    layouts: str
    limit: str
    ring_limit: str = ""
    tiles: str = ""


class StagedServes(Serves):
    """The same where operands come into LDS through registers."""


class Kernel(NamedTuple):
    """One GEMM kernel, in addition to those of all tiles."""

    operation: str
    pair: str
    layout: str
    size: str
    waves_m: str
    waves_n: str
    schedule: str
    waves_per_simd: str
    mfma_rows: str = ""

    @property
    def tile(self) -> Tile:
        """Its tile, as a TILE row has it."""
        return Tile(*self[3:8], *filter(None, self[8:]))


class Demo(NamedTuple):
    """The GEMM kernels that the examples use."""

    families: str
    tiles: str


class Pass(NamedTuple):
    """A kernel that is not a GEMM."""

    name: str
    operation: str
    header: str
    args: str
    architectures: str
    threads: str
    waves_per_simd: str
    tile: str
    element_bytes: str = ""


class Primitive(NamedTuple):
    """A kernel of a few lines that shows whether the hardware is as the others assume."""

    name: str
    header: str
    architectures: str
    threads: str
    args: str = "PrimitiveArgs"


Row = TypeVar("Row", bound=tuple[str, ...])


def _kind(row: type[tuple[str, ...]]) -> str:
    """The name of a kind of row in a file.

    >>> _kind(ScaledFormat)
    'SCALED_FORMAT'
    """
    return re.sub(r"\B([A-Z])", r"_\1", row.__name__).upper()


class Table:
    """The rows of one file: lines such as KIND(field, field)."""

    def __init__(self, file: str, text: str, kinds: Iterable[type[tuple[str, ...]]]) -> None:
        self.file = file
        self._rows: dict[str, list[str]] = {_kind(row): [] for row in kinds}
        for line in text.splitlines():
            if not line.strip() or line.startswith(("#", "//")):
                continue
            found = re.fullmatch(r"(\w+)\((.*)\)", line)
            if not found or found[1] not in self._rows:
                raise BuildError(f"{file}: a row must be one of {', '.join(self._rows)}; got {line}")
            self._rows[found[1]].append(found[2])

    def rows(self, kind: type[Row]) -> list[Row]:
        """Return all rows of a kind."""
        return [self._row(kind, fields) for fields in self._rows[_kind(kind)]]

    def only(self, kind: type[Row]) -> Row:
        """Return the row of a kind that must occur once."""
        rows = self.rows(kind)
        if len(rows) != 1:
            raise BuildError(f"{self.file}: there must be one row {_kind(kind)}; got {len(rows)}")
        return rows[0]

    def _row(self, kind: type[Row], fields: str) -> Row:
        try:
            return kind(*fields.split(", "))
        except TypeError:
            names = ", ".join(kind.__annotations__)
            raise BuildError(f"{self.file}: {_kind(kind)}({fields}) must have the fields {names}") from None

    def refers(self, row: tuple[str, ...], names: Iterable[str], known: Iterable[str], what: str) -> None:
        """Refuse a row with a name that is not known."""
        for name in sorted(set(names) - set(known)):
            raise self.refused(row, f"names {name}, which is no {what}")

    def refused(self, row: tuple[str, ...], why: str) -> BuildError:
        """The error for a row that is wrong."""
        return BuildError(f"{self.file}: {_kind(type(row))}({', '.join(filter(None, row))}) {why}")


@dataclass(frozen=True)
class FormatTables:
    """What formats.def lists."""

    elements: dict[str, Element]
    formats: dict[str, Format | ScaledFormat]
    scale_rules: dict[str, ScaleRule]

    def codes(self) -> dict[str, dict[str, int]]:
        """Their codes."""
        return {
            "formats": {name: int(row.code) for name, row in self.formats.items()},
            "scale_rules": {name: int(row.code) for name, row in self.scale_rules.items()},
        }


def read_formats() -> FormatTables:
    """Read formats.def."""
    path = SOURCE / "common" / "formats.def"
    table = Table(path.name, path.read_text(), (Element, Format, ScaledFormat, BlockFormat, ScaleRule))
    elements = {row.name: row for row in table.rows(Element)}
    scaled = [*table.rows(ScaledFormat), *table.rows(BlockFormat)]
    for row in scaled:
        table.refers(row, [row.element], elements, "element")
        if row.bits != elements[row.element].bits:
            raise table.refused(row, f"has other bits than its element: {elements[row.element].bits}")
    formats: list[Format | ScaledFormat] = [*table.rows(Format), *scaled]
    rules = {row.name: row for row in table.rows(ScaleRule)}
    return FormatTables(elements, {row.name: row for row in formats}, rules)


def _activation_table() -> Table:
    path = SOURCE / "common" / "activations.def"
    return Table(path.name, path.read_text(), (Activation, GluActivation, Glu))


def read_activations() -> list[Activation]:
    """The activations of activations.def."""
    table = _activation_table()
    return [*table.rows(Activation), *table.rows(GluActivation)]


def read_codes() -> dict[str, dict[str, int]]:
    """The manifest's codes of formats, scale rules, activations and GLUs."""
    activations = {row.name: int(row.code) for row in read_activations()}
    glus = {row.name: int(row.code) for row in _activation_table().rows(Glu)}
    return {**read_formats().codes(), "activations": activations, "glus": glus}


@dataclass(frozen=True)
class KernelTables:
    """What instances.def lists."""

    pairs: list[Pair]
    tiles: dict[str, Tile]
    products: list[Product]
    serves: list[Serves]
    kernels: list[Kernel]
    demo: Demo
    passes: list[Pass]
    primitives: list[Primitive]

    def serving(self, operation: str, pair: str) -> list[tuple[Serves, str]]:
        """The layouts in which an operation takes a pair, each with its row: of the pair, or its family."""
        (family,) = [row.family for row in self.pairs if row.name == pair]
        found = {
            layout: row
            for name in (family, pair)
            for row in self.serves
            if row.operation == operation and name in row.families.split()
            for layout in row.layouts.split()
        }
        return [(row, layout) for layout, row in found.items()]


def read_kernels(formats: FormatTables, text: str | None = None, staging: str = "dma") -> KernelTables:
    """Read instances.def, or the `text` of one, for architectures of one kind (archs.py)."""
    path = SOURCE / "instances.def"
    table = Table(
        path.name,
        path.read_text() if text is None else text,
        (Pair, Tile, Product, Serves, Kernel, StagedTile, StagedServes, Demo, Pass, Primitive),
    )
    staged = staging == "registers"
    found = KernelTables(
        table.rows(Pair),
        {row.size: row for row in table.rows(StagedTile if staged else Tile)},
        table.rows(Product),
        table.rows(StagedServes if staged else Serves),
        [] if staged else table.rows(Kernel),
        table.only(Demo),
        table.rows(Pass),
        table.rows(Primitive),
    )

    def bits(pair: Pair) -> tuple[str, str]:
        return formats.formats[pair.a].bits, formats.formats[pair.b].bits

    families, names = {pair.family for pair in found.pairs}, {pair.name for pair in found.pairs}
    compiled = {pair.name: pair for pair in found.pairs if not pair.like}
    served = {family for row in table.rows(Serves) for family in row.families.split()}
    for pair in found.pairs:
        table.refers(pair, pair[2:4], formats.formats, "format")
        table.refers(pair, [pair.family], served, "family that a row SERVES has")
        if pair.like:
            table.refers(pair, [pair.like], compiled, "pair that is compiled")
            other = compiled[pair.like]
            if (pair.family, pair.k) != (other.family, other.k) or bits(pair) != bits(other):
                raise table.refused(pair, "must have family, K tile and bits of the pair that it is like")
    rings = set()
    for product in found.products:
        table.refers(product, product.tiles.split(), [row.size for row in table.rows(Tile)], "tile")
        if any(found.tiles[size].is_ring for size in product.tiles.split() if size in found.tiles):
            rings.add(product.operation)
    for row in found.serves:
        table.refers(row, [row.operation], [p.operation for p in found.products], "operation")
        table.refers(row, row.families.split(), families | names, "family of pairs")
        table.refers(row, row.tiles.split(), found.tiles, "tile")
        if row.operation in rings and not row.ring_limit:
            raise table.refused(row, "must have a limit for the tiles that are rings")
    for tile in (*found.tiles.values(), *(kernel.tile for kernel in found.kernels)):
        if tile.small_rows not in ("16", "32"):
            raise table.refused(tile, "may have no matrix instructions but those of 16 or 32 rows")
    for kernel in found.kernels:
        table.refers(kernel, [kernel.operation], [p.operation for p in found.products], "operation")
        table.refers(kernel, [kernel.pair], [pair.name for pair in found.pairs], "pair")
        serves = {layout: row for row, layout in found.serving(kernel.operation, kernel.pair)}
        table.refers(kernel, [kernel.layout], serves, "layout that a row SERVES has")
        (product,) = [p for p in found.products if p.operation == kernel.operation]
        listed = found.tiles[kernel.size] if kernel.size in product.tiles.split() else None
        if kernel.mfma_rows and (listed is None or kernel.mfma_rows == listed.small_rows):
            raise table.refused(kernel, "must have other matrix instructions than a tile of the operation")
        if listed and not kernel.mfma_rows:
            raise table.refused(kernel, "is one of the operation's tiles already")
    table.refers(found.demo, found.demo.families.split(), families, "family of pairs")
    table.refers(found.demo, found.demo.tiles.split(), found.tiles, "tile")
    known = ("any", "matrix", "special", *ARCHS)
    units: list[Pass | Primitive] = [*found.passes, *found.primitives]
    for unit in units:
        table.refers(unit, [unit.architectures], known, "architecture, nor a kind of them")
    return found
