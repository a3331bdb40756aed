// A tile of a matrix of any type and layout, loaded into registers row by row.
#pragma once

#include "common/element_types.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/gradient.hpp"
#include "quantize/thread_map.hpp"

namespace hipgemm {

// f(From()) for the type of a matrix, of 16 bits or of any.
template <class F>
HIPGEMM_DEVICE void with_16bit_type(u32 type, F f) {
  if (static_cast<Format>(type) == Format::bf16)
    f(FromBf16());
  else
    f(FromF16());
}
template <class F>
HIPGEMM_DEVICE void with_type(u32 type, F f) {
  if (static_cast<Format>(type) == Format::f32)
    f(FromF32());
  else
    with_16bit_type(type, f);
}

struct Matrix {
  u64 address;
  i64 row_stride, col_stride;  // bytes
  u32 rows, cols;

  HIPGEMM_DEVICE void move_rows(u32 count) { address += count * static_cast<u64>(row_stride); }
};
// Values that are widened as they are loaded, where what follows takes more time and code.
struct MatrixAsF32 : Matrix {
  u32 type;
};
// Whether a kernel with these arguments reads the gradient before an activation.
template <class Args>
inline constexpr bool kReadsGradient = requires(Args args) { args.aux; };
// Whether a kernel with these arguments rounds at random, or may.
template <class Args>
inline constexpr bool kIsRandom = requires(Args args) { args.seed_low; };

template <class Args>
HIPGEMM_DEVICE auto source_of(const Args& args) {
  const u64 src = address_of(args.src);
  if constexpr (kReadsGradient<Args>)
    return Gradient{src,
                    address_of(args.aux),
                    address_of(args.factors),
                    args.src_row_stride,
                    args.src_col_stride,
                    args.aux_pitch,
                    args.rows,
                    args.cols,
                    static_cast<Format>(args.in_type),
                    static_cast<Activation>(args.activation),
                    static_cast<GluLayout>(args.glu)};
  else if constexpr (!HIPGEMM_SPECIAL_PASSES || kIsRandom<Args>)
    return MatrixAsF32{{src, args.src_row_stride, args.src_col_stride, args.rows, args.cols},
                       args.in_type};
  else
    return Matrix{src, args.src_row_stride, args.src_col_stride, args.rows, args.cols};
}

// The bits of a tile's values as threads have them along rows; zero outside the matrix.
template <class Bits, class Map_>
class TileBits {
 public:
  using Map = Map_;
  static constexpr u32 kValues = Map::kValues;
  static constexpr u32 kBytes = sizeof(Bits), kWordValues = 4 / kBytes;
  const Map at;

  HIPGEMM_DEVICE TileBits(typename Map::Lds& lds, const Map& at) : at(at), lds_(lds) {}

  // 16 bytes at a time where rows are contiguous and aligned; else value by value, through LDS.
  HIPGEMM_DEVICE void load(const Matrix& from) {
    const bool aligned = ((from.address | from.row_stride) & 15) == 0;
    const bool near = static_cast<u64>(from.row_stride) < kOutOfRange / Map::kRows;
    if (from.col_stride == kBytes && aligned && near) return load_wide(from);
    lds_is_used_ = true;
#pragma unroll
    for (u32 half = 0; half < kHalves; half++) {
      if (half != 0) sync_workgroup();
      if (magnitude(from.col_stride) <= magnitude(from.row_stride))
        load_single<true>(from, half);
      else
        load_single<false>(from, half);
      sync_workgroup();
      for_each_part(half, [](u32x4& part, u32x4& chunk) HIPGEMM_INLINE { part = chunk; });
    }
  }

  HIPGEMM_DEVICE void load(const MatrixAsF32& from) {
    static_assert(kBytes == 4, "");
    const Matrix& matrix = from;
    if (static_cast<Format>(from.type) == Format::f32) return load(matrix);
    TileBits<u16, Map> narrow(lds_, at);
    narrow.load(matrix);
    lds_is_used_ = narrow.lds_is_used();
    with_16bit_type(from.type, [&]<class From>(From) HIPGEMM_INLINE {
#pragma unroll
      for (u32 iteration = 0; iteration < Map::kIterations; iteration++)
#pragma unroll
        for (u32 i = 0; i < kValues; i++) {
          const f32 value = From::widen_word(narrow.word(iteration, i / 2))[i % 2];
          loaded_[iteration][i / 4][i % 4] = __builtin_bit_cast(u32, value);
        }
    });
  }

  // Eight values at a time, in a loop, for shorter code: what was read moves towards its place.
  HIPGEMM_DEVICE void load(const Gradient& from) {
    static_assert(kBytes == 4, "");
    constexpr u32 kChunks = kValues / 8, kAll = Map::kIterations * kParts;
#pragma unroll 1
    for (u32 i = 0; i < Map::kIterations * kChunks; i++) {
      const u32 row = at.row(i / kChunks), col = at.col() + i % kChunks * 8;
      Values<8> x = {f32x4(0.0f), f32x4(0.0f)};
      if (row < from.rows && col < from.cols) from.read(row, col, x);
#pragma unroll
      for (u32 part = 0; part + 2 < kAll; part++)
        loaded_[part / kParts][part % kParts] = loaded_[(part + 2) / kParts][(part + 2) % kParts];
      for (u32 half = 0; half < 2; half++)
        loaded_[Map::kIterations - 1][kParts - 2 + half] = __builtin_bit_cast(u32x4, x[half]);
    }
  }
  // Of the gradient transposed: its rows are columns here.
  HIPGEMM_DEVICE void load_transposed(const Gradient& from) {
    static_assert(kBytes == 4, "");
    constexpr u32 kChunks = Map::kRows / 8;
    lds_is_used_ = true;
#pragma unroll 1
    for (u32 half = 0; half < kHalves; half++) {
      if (half != 0) sync_workgroup();
#pragma unroll 1
      for (u32 i = Map::thread(); i < kChunks * kHalfCols; i += Map::kThreads) {
        const u32 down = i % kChunks * 8, across = i / kChunks;
        const u32 row = at.first_col + half * kHalfCols + across, col = at.first_row + down;
        Values<8> x = {f32x4(0.0f), f32x4(0.0f)};
        if (row < from.rows && col < from.cols) from.read(row, col, x);
#pragma unroll
        for (u32 e = 0; e < 8; e++)
          reinterpret_cast<f32*>(&chunk(down, e, across / kPartValues))[across % kPartValues] =
              x[e / 4][e % 4];
      }
      sync_workgroup();
      for_each_part(half, [](u32x4& part, u32x4& chunk) HIPGEMM_INLINE { part = chunk; });
    }
  }

  HIPGEMM_DEVICE void load(const GradientOfRows& from) {
    if (from.transposed)
      load_transposed(from);
    else
      load(static_cast<const Gradient&>(from));
  }

  // A word of an iteration: kWordValues of its values.
  HIPGEMM_DEVICE u32 word(u32 iteration, u32 word) const {
    return loaded_[iteration][word / 4][word % 4];
  }

  HIPGEMM_DEVICE bool lds_is_used() const { return lds_is_used_; }

 protected:
  // A part is 16 bytes of an iteration. LDS holds half of the columns, if not all.
  static constexpr u32 kParts = kValues * kBytes / 16, kPartValues = 16 / kBytes;
  static constexpr u32 kHalves = Map::kCols * kBytes / 16 / Map::kLdsRowChunks;
  static constexpr u32 kHalfCols = Map::kCols / kHalves, kHalfThreads = Map::kRowThreads / kHalves;

  // A chunk: 16 bytes of a row in LDS. A row's length is a multiple of all banks, so lanes that are
  // served together would use the same ones. Therefore chunks are swizzled (XOR), such that the
  // place modulo 8 differs
  //   where 32 lanes read down columns: four words of as many chunks in a row as there are rows;
  //     these are of different threads, so their number is swizzled in, from bit 2 down,
  //   where 8 lanes write 16 bytes each, of one row or two: chunks 1, 2, 4 or 8 apart.
  // Modulo 16, so do all of a wave's reads. With 8 values per thread a simpler swizzle, which takes
  // fewer registers, leaves some conflicts. down: a constant number of rows from `row` on, which
  // has no bits in common with it.
  HIPGEMM_DEVICE u32x4& chunk(u32 row, u32 down, u32 at) const {
    const auto swizzle = [](u32 row) HIPGEMM_INLINE {
      if constexpr (kValues == 8) {
        const u32 thread = row / kValues;
        return (thread ^ (thread & 2) << 2) & (Map::kLdsRowChunks - 1);
      }
      const auto bit = [&](u32 i) HIPGEMM_INLINE { return row / kValues >> i & 1; };
      return (bit(0) * 12 ^ bit(1) * 10 ^ bit(2) * 9 ^ bit(3) * 8) ^ (row & 1) << 1;
    };
    const u32 swizzled = (kValues == 8 ? at : at ^ (at >> 3 & 1)) ^ swizzle(row);
    return lds_[row * Map::kLdsRowChunks + (swizzled ^ swizzle(down)) + down * Map::kLdsRowChunks];
  }

  // f(part, its chunk) for this thread's values in a half.
  template <class F>
  HIPGEMM_DEVICE void for_each_part(u32 half, F f) {
    if (Map::thread() % Map::kRowThreads / kHalfThreads != half) return;
#pragma unroll
    for (u32 iteration = 0; iteration < Map::kIterations; iteration++)
#pragma unroll
      for (u32 part = 0; part < kParts; part++)
        f(loaded_[iteration][part], chunk(Map::row_in_tile(0), iteration * Map::kRowStep,
                                          Map::thread() % kHalfThreads * kParts + part));
  }

 private:
  HIPGEMM_DEVICE void load_wide(const Matrix& from) {
    const u32 rows = smaller(from.rows - smaller(at.first_row, from.rows), Map::kRows);
    const u32 cols = smaller(from.cols - smaller(at.first_col, from.cols), Map::kCols);
    const u32 stride = static_cast<u32>(from.row_stride);
    const u32 col = Map::thread() % Map::kRowThreads * kValues;
    const u64 first = from.address + at.first_row * static_cast<u64>(stride) +
                      static_cast<u64>(at.first_col) * kBytes;
    if (rows == Map::kRows && cols == Map::kCols) {
      const u32 offset = Map::row_in_tile(0) * stride + col * kBytes;
#pragma unroll
      for (u32 iteration = 0; iteration < Map::kIterations; iteration++)
#pragma unroll
        for (u32 part = 0; part < kParts; part++)
          loaded_[iteration][part] =
              *global<u32x4>(first + iteration * Map::kRowStep * stride + offset + part * 16);
      return;
    }
    // No branches: what does not exist is outside the buffer and reads as zero.
    const u32 bytes = rows == 0 ? 0 : (rows - 1) * stride + cols * kBytes;  // strides may be 0
    const Buffer buffer = make_buffer(uniform_address(first), uniform(bytes));
    const auto offset = [&](u32 row, u32 col, u32 count) HIPGEMM_INLINE {
      return row < rows && col + count <= cols ? row * stride + col * kBytes : kOutOfRange;
    };
#pragma unroll
    for (u32 iteration = 0; iteration < Map::kIterations; iteration++)
#pragma unroll
      for (u32 part = 0; part < kParts; part++)
        loaded_[iteration][part] = load_buffer<u32x4>(
            buffer, offset(Map::row_in_tile(iteration), col + part * kPartValues, kPartValues));
    if (cols % kPartValues == 0) return;
    // The last values of a row are less than a part.
#pragma unroll
    for (u32 part = 0; part < kParts; part++) {
      const u32 first = col + part * kPartValues;
      if (first >= cols || first + kPartValues <= cols) continue;
#pragma unroll
      for (u32 iteration = 0; iteration < Map::kIterations; iteration++)
#pragma unroll
        for (u32 e = 0; e < kPartValues; e++)
          loaded_[iteration][part][e / kWordValues] |=
              load_buffer<Bits>(buffer, offset(Map::row_in_tile(iteration), first + e, 1))
              << e % kWordValues * 16;
    }
  }

  // One value at a time into LDS, lanes along the smaller stride. No branches: what does not exist
  // is read from the last row or column, and replaced by zero.
  template <bool kAlongRows>
  HIPGEMM_DEVICE void load_single(const Matrix& from, u32 half) {
    constexpr u32 kExtent = kAlongRows ? kHalfCols : Map::kRows;  // along the lanes
    constexpr u32 kLoads = Map::kRows * kHalfCols / Map::kThreads, kInFlight = 8;
    const u32 first_col = at.first_col + half * kHalfCols;
    const u32 fast = Map::thread() % kExtent, slow = Map::thread() / kExtent;
    const auto slow_at = [&](u32 i) HIPGEMM_INLINE { return slow + i * (Map::kThreads / kExtent); };
    const bool none = at.first_row >= from.rows || first_col >= from.cols;
#pragma unroll 1
    for (u32 begin = 0; begin < kLoads; begin += kInFlight) {
      Bits loaded[kInFlight] = {};
#pragma unroll
      for (u32 i = 0; i < kInFlight; i++) {
        const u32 row = at.first_row + (kAlongRows ? slow_at(begin + i) : fast);
        const u32 col = first_col + (kAlongRows ? fast : slow_at(begin + i));
        if (none) continue;
        loaded[i] = *global<Bits>(from.address +
                                  smaller(row, from.rows - 1) * static_cast<u64>(from.row_stride) +
                                  smaller(col, from.cols - 1) * static_cast<u64>(from.col_stride));
        if (row >= from.rows || col >= from.cols) loaded[i] = 0;
      }
#pragma unroll
      for (u32 i = 0; i < kInFlight; i++) {
        const u32 row = kAlongRows ? slow_at(begin + i) : fast;
        const u32 col = kAlongRows ? fast : slow_at(begin + i);
        reinterpret_cast<Bits*>(&chunk(row, 0, col / kPartValues))[col % kPartValues] = loaded[i];
      }
    }
  }

  typename Map::Lds& lds_;
  bool lds_is_used_ = false;
  u32x4 loaded_[Map::kIterations][kParts];
};

// The values of a tile.
template <class From, class Map_>
class LoadedTile : public TileBits<typename From::Bits, Map_> {
  using Base = TileBits<typename From::Bits, Map_>;

 public:
  using Map = Map_;
  using Base::kValues;
  using Base::kWordValues;

  HIPGEMM_DEVICE explicit LoadedTile(const Base& loaded) : Base(loaded) {}

  // An iteration's values, and their amax as bits of a float.
  HIPGEMM_DEVICE void read_row(u32 iteration, Values<kValues>& out) const {
#pragma unroll
    for (u32 word = 0; word < kValues / kWordValues; word++) {
      const auto values = From::widen_word(Base::word(iteration, word));
#pragma unroll
      for (u32 e = 0; e < kWordValues; e++) {
        const u32 i = word * kWordValues + e;
        out[i / 4][i % 4] = values[e];
      }
    }
  }
  HIPGEMM_DEVICE u32 row_amax(u32 iteration) const {
    u32 amax = 0;
#pragma unroll
    for (u32 word = 0; word < kValues / kWordValues; word++)
      amax = From::max_magnitudes(amax, From::magnitudes(Base::word(iteration, word)));
    return larger(bits_of(amax, 0), bits_of(amax, kWordValues - 1));
  }

 protected:
  // The bits of one of the values of a word.
  static HIPGEMM_DEVICE u32 bits_of(u32 word, u32 e) {
    const f32 value = From::widen_word(word)[e];
    return __builtin_bit_cast(u32, value);
  }
};

// f(tile) with the values of a matrix of one type, of 16 bits, or of any type; gradients are
// float32. What loads 16 bits is the same for both types: less code, but what works on values of
// the one type keeps the bits in registers for the other one.
template <template <class, class> class Tile, class From>
struct TileOf {
  template <class Source, class Map, class F>
  static HIPGEMM_DEVICE void load(u32, const Source& from, typename Map::Lds& lds, const Map& at,
                                  F f) {
    TileBits<typename From::Bits, Map> bits(lds, at);
    bits.load(from);
    Tile<From, Map> tile(bits);
    f(tile);
  }
};
template <template <class, class> class Tile>
struct TileOf16Bits {
  template <class Map, class F>
  static HIPGEMM_DEVICE void load(u32 type, const Matrix& from, typename Map::Lds& lds,
                                  const Map& at, F f) {
    TileBits<u16, Map> bits(lds, at);
    bits.load(from);
    with_16bit_type(type, [&]<class From>(From) HIPGEMM_INLINE {
      Tile<From, Map> tile(bits);
      f(tile);
    });
  }
};
template <template <class, class> class Tile>
struct TileOfAny {
  template <class Source, class Map, class F>
  static HIPGEMM_DEVICE void load(u32 type, const Source& from, typename Map::Lds& lds,
                                  const Map& at, F f) {
    if (!__is_same(Source, Matrix) || static_cast<Format>(type) == Format::f32)
      TileOf<Tile, FromF32>::load(type, from, lds, at, f);
    else if constexpr (__is_same(Source, Matrix))
      TileOf16Bits<Tile>::load(type, from, lds, at, f);
  }
};

}  // namespace hipgemm
