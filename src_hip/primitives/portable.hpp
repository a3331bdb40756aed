// Primitives of any architecture: arithmetic, lanes, LDS and barriers, memory, arguments.
#pragma once

#include "common/element_types.hpp"
#include "common/lane_reduce.hpp"
#include "common/scaled_sum.hpp"
#include "primitives/arguments.hpp"
#include "quantize/rounding.hpp"

namespace hipgemm {

// ---- arithmetic ---------------------------------------------------------------------------------

// Of three values: sum, product, fma, quotient, square root; the larger and the smaller one.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_f32_arithmetic(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 3>(args);
  const f32 a = as_float(x[0]), b = as_float(x[1]), c = as_float(x[2]);
  Vector<u32, 5> y;
  y[0] = as_bits(a + b);
  y[1] = as_bits(a * b);
  y[2] = as_bits(__builtin_fmaf(a, b, c));
  y[3] = as_bits(a / b);
  y[4] = as_bits(__builtin_sqrtf(a));
  write_words<kThreads>(args, y);
}
// x * 2^n, significand, exponent; with a limit, n mod 64: x clamped, the larger magnitude.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_f32_fields(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 2>(args);
  const f32 a = as_float(x[0]), limit = static_cast<f32>(static_cast<int>(x[1] & 63));
  Vector<u32, 5> y;
  y[0] = as_bits(times_power_of_two(a, static_cast<int>(x[1])));
  y[1] = as_bits(significand_of(a));
  y[2] = static_cast<u32>(exponent_of(a));
  y[3] = as_bits(clamped(a, -limit, limit));
  y[4] = max_magnitude(as_bits(limit), a);
  write_words<kThreads>(args, y);
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_f32_to_bf16(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 2>(args);
  write_words<kThreads>(args, Vector<u32, 1>(OutBf16::pack({as_float(x[0]), as_float(x[1])})));
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_f32_to_f16(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 2>(args);
  write_words<kThreads>(args, Vector<u32, 1>(OutF16::pack({as_float(x[0]), as_float(x[1])})));
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_f16_to_f32(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 1>(args);
  write_words<kThreads>(args, __builtin_bit_cast(u32x2, FromF16::widen_word(x[0])));
}
// Four values of at most the format's maximum, and back.
template <class Element, u32 kThreads>
HIPGEMM_DEVICE void round_trip_8bit(const PrimitiveArgs& args) {
  const u32 code = Element::pack(__builtin_bit_cast(f32x4, read_words<kThreads, 4>(args)));
  const u32x4 back = __builtin_bit_cast(u32x4, Element::unpack(code));
  write_words<kThreads>(args, Vector<u32, 5>{code, back.x, back.y, back.z, back.w});
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_e4m3(const PrimitiveArgs& args) {
  round_trip_8bit<E4m3, kThreads>(args);
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_e5m2(const PrimitiveArgs& args) {
  round_trip_8bit<E5m2, kThreads>(args);
}
// A float and a random word to e4m3, e5m2 and e2m1.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_stochastic_rounding(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 2>(args);
  const f32 a = as_float(x[0]);
  write_words<kThreads>(
      args, Vector<u32, 3>{round_stochastic<E4m3>(a, x[1]), round_stochastic<E5m2>(a, x[1]),
                           round_stochastic<E2m1>(a, x[1])});
}

// ---- lanes --------------------------------------------------------------------------------------

// One of each 2, 4 and 16 lanes; sums over neighbouring lanes, which take all moves.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_lane_moves(const PrimitiveArgs& args) {
  const u32 x = read_words<kThreads, 1>(args)[0];
  const auto sum = [](u32 a, u32 b) HIPGEMM_INLINE { return a + b; };
  Vector<u32, 9> y;
  y[0] = of_lane<2, 1>(x);
  y[1] = of_lane<4, 2>(x);
  y[2] = of_lane<16, 5>(x);
  y[3] = of_neighbours<1>(x);
  y[4] = of_neighbours<2>(x);
  y[5] = reduce_lanes<2>(x, sum);
  y[6] = reduce_lanes<4>(x, sum);
  y[7] = reduce_lanes<8>(x, sum);
  y[8] = reduce_lanes<16>(x, sum);
  write_words<kThreads>(args, y);
}

// ---- LDS and memory -----------------------------------------------------------------------------

// Each thread gets what a thread of another wave has written to LDS, n times.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_barrier(const PrimitiveArgs& args) {
  static __shared__ u32 lds[kThreads];
  u32 x = read_words<kThreads, 1>(args)[0];
  const u32 other = (thread_index() + kThreads / 2 + 1) % kThreads;
#pragma unroll 1
  for (u32 i = 0; i < args.n; i++) {
    lds[thread_index()] = x;
    sync_workgroup();
    x = lds[other] + 1;
    sync_workgroup();
  }
  write_words<kThreads>(args, Vector<u32, 1>(x));
}
// out: one word, the maximum of all.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_atomic_max(const PrimitiveArgs& args) {
  const u32 x = read_words<kThreads, 1>(args)[0];
  atomic_max_in_device(global<u32>(address_of(args.out)), x);
}
// Loads of 16, 4 and 2 bytes from a buffer of n bytes, of which a thread has one offset.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_buffer_loads(const PrimitiveArgs& args) {
  const u32 offset = global<u32>(address_of(args.in))[global_index<kThreads>()];
  const Buffer from = make_buffer(address_of(args.in), args.n);
  const u32x4 x = load_buffer<u32x4>(from, offset);
  write_words<kThreads>(args, Vector<u32, 6>{x.x, x.y, x.z, x.w, load_buffer<u32>(from, offset),
                                             static_cast<u32>(load_buffer<u16>(from, offset))});
}
// in: one array for all threads, of which each copies a word; also used on memory of the host and
// of another device, in a chain of launches on a stream.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_add(const PrimitiveArgs& args) {
  write_words<kThreads>(args, read_words<kThreads, 1>(args) + args.n);
}

// All kinds of arguments, at their offsets; the first threads write a word of them each.
#define HIPGEMM_PrimitiveKindsArgs(X) \
  X(ptr, in)                          \
  X(ptr, out)                         \
  X(u32, n)                           \
  X(i64, stride)                      \
  X(f32, alpha)                       \
  X(ptr, other)                       \
  X(u32, a)                           \
  X(u32, b)                           \
  X(f32, eps)                         \
  X(i64, last)
HIPGEMM_STRUCT(PrimitiveKindsArgs);
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_arguments(const PrimitiveKindsArgs& args) {
  const u64 words[10] = {
      address_of(args.in), address_of(args.out),       args.n, static_cast<u64>(args.stride),
      as_bits(args.alpha), address_of(args.other),     args.a, args.b,
      as_bits(args.eps),   static_cast<u64>(args.last)};
  u64 mine = 0;
#pragma unroll
  for (u32 i = 0; i < 10; i++)
    if (global_index<kThreads>() == i) mine = words[i];
  global<u64>(address_of(args.out))[global_index<kThreads>()] = mine;
}

}  // namespace hipgemm
