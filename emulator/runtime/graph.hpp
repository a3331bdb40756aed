// Graphs: work that runs when the graph is launched, as often as it is; and captures, which put the
// work that streams are given into a graph instead of running it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/stream.hpp"

namespace rt {

struct Event;

struct Node {
  std::function<std::optional<Failure>()> run;  // may run again when it has ended
  std::vector<Node*> after;
  std::shared_ptr<Event> event;  // recorded by it, if any
};

struct Graph {
  explicit Graph(int device) : device(device) {}
  Node* add(std::function<std::optional<Failure>()> run, std::vector<Node*> after);

  const int device;
  std::vector<std::shared_ptr<Node>> nodes;  // each after the ones that it depends on
};

// A graph that can be launched. It does not change when the graph does.
class Executable {
 public:
  explicit Executable(const Graph& graph);
  // Queues all nodes as one piece of work, after the launch before this one.
  void launch(Stream& stream);

  const int device;

 private:
  std::vector<std::shared_ptr<Node>> order_;
  Marker last_;
};

enum class CaptureMode { global, thread_local_, relaxed };

class Capture {
 public:
  Capture(Stream& origin, CaptureMode mode);

  const CaptureMode mode;
  const std::thread::id thread;
  Stream* const origin;
  const std::shared_ptr<Graph> graph;
  bool broken = false;                         // by what a capture does not allow
  std::map<Stream*, std::vector<Node*>> ends;  // of each stream in the capture: its last work
};

// All take the lock of the queues.
void begin_capture(Stream& stream, CaptureMode mode);
std::shared_ptr<Graph> end_capture(Stream& stream);
std::shared_ptr<Capture> capture_of(Stream& stream);  // null if there is none
// Makes the stream's next work depend on these nodes too, and puts it into the capture.
void join_capture(Stream& stream, const std::shared_ptr<Capture>& capture,
                  const std::vector<Node*>& nodes);
std::vector<Node*> capture_ends(Stream& stream);
// Fails, and breaks the capture, if the stream is in one: for calls that wait.
void refuse_in_capture(Stream& stream, const char* what);
// Fails if a stream of the device is in a capture.
void refuse_in_capture(Device& device, const char* what);
// Fails if a capture forbids this thread to call what might wait: hipMalloc, for one.
void refuse_unsafe(const char* what);

}  // namespace rt
