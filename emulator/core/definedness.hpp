// Which bytes of device memory are initialized. Called for each allocation, free, copy and fill
// outside kernels. Does nothing unless the uninit check is on when memory is allocated; unknown
// memory counts as written.
#pragma once

#include <cstdint>

namespace emu::definedness {

bool followed();                                          // there is tracked memory
void fresh(uint64_t address, uint64_t bytes);             // allocated: nothing is written
void gone(uint64_t address);                              // freed
void written(uint64_t address, uint64_t bytes);           // by a copy from the host, or a fill
void copied(uint64_t to, uint64_t from, uint64_t bytes);  // between device allocations
void trust_all();  // a kernel runs unchecked: its writes are not tracked

}  // namespace emu::definedness
