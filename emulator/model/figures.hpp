// The figures of the cycle model, as one struct and as one table.
#pragma once

#include <span>

namespace emu::model {

struct Figures {
#define EMU_FIGURE(name, value, low, high, kind, source) double name = value;
#include "model/figures.def"
#undef EMU_FIGURE
};

struct Figure {
  const char* name;
  double value, low, high;
  const char *kind, *source;
};
std::span<const Figure> figures();

}  // namespace emu::model
