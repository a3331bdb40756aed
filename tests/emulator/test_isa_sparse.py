"""smfmac: products of an A that has two of each four values of k, against NumPy on exact data."""

from __future__ import annotations

import re

import asm
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from test_isa_mfma import EIGHT_BITS, group, program

NAMES = [name for _, _, name, _, _ in asm.rows() if name.startswith("v_smfmac")]
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8}
TYPES |= {"fp8": EIGHT_BITS[0], "bf8": EIGHT_BITS[1]}
# The first index is less than the second.
PAIRS = np.array([(i, j) for i in range(4) for j in range(i + 1, 4)])


class Case:
    """The shape of an instruction, and which k a lane holds (ISA text of CDNA4, 7.5.1)."""

    def __init__(self, name: str) -> None:
        found = re.fullmatch(r"v_smfmac_([fi])32_(\d+)x\d+x(\d+)_(\w+)", name)
        assert found
        self.out = np.float32 if found[1] == "f" else np.int32
        self.m, self.k = int(found[2]), int(found[3])
        kinds = found[4].split("_")
        self.a, self.b = TYPES[kinds[0]], TYPES[kinds[-1]]
        self.groups = 64 // self.m
        self.per_lane = self.k // self.groups
        bytes_of_b = self.per_lane * np.dtype(self.b).itemsize
        self.chunks = bytes_of_b // 16  # 16 bytes of B in each
        self.sets = 32 // self.per_lane  # two bits of index for each of per_lane / 2 values of A

    def k_of(self, lane_group: int) -> NDArray[np.int64]:
        """Of each value of B that a lane holds."""
        size = self.per_lane // self.chunks
        each = np.arange(size) + lane_group * size
        return np.concatenate([each + c * self.k // self.chunks for c in range(self.chunks)])


def values(of: type, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    if of is np.int8:
        return rng.integers(-128, 128, size).astype(np.float64)
    return rng.choice([0, 0.5, 1, 1.5, 2, -0.5, -1, -3], size)


def dwords(x: NDArray[np.float64], of: type) -> NDArray[np.uint32]:
    """[lane, register]"""
    return np.ascontiguousarray(x.astype(of)).view(np.uint8).view(np.uint32)


def prepared(case: Case, rng: np.random.Generator, used: int) -> tuple[NDArray[np.float64], ...]:
    """Dense A and B, and A, B and the indices as lanes hold them, in set `used` of the index register."""
    m = case.m
    b = values(case.b, (m, case.k), rng)
    a = np.zeros((m, case.k))
    lanes_a, lanes_b = np.zeros((64, case.per_lane // 2)), np.zeros((64, case.per_lane))
    index = np.full(64, 0x44444444, np.uint32)  # other sets choose the first two of each four
    for lane in range(64):
        ks = case.k_of(lane // m)
        lanes_b[lane] = b[lane % m, ks]
        bits = 0
        for pair in range(case.per_lane // 4):
            chosen = PAIRS[rng.integers(len(PAIRS))]
            lanes_a[lane, 2 * pair : 2 * pair + 2] = values(case.a, (2,), rng)
            a[lane % m, ks[4 * pair + chosen]] = lanes_a[lane, 2 * pair : 2 * pair + 2]
            bits |= int(chosen[0] | chosen[1] << 2) << 4 * pair
        width = case.per_lane
        mask = (1 << width) - 1 << used * width
        index[lane] = int(index[lane]) & ~mask | bits << used * width
    return a, b, lanes_a, lanes_b, index


def run(name: str, used: int, modifiers: str, rng: np.random.Generator, extra: str = "") -> None:
    case = Case(name)
    a, b, lanes_a, lanes_b, index = prepared(case, rng, used)
    ra, rb = dwords(lanes_a, case.a), dwords(lanes_b, case.b)
    count = case.m * case.m // 64
    c = rng.integers(-100, 100, (case.m, case.m)).astype(case.out)
    # Lane and register of each result are those of the dense instruction of this size.
    row, column = np.indices(c.shape)
    height = 4 * case.groups
    lane = column + case.m * (row // 4 % case.groups)
    register = row % 4 + 4 * (row // height)
    rc = np.zeros((64, count), case.out)
    rc[lane, register] = c
    operands = [group(32, count), group(8, ra.shape[1]), group(16, rb.shape[1]), "v4"]
    text = f"{name} {', '.join(operands)} {modifiers}"
    scales = np.zeros((64, 2), np.uint32)
    scales[:, 0] = index
    snippet = program(text, ra.shape[1], rb.shape[1], count, extra)
    *_, out = asm.run(snippet, ra, rb, rc, scales, np.zeros_like(rc))
    np.testing.assert_array_equal(out[lane, register], (a @ b.T + c).astype(case.out))


@pytest.mark.parametrize("name", NAMES)
def test_products(name: str, rng: np.random.Generator) -> None:
    sets = Case(name).sets
    run(name, sets - 1, f"abid:{sets - 1}" if sets > 1 else "", rng)


def test_cbsz_selects_the_first_indices(rng: np.random.Generator) -> None:
    run("v_smfmac_f32_16x16x32_f16", 0, "cbsz:1 abid:2", rng)


def test_exec_is_ignored(rng: np.random.Generator) -> None:
    extra = "s_mov_b64 s[14:15], exec\ns_mov_b64 exec, 5"
    name = "v_smfmac_i32_32x32x32_i8"
    case = Case(name)
    a, b, lanes_a, lanes_b, index = prepared(case, rng, 0)
    text = f"{extra}\n{name} v[32:47], v[8:9], v[16:19], v4\ns_mov_b64 exec, s[14:15]"
    scales = np.stack([index, index], 1)
    zeros = np.zeros((64, 16), np.int32)
    snippet = program(text, 2, 4, 16)
    *_, out = asm.run(snippet, dwords(lanes_a, case.a), dwords(lanes_b, case.b), zeros, scales, zeros)
    assert out.sum() == (a @ b.T).sum()


def test_what_is_not_selected_is_not_multiplied() -> None:
    """0 times infinity would be NaN."""
    a, b = np.ones((64, 4)), np.ones((64, 8))
    b[:, 2:4] = np.inf  # the indices choose 0 and 1, then 4 and 5
    scales, zeros = np.full((64, 2), 0x4444, np.uint32), np.zeros((64, 4), np.float32)
    snippet = program("v_smfmac_f32_16x16x32_f16 v[32:35], v[8:9], v[16:19], v4", 2, 4, 4)
    *_, out = asm.run(snippet, dwords(a, np.float16), dwords(b, np.float16), zeros, scales, zeros)
    np.testing.assert_array_equal(out, 16.0)


def test_indices_must_ascend() -> None:
    zeros, scales = np.zeros((64, 4), np.float32), np.full((64, 2), 0x1444, np.uint32)
    snippet = program("v_smfmac_f32_16x16x32_f16 v[32:35], v[8:9], v[16:19], v4 abid:1", 2, 4, 4)
    with pytest.raises(asm.LaunchError, match="two indices of a pair of values of A do not ascend"):
        asm.run(snippet, zeros[:, :2].copy(), zeros, zeros, scales, zeros)
