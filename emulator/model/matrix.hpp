// The matrix pipe of a SIMD, and what its instructions keep from issuing.
//
// At the start of an MFMA the SIMD reads its operands: no other instruction that reads vector
// registers issues. After that the pipe computes, in whose shadow the others issue. A scaled MFMA
// is two instructions: the first loads the scales, which can overlap the end of the MFMA before.
#pragma once

#include <algorithm>

#include "model/lds.hpp"

namespace emu::model {

class Matrix {
 public:
  explicit Matrix(const Figures& f) : f_(f) {}

  // When registers can be read again.
  Clock ports() const { return ports_; }
  // When an MFMA can issue.
  Clock ready(const Op& op) const {
    const Clock before = op.scaled ? static_cast<Clock>(f_.scale_clocks) : 0;
    return std::max({ports_, vector_, free_ > before ? free_ - before : 0});
  }
  // When another vector instruction can issue. Packed ones do not run in the shadow.
  Clock vector_ready(const Op& op) const {
    const Clock shadow = op.packed && free_ ? free_ + static_cast<Clock>(f_.packed_clocks) : 0;
    return std::max({ports_, vector_, shadow});
  }

  // Issues an MFMA; returns when the pipe is through with it.
  Clock issue(Clock now, const Op& op) {
    const Clock start = now + (op.scaled ? static_cast<Clock>(f_.scale_clocks) : 0);
    ports_ = start + static_cast<Clock>(f_.operand_clocks);
    free_ = start + clocks(op);
    return free_;
  }
  void issue_vector(Clock now, const Op& op) {
    vector_ = now + static_cast<Clock>(op.swap                ? f_.swap_clocks
                                       : op.side.traits.trans ? f_.trans_clocks
                                                              : 4);
  }

  static Clock clocks(const Op& op) { return 4u * op.side.traits.passes; }

 private:
  const Figures& f_;
  Clock ports_ = 0, vector_ = 0, free_ = 0;
};

}  // namespace emu::model
