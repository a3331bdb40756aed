// MX scales in GEMM order: where the scale byte of a row and a block of 32 along K lies.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// A matrix instruction takes a step of 128 elements along K: 4 blocks. Scales come in units of two
// steps, so that one register holds the scales of two fragments for two steps, and the instruction
// selects the byte:
//
//   byte S[unit][block of the step][position of the row][step of the unit]
//
// Rows are padded to 16 ("step rows": the stride between blocks). Each 16 are interleaved by fours,
// 0 4 8 12 1 5 .. 15, because the fragments of a lane are rows four apart: their scales are then
// contiguous.
// Steps come in the order of the K loop's iterations: the last tile of K, which may be ragged, then
// all others from the first on. The loop's last tile ends a unit; so with an odd number of steps
// the first byte of unit 0 is not used.
inline constexpr u32 kScaleBlock = 32;
inline constexpr u32 kStepBlocks = 4;
inline constexpr u32 kStepElements = kScaleBlock * kStepBlocks;
inline constexpr u32 kUnitSteps = 2;
inline constexpr u32 kScaleRows = 16;
inline constexpr u32 kUnitElements = kUnitSteps * kStepElements;
inline constexpr u32 kUnitRowBytes = kUnitSteps * kStepBlocks;

// 2^0, for padding, whose data is zero.
inline constexpr u32 kNeutralScale = 127;

// Its own inverse.
HIPGEMM_BOTH constexpr u32 scale_position(u32 row) {
  return (row & ~(kScaleRows - 1)) | (row & 3) << 2 | (row >> 2 & 3);
}

// MN-major operands: a lane's fragments are rows 16 apart, so rows are padded to 64 and interleaved
// by sixteens, 0 16 32 48 1 17 .. 63. MX scales of such operands come in groups of rows along K
// (groups.hpp): each group begins a unit of its own, whose index is that of the group's first slot
// of kUnitElements.
inline constexpr u32 kMnScaleRows = 64;
HIPGEMM_BOTH constexpr u32 mn_scale_position(u32 row) {
  return (row & ~(kMnScaleRows - 1)) | (row & 15) << 2 | (row >> 4 & 3);
}
HIPGEMM_BOTH constexpr u32 mn_scale_row(u32 position) {
  return (position & ~(kMnScaleRows - 1)) | (position & 3) << 4 | (position >> 2 & 15);
}

// K tiles of the GEMM: for K = 0, one empty tile.
HIPGEMM_BOTH constexpr u32 count_k_tiles(u32 k, u32 tile) {
  return k <= tile ? 1 : (k - 1) / tile + 1;
}

// Steps of a K tile of products of 4-bit elements with each other; 1 for all others.
#if defined(__gfx950__)
inline constexpr u32 kLongTileSteps = 2;
#else
inline constexpr u32 kLongTileSteps = 1;
#endif

// The iteration of a step, counted in steps. tile_steps: steps of one K tile.
HIPGEMM_BOTH constexpr u32 scale_iteration(u32 step, u32 k, u32 tile_steps) {
  const u32 tiles = count_k_tiles(k, tile_steps * kStepElements);
  const u32 tile = step / tile_steps;
  const u32 index = tile + 1 == tiles ? 0 : tile + 1;
  const u32 unused = tiles * tile_steps % kUnitSteps;
  return index * tile_steps + step % tile_steps + unused;
}

// The inverse of scale_iteration. Iteration 0 may be unused: kNoStep.
inline constexpr u32 kNoStep = 0xffffffffu;
HIPGEMM_BOTH constexpr u32 step_of_iteration(u32 iteration, u32 k, u32 tile_steps) {
  const u32 tiles = count_k_tiles(k, tile_steps * kStepElements);
  const u32 unused = tiles * tile_steps % kUnitSteps;
  if (iteration < unused) return kNoStep;
  const u32 index = (iteration - unused) / tile_steps;
  const u32 tile = index == 0 ? tiles - 1 : index - 1;
  return tile * tile_steps + (iteration - unused) % tile_steps;
}

// The index of a scale in S, by its position. step_rows: rows between blocks.
HIPGEMM_BOTH constexpr u64 scale_index(u32 position, u32 iteration, u32 block, u32 step_rows) {
  const u64 block_row = static_cast<u64>(iteration / kUnitSteps) * kStepBlocks + block;
  return (block_row * step_rows + position) * kUnitSteps + iteration % kUnitSteps;
}
HIPGEMM_BOTH constexpr u64 scale_offset(u32 row, u32 iteration, u32 block, u32 step_rows) {
  return scale_index(scale_position(row), iteration, block, step_rows);
}

// Float scales of blocks of 128 along K, as exponents and multipliers: scale = 2^(byte - 127) *
// multiplier. The bytes, of a step's blocks all alike, are in the order above. The multipliers
// follow them: f32 M[tile in the order of the loop][row], with `step_rows` rows.
HIPGEMM_BOTH constexpr u64 multipliers_offset(u32 k, u32 step_rows) {
  return static_cast<u64>(count_k_tiles(k, kUnitElements)) * kUnitRowBytes * step_rows;
}

// For the product with an operand that has no scales there are no exponents, and the multipliers
// are the scales: f32 M[tile in the order of the loop][position], of `step` positions. If blocks
// have 128 rows, which leaves fewer positions than rows, each has 16 equal ones: no lane reads more
// in a row.
inline constexpr u32 kRowBlock = 128, kBlockPositions = 16;
HIPGEMM_BOTH constexpr u32 multiplier_position(u32 row, u32 rows, u32 step) {
  return step < rows ? row / kRowBlock * kBlockPositions + row % kBlockPositions : row;
}

}  // namespace hipgemm
