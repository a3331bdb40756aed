// Handles of events.
#pragma once

#include <memory>

#include "hip/api.hpp"
#include "runtime/event.hpp"

namespace hip {

std::shared_ptr<rt::Event> event_of(hipEvent_t handle);
// The last record, null if there is none; fails if it is part of a graph: for calls that wait.
std::shared_ptr<rt::Event::Record> ended(const rt::Event& event);
void record_event(hipEvent_t handle, const std::shared_ptr<rt::Stream>& stream);

}  // namespace hip
