// SOPP and the SOP1/SOPK instructions that move the program counter: branches, waits, barriers.
#include <bit>

#include "isa/exec.hpp"

namespace emu::EMU_NS {
namespace {

// ---- branches -----------------------------------------------------------------------------------

enum class When { always, scc0, scc1, vccz, vccnz, execz, execnz };

template <When kWhen>
EMU_INLINE bool taken(const Wave& w) {
  switch (kWhen) {
    case When::always:
      return true;
    case When::scc0:
      return !w.scc;
    case When::scc1:
      return w.scc;
    case When::vccz:
      return w.vcc() == 0;
    case When::vccnz:
      return w.vcc() != 0;
    case When::execz:
      return w.exec() == 0;
    case When::execnz:
      return w.exec() != 0;
  }
}

template <When kWhen>
const Inst* branch(Wave& w, const Inst* i) {
  return taken<kWhen>(w) ? i->target : i + 1;
}
template <When kWhen>
void lower_branch(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  l.branch_to(l.next_address() + static_cast<int64_t>(d.imm) * 4);
  if (kWhen == When::always) l.ends_block();
}
template <When kWhen>
void add(Semantics& t, Op op) {
  set(t, op, lower_branch<kWhen>, branch<kWhen>);
}

const Inst* set_pc(Wave& w, const Inst* i) { return jump_to(w, i, w.s64(i->a)); }
void lower_set_pc(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.scalar(d.src[0], 2);
  l.ends_block();
}

// The return address is a constant, at slot b.
const Inst* swap_pc(Wave& w, const Inst* i) {
  const uint64_t to = w.s64(i->a);
  w.set64(i->d, w.s64(i->b));
  return jump_to(w, i, to);
}
void lower_swap_pc(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.scalar(d.src[0], 2);
  i.b = l.constant64(l.next_address());
  i.d = l.scalar_dst(d.dst, 2);
  l.ends_block();
}

const Inst* get_pc(Wave& w, const Inst* i) {
  w.set64(i->d, w.s64(i->b));
  return i + 1;
}
void lower_get_pc(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.b = l.constant64(l.next_address());
  i.d = l.scalar_dst(d.dst, 2);
}

const Inst* call(Wave& w, const Inst* i) {
  w.set64(i->d, w.s64(i->b));
  return i->target;
}
void lower_call(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_get_pc(l, d, s, i);
  l.branch_to(l.next_address() + static_cast<int64_t>(d.imm) * 4);
  l.ends_block();
}

// ---- forks --------------------------------------------------------------------------------------
// The lanes that take a branch and those that do not run one after the other, the fewer first. The
// others' EXEC and address wait in four scalar registers, at four times MODE's count of such.

constexpr uint32_t kModeStack = 29;  // the first bit of the count

// a: the lanes that branch, d: where to, b: the next address.
const Inst* fork(Wave& w, const Inst* i) {
  const uint64_t taken = w.s64(i->a) & w.exec(), other = w.exec() & ~taken, to = w.s64(i->d);
  if (other == 0) return jump_to(w, i, to);
  if (taken == 0) return i + 1;
  const bool other_first = std::popcount(other) < std::popcount(taken);
  const uint32_t saved = 4 * (w.mode >> kModeStack);
  w.set64(saved, other_first ? taken : other);
  w.set64(saved + 2, other_first ? to : w.s64(i->b));
  w.mode += 1u << kModeStack;
  w.set64(kSlotExec, other_first ? other : taken);
  return other_first ? i + 1 : jump_to(w, i, to);
}
void lower_fork(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.scalar(d.src[0], 2);
  i.b = l.constant64(l.next_address());
  i.d = d.op == Op::s_cbranch_g_fork
            ? l.scalar(d.src[1], 2)
            : l.constant64(l.next_address() + static_cast<int64_t>(d.imm) * 4);
}

// a: the count before the fork. The first time, those that wait take their turn.
const Inst* join(Wave& w, const Inst* i) {
  const uint32_t count = w.mode >> kModeStack;
  if (count == w.s[i->a]) return i + 1;
  w.mode -= 1u << kModeStack;
  const uint32_t saved = 4 * (w.mode >> kModeStack);
  w.set64(kSlotExec, w.s64(saved));
  return jump_to(w, i, w.s64(saved + 2));
}
void lower_join(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.scalar(d.src[0]);
}

// ---- waits, barrier, end ------------------------------------------------------------------------

// Inst::a is the vmcnt, b the lgkmcnt waited for.
const Inst* wait_counters(Wave& w, const Inst* i) {
  return wait_vm(w, i->a) && wait_lgkm(w, i->b) ? i + 1 : nullptr;
}
void lower_wait(Lowering&, const Decoded& d, const Semantic& s, Inst& i) {
  const auto imm = static_cast<uint32_t>(d.imm);
  i.fn = s.handler;
  i.a = static_cast<uint16_t>((imm & 15) | (imm >> 14 & 3) << 4);
  i.b = imm >> 8 & 15;
}

const Inst* barrier(Wave& w, const Inst* i) {
  w.state = WaveState::barrier;
  w.pc = i + 1;
  return nullptr;
}

// What is in flight arrives: stores are not lost with the wave.
const Inst* end(Wave& w, const Inst*) {
  if (wait_vm(w, 0) && wait_lgkm(w, 0)) w.state = WaveState::ended;
  return nullptr;
}
void lower_end(Lowering& l, const Decoded&, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  l.ends_block();
}

// An interrupt wakes a host that waits for one; here the host waits for the launch.
void lower_message(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  if (d.imm != 1) l.fail("a message other than MSG_INTERRUPT is not emulated");
}

const Inst* trap(Wave& w, const Inst* i) {
  return fault(w, i, FaultKind::launch_failure, "s_trap: the kernel gave up");
}

}  // namespace

void add_branch(Semantics& t) {
  add<When::always>(t, Op::s_branch);
  add<When::scc0>(t, Op::s_cbranch_scc0);
  add<When::scc1>(t, Op::s_cbranch_scc1);
  add<When::vccz>(t, Op::s_cbranch_vccz);
  add<When::vccnz>(t, Op::s_cbranch_vccnz);
  add<When::execz>(t, Op::s_cbranch_execz);
  add<When::execnz>(t, Op::s_cbranch_execnz);
  set(t, Op::s_setpc_b64, lower_set_pc, set_pc);
  set(t, Op::s_swappc_b64, lower_swap_pc, swap_pc);
  set(t, Op::s_getpc_b64, lower_get_pc, get_pc);
  set(t, Op::s_call_b64, lower_call, call);

  set(t, Op::s_cbranch_g_fork, lower_fork, fork);
  set(t, Op::s_cbranch_i_fork, lower_fork, fork);
  set(t, Op::s_cbranch_join, lower_join, join);

  set(t, Op::s_waitcnt, lower_wait, wait_counters);
  set(t, Op::s_barrier, lower_plain, barrier);
  set(t, Op::s_endpgm, lower_end, end);
  set(t, Op::s_endpgm_saved, lower_end, end);
  set(t, Op::s_endpgm_ordered_ps_done, lower_end, end);
  set(t, Op::s_trap, lower_plain, trap);
  set(t, Op::s_sendmsg, lower_message, next);

  // No effect on results. (Debug and trace features are off, so their branches are not taken.)
  for (Op op :
       {Op::s_nop, Op::s_wakeup, Op::s_sleep, Op::s_setprio, Op::s_icache_inv, Op::s_incperflevel,
        Op::s_decperflevel, Op::s_ttracedata, Op::s_sethalt, Op::s_cbranch_cdbgsys,
        Op::s_cbranch_cdbguser, Op::s_cbranch_cdbgsys_or_user, Op::s_cbranch_cdbgsys_and_user})
    set(t, op, lower_plain, next);
}

}  // namespace emu::EMU_NS
