// Tile descriptors: what one workgroup computes, apart from how.
#pragma once

#include "common/memory.hpp"
#include "common/types.hpp"
#include "gemm/accumulators.hpp"
#include "gemm/tile_order.hpp"

namespace hipgemm {

// A tile of C = A * B^T over a range of K. A tile scheduler, such as dense_tile, makes it from the
// workgroup's index; the rest of the kernel knows nothing else of where it is.
template <class T>
struct TileDescriptor {
  TileArea<T> area;
  u64 a, b, c;           // addresses of the matrices
  u64 a_scale, b_scale;  // and their scales, if any
  u32 k;                 // extent of the matrices
  KRange range;
  u32 skipped;               // rows at the top of the tile that are not stored
  u32 outer = 0, inner = 0;  // of the batch; outer: the group
};

// The same in scalar registers: the compiler leaves what it divides, by vector instructions, in
// vector registers if it finds scalar ones short.
template <class T>
HIPGEMM_DEVICE TileDescriptor<T> uniform(const TileDescriptor<T>& x) {
  const KRange& r = x.range;
  return {
      .area = {uniform(x.area.row), uniform(x.area.column), uniform(x.area.rows),
               uniform(x.area.columns)},
      .a = uniform_address(x.a),
      .b = uniform_address(x.b),
      .c = uniform_address(x.c),
      .a_scale = uniform_address(x.a_scale),
      .b_scale = uniform_address(x.b_scale),
      .k = uniform(x.k),
      .range = {uniform(r.tiles), uniform(r.origin), uniform(r.first), uniform(r.second),
                uniform(r.first_index)},
      .skipped = uniform(x.skipped),
      .outer = uniform(x.outer),
      .inner = uniform(x.inner),
  };
}

// Workgroups of the grid, which the runtime passes after the arguments.
HIPGEMM_DEVICE u32 workgroup_count() {
  return *(const __attribute__((address_space(4))) u32*)__builtin_amdgcn_implicitarg_ptr();
}

// The grid runs over tiles first, then splits of K, then entries of the batch.
template <class T, class Args>
HIPGEMM_DEVICE TileDescriptor<T> dense_tile(const Args& args, u32 workgroup) {
  const u32 tiles_m = (args.m + T::kM - 1) / T::kM, tiles_n = (args.n + T::kN - 1) / T::kN;
  const u32 tiles = tiles_m * tiles_n, k_tiles = count_k_tiles(args.k, T::kK);
  // Divisions are slow, and a product without batch or splits needs none.
  u32 index = swizzled_workgroup(workgroup, workgroup_count()), split = 0, outer = 0, inner = 0;
  if (index >= tiles) {
    const u32 entry = index / tiles;
    index -= entry * tiles;
    const u32 batch = entry / args.splits;
    split = entry - batch * args.splits;
    outer = batch / args.batch_inner;
    inner = batch - outer * args.batch_inner;
  }
  const auto entry = [&](const void* first, i64 outer_bytes, i64 inner_bytes) {
    return reinterpret_cast<u64>(first) + outer * static_cast<u64>(outer_bytes) +
           inner * static_cast<u64>(inner_bytes);
  };
  TileDescriptor<T> tile{
      .area = tile_area<T>(tile_at(index, tiles_m, tiles_n), args.m, args.n),
      .a = entry(args.a, args.a_outer, args.a_inner),
      .b = entry(args.b, args.b_outer, args.b_inner),
      .c = entry(args.c, args.c_outer, args.c_inner) + split * static_cast<u64>(args.split_stride),
      .a_scale = 0,
      .b_scale = 0,
      .k = args.k,
      .range = k_range(
          k_tiles, split * args.split_tiles,
          split + 1 == args.splits ? count_iterations(k_tiles) : (split + 1) * args.split_tiles),
      .skipped = 0,
      .outer = outer,
      .inner = inner,
  };
  if constexpr (T::kScaling != Scaling::none) {
    tile.a_scale = entry(args.a_scale, args.a_scale_outer, args.a_scale_inner);
    tile.b_scale = entry(args.b_scale, args.b_scale_outer, args.b_scale_inner);
  }
  return tile;
}

}  // namespace hipgemm
