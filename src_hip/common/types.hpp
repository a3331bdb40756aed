// Scalar and vector types, and the codes the host passes for element types.
#pragma once

#include "common/hip_device.hpp"

namespace hipgemm {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;
using f32 = float;

#if defined(__clang__)
using bf16 = __bf16;
using f16 = _Float16;
template <class E, int N>
using Vector = E __attribute__((ext_vector_type(N)));
using u32x2 = Vector<u32, 2>;
using u32x4 = Vector<u32, 4>;
using i32x8 = Vector<int, 8>;
using f32x2 = Vector<f32, 2>;
using f32x4 = Vector<f32, 4>;
using bf16x2 = Vector<bf16, 2>;
using bf16x8 = Vector<bf16, 8>;
using f16x2 = Vector<f16, 2>;
using f16x8 = Vector<f16, 8>;
#endif

HIPGEMM_BOTH constexpr u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
HIPGEMM_BOTH constexpr u32 larger(u32 a, u32 b) { return a > b ? a : b; }
HIPGEMM_BOTH constexpr u64 magnitude(i64 x) { return x < 0 ? -static_cast<u64>(x) : x; }

#if defined(__clang__)
template <class T, T... kValues>
struct IntegerSequence {};

// A constant as an argument: f(kIndex<2>) calls f(Index<2>), so that its template parameter is 2.
template <auto kValue>
struct Static {};
template <auto kValue>
inline constexpr Static<kValue> kStatic{};
template <u32 i>
using Index = Static<i>;
template <u32 i>
inline constexpr Index<i> kIndex{};

// f(kIndex<0>), .. f(kIndex<N - 1>): a loop for instructions whose operands must be constants.
template <u32 N, class F>
HIPGEMM_BOTH void unrolled(F f) {
  [&]<u32... i>(IntegerSequence<u32, i...>)
      HIPGEMM_INLINE { (f(kIndex<i>), ...); }(__make_integer_seq<IntegerSequence, u32, N>());
}
#endif

// Formats by the codes that kernels are passed. Those of an argument out_type, in_type or bias_type
// have no scales.
enum class Format : u32 {
#define FORMAT(name, code, ...) name = code,
#define SCALED_FORMAT(name, code, ...) name = code,
#define BLOCK_FORMAT(name, code, ...) name = code,
#include "common/formats.def"
};

HIPGEMM_BOTH constexpr u32 bits_of(Format format) {
#define FORMAT(name, code, bits) \
  if (format == Format::name) return bits;
#define SCALED_FORMAT(name, code, bits, ...) \
  if (format == Format::name) return bits;
#include "common/formats.def"
  return 0;
}

// Elements of 8 bits and fewer, as the matrix instruction encodes them.
enum class MfmaFormat : u32 {
#define ELEMENT(name, code, bits) name = code,
#include "common/formats.def"
};
HIPGEMM_BOTH constexpr u32 bits_of(MfmaFormat element) {
#define ELEMENT(name, code, bits) \
  if (element == MfmaFormat::name) return bits;
#include "common/formats.def"
  return 0;
}

// How an operand is scaled: not at all, by floats (one, or one per row), by the scales of blocks
// along K, which the matrix instruction applies, or by multipliers of its result (mfma.hpp).
enum class Scaling { none, floats, blocks, multipliers };

}  // namespace hipgemm
