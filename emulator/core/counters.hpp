// The counters of a launch.
#pragma once

#include <cstdint>

namespace emu {

struct Counters {
#define EMU_COUNTER(name, meaning) uint64_t name = 0;
#include "core/counters.def"
#undef EMU_COUNTER

  Counters& operator+=(const Counters& o) {
#define EMU_COUNTER(name, meaning) name += o.name;
#include "core/counters.def"
#undef EMU_COUNTER
    return *this;
  }
};

}  // namespace emu
