// Streams: ordered work, run by a worker thread each, or by a thread that waits for it.
//
// In late mode (the default) nothing runs until the result is needed: a call that waits or
// queries, work in another stream that depends on it, or a queue grown too long. So a
// missing synchronization shows up here every time, not once in a while on a GPU.
//
// A kernel that faults cancels everything queued on its device, as on a GPU. The next call
// that synchronizes with the device reports the fault, and so does the next one of every other
// thread that lost work; after the first report the device works again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "runtime/report.hpp"

namespace rt {

struct Device;
class Capture;
class Stream;

using Report = std::shared_ptr<const Error>;

struct Failure {
  Error error;
  bool fatal = false;       // cancels the device's other queued work
  bool unfinished = false;  // none: the deadline has passed, and the work continues at its next run
};

// The deadline of the calling thread's waits: work that can be
// suspended is, except in blocking calls. Nests.
class Deadline {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit Deadline(unsigned milliseconds);
  ~Deadline();
  Deadline(const Deadline&) = delete;

 private:
  const Time outer_;
};
Deadline::Time deadline();

// A position in a stream's queue: reached when everything up to it has run.
struct Marker {
  std::shared_ptr<Stream> stream;
  uint64_t ticket = 0;
};

struct Work {
  std::function<std::optional<Failure>()> run;
  std::vector<Marker> after;  // in other streams
  bool always = false;        // runs even if the device has failed: markers, frees, callbacks
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind { null, per_thread, blocking, non_blocking };

  Stream(Device& device, Kind kind, unsigned flags, int priority);

  // During a capture nothing is queued, and the marker is reached.
  Marker enqueue(Work work);
  Marker tail();
  void close();  // runs what is queued, then ends the worker

  Device& device;
  const Kind kind;
  const unsigned flags;
  const int priority;
  std::shared_ptr<Capture> capture;  // gets the work instead of the queue; guarded by lock_queues

 private:
  friend bool wait_until_deadline(const Marker& marker);
  friend bool poll(const Marker& marker);
  friend Report take_report(Stream& stream);
  friend void remove_stream(const std::shared_ptr<Stream>& stream);
  friend Report drain_and_report(Device& device);

  struct Item {
    Work work;
    uint64_t epoch;
    std::shared_ptr<struct Mailbox> owner;  // of the thread that queued it
    std::shared_ptr<Error> report;          // made at the start, so that reporting needs no memory
  };

  void release(uint64_t ticket);
  void start_worker();
  bool run_oldest(std::unique_lock<std::mutex>& lock) noexcept;
  void loop();

  std::deque<Item> queue_;  // guarded, like all below, by the one lock of the queues
  std::condition_variable changed_;
  uint64_t last_ = 0, done_ = 0, released_ = 0;  // tickets
  bool has_worker_ = false, running_ = false, closing_ = false;
  Report report_;  // the first failure that is not reported yet
};

// The one lock of all queues.
std::unique_lock<std::mutex> lock_queues();

// The part of a device that its streams share.
struct Queues {
  std::shared_ptr<Stream> null;
  std::set<std::shared_ptr<Stream>> streams;  // all others
  Report fault;                               // not reported yet: queued work is dropped
  Report last_fault;
  uint64_t epoch = 0;  // counts the reported faults
};

// Waits until the marker is reached, and runs everything that this needs.
void wait(const Marker& marker);
// The same, but no longer than to the thread's deadline: false if the marker is not reached by
// then.
bool wait_until_deadline(const Marker& marker);
// Whether it is reached; runs everything that this needs, but does not wait.
bool poll(const Marker& marker);

// What a call that synchronized with the stream must report to the calling thread, once: null if
// there was no error.
Report take_report(Stream& stream);

void add_stream(const std::shared_ptr<Stream>& stream);
// Waits for the stream's work; what it has not reported yet passes to the null stream.
void remove_stream(const std::shared_ptr<Stream>& stream);

void drain(Device& device);  // waits for all of its streams; reports nothing
bool drain_until_deadline(Device& device);
Report drain_and_report(Device& device);
bool idle(Device& device);

// Marks the calling thread as running a host function of the program, which must not wait.
struct InHostFunction {
  InHostFunction();
  ~InHostFunction();
};

}  // namespace rt
