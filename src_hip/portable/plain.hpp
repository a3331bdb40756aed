// The product without matrix instructions: any formats, any strides, any architecture.
#pragma once

#include "common/element_types.hpp"
#include "common/hip_device.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/scale_layout.hpp"
#include "common/scaled_sum.hpp"
#include "common/small_float.hpp"
#include "common/types.hpp"

// All strides are bytes and may be negative; a_k and b_k are between bytes of packed values.
// Scales: floats for fp8 formats (null is 1), logical e8m0 bytes for MX formats. block_rows: if not
// 0, fp8 has scales for blocks of so many rows and kFp8Block along K; e8m0: these are bytes too.
// clang-format off
#define HIPGEMM_PlainArgs(X)                                                                      \
  X(ptr, a) X(ptr, b) X(ptr, c) X(ptr, alpha_ptr) X(ptr, col_scale) X(ptr, bias) X(ptr, a_scale)  \
  X(ptr, b_scale) X(i64, a_row) X(i64, a_k) X(i64, a_outer) X(i64, a_inner) X(i64, b_col)         \
  X(i64, b_k) X(i64, b_outer) X(i64, b_inner) X(i64, c_row) X(i64, c_col) X(i64, c_outer)         \
  X(i64, c_inner) X(i64, a_scale_row) X(i64, a_scale_block) X(i64, a_scale_outer)                 \
  X(i64, a_scale_inner) X(i64, b_scale_col) X(i64, b_scale_block) X(i64, b_scale_outer)           \
  X(i64, b_scale_inner) X(u32, m) X(u32, n) X(u32, k) X(u32, batch_inner) X(u32, batches)         \
  X(f32, alpha) X(u32, a_format) X(u32, b_format) X(u32, out_type) X(u32, bias_type)              \
  X(u32, a_block_rows) X(u32, a_e8m0) X(u32, b_block_rows) X(u32, b_e8m0)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(PlainArgs);

HIPGEMM_BOTH constexpr Scaling scaling_of(Format format) {
  return format < Format::fp8_e4m3     ? Scaling::none
         : format < Format::mxfp8_e4m3 ? Scaling::floats
                                       : Scaling::blocks;
}
#define FORMAT(name, ...) static_assert(scaling_of(Format::name) == Scaling::none, "");
#define SCALED_FORMAT(name, code, bits, element, block)                                    \
  static_assert(scaling_of(Format::name) == ((block) ? Scaling::blocks : Scaling::floats), \
                "codes grow with the scales: formats.def");
#include "common/formats.def"

// Scales that differ along K: none, of MX formats, or of blocks of fp8, which are bytes or floats.
enum class PlainScales : u32 { none, mx, bytes, floats };

// One operand of one product. Strides are bytes; k_stride is between bytes of packed values.
struct PlainOperand {
  Format format;
  u64 data, scale;
  i64 row_stride, k_stride, scale_row_stride, scale_block_stride;
  u32 rows, k, block_rows;
  PlainScales scales;
};

// A step along K of one operand: one block of scales, which are applied to the sum over the step.
struct PlainTile {
  static constexpr u32 kRows = 64, kK = kScaleBlock;
  static constexpr u32 kPitch = kRows + 4;  // a multiple of 4; lanes along K use different banks

  f32 value[kK][kPitch];
  alignas(16) int exponent[kRows];     // of the scale
  alignas(16) f32 start[kRows];        // of the sum: NaN where the scale is
  alignas(16) f32 significand[kRows];  // of the scale; 1 if that is a power of two
  u32 in_blocks;                       // whether it is that of a block of fp8
};

// Half of the workgroup's threads load one operand, half the other.
inline constexpr u32 kPlainThreads = 256, kPlainLoaders = kPlainThreads / 2;

// One thread's values of its operand: a few of each step, lanes along the smaller stride. Values of
// 6 bits come in fours, of three bytes.
class PlainLoader {
 public:
  HIPGEMM_DEVICE PlainLoader(const PlainOperand& from, u32 tile_row, PlainTile& to)
      : from_(from), to_(to) {
    along_k_ = magnitude(from.k_stride) <= magnitude(from.row_stride);
    const u32 thread = thread_index() % kPlainLoaders;
    const bool in_pairs = from.format == Format::mxfp4_e2m1;
    const bool in_fours = from.format == Format::mxfp6_e2m3 || from.format == Format::mxfp6_e3m2;
    const u32 together = in_fours ? 4 : 1, across = PlainTile::kK / together;
    row_ = along_k_ ? thread / across : thread % PlainTile::kRows;
    k_ = (along_k_ ? thread % across : thread / PlainTile::kRows) * together;
    const u32 rows_left = from.rows - tile_row;
    rows_from_mine_ = rows_left - smaller(row_, rows_left);
    const u64 row_stride = from.row_stride;
    const auto bytes = [&](u32 k) HIPGEMM_INLINE {
      return (in_fours ? k / 4 * 3 : in_pairs ? k / 2 : k) * static_cast<u64>(from.k_stride);
    };
    address_ = from.data + (tile_row + row_) * row_stride + bytes(k_);
    load_stride_ = along_k_ ? together * kRowStep * row_stride : bytes(together * kKStep);
    step_stride_ = bytes(PlainTile::kK);
    const u32 row = tile_row + thread;
    // What differs between threads is not in scalar registers, of which there are few.
    scales_ = thread < smaller(rows_left, PlainTile::kRows) ? from.scales : PlainScales::none;
    scale_ = from.scale + (from.block_rows > 1 ? row / kFp8Block : row) *
                              static_cast<u64>(from.scale_row_stride);
  }

  // Loads the next step into registers; zero outside the operand.
  HIPGEMM_DEVICE void fetch(u32 k_left) {
    k_left_ = k_left;
    switch (from_.format) {
      case Format::f32:
        fetch_as<u32>();
        break;
      case Format::bf16:
      case Format::f16:
        fetch_as<u16>();
        break;
      case Format::mxfp6_e2m3:
      case Format::mxfp6_e3m2:
        fetch_fours();
        break;
      default:
        fetch_as<u8>();
        break;
    }
    if (scales_ != PlainScales::none && k_left_ != 0)
      scale_bits_ = scales_ == PlainScales::floats ? *global<u32>(scale_) : *global<u8>(scale_);
    address_ += step_stride_;
    constexpr u32 kBlockSteps = kFp8Block / PlainTile::kK;
    step_ += scales_ == PlainScales::mx ? kBlockSteps : 1;
    if (step_ % kBlockSteps == 0) scale_ += from_.scale_block_stride;
  }

  // Stores what was fetched into LDS.
  HIPGEMM_DEVICE void put() const {
    switch (from_.format) {
      case Format::bf16:
        put_as<FromBf16>();
        break;
      case Format::f16:
        put_as<FromF16>();
        break;
      case Format::f32:
        put_as<FromF32>();
        break;
      case Format::fp8_e4m3:
      case Format::mxfp8_e4m3:
        put_as<FromE4m3>();
        break;
      case Format::fp8_e5m2:
      case Format::mxfp8_e5m2:
        put_as<FromE5m2>();
        break;
      case Format::mxfp4_e2m1:
        put_as<FromE2m1>();
        break;
      case Format::mxfp6_e2m3:
        put_fours<FromE2m3>();
        break;
      case Format::mxfp6_e3m2:
        put_fours<FromE3m2>();
        break;
      default:
        break;
    }
    const u32 thread = thread_index() % kPlainLoaders;
    if (thread >= PlainTile::kRows) return;
    const Factor scale = Factor::of(__builtin_bit_cast(f32, scale_bits_));
    const bool floats = scales_ == PlainScales::floats;
    if (thread == 0) to_.in_blocks = scales_ > PlainScales::mx;
    to_.significand[thread] = floats ? scale.significand : 1.0f;
    to_.exponent[thread] =
        floats ? scale.exponent : static_cast<int>(scale_bits_) - static_cast<int>(kBias);
    to_.start[thread] = !floats && scale_bits_ == kNanByte ? __builtin_nanf("") : 0.0f;
  }

 private:
  // Rows, or elements along K, between one thread's values.
  static constexpr u32 kRowStep = kPlainLoaders / PlainTile::kK;
  static constexpr u32 kKStep = kPlainLoaders / PlainTile::kRows;
  static constexpr u32 kLoads = PlainTile::kRows * PlainTile::kK / kPlainLoaders;
  static_assert(kKStep % 2 == 0, "a thread has the same half of all its pairs");
  static constexpr u32 kNanByte = 255, kBias = 127;

  // How many of the thread's values exist.
  HIPGEMM_DEVICE u32 count() const {
    if (rows_from_mine_ == 0 || k_ >= k_left_) return 0;
    return along_k_ ? (rows_from_mine_ + kRowStep - 1) / kRowStep
                    : (k_left_ - k_ + kKStep - 1) / kKStep;
  }

  template <class Bits>
  HIPGEMM_DEVICE void fetch_as() {
    const u32 exist = count();
    if (exist >= kLoads)
      fetch_first<Bits>([](u32) { return true; });
    else
      fetch_first<Bits>([exist](u32 i) { return i < exist; });
  }
  template <class Bits, class Exists>
  HIPGEMM_DEVICE void fetch_first(Exists exists) {
    u64 at = address_;
#pragma unroll
    for (u32 i = 0; i < kLoads; i++) {
      bits_[i] = 0;
      if (exists(i)) bits_[i] = *global<Bits>(at);
      at += load_stride_;
    }
  }

  template <class From>
  HIPGEMM_DEVICE void put_as() const {
    // The second value of a pair is in the high half.
    const u32 shift = __is_same(From, FromE2m1) ? k_ % 2 * 4 : 0;
    f32* to = &to_.value[k_][row_];
    const u32 to_stride = along_k_ ? kRowStep : kKStep * PlainTile::kPitch;
#pragma unroll
    for (u32 i = 0; i < kLoads; i++) {
      *to = From::widen(bits_[i] >> shift);
      to += to_stride;
    }
  }

  // Bits beyond K may have any value.
  HIPGEMM_DEVICE void fetch_fours() {
    u64 at = address_;
#pragma unroll
    for (u32 i = 0; i < kLoads / 4; i++) {
      const u32 row = along_k_ ? i * 4 * kRowStep : 0;  // from mine
      const u32 k = along_k_ ? k_ : k_ + i * 4 * kKStep;
      const u32 bits = row < rows_from_mine_ && k < k_left_ ? smaller(k_left_ - k, 4) * 6 : 0;
      bits_[i] = 0;
#pragma unroll
      for (u32 byte = 0; byte < 3; byte++)
        if (byte * 8 < bits)
          bits_[i] |= *global<u8>(at + byte * static_cast<u64>(from_.k_stride)) << byte * 8;
      bits_[i] &= (1u << bits) - 1;
      at += load_stride_;
    }
  }
  template <class From>
  HIPGEMM_DEVICE void put_fours() const {
    f32* to = &to_.value[k_][row_];
    const u32 to_stride = along_k_ ? 4 * kRowStep : 4 * kKStep * PlainTile::kPitch;
#pragma unroll
    for (u32 i = 0; i < kLoads / 4; i++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) to[e * PlainTile::kPitch] = From::widen(bits_[i] >> e * 6);
      to += to_stride;
    }
  }

  const PlainOperand& from_;
  PlainTile& to_;
  bool along_k_;
  u32 row_, k_, rows_from_mine_, k_left_;  // mine: the first row of this thread
  u64 address_, load_stride_, step_stride_, scale_;
  u32 bits_[kLoads], scale_bits_ = kBias, step_ = 0;
  PlainScales scales_;
};

// One thread's square of a tile of C.
class PlainSquare {
 public:
  static constexpr u32 kSide = 4;
  static constexpr u32 kAcross = PlainTile::kRows / kSide;
  static_assert(kAcross * kAcross == kPlainThreads, "squares cover the tile");

  // Adds one step along K: the sum of its products, then scaled.
  HIPGEMM_DEVICE void add(const PlainTile& a, const PlainTile& b) {
    const bool in_blocks = (a.in_blocks | b.in_blocks) != 0;
    const f32x4 start = four(&b.start[column_]);
    f32x4 sum[kSide];
#pragma unroll
    for (u32 i = 0; i < kSide; i++) sum[i] = f32x4(a.start[row_ + i]) + start;
#pragma unroll 8
    for (u32 k = 0; k < PlainTile::kK; k++) {
      const f32x4 x = four(&a.value[k][row_]), y = four(&b.value[k][column_]);
      for (u32 i = 0; i < kSide; i++) sum[i] = __builtin_elementwise_fma(f32x4(x[i]), y, sum[i]);
    }
#pragma unroll
    for (u32 i = 0; i < kSide; i++)
#pragma unroll
      for (u32 j = 0; j < kSide; j++)
        if (in_blocks) {
          const Factor scale{a.significand[row_ + i] * b.significand[column_ + j],
                             a.exponent[row_ + i] + b.exponent[column_ + j]};
          const Factor x = Factor::of(sum[i][j]) * scale;  // a tiny sum keeps its bits
          add_scaled(i, j, x.significand, x.exponent);
        } else {
          sum_[i][j] +=
              times_power_of_two(sum[i][j], a.exponent[row_ + i] + b.exponent[column_ + j]);
        }
  }

  HIPGEMM_DEVICE void store(const PlainArgs& args, const PlainOperand& a, const PlainOperand& b,
                            u64 c, u32 tile_row, u32 tile_column) {
    const u32 row = tile_row + row_, column = tile_column + column_;
    const u32 rows = smaller(args.m - smaller(row, args.m), kSide);
    const u32 columns = smaller(args.n - smaller(column, args.n), kSide);
    const f32 alpha =
        args.alpha_ptr ? *global<f32>(reinterpret_cast<u64>(args.alpha_ptr)) : args.alpha;
    const f32x4 row_scale = load_scales(a, row, rows),
                column_scale = load_scales(b, column, columns);
    const auto type = static_cast<Format>(args.out_type);
    const auto bias_type = static_cast<Format>(args.bias_type);
#pragma unroll
    for (u32 j = 0; j < kSide; j++) {
      if (j >= columns) continue;
      f32 scale = 1.0f, bias = -0.0f;  // x + -0.0 is x, even for -0.0
      if (args.col_scale) scale = global<f32>(reinterpret_cast<u64>(args.col_scale))[column + j];
      if (args.bias)
        bias = load_element(reinterpret_cast<u64>(args.bias) +
                                static_cast<u64>(column + j) * element_bytes(bias_type),
                            bias_type);
#pragma unroll
      for (u32 i = 0; i < kSide; i++) {
        if (i >= rows) continue;
        const Factor scales = Factor::of(row_scale[i]) * Factor::of(column_scale[j]) *
                              Factor{1.0f, sum_exponent_[i][j]};
        store_element(c + (row + i) * static_cast<u64>(args.c_row) +
                          (column + j) * static_cast<u64>(args.c_col),
                      type,
                      scaled_sum(sum_[i][j], scales, Factor::of(alpha), Factor::of(scale), bias));
      }
    }
  }

 private:
  static HIPGEMM_DEVICE f32x4 four(const f32* at) { return *reinterpret_cast<const f32x4*>(at); }

  static HIPGEMM_DEVICE f32x4 load_scales(const PlainOperand& of, u32 first, u32 count) {
    f32x4 scale(1.0f);
    if (scaling_of(of.format) == Scaling::floats && of.scales == PlainScales::none && of.scale)
#pragma unroll
      for (u32 i = 0; i < kSide; i++)
        if (i < count)
          scale[i] = *global<f32>(of.scale + (first + i) * static_cast<u64>(of.scale_row_stride));
    return scale;
  }

  // Adds x * 2^exponent: the sum's exponent is that of the largest x so far, so that no x
  // overflows, and none vanishes where others are smaller.
  HIPGEMM_DEVICE void add_scaled(u32 i, u32 j, f32 x, int exponent) {
    const int before = sum_exponent_[i][j], own = x == 0 ? before : exponent + exponent_of(x);
    const int most = sum_[i][j] == 0 || own > before ? own : before;
    sum_[i][j] =
        times_power_of_two(sum_[i][j], before - most) + times_power_of_two(x, exponent - most);
    sum_exponent_[i][j] = most;
  }

  const u32 row_ = thread_index() / kAcross * kSide, column_ = thread_index() % kAcross * kSide;
  f32x4 sum_[kSide] = {};
  int sum_exponent_[kSide][kSide] = {};
};

struct BatchEntry {
  u32 outer, inner;
  HIPGEMM_DEVICE u64 in(const void* p, u64 outer_stride, u64 inner_stride) const {
    return p ? reinterpret_cast<u64>(p) + outer * outer_stride + inner * inner_stride : 0;
  }
};

HIPGEMM_DEVICE PlainOperand operand(const PlainArgs& args, bool is_b, BatchEntry entry) {
  const auto format = static_cast<Format>(is_b ? args.b_format : args.a_format);
  const u32 block_rows = is_b ? args.b_block_rows : args.a_block_rows;
  const bool e8m0 = (is_b ? args.b_e8m0 : args.a_e8m0) != 0;
  return {
      format,
      entry.in(is_b ? args.b : args.a, is_b ? args.b_outer : args.a_outer,
               is_b ? args.b_inner : args.a_inner),
      entry.in(is_b ? args.b_scale : args.a_scale, is_b ? args.b_scale_outer : args.a_scale_outer,
               is_b ? args.b_scale_inner : args.a_scale_inner),
      is_b ? args.b_col : args.a_row,
      is_b ? args.b_k : args.a_k,
      is_b ? args.b_scale_col : args.a_scale_row,
      is_b ? args.b_scale_block : args.a_scale_block,
      is_b ? args.n : args.m,
      args.k,
      block_rows,
      scaling_of(format) == Scaling::blocks ? PlainScales::mx
      : block_rows == 0                     ? PlainScales::none
      : e8m0                                ? PlainScales::bytes
                                            : PlainScales::floats};
}

// A workgroup computes one tile of C. A grid may have more workgroups than tiles.
template <u32 kThreads, u32 kM, u32 kN, u32 kK>
HIPGEMM_DEVICE void plain(const PlainArgs& args) {
  static_assert(kThreads == kPlainThreads && kM == PlainTile::kRows && kN == PlainTile::kRows &&
                    kK == PlainTile::kK,
                "");
  static __shared__ PlainTile tile_a, tile_b;
  const bool loads_b = uniform(thread_index() / kPlainLoaders);
  const u32 down = (args.m + PlainTile::kRows - 1) / PlainTile::kRows;
  const u32 across = (args.n + PlainTile::kRows - 1) / PlainTile::kRows;
  const u32 tiles = down * across;
  const u32 at = workgroup_index();
  if (at >= tiles * args.batches) return;
  const u32 batch = at / tiles, tile = at % tiles;
  const u32 row = tile / across * PlainTile::kRows, column = tile % across * PlainTile::kRows;
  const BatchEntry entry{batch / args.batch_inner, batch % args.batch_inner};
  const PlainOperand mine = operand(args, loads_b, entry);
  PlainLoader loader(mine, loads_b ? column : row, loads_b ? tile_b : tile_a);
  PlainSquare square;
  u32 k_left = args.k;
  loader.fetch(k_left);
  while (k_left != 0) {
    loader.put();
    sync_workgroup();
    k_left -= smaller(k_left, PlainTile::kK);
    loader.fetch(k_left);  // in flight while this step is added
    square.add(tile_a, tile_b);
    sync_workgroup();
  }
  square.store(args, operand(args, false, entry), operand(args, true, entry),
               entry.in(args.c, args.c_outer, args.c_inner), row, column);
}

}  // namespace hipgemm
