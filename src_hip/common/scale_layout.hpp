// MX scales in GEMM order: where the scale byte of a row and a block of 32 along K lies.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// A matrix instruction takes a step of 128 numbers along K: 4 blocks. Scales come in units of two
// steps, so that one register holds what two fragments need for two steps, and the instruction's
// operand select picks the byte:
//
//   byte S[unit][block of the step][position of the row][step of the unit]
//
// Rows are padded to 16 ("step rows" from block to block). In each 16 they are dealt out by fours,
// 0 4 8 12 1 5 .. 15, because the fragments of a lane are rows four apart: their scales are
// neighbours.
//
// Steps come in the order in which the K loop meets them, each at its turn: the last tile of K,
// which may be ragged, then all others from the first on. The loop's last tile ends a unit; so with
// an odd number of steps the first byte of unit 0 is not used.
inline constexpr u32 kScaleBlock = 32;
inline constexpr u32 kStepBlocks = 4;
inline constexpr u32 kStepNumbers = kScaleBlock * kStepBlocks;
inline constexpr u32 kUnitSteps = 2;
inline constexpr u32 kScaleRows = 16;
inline constexpr u32 kUnitNumbers = kUnitSteps * kStepNumbers;
inline constexpr u32 kUnitRowBytes = kUnitSteps * kStepBlocks;

// Its own inverse.
HIPGEMM_BOTH constexpr u32 scale_position(u32 row) {
  return (row & ~(kScaleRows - 1)) | (row & 3) << 2 | (row >> 2 & 3);
}

// Operands that are contiguous across K: a lane's fragments are rows 16 apart, so rows are padded
// to 64 and dealt out by sixteens, 0 16 32 48 1 17 .. 63. Such scales come in groups of rows along
// K (groups.hpp): each begins a unit of its own, the one numbered as its first slot of
// kUnitNumbers.
inline constexpr u32 kAcrossScaleRows = 64;
HIPGEMM_BOTH constexpr u32 across_scale_position(u32 row) {
  return (row & ~(kAcrossScaleRows - 1)) | (row & 15) << 2 | (row >> 4 & 3);
}
HIPGEMM_BOTH constexpr u32 across_scale_row(u32 position) {
  return (position & ~(kAcrossScaleRows - 1)) | (position & 3) << 4 | (position >> 2 & 15);
}

// Tiles of K as the GEMM counts them: no K is one empty tile.
HIPGEMM_BOTH constexpr u32 count_k_tiles(u32 k, u32 tile) {
  return k <= tile ? 1 : (k - 1) / tile + 1;
}

// When a step's turn comes. tile_steps: steps of one K tile, 1 for numbers of 8 bits, 2 for 4 bits.
HIPGEMM_BOTH constexpr u32 scale_turn(u32 step, u32 k, u32 tile_steps) {
  const u32 tiles = count_k_tiles(k, tile_steps * kStepNumbers);
  const u32 tile = step / tile_steps;
  const u32 place = tile + 1 == tiles ? 0 : tile + 1;
  const u32 unused = tiles * tile_steps % kUnitSteps;
  return place * tile_steps + step % tile_steps + unused;
}

// The step whose turn it is; scale_turn's inverse. Turn 0 may be no step's: kNoStep.
inline constexpr u32 kNoStep = 0xffffffffu;
HIPGEMM_BOTH constexpr u32 step_of_turn(u32 turn, u32 k, u32 tile_steps) {
  const u32 tiles = count_k_tiles(k, tile_steps * kStepNumbers);
  const u32 unused = tiles * tile_steps % kUnitSteps;
  if (turn < unused) return kNoStep;
  const u32 place = (turn - unused) / tile_steps;
  const u32 tile = place == 0 ? tiles - 1 : place - 1;
  return tile * tile_steps + (turn - unused) % tile_steps;
}

// Byte of S, for a scale of which `step_rows` lie from block to block.
HIPGEMM_BOTH constexpr u64 scale_offset(u32 row, u32 turn, u32 block, u32 step_rows) {
  const u64 line = static_cast<u64>(turn / kUnitSteps) * kStepBlocks + block;
  return (line * step_rows + scale_position(row)) * kUnitSteps + turn % kUnitSteps;
}

}  // namespace hipgemm
