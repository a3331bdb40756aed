// Products of blocks whose scales take elements out of bfloat16's range: by plain arithmetic, with
// the product of both scales applied to the sum over a block. For tiles of any widened formats.
#pragma once

#include "common/element_types.hpp"
#include "common/memory.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "gemm/finish_rows.hpp"
#include "gemm/finish_tile.hpp"
#include "gemm/tile_order.hpp"
#include "gemm/widen.hpp"

namespace hipgemm {

// What a tile is computed from. After the K loop only multiply_blocks needs it: until then it is in
// the lanes of one vector register, since scalar ones are short.
struct TileSource {
  u64 a, b, a_scale, b_scale;
  u32 k;
  KRange range;

  HIPGEMM_DEVICE u32 in_lanes() const {
    const auto words = __builtin_bit_cast(Words, *this);
    const u32 lane = thread_index() % kWaveLanes;
    u32 lanes = 0;
    for (u32 i = 0; i < kWords; i++) lanes = lane == i ? words.word[i] : lanes;
    asm("" : "+v"(lanes));
    return lanes;
  }
  static HIPGEMM_DEVICE TileSource from_lanes(u32 lanes) {
    Words words;
    for (u32 i = 0; i < kWords; i++) words.word[i] = __builtin_amdgcn_readlane(lanes, i);
    return __builtin_bit_cast(TileSource, words);
  }

 private:
  static constexpr u32 kWords = 14;
  struct Words {
    u32 word[kWords];
  };
};

// The formats of a pair of operands, in one number: bits of elements, which are MN-major, and
// whether they have multipliers.
HIPGEMM_BOTH constexpr u32 pair_form(u32 bits_a, u32 bits_b, bool mn_major_a, bool mn_major_b,
                                     bool multipliers) {
  return bits_a | bits_b << 8 | mn_major_a << 16 | mn_major_b << 17 | multipliers << 18;
}

// One operand, as far as all threads have it in common.
struct BlockOperand {
  u64 elements, pitch, scales;
  u32 step_rows, k, element_bits, is_second;
  bool mn_major, multipliers;

  HIPGEMM_DEVICE f32 element(u32 row, u32 at) const {
    u32 bits = element_bits, second = is_second;
    // Else what is computed from them, before the loop, takes too many registers.
    asm volatile("" : "+s"(bits), "+s"(second));
    const u64 bit = mn_major ? (at * pitch + row) * 8 : row * pitch * 8 + at * bits;
    const u64 byte = elements + bit / 8;
    const u32 shift = bit % 8;
    u32 code = *global<u8>(byte);
    if (shift + bits > 8) code |= *global<u8>(byte + 1) << 8;
    const u32 top = code << (32 - bits - shift);
    if (bits == 16) return __builtin_bit_cast(f32, top);
    if (bits == 6) return widened<6>(top, second);
    if (bits == 4) return widened<4>(top, second);
    const Widening<8> widening{second};
    return widening.with_special(widened<8>(top, second), widening.specials(code), 0);
  }

  HIPGEMM_DEVICE u32 scale(u32 row, u32 iteration, u32 block) const {
    if (element_bits == 16) return kNeutralScale;
    const u32 position = mn_major ? mn_scale_position(row) : scale_position(row);
    return *global<u8>(scales + scale_index(position, iteration, block, step_rows));
  }
  HIPGEMM_DEVICE f32 multiplier(u32 row, u32 index) const {
    if (!multipliers) return 1.0f;
    return *global<f32>(scales + multipliers_offset(k, step_rows) +
                        (static_cast<u64>(index) * step_rows + row) * sizeof(f32));
  }

 private:
  template <u32 kBits>
  static HIPGEMM_DEVICE f32 widened(u32 top, u32 second) {
    const Widening<kBits> widening{second};
    return widening.element(top, widening.exponent_of(kNeutralScale));
  }
};

// Each thread takes one value at a time. Where only b has scales, its elements are rounded to
// bfloat16, as gfx950's instructions do.
template <class Args>
HIPGEMM_SHARED void multiply_blocks(Constant<Args>* args_in, LdsByte* lds, u32 count, u32 across,
                                    u32 threads, u64 a_in, u64 b_in, u64 a_scale, u64 b_scale,
                                    u32 k_in, u32 tiles, u32 origin, u32 first, u32 second,
                                    u32 first_index, u32 first_column, u32 columns, u32 form_in,
                                    u32 elements) {
  auto& args = uniform_arguments<Args>(args_in);
  const TileRows rows{lds, uniform(count), uniform(across)};
  const u32 k = uniform(k_in), form = uniform(form_in), both = uniform(elements);
  const u32 blocks = uniform(tiles) * kStepBlocks;
  const auto operand = [&](u32 side, u64 at, i64 ld, u64 scales, u32 step) {
    const u32 bits = form >> 8 * side & 255;
    return BlockOperand{.elements = at,
                        .pitch = static_cast<u64>(ld) * bits / 8,
                        .scales = scales,
                        .step_rows = step,
                        .k = k,
                        .element_bits = bits,
                        .is_second = both >> 8 * side & 1,
                        .mn_major = (form >> (16 + side) & 1) != 0,
                        .multipliers = (form >> 18 & 1) != 0};
  };
  const auto a = operand(0, a_in, args.lda, a_scale, args.a_scale_step);
  const auto b = operand(1, b_in, args.ldb, b_scale, args.b_scale_step);
  const bool weights = a.element_bits == 16;

  const u32 log_columns = __builtin_ctz(rows.columns);
#pragma unroll 1
  for (u32 at = thread_index(); at < rows.count << log_columns; at += threads) {
    const u32 slot = at >> log_columns, in_tile = at & (rows.columns - 1), row = rows.row(slot);
    if (row == kNoRow || in_tile >= columns) continue;
    const u32 column = first_column + in_tile;
    f32 sum = 0.0f;
#pragma unroll 1
    for (u32 i = 0; i < blocks; i++) {
      const u32 step = i / kStepBlocks, block = i % kStepBlocks, index = first_index + step;
      const u32 tile = origin + (step == 0 ? first : second + step - 1);
      const u32 iteration = index + count_k_tiles(k, kStepElements) % kUnitSteps;
      const u32 begin = tile * kStepElements + block * kScaleBlock;
      const u32 end = smaller(begin + kScaleBlock, k);
      if (begin >= end) continue;
      const u32 one = a.scale(row, iteration, block), other = b.scale(column, iteration, block);
      f32 products = 0.0f;
#pragma unroll 1
      for (u32 e = begin; e < end; e++) {
        f32 y = b.element(column, e);
        if (weights) {
          y = times_power_of_two(y, static_cast<int>(other - kNeutralScale));
          y = FromBf16::widen(OutBf16::pack({y, y}) & 0xffff);
        }
        products = __builtin_fmaf(a.element(row, e), y, products);
      }
      products *= a.multiplier(row, index) * b.multiplier(column, index);
      const u32 exponent = weights ? 0 : one + other - 2 * kNeutralScale;
      const bool nan = one == kNanScale || other == kNanScale;
      sum += nan ? __builtin_nanf("") : times_power_of_two(products, static_cast<int>(exponent));
    }
    rows.value(slot, in_tile) = sum;
  }
}

}  // namespace hipgemm
