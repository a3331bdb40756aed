"""The order in which matrix kernels read MX scales, as in src_hip/common/scale_layout.hpp."""

from __future__ import annotations

from ..formats.groups import group_slots

SCALE_ROWS = 16  # rows of scales are padded to a multiple of this
MN_SCALE_ROWS = 64  # the same for an operand that is MN-major
SCALE_ROW_BYTES = 2  # from row to row
BLOCK_POSITIONS = 16  # kBlockPositions


def scale_order(k_tile: int) -> str:
    """The name, among an array's scales in kernel order, of that for kernels with this K tile."""
    return f"gemm {k_tile}"


def gemm_scale_step(rows: int) -> int:
    """Rows of scales from block to block, for an operand that is K-major."""
    return -(-rows // SCALE_ROWS) * SCALE_ROWS


def gemm_scale_bytes(rows: int, k: int) -> int:
    """Bytes of all scales of a K-major operand.

    >>> gemm_scale_bytes(17, 257)
    512
    """
    return max(1, -(-k // 256)) * 8 * gemm_scale_step(rows)


def float_scale_rows(rows: int, row_block: int) -> tuple[int, int]:
    """Positions of the scales of `row_block` rows each if the other operand has none; those of a block.

    >>> float_scale_rows(300, 128), float_scale_rows(300, 1)
    ((48, 16), (300, 1))
    """
    return (rows, 1) if row_block == 1 else (-(-rows // row_block) * BLOCK_POSITIONS, BLOCK_POSITIONS)


def float_scale_bytes(rows: int, k: int, alone: bool) -> int:
    """Bytes of the float scales of an operand with blocks of 128: exponents, then multipliers.

    `alone`: the other operand has none, and there are no exponents. A tile reads the multipliers of 256 rows,
    which may be past the last ones.
    """
    multipliers = 4 * max(1, -(-k // 128)) * gemm_scale_step(rows) + 4 * 256
    return multipliers if alone else gemm_scale_bytes(rows, k) + multipliers


def mn_scale_step(rows: int) -> int:
    """Rows of scales from block to block, for an operand that is MN-major."""
    return -(-rows // MN_SCALE_ROWS) * MN_SCALE_ROWS


def group_scale_bytes(rows: int, columns: int, groups: int) -> int:
    """Bytes of all scales of a grouped MN-major operand (rows, columns), whose blocks are along columns.

    >>> group_scale_bytes(300, 65, 2)
    4096
    """
    return group_slots(rows, groups, 256) * 8 * mn_scale_step(columns)
