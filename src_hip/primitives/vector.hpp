// Primitives of architectures with matrix kernels: vector instructions that convert nothing, and
// accesses of all widths.
#pragma once

#include "primitives/arguments.hpp"

namespace hipgemm {

// Of two vectors of two: sum, product, fma with a third; one times the other's halves swapped.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_packed_f32(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 6>(args);
  const auto pair = [&](u32 i) HIPGEMM_INLINE { return f32x2{as_float(x[i]), as_float(x[i + 1])}; };
  const f32x2 a = pair(0), b = pair(2), c = pair(4);
  Vector<u32, 8> y;
  const auto store = [&](u32 i, f32x2 value) HIPGEMM_INLINE {
    y[i] = as_bits(value.x);
    y[i + 1] = as_bits(value.y);
  };
  store(0, a + b);
  store(2, a * b);
  store(4, __builtin_elementwise_fma(a, b, c));
  store(6, a * b.yx);
  write_words<kThreads>(args, y);
}

// x / y and x % y of unsigned integers, which compilers make of a reciprocal.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_integer_division(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 2>(args);
  write_words<kThreads>(args, u32x4{x[0] / x[1], x[0] % x[1], x[0] / args.n, x[0] % args.n});
}

// Comparisons, a bit each, of pairs of three values, so that none is another's opposite; and the
// larger of one and a number.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_f32_comparisons(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 4>(args);
  const f32 a = as_float(x[0]), b = as_float(x[1]), c = as_float(x[2]);
  const bool found[] = {a<b, a <= b, a> b,
                        a >= b,
                        a == c,
                        !(b < c),
                        !(b <= c),
                        !(b > c),
                        !(b >= c),
                        a != b,
                        __builtin_isunordered(a, c) != 0,
                        __builtin_isunordered(b, c) == 0};
  u32 flags = 0;
#pragma unroll
  for (u32 i = 0; i < sizeof(found); i++) flags |= static_cast<u32>(found[i]) << i;
  write_words<kThreads>(args, u32x2{flags, as_bits(at_least(as_float(x[3]), b))});
}

// Of three words: bits of the second or third chosen by the first, and their sum without carry;
// chosen bytes; words shifted out of two; fields; the larger half words; one with another's sign.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_bits(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 3>(args);
  const u32 a = x[0], b = x[1], c = x[2];
  using Halves = Vector<u16, 2>;
  Vector<u32, 9> y;
  y[0] = (a & b) | (~a & c);
  y[1] = a ^ b ^ c;
  y[2] = __builtin_amdgcn_perm(a, b, 0x07020500);
  y[3] = __builtin_amdgcn_alignbit(a, b, c);
  y[4] = __builtin_amdgcn_ubfe(a, b & 31, c & 31);
  y[5] = static_cast<u32>(__builtin_amdgcn_sbfe(static_cast<int>(a), b & 31, c & 31));
  y[6] = __builtin_bitreverse32(a);
  y[7] = __builtin_bit_cast(
      u32, __builtin_elementwise_max(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b)));
  y[8] = as_bits(__builtin_copysignf(as_float(a), as_float(b)));
  write_words<kThreads>(args, y);
}

// Bytes and halves of registers, as an operand, and as a result that leaves the others as they are.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_register_parts(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 2>(args);
  Vector<u32, 3> y{x[0], x[0], x[0]};
  asm("v_lshlrev_b32_sdwa %0, %1, %2 dst_sel:DWORD dst_unused:UNUSED_PAD "
      "src0_sel:BYTE_0 src1_sel:BYTE_2"
      : "=v"(y[0])
      : "v"(x[0] & 0xffffff1f), "v"(x[1]));
  asm("v_add_u32_sdwa %0, %1, %2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE "
      "src0_sel:BYTE_3 src1_sel:WORD_1"
      : "+v"(y[1])
      : "v"(x[0]), "v"(x[1]));
  asm("v_or_b32_sdwa %0, sext(%1), %2 dst_sel:DWORD dst_unused:UNUSED_PAD "
      "src0_sel:BYTE_1 src1_sel:WORD_0"
      : "=v"(y[2])
      : "v"(x[0]), "v"(x[1]));
  write_words<kThreads>(args, y);
}

// A thread's eight words into LDS by stores of 1, 2, 4, 8 and 16 bytes, and the next thread's by
// loads of the same widths. Volatile, so that each is an instruction.
template <class T>
using VolatileLds = volatile __attribute__((address_space(3))) T;
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_lds_widths(const PrimitiveArgs& args) {
  static __shared__ __attribute__((aligned(16))) u32 lds[kThreads][8];
  const auto x = read_words<kThreads, 8>(args);
  const u32 thread = thread_index();
  LdsByte* const mine = (LdsByte*)lds[thread];
  LdsByte* const next = (LdsByte*)lds[(thread + 1) % kThreads];
  *(VolatileLds<u8>*)mine = static_cast<u8>(x[0]);
  *(VolatileLds<u8>*)(mine + 1) = static_cast<u8>(x[0] >> 8);
  *(VolatileLds<u8>*)(mine + 2) = static_cast<u8>(x[0] >> 16);
  *(VolatileLds<u8>*)(mine + 3) = static_cast<u8>(x[0] >> 24);
  *(VolatileLds<u16>*)(mine + 4) = static_cast<u16>(x[1]);
  *(VolatileLds<u16>*)(mine + 6) = static_cast<u16>(x[1] >> 16);
  *(VolatileLds<u32x2>*)(mine + 8) = u32x2{x[2], x[3]};
  *(VolatileLds<u32x4>*)(mine + 16) = u32x4{x[4], x[5], x[6], x[7]};
  sync_workgroup();
  const u32 first = *(VolatileLds<u8>*)next | *(VolatileLds<u8>*)(next + 1) << 8 |
                    static_cast<u32>(*(VolatileLds<u16>*)(next + 2)) << 16;
  const u32 second = *(VolatileLds<u32>*)(next + 4);
  const u32x2 middle = *(VolatileLds<u32x2>*)(next + 8);
  const u32x4 last = *(VolatileLds<u32x4>*)(next + 16);
  write_words<kThreads>(
      args, Vector<u32, 8>{first, second, middle.x, middle.y, last.x, last.y, last.z, last.w});
}

// Bytes and halves from memory to memory; those between them stay as they are.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_memory_widths(const PrimitiveArgs& args) {
  const u64 from = address_of(args.in) + 8 * thread_index(),
            to = address_of(args.out) + 8 * thread_index();
  const u8 first = *global<u8>(from);
  const u16 second = *global<u16>(from + 2), third = *global<u16>(from + 6);
  *global<u8>(to + 1) = first;
  *global<u16>(to + 2) = third;
  *global<u16>(to + 4) = second;
  *global<u8>(to + 7) = static_cast<u8>(third >> 8);
}
// A thread's 8 bytes of a buffer of n bytes, and one of them alone.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_buffer_widths(const PrimitiveArgs& args) {
  const Buffer from = make_buffer(address_of(args.in), args.n);
  const u32 at = 8 * thread_index();
  const u32x2 two = __builtin_amdgcn_raw_buffer_load_b64(from, at, 0, 0);
  const u32 one = __builtin_amdgcn_raw_buffer_load_b8(from, at + 5, 0, 0);
  write_words<kThreads>(args, Vector<u32, 3>{two.x, two.y, one});
}

}  // namespace hipgemm
