// Products of groups of rows, such as tokens sorted by expert, in one launch for all groups.
#pragma once

#include "common/groups.hpp"
#include "common/kargs.hpp"
#include "gemm/gemm.hpp"
#include "gemm/tile.hpp"
#include "gemm/traits.hpp"
#include "gemm/work.hpp"

namespace hipgemm {

// A workgroup computes one tile, and finds out by itself which. Rather than keeping workgroups that
// fetch tile after tile: the dispatcher does just that for the price of a start, while a loop
// around the K loop would keep registers alive across it.

// Rows of C that belong to no group, and products over no rows.
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
HIPGEMM_DEVICE u32 bytes_of(u32 element_type) {
  return static_cast<Format>(element_type) == Format::f32 ? 4 : 2;
}

// Scales in GEMM order deal out rows by 16, so tiles with scales begin at such rows, and leave the
// first ones to the group that has them.
template <class T>
inline constexpr u32 kRowAlignment = T::kScaling == Scaling::blocks ? kScaleRows : 1;

// C[r] = A[r] * B[group of r]^T. Grid: slots of the groups times columns of tiles, in the order of
// a dense product of as many tiles: weights are shared by neighbours as columns of B are.
template <class T, class Args>
HIPGEMM_DEVICE void grouped_matmul(const Args& args) {
  static_assert(T::kM % kRowAlignment<T> == 0, "a group's slots cover its rows from there on, too");
  const Place<T> place;
  const u32 workgroup = __builtin_amdgcn_workgroup_id_x();
  const Groups groups(args.offsets, args.groups, args.m);
  if (workgroup == 0 && place.wave == 0) groups.check(args.status, 1);

  const u32 tiles_n = (args.n + T::kN - 1) / T::kN;
  const TilePosition tile =
      tile_of_workgroup(workgroup, count_slots(args.m, args.groups, T::kM), tiles_n);
  const GroupSlot slot = groups.find<T::kM>(tile.m);
  const u32 first = slot.begin / kRowAlignment<T> * kRowAlignment<T>;
  if (slot.begin == slot.end || slot.turn > (slot.end - 1 - first) / T::kM) return;

  const u32 row = first + slot.turn * T::kM, column = tile.n * T::kN;
  const u32 skipped = slot.turn == 0 ? slot.begin - first : 0;
  const TileArea<T> area{row, column, smaller(slot.end - row, T::kM),
                         smaller(args.n - column, T::kN)};
  if (slot.group == args.groups) {
    const u32 bytes = bytes_of(args.out_type);
    store_zeros<T>(reinterpret_cast<u64>(args.c), static_cast<u64>(args.ldc) * bytes, bytes,
                   {row + skipped, column, area.rows - skipped, area.columns});
    return;
  }
  // All of K. The compiler must not know: it would keep more of mxfp4's loop in registers than
  // fits.
  const u32 k_tiles = count_k_tiles(args.k, T::kK);
  u32 first_turn = 0;
  asm("" : "+s"(first_turn));
  Work<T> work{
      .area = area,
      .a = reinterpret_cast<u64>(args.a),
      .b = reinterpret_cast<u64>(args.b) + slot.group * static_cast<u64>(args.group_stride),
      .c = reinterpret_cast<u64>(args.c),
      .a_scale = 0,
      .b_scale = 0,
      .k = args.k,
      .range = k_range(k_tiles, first_turn, count_turns(k_tiles)),
      .skipped = skipped,
  };
  if constexpr (T::kScaling != Scaling::none) {
    work.a_scale = reinterpret_cast<u64>(args.a_scale);
    work.b_scale = reinterpret_cast<u64>(args.b_scale) +
                   slot.group * static_cast<u64>(args.scale_group_stride);
  }
  compute<T>(args, work, place);
}

// C[g] = A[rows of g]^T * B[rows of g]. Grid: tiles of one C, then groups.
template <class T, class Args>
HIPGEMM_DEVICE void grouped_wgrad(const Args& args) {
  static_assert(!T::A::kAlongK && !T::B::kAlongK, "rows of any group are read where they lie");
  const Place<T> place;
  const u32 workgroup = __builtin_amdgcn_workgroup_id_x();
  const Groups groups(args.offsets, args.groups, args.k);
  if (workgroup == 0 && place.wave == 0) groups.check(args.status, 1);

  const u32 tiles_m = (args.m + T::kM - 1) / T::kM, tiles_n = (args.n + T::kN - 1) / T::kN;
  const u32 group = workgroup / (tiles_m * tiles_n);
  const TileArea<T> area = tile_area<T>(
      tile_of_workgroup(workgroup - group * (tiles_m * tiles_n), tiles_m, tiles_n), args.m, args.n);
  const GroupSlot rows = groups.rows(group);
  const u32 k = rows.end - rows.begin, bytes = bytes_of(args.out_type);
  const u64 c = reinterpret_cast<u64>(args.c) + group * static_cast<u64>(args.group_stride);
  if (k == 0) {
    if (!args.accumulate) store_zeros<T>(c, static_cast<u64>(args.ldc) * bytes, bytes, area);
    return;
  }
  const auto from = [&](const void* matrix, i64 ld) {
    return reinterpret_cast<u64>(matrix) +
           rows.begin * (static_cast<u64>(ld) * T::kElementBits / 8);
  };
  Work<T> work{
      .area = area,
      .a = from(args.a, args.lda),
      .b = from(args.b, args.ldb),
      .c = c,
      .a_scale = 0,
      .b_scale = 0,
      .k = k,
      .range = whole_k(count_k_tiles(k, T::kK)),
      .skipped = 0,
      .accumulate = args.accumulate != 0,
  };
  if constexpr (T::kScaling != Scaling::none) {
    const auto scales = [&](const void* all, u32 step_rows) {
      const u64 unit_bytes = T::kScaling == Scaling::blocks ? step_rows * kUnitRowBytes : 0;
      return reinterpret_cast<u64>(all) + first_slot(rows.begin, group, kUnitNumbers) * unit_bytes;
    };
    work.a_scale = scales(args.a_scale, args.a_scale_step);
    work.b_scale = scales(args.b_scale, args.b_scale_step);
  }
  compute<T>(args, work, place);
}

}  // namespace hipgemm
