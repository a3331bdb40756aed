// Graphs: captured from streams, and launched. The modes of a capture have the same numbers.
#include "api.hpp"

namespace {

using bridge::api;
using bridge::check;
using bridge::need;
using bridge::stream_of;
using cuda::driver;

}  // namespace

HIP_API hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
  return api("hipStreamBeginCapture",
             [&] { check(driver().capture_begin(stream_of(stream), mode)); });
}
HIP_API hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  return api("hipStreamEndCapture", [&] {
    need(graph, "pGraph");
    check(driver().capture_end(stream_of(stream), reinterpret_cast<cuda::Graph*>(graph)));
  });
}
HIP_API hipError_t hipGraphDestroy(hipGraph_t graph) {
  return api("hipGraphDestroy", [&] {
    need(graph, "graph");
    check(driver().graph_destroy(reinterpret_cast<cuda::Graph>(graph)));
  });
}
HIP_API hipError_t hipGraphInstantiate(hipGraphExec_t* executable, hipGraph_t graph,
                                       hipGraphNode_t*, char*, size_t) {
  return api("hipGraphInstantiate", [&] {
    need(executable, "pGraphExec");
    need(graph, "graph");
    check(driver().graph_instantiate(reinterpret_cast<cuda::GraphExec*>(executable),
                                     reinterpret_cast<cuda::Graph>(graph), 0));
  });
}
HIP_API hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream) {
  return api("hipGraphLaunch", [&] {
    need(executable, "graphExec");
    check(driver().graph_launch(reinterpret_cast<cuda::GraphExec>(executable), stream_of(stream)));
  });
}
HIP_API hipError_t hipGraphExecDestroy(hipGraphExec_t executable) {
  return api("hipGraphExecDestroy", [&] {
    need(executable, "graphExec");
    check(driver().graph_exec_destroy(reinterpret_cast<cuda::GraphExec>(executable)));
  });
}
