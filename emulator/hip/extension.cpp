// Functions of this library that HIP does not have.
#include <cstring>
#include <vector>

#include "hip/event.hpp"

namespace {

constexpr const char kLaunchFields[] =
    "workgroups_x workgroups_y workgroups_z workgroup_size_x workgroup_size_y workgroup_size_z "
    "vgprs agprs sgprs allocated_vgprs lds_bytes private_bytes";

void append(std::vector<uint64_t>& to, const emu::Counters& c) {
#define EMU_COUNTER(name, meaning) to.push_back(c.name);
#include "core/counters.def"
#undef EMU_COUNTER
}

int give(const std::vector<uint64_t>& values, uint64_t* out, int n) {
  for (size_t i = 0; out && i < values.size() && static_cast<int>(i) < n; ++i) out[i] = values[i];
  return static_cast<int>(values.size());
}

}  // namespace

// Why the calling thread's last failed call failed; "" if none did. Valid until its next failure.
HIP_API const char* hipgemm_emulator_last_report() { return rt::last_report(); }

// The names of the counters, separated by blanks, in the order in which the functions below give
// their values. Programs find a counter by its name; more may be added.
HIP_API const char* hipgemm_emulator_counter_names() {
  return
#define EMU_COUNTER(name, meaning) #name " "
#include "core/counters.def"
#undef EMU_COUNTER
      ;
}

// What a counter counts; null for no such counter.
HIP_API const char* hipgemm_emulator_counter_meaning(const char* counter) {
#define EMU_COUNTER(name, meaning) \
  if (counter && !std::strcmp(counter, #name)) return meaning;
#include "core/counters.def"
#undef EMU_COUNTER
  return nullptr;
}

// Totals of all launches that have run since the last reset. Fills `n` of them and returns how many
// there are.
HIP_API int hipgemm_emulator_counters(uint64_t* out, int n) {
  return hip::plain(0, [&] {
    std::vector<uint64_t> values;
    append(values, rt::runtime().launches.totals());
    return give(values, out, n);
  });
}

HIP_API void hipgemm_emulator_reset_counters() {
  hip::plain(0, [] { return rt::runtime().launches.reset(), 0; });
}

// The names of the values of hipgemm_emulator_launch before the counters.
HIP_API const char* hipgemm_emulator_launch_names() { return kLaunchFields; }

// One launch, by its number since the last reset; they are numbered as they end. Fills `out` with
// what hipgemm_emulator_launch_names names, then the counters, and `kernel` with the kernel's name.
// Returns how many values there are; 0 if there is no such launch, or it is not among the latest
// 1024.
HIP_API int hipgemm_emulator_launch(uint64_t number, char* kernel, size_t kernel_bytes,
                                    uint64_t* out, int n) {
  return hip::plain(0, [&] {
    const auto record = rt::runtime().launches.launch(number);
    if (!record) return 0;
    if (kernel && kernel_bytes) {
      const size_t length = std::min(record->kernel.size(), kernel_bytes - 1);
      std::memcpy(kernel, record->kernel.data(), length);
      kernel[length] = 0;
    }
    std::vector<uint64_t> values;
    values.insert(values.end(), record->workgroups.begin(), record->workgroups.end());
    values.insert(values.end(), record->workgroup_size.begin(), record->workgroup_size.end());
    values.insert(values.end(),
                  {record->registers.vgprs, record->registers.agprs, record->registers.sgprs,
                   record->allocated_vgprs, record->lds_bytes, record->private_bytes});
    append(values, record->counters);
    return give(values, out, n);
  });
}

HIP_API const char* hipgemm_emulator_cpu() {
  return hip::plain("", [] { return emu::cpu_level(); });
}

// Waits for a stream, or for all work of the current device, for at most so many milliseconds:
// hipErrorNotReady if it is not complete by then. Work is suspended between workgroups only, and
// continues at the next call that waits. For hosts that handle signals.
HIP_API hipError_t hipgemm_emulator_wait_stream(hipStream_t handle, unsigned milliseconds) {
  return hip::api("hipgemm_emulator_wait_stream", [&] {
    const auto stream = hip::stream_of(handle);
    rt::refuse_in_capture(*stream, "waiting for the stream");
    const rt::Deadline until(milliseconds);
    if (!rt::wait_until_deadline(stream->tail())) return hipErrorNotReady;
    hip::throw_report(rt::take_report(*stream));
    return hipSuccess;
  });
}
HIP_API hipError_t hipgemm_emulator_wait_event(hipEvent_t handle, unsigned milliseconds) {
  return hip::api("hipgemm_emulator_wait_event", [&] {
    const auto record = hip::ended(*hip::event_of(handle));
    if (!record) return hipSuccess;
    const rt::Deadline until(milliseconds);
    if (!rt::wait_until_deadline(record->marker)) return hipErrorNotReady;
    hip::throw_report(rt::take_report(*record->marker.stream));
    return hipSuccess;
  });
}
HIP_API hipError_t hipgemm_emulator_wait_device(unsigned milliseconds) {
  return hip::api("hipgemm_emulator_wait_device", [&] {
    rt::Device& device = rt::current_device();
    rt::refuse_in_capture(device, "waiting for the device");
    const rt::Deadline until(milliseconds);
    if (!rt::drain_until_deadline(device)) return hipErrorNotReady;
    hip::throw_report(rt::drain_and_report(device));
    return hipSuccess;
  });
}
