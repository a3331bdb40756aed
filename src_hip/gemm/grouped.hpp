// Products of groups of rows, such as tokens sorted by expert, in one launch for all groups.
#pragma once

#include "common/groups.hpp"
#include "common/kargs.hpp"
#include "common/stages.hpp"
#include "gemm/accumulators.hpp"
#include "gemm/dense.hpp"
#include "gemm/tile_descriptor.hpp"
#include "gemm/traits.hpp"

// Products of groups of rows (groups.hpp). Matrices of one group each, b or c, are group_stride
// bytes apart, and each group's bias is bias_outer bytes after that of the group before. status: an
// OffsetFault, for wrong offsets. alpha, col_scale, bias and stages as in dense.hpp.
//   matmul: m rows of a and c; k and n as in dense.hpp.
//   wgrad: m and n of each c, from k rows in all of a and b. Of the stages it has accumulate alone.
// clang-format off
#define HIPGEMM_GroupedArgs(X)                                                                    \
  X(ptr, a) X(ptr, b) X(ptr, c) X(ptr, offsets) X(ptr, status) X(ptr, alpha_ptr)                  \
  X(ptr, col_scale) X(ptr, bias) X(i64, lda) X(i64, ldb) X(i64, ldc) X(i64, group_stride)         \
  X(i64, bias_outer)  X(u32, m) X(u32, n) X(u32, k) X(u32, groups) X(f32, alpha)                  \
  X(u32, out_type) X(u32, bias_type) HIPGEMM_STAGES(X)

// After these, as in dense.hpp; those of b, one set for each group, are scale_group_stride bytes apart.
#define HIPGEMM_GROUPED_SCALES(X)                                                                 \
  X(ptr, a_scale) X(ptr, b_scale) X(u32, a_scale_step) X(u32, b_scale_step)                       \
  X(i64, scale_group_stride)
#define HIPGEMM_ScaledGroupedArgs(X) HIPGEMM_GroupedArgs(X) HIPGEMM_GROUPED_SCALES(X)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(GroupedArgs);
HIPGEMM_STRUCT(ScaledGroupedArgs);

// A workgroup computes one tile, and finds out by itself which. There are no persistent workgroups:
// the dispatcher starts new ones at little cost, while a loop around the K loop would keep
// registers live across it.

// For rows of C that belong to no group, and for products over no rows.
template <class T>
HIPGEMM_DEVICE void store_zeros(u64 c, u64 pitch, u32 bytes, const TileArea<T>& area) {
  using Byte2 = __attribute__((address_space(1))) u16;
  using Byte4 = __attribute__((address_space(1))) u32;
  const u32 thread = __builtin_amdgcn_workitem_id_x();
  for (u32 row = thread / kWaveLanes; row < area.rows; row += T::kWaves)
    for (u32 column = thread % kWaveLanes; column < area.columns; column += kWaveLanes) {
      const u64 at = c + (area.row + row) * pitch + static_cast<u64>(area.column + column) * bytes;
      if (bytes == 4)
        *(Byte4*)at = 0;
      else
        *(Byte2*)at = 0;
    }
}
// Scales in GEMM order interleave rows by 16, so tiles with scales begin at a multiple of 16, and
// do not store the rows there that belong to the group before.
template <class T>
inline constexpr u32 kRowAlignment = T::kScaling == Scaling::blocks ? kScaleRows : 1;

// C[r] = A[r] * B[group of r]^T. Grid: slots of the groups times columns of tiles, in the order of
// a dense product of as many tiles: neighbours share weights as they share columns of B.
template <class T, class Args>
HIPGEMM_DEVICE void grouped_matmul(const Args& args) {
  static_assert(T::kM % kRowAlignment<T> == 0,
                "a group's slots also cover its rows from the aligned row on");
  const ThreadPosition<T> position;
  const u32 workgroup = __builtin_amdgcn_workgroup_id_x();
  const Groups groups(args.offsets, args.groups, args.m);
  if (workgroup == 0 && position.wave == 0) groups.check(args.status, 1);

  const u32 tiles_n = (args.n + T::kN - 1) / T::kN;
  const TilePosition at =
      tile_of_workgroup(workgroup, count_slots(args.m, args.groups, T::kM), tiles_n);
  const GroupSlot slot = groups.find<T::kM>(at.m);
  const u32 first = slot.begin / kRowAlignment<T> * kRowAlignment<T>;
  if (slot.begin == slot.end || slot.index > (slot.end - 1 - first) / T::kM) return;

  const u32 row = first + slot.index * T::kM, column = at.n * T::kN;
  const u32 skipped = slot.index == 0 ? slot.begin - first : 0;
  TileArea<T> area{row, column, smaller(slot.end - row, T::kM), smaller(args.n - column, T::kN)};
  // Else the compiler keeps the columns up to the end of C in a register as well.
  if constexpr (T::kStaging == Staging::registers) asm("" : "+s"(area.columns));
  if (slot.group == args.groups) {
    const TileArea<T> stored{row + skipped, column, area.rows - skipped, area.columns};
    if (args.staged)
      return finish_zeros<Args>((Constant<Args>*)__builtin_amdgcn_kernarg_segment_ptr(),
                                T::kThreads, stored.row, stored.rows, stored.column,
                                stored.columns);
    const u32 bytes = element_bytes(static_cast<Format>(args.out_type));
    return store_zeros<T>(reinterpret_cast<u64>(args.c), static_cast<u64>(args.ldc) * bytes, bytes,
                          stored);
  }
  // All of K. The compiler must not see that the first iteration is 0: it would keep more of
  // mxfp4's loop in registers than fits.
  const u32 k_tiles = count_k_tiles(args.k, T::kK);
  u32 first_iteration = 0;
  asm("" : "+s"(first_iteration));
  TileDescriptor<T> tile{
      .area = area,
      .a = reinterpret_cast<u64>(args.a),
      .b = reinterpret_cast<u64>(args.b) + slot.group * static_cast<u64>(args.group_stride),
      .c = reinterpret_cast<u64>(args.c),
      .a_scale = 0,
      .b_scale = 0,
      .k = args.k,
      .range = k_range(k_tiles, first_iteration, count_iterations(k_tiles)),
      .skipped = skipped,
      .outer = slot.group,
  };
  if constexpr (T::kScaling != Scaling::none) {
    tile.a_scale = reinterpret_cast<u64>(args.a_scale);
    tile.b_scale = reinterpret_cast<u64>(args.b_scale) +
                   slot.group * static_cast<u64>(args.scale_group_stride);
  }
  compute<T>(args, tile, position);
}

// C[g] = A[rows of g]^T * B[rows of g]. Grid: tiles of one C, then groups.
template <class T, class Args>
HIPGEMM_DEVICE void grouped_wgrad(const Args& args) {
  static_assert(!T::A::kIsKMajor && !T::B::kIsKMajor, "rows of a group are read in place");
  const ThreadPosition<T> position;
  const u32 workgroup = __builtin_amdgcn_workgroup_id_x();
  const Groups groups(args.offsets, args.groups, args.k);
  if (workgroup == 0 && position.wave == 0) groups.check(args.status, 1);

  const u32 tiles_m = (args.m + T::kM - 1) / T::kM, tiles_n = (args.n + T::kN - 1) / T::kN;
  const u32 group = workgroup / (tiles_m * tiles_n);
  const TileArea<T> area = tile_area<T>(
      tile_of_workgroup(workgroup - group * (tiles_m * tiles_n), tiles_m, tiles_n), args.m, args.n);
  const GroupSlot rows = groups.rows(group);
  const u32 k = rows.end - rows.begin;
  const u32 bytes = element_bytes(static_cast<Format>(args.out_type));
  const u64 c = reinterpret_cast<u64>(args.c) + group * static_cast<u64>(args.group_stride);
  if (k == 0) {
    if (!args.accumulate) store_zeros<T>(c, static_cast<u64>(args.ldc) * bytes, bytes, area);
    return;
  }
  const auto from = [&](const void* matrix, i64 ld) {
    static_assert(T::A::kMemoryBits == T::B::kMemoryBits, "");
    return reinterpret_cast<u64>(matrix) +
           rows.begin * (static_cast<u64>(ld) * T::A::kMemoryBits / 8);
  };
  TileDescriptor<T> tile{
      .area = area,
      .a = from(args.a, args.lda),
      .b = from(args.b, args.ldb),
      .c = c,
      .a_scale = 0,
      .b_scale = 0,
      .k = k,
      .range = whole_k(count_k_tiles(k, T::kK)),
      .skipped = 0,
  };
  if constexpr (T::kScaling != Scaling::none) {
    const auto scales = [&](const void* all, u32 step_rows) {
      const u64 unit_bytes = T::kScaling == Scaling::blocks ? step_rows * kUnitRowBytes : 0;
      return reinterpret_cast<u64>(all) + first_slot(rows.begin, group, kUnitElements) * unit_bytes;
    };
    tile.a_scale = scales(args.a_scale, args.a_scale_step);
    tile.b_scale = scales(args.b_scale, args.b_scale_step);
  }
  compute<T>(args, tile, position);
}

}  // namespace hipgemm
