// A thread's chunks of a row (row_threads.hpp): loaded together, and stored.
#pragma once

#include "common/element_types.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/load_row.hpp"
#include "quantize/row_threads.hpp"
#include "quantize/store_row.hpp"
#include "quantize/tile_load.hpp"

namespace hipgemm {

// A chunk of 8 values in each step.
template <class Threads>
using RowChunks = Values<8>[Threads::kSteps];

// Moves each chunk to the one before it, and the first one to the end: what follows in a loop is
// short code for the first chunk.
template <class Threads>
HIPGEMM_DEVICE void rotate_chunks(RowChunks<Threads>& x) {
  const Values<8> first = {x[0][0], x[0][1]};
#pragma unroll
  for (u32 step = 0; step + 1 < Threads::kSteps; step++)
    for (u32 half = 0; half < 2; half++) x[step][half] = x[step + 1][half];
  for (u32 half = 0; half < 2; half++) x[Threads::kSteps - 1][half] = first[half];
}

// A row in memory. Whole: its address and its length are multiples of 16 bytes and of 8 values, in
// all rows, so that a chunk exists as a whole or not at all.
struct RowMemory {
  u64 address;
  u32 length;  // 0 if the row does not exist
  Format type;

  HIPGEMM_DEVICE u64 at(u32 first) const {
    return address + first * static_cast<u64>(element_bytes(type));
  }
  HIPGEMM_DEVICE u32 left(u32 first) const { return length - smaller(first, length); }
};

// f(chunk, values of a whole row) for each chunk. 64 bytes are in flight before the first is used.
// Values beyond the row's end are 0, or what is in memory there.
template <class Threads, class F>
HIPGEMM_DEVICE void with_whole_chunks(const Threads& threads, u32 block, const RowMemory& row,
                                      RowChunks<Threads>& x, F f) {
  with_type(static_cast<u32>(row.type), [&]<class From>(From) HIPGEMM_INLINE {
    constexpr u32 kParts = sizeof(typename From::Bits) / 2;
    constexpr u32 kBatch = smaller(4 / kParts, Threads::kSteps);
    static_assert(Threads::kSteps % kBatch == 0, "");
#pragma unroll
    for (u32 begin = 0; begin < Threads::kSteps; begin += kBatch) {
      u32x4 parts[kBatch][kParts];
#pragma unroll
      for (u32 i = 0; i < kBatch; i++) {
        const u32 first = threads.first(block, begin + i);
#pragma unroll
        for (u32 part = 0; part < kParts; part++) parts[i][part] = u32x4(0);
        if (first < row.length)
#pragma unroll
          for (u32 part = 0; part < kParts; part++)
            parts[i][part] =
                *global<u32x4>(row.address + first * sizeof(typename From::Bits) + part * 16);
      }
#pragma unroll
      for (u32 i = 0; i < kBatch; i++) {
        Values<8> more;
        widen_parts<From>(parts[i], more);
        f(x[begin + i], more);
      }
    }
  });
}
template <class Threads>
HIPGEMM_DEVICE void load_chunks(const Threads& threads, u32 block, const RowMemory& row,
                                RowChunks<Threads>& x) {
  with_whole_chunks(threads, block, row, x,
                    [](Values<8>& chunk, const Values<8>& more) HIPGEMM_INLINE {
                      for (u32 half = 0; half < 2; half++) chunk[half] = more[half];
                    });
}
template <class Threads>
HIPGEMM_DEVICE void add_chunks(const Threads& threads, u32 block, const RowMemory& row,
                               RowChunks<Threads>& x) {
  with_whole_chunks(threads, block, row, x,
                    [](Values<8>& chunk, const Values<8>& more) HIPGEMM_INLINE {
                      for (u32 half = 0; half < 2; half++) chunk[half] += more[half];
                    });
}

// The bits of a thread's chunks of a whole row of 16-bit elements, in half as many registers as
// their values.
template <class Threads>
using ChunkBits = u32x4[Threads::kSteps];

// All in flight together. offsets: of the thread's first value, and from a step to the next, in
// bytes. `end` is the row's, and beyond it are zeros.
template <class Threads>
HIPGEMM_DEVICE void load_chunk_bits(u64 row, u32 offset, u32 step_bytes, u32 end,
                                    ChunkBits<Threads>& bits) {
#pragma unroll
  for (u32 step = 0; step < Threads::kSteps; step++) {
    const u32 at = offset + step * step_bytes;
    bits[step] = u32x4(0);
    if (at < end) bits[step] = *global<u32x4>(row + at);
  }
}

// Asks for the lines of those chunks, without waiting for them, where there is an instruction for
// that.
template <class Threads>
HIPGEMM_DEVICE void prefetch_chunks([[maybe_unused]] u64 row, [[maybe_unused]] u32 offset,
                                    [[maybe_unused]] u32 step_bytes, [[maybe_unused]] u32 end) {
#if defined(__NVPTX__)
  constexpr u32 kLineBytes = 128;
  const u32 first = opaque(offset);
  if (first % kLineBytes != 0) return;
#pragma unroll
  for (u32 step = 0; step < Threads::kSteps; step++) {
    const u32 at = first + step * step_bytes;
    if (at < end) asm volatile("prefetch.global.L2 [%0];" : : "l"(row + at));
  }
#endif
}

// The sum of rows of any length at any address: source(0), source(1), .. A loop, for shorter code.
template <class Threads, class Source>
HIPGEMM_DEVICE void sum_of_rows(const Threads& threads, u32 block, u32 count, Source source,
                                RowChunks<Threads>& x) {
  for (Values<8>& chunk : x)
    for (f32x4& four : chunk) four = f32x4(-0.0f);  // -0.0 + x is x, even for -0.0
  u32 index = 0;
#pragma unroll 1
  do {  // at least once: a condition before it would need registers
    const RowMemory row = source(index != 0);
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++) {
      const u32 first = threads.first(block, step);
      Values<8> more;
      load_values(row.at(first), row.left(first), row.type, more);
      for (u32 half = 0; half < 2; half++) x[step][half] += more[half];
    }
  } while (++index < count);
}

// Rows of any length at any address; whole ones (RowMemory); whole ones of bfloat16.
enum class RowKind { any, whole, bf16 };

// A chunk of a row.
template <RowKind kKind>
HIPGEMM_DEVICE void store_row_chunk(const RowMemory& row, u32 first, const Values<8>& x) {
  const u32 count = row.left(first);
  if constexpr (kKind == RowKind::any)
    store_chunk(row.at(first), row.type, x, count, row.length);
  else if (count == 0)
    return;
  else if constexpr (kKind == RowKind::bf16)
    store_values<OutBf16, 8, false>(row.address + first * static_cast<u64>(OutBf16::kBytes), x, 8,
                                    true, true);
  else
    store_values<8>(row.at(first), row.type, x, 8, true, row.length % 16 == 0);
}
template <RowKind kKind, class Threads>
HIPGEMM_DEVICE void store_chunks(const Threads& threads, u32 block, const RowMemory& row,
                                 RowChunks<Threads>& x) {
  if constexpr (kKind == RowKind::whole)
    if (row.type == Format::bf16) return store_chunks<RowKind::bf16>(threads, block, row, x);
#pragma unroll
  for (u32 step = 0; step < Threads::kSteps; step++)
    store_row_chunk<kKind>(row, threads.first(block, step), x[step]);
}

}  // namespace hipgemm
