// Logical MX scales: a byte for each row and block, or for several of them.
#pragma once

#include "common/memory.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"

namespace hipgemm {

struct LogicalScales {
  const void* src;
  i64 row_stride, col_stride;
  u32 rows, blocks;
  u32 row_block = 1, col_block = 1;

  HIPGEMM_DEVICE u32 at(u32 row, u32 block) const {
    if (row >= rows || block >= blocks) return kNeutralScale;
    return *reinterpret_cast<const __attribute__((address_space(1))) u8*>(
        reinterpret_cast<u64>(src) + row / row_block * static_cast<u64>(row_stride) +
        block / col_block * static_cast<u64>(col_stride));
  }
};

HIPGEMM_DEVICE u32 global_thread(u32 threads) {
  return workgroup_index() * threads + thread_index();
}
HIPGEMM_DEVICE void store_word(void* dst, u32 word, u32 value) {
  reinterpret_cast<__attribute__((address_space(1))) u32*>(reinterpret_cast<u64>(dst))[word] =
      value;
}

}  // namespace hipgemm
