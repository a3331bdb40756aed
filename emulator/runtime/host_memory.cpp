#include "runtime/host_memory.hpp"

#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace rt {

bool host_mapped(uint64_t address, size_t bytes) {
  if (!bytes) return true;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first = address & ~(page - 1);
  const uint64_t last = (address + bytes - 1) & ~(page - 1);
  if (last < first) return false;
  unsigned char resident[256];
  for (uint64_t at = first; at <= last; at += sizeof resident * page) {
    const size_t length = std::min<uint64_t>(last - at + page, sizeof resident * page);
    if (mincore(reinterpret_cast<void*>(at), length, resident) != 0) return false;
  }
  return true;
}

namespace {

// The kernel copies within our own process and reports a bad address instead of killing us. Where
// a sandbox forbids the call we ask which pages are mapped, and copy ourselves.
using Transfer = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                             unsigned long);

// Copies the pieces of one batch, which have the same lengths on both sides.
bool copy_pieces(Transfer transfer, bool to_host, iovec* local, iovec* remote, size_t count) {
  size_t first = 0;  // what is not copied yet
  while (first < count) {
    const ssize_t done =
        transfer(getpid(), local + first, count - first, remote + first, count - first, 0);
    if (done < 0 && errno != EFAULT) {  // the call is not available
      for (; first < count; ++first) {
        const iovec& theirs = remote[first];
        if (!host_mapped(reinterpret_cast<uint64_t>(theirs.iov_base), theirs.iov_len)) return false;
        void* to = to_host ? theirs.iov_base : local[first].iov_base;
        void* from = to_host ? local[first].iov_base : theirs.iov_base;
        std::memmove(to, from, theirs.iov_len);
      }
      return true;
    }
    if (done <= 0) return false;
    for (size_t left = static_cast<size_t>(done); left;) {
      const size_t step = std::min(left, local[first].iov_len);
      for (iovec* side : {&local[first], &remote[first]}) {
        side->iov_base = static_cast<char*>(side->iov_base) + step;
        side->iov_len -= step;
      }
      left -= step;
      if (!local[first].iov_len) ++first;
    }
  }
  return true;
}

constexpr size_t kBatch = 64;

// Short rows have a system call's overhead each; where the caller's side is dense (or, for reading,
// nearly so) they go through a buffer instead. False if that cannot be done.
bool copy_staged(Transfer transfer, bool to_host, const Rows& ours, uint64_t host,
                 size_t host_pitch) {
  constexpr size_t kShort = 16 << 10, kBuffer = 256 << 10;
  if (ours.width > kShort || host_pitch < ours.width) return false;
  if (host_pitch > (to_host ? ours.width : 2 * ours.width)) return false;
  std::vector<uint8_t> buffer(kBuffer);
  const size_t most = kBuffer / host_pitch;
  for (size_t row = 0; row < ours.rows; row += most) {
    const size_t count = std::min(most, ours.rows - row);
    const auto each_row = [&](auto move) {
      for (size_t i = 0; i < count; ++i) {
        move(reinterpret_cast<uint8_t*>(ours.address + (row + i) * ours.pitch),
             buffer.data() + i * host_pitch);
      }
    };
    if (to_host) each_row([&](auto* mine, auto* staged) { std::memcpy(staged, mine, ours.width); });
    const size_t bytes = (count - 1) * host_pitch + ours.width;
    iovec local{buffer.data(), bytes},
        remote{reinterpret_cast<void*>(host + row * host_pitch), bytes};
    if (!copy_pieces(transfer, to_host, &local, &remote, 1)) return false;
    if (!to_host)
      each_row([&](auto* mine, auto* staged) { std::memcpy(mine, staged, ours.width); });
  }
  return true;
}

bool copy_rows(Transfer transfer, bool to_host, const Rows& ours, uint64_t host,
               size_t host_pitch) {
  iovec local[kBatch], remote[kBatch];
  const bool dense = ours.rows == 1 || (ours.pitch == ours.width && host_pitch == ours.width);
  const size_t rows = dense ? 1 : ours.rows;
  const size_t width = dense ? ours.width * ours.rows : ours.width;
  if (!width) return true;
  if (rows > 1 && copy_staged(transfer, to_host, ours, host, host_pitch)) return true;
  for (size_t row = 0; row < rows;) {
    const size_t count = std::min(kBatch, rows - row);
    for (size_t i = 0; i < count; ++i) {
      local[i] = {reinterpret_cast<void*>(ours.address + (row + i) * ours.pitch), width};
      remote[i] = {reinterpret_cast<void*>(host + (row + i) * host_pitch), width};
    }
    if (!copy_pieces(transfer, to_host, local, remote, count)) return false;
    row += count;
  }
  return true;
}

// Whether the caller's page that holds an address can be read; empty if the kernel gives no answer.
// The call compares the word there, wakes no thread, and returns EFAULT if it cannot read it.
std::optional<bool> page_readable(uint64_t address) {
  static uint32_t other;
  if (syscall(SYS_futex, address & ~uint64_t{3}, FUTEX_CMP_REQUEUE_PRIVATE, 0, nullptr, &other,
              0) >= 0 ||
      errno == EAGAIN) {
    return true;
  }
  if (errno == EFAULT) return false;
  return std::nullopt;
}

// A few bytes, such as the arguments of a launch: asking for their pages takes a third of the time
// that it takes to have the kernel copy them. Empty if they are many, or without an answer.
std::optional<bool> read_few(const Piece& piece) {
  constexpr size_t kFew = 4096;  // a page at least, so the first and last byte represent all
  if (!piece.bytes) return true;
  if (piece.bytes > kFew) return std::nullopt;
  const auto first = reinterpret_cast<uint64_t>(piece.host), last = first + piece.bytes - 1;
  const bool one_page = first / kFew == last / kFew;
  for (const uint64_t address : {first, one_page ? first : last}) {
    const std::optional<bool> readable = page_readable(address);
    if (!readable.value_or(false)) return readable;
    if (one_page) break;
  }
  std::memcpy(piece.ours, piece.host, piece.bytes);
  return true;
}

}  // namespace

bool read_host(const Rows& ours, uint64_t host, size_t host_pitch) {
  return copy_rows(process_vm_readv, false, ours, host, host_pitch);
}

bool read_host(std::span<const Piece> pieces) {
  if (pieces.size() == 1) {
    if (const std::optional<bool> done = read_few(pieces[0])) return *done;
  }
  while (!pieces.empty()) {
    iovec local[kBatch], remote[kBatch];
    size_t count = 0, taken = 0;
    for (; taken < pieces.size() && count < kBatch; ++taken) {
      const Piece& piece = pieces[taken];
      if (!piece.bytes) continue;
      local[count] = {piece.ours, piece.bytes};
      remote[count++] = {const_cast<void*>(piece.host), piece.bytes};
    }
    if (!copy_pieces(process_vm_readv, false, local, remote, count)) return false;
    pieces = pieces.subspan(taken);
  }
  return true;
}

bool write_host(const Rows& ours, uint64_t host, size_t host_pitch) {
  return copy_rows(process_vm_writev, true, ours, host, host_pitch);
}

bool copy_host(const Rows& to, uint64_t from, size_t from_pitch) {
  std::vector<uint8_t> piece(std::min(to.width, size_t{1} << 20));
  for (size_t row = 0; row < to.rows; ++row) {
    for (size_t at = 0; at < to.width; at += piece.size()) {
      const size_t width = std::min(piece.size(), to.width - at);
      const Rows ours{reinterpret_cast<uint64_t>(piece.data()), width, 1, width};
      if (!read_host(ours, from + row * from_pitch + at, width) ||
          !write_host(ours, to.address + row * to.pitch + at, width)) {
        return false;
      }
    }
  }
  return true;
}

std::vector<uint8_t> read_prefix(const void* address, size_t limit) {
  // By pieces, since the claimed size may be far more than what exists.
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<uint8_t> bytes;
  while (bytes.size() < limit) {
    const uint64_t at = reinterpret_cast<uint64_t>(address) + bytes.size();
    const size_t have = bytes.size();
    size_t piece = std::min(kPiece, limit - have);
    bytes.resize(have + piece);
    const uint64_t to = reinterpret_cast<uint64_t>(bytes.data() + have);
    if (read_host({to, piece, 1, piece}, at, piece)) continue;
    // Only up to the end of the readable pages.
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    size_t done = 0;
    while (done < piece) {
      const size_t step = std::min<uint64_t>(page - ((at + done) & (page - 1)), piece - done);
      if (!read_host({to + done, step, 1, step}, at + done, step)) break;
      done += step;
    }
    bytes.resize(have + done);
    break;
  }
  return bytes;
}

}  // namespace rt
