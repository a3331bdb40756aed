// Graphs, and their capture from streams.
#include "runtime/graph.hpp"

#include <algorithm>

#include "hip/copy.hpp"
#include "hip/event.hpp"
#include "hip/module.hpp"

namespace {

using hip::api;
using hip::fail;
using hip::need;
using hip::stream_of;
using rt::Capture;
using rt::CaptureMode;
using rt::Executable;
using rt::Graph;
using rt::Node;
using rt::runtime;

CaptureMode mode_of(hipStreamCaptureMode mode) {
  if (mode < hipStreamCaptureModeGlobal || mode > hipStreamCaptureModeRelaxed)
    fail(hipErrorInvalidValue, "capture mode ", int{mode}, " is unknown");
  return static_cast<CaptureMode>(mode);
}

template <class T>
std::shared_ptr<T> object(const rt::Handles<T>& handles, const void* handle, const char* what) {
  if (auto found = handles.get(handle)) return found;
  fail(hipErrorInvalidValue, what, " ", rt::hex(handle), " does not exist");
}

// Gives the caller a handle of the graph, and of each of its nodes.
hipGraph_t publish(const std::shared_ptr<Graph>& graph) {
  for (const auto& node : graph->nodes) runtime().nodes.add(node);
  return reinterpret_cast<hipGraph_t>(runtime().graphs.add(graph));
}

using Run = std::function<std::optional<rt::Failure>()>;

std::optional<rt::Failure> nothing() { return std::nullopt; }

Node* add(hipGraphNode_t* result, hipGraph_t handle, const hipGraphNode_t* after, size_t count,
          const std::function<Run(const Graph&)>& make) {
  need(result, "pGraphNode");
  const auto graph = object(runtime().graphs, handle, "graph");
  if (count) need(after, "pDependencies");
  std::vector<Node*> before;
  for (size_t i = 0; i < count; ++i) {
    const auto node = object(runtime().nodes, after[i], "node");
    if (std::find(graph->nodes.begin(), graph->nodes.end(), node) == graph->nodes.end())
      fail(hipErrorInvalidValue, "node ", rt::hex(after[i]), " is of another graph");
    before.push_back(node.get());
  }
  Node* const made = graph->add(make(*graph), std::move(before));
  runtime().nodes.add(graph->nodes.back());
  *result = reinterpret_cast<hipGraphNode_t>(made);
  return made;
}

hip::Region region(const HIP_MEMCPY3D::Side& side, size_t slice, const char* what) {
  if (side.array) fail(hipErrorNotSupported, what, ": arrays are not emulated");
  const void* const base = side.type == hipMemoryTypeHost ? side.host : side.device;
  need(base, what);
  const size_t row = (side.z + slice) * side.height + side.y;
  return {hip::address_of(base) + row * side.pitch + side.x, side.pitch};
}

}  // namespace

HIP_API hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
  return api("hipStreamBeginCapture",
             [&] { rt::begin_capture(*stream_of(stream), mode_of(mode)); });
}

HIP_API hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  return api("hipStreamEndCapture", [&] {
    need(graph, "pGraph");
    *graph = nullptr;
    *graph = publish(rt::end_capture(*stream_of(stream)));
  });
}

HIP_API hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  return api("hipStreamIsCapturing", [&] {
    need(status, "pCaptureStatus");
    const auto capture = rt::capture_of(*stream_of(stream));
    *status = !capture          ? hipStreamCaptureStatusNone
              : capture->broken ? hipStreamCaptureStatusInvalidated
                                : hipStreamCaptureStatusActive;
  });
}

HIP_API hipError_t hipGraphCreate(hipGraph_t* graph, unsigned flags) {
  return api("hipGraphCreate", [&] {
    need(graph, "pGraph");
    if (flags) fail(hipErrorInvalidValue, "unknown flags ", rt::hex(flags));
    *graph = publish(std::make_shared<Graph>(rt::current_device().id));
  });
}

HIP_API hipError_t hipGraphDestroy(hipGraph_t handle) {
  return api("hipGraphDestroy", [&] {
    const auto graph = object(runtime().graphs, handle, "graph");
    for (const auto& node : graph->nodes) runtime().nodes.remove(node.get());
    runtime().graphs.remove(handle);
  });
}

HIP_API hipError_t hipGraphGetNodes(hipGraph_t handle, hipGraphNode_t* nodes, size_t* count) {
  return api("hipGraphGetNodes", [&] {
    need(count, "numNodes");
    const auto graph = object(runtime().graphs, handle, "graph");
    for (size_t i = 0; nodes && i < *count; ++i) {
      nodes[i] = i < graph->nodes.size() ? reinterpret_cast<hipGraphNode_t>(graph->nodes[i].get())
                                         : nullptr;
    }
    *count = graph->nodes.size();
  });
}

HIP_API hipError_t hipGraphAddEmptyNode(hipGraphNode_t* node, hipGraph_t graph,
                                        const hipGraphNode_t* after, size_t count) {
  return api("hipGraphAddEmptyNode",
             [&] { add(node, graph, after, count, [](const Graph&) -> Run { return nothing; }); });
}

HIP_API hipError_t hipGraphAddKernelNode(hipGraphNode_t* node, hipGraph_t graph,
                                         const hipGraphNode_t* after, size_t count,
                                         const hipKernelNodeParams* params) {
  return api("hipGraphAddKernelNode", [&] {
    need(params, "pNodeParams");
    add(node, graph, after, count, [&](const Graph&) { return hip::kernel_work(*params); });
  });
}

HIP_API hipError_t hipGraphAddMemcpyNode1D(hipGraphNode_t* node, hipGraph_t graph,
                                           const hipGraphNode_t* after, size_t count, void* dst,
                                           const void* src, size_t bytes, hipMemcpyKind kind) {
  return api("hipGraphAddMemcpyNode1D", [&] {
    add(node, graph, after, count, [&](const Graph& g) {
      return hip::copy_work(rt::device(g.device), {hip::address_of(dst)}, {hip::address_of(src)},
                            {bytes}, kind);
    });
  });
}

HIP_API hipError_t hipDrvGraphAddMemcpyNode(hipGraphNode_t* node, hipGraph_t graph,
                                            const hipGraphNode_t* after, size_t count,
                                            const HIP_MEMCPY3D* params, hipCtx_t) {
  return api("hipDrvGraphAddMemcpyNode", [&] {
    need(params, "copyParams");
    add(node, graph, after, count, [&](const Graph& g) -> Run {
      std::vector<Run> slices;
      for (size_t z = 0; z < params->depth; ++z) {
        slices.push_back(hip::copy_work(rt::device(g.device), region(params->dst, z, "dst"),
                                        region(params->src, z, "src"),
                                        {params->width, params->height}, hipMemcpyDefault));
      }
      return [slices = std::move(slices)]() -> std::optional<rt::Failure> {
        for (const Run& slice : slices)
          if (auto failure = slice()) return failure;
        return std::nullopt;
      };
    });
  });
}

HIP_API hipError_t hipGraphAddMemsetNode(hipGraphNode_t* node, hipGraph_t graph,
                                         const hipGraphNode_t* after, size_t count,
                                         const hipMemsetParams* params) {
  return api("hipGraphAddMemsetNode", [&] {
    need(params, "pMemsetParams");
    const unsigned size = params->elementSize;
    if (size != 1 && size != 2 && size != 4)
      fail(hipErrorInvalidValue, "elementSize must be 1, 2 or 4; got ", size);
    if (params->width > SIZE_MAX / size)
      fail(hipErrorInvalidValue, "width ", params->width, " is too large");
    add(node, graph, after, count, [&](const Graph& g) {
      return hip::fill_work(rt::device(g.device), {hip::address_of(params->dst), params->pitch},
                            {params->width * size, params->height}, params->value, size);
    });
  });
}

HIP_API hipError_t hipGraphAddEventRecordNode(hipGraphNode_t* node, hipGraph_t graph,
                                              const hipGraphNode_t* after, size_t count,
                                              hipEvent_t event) {
  return api("hipGraphAddEventRecordNode", [&] {
    const auto recorded = hip::event_of(event);
    add(node, graph, after, count, [](const Graph&) -> Run { return nothing; })->event = recorded;
  });
}

HIP_API hipError_t hipGraphInstantiate(hipGraphExec_t* result, hipGraph_t graph,
                                       hipGraphNode_t* error_node, char* log, size_t log_bytes) {
  return api("hipGraphInstantiate", [&] {
    need(result, "pGraphExec");
    *result = nullptr;
    if (error_node) *error_node = nullptr;
    if (log && log_bytes) *log = 0;
    *result = reinterpret_cast<hipGraphExec_t>(runtime().executables.add(
        std::make_shared<Executable>(*object(runtime().graphs, graph, "graph"))));
  });
}

HIP_API hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream_handle) {
  return api("hipGraphLaunch", [&] {
    const auto found = object(runtime().executables, executable, "executable graph");
    const auto stream = stream_of(stream_handle);
    if (stream->device.id != found->device) {
      fail(hipErrorInvalidValue, "the graph is of device ", found->device,
           ", the stream of device ", stream->device.id);
    }
    if (rt::capture_of(*stream))
      fail(hipErrorNotSupported, "a graph as a node of another one is not emulated");
    found->launch(*stream);
  });
}

HIP_API hipError_t hipGraphExecDestroy(hipGraphExec_t executable) {
  return api("hipGraphExecDestroy", [&] {
    if (!runtime().executables.remove(executable))
      fail(hipErrorInvalidValue, "executable graph ", rt::hex(executable), " does not exist");
  });
}
