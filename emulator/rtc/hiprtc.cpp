// libhiprtc.so for the emulator: run-time compilation by clang and lld, as processes.
//
// HIPGEMM_EMULATOR_LLVM is the command that runs them, with `clang` or `ld.lld` and their arguments
// after it: "python -m ziglang"; without it they are looked for in PATH.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#define RTC_API extern "C" __attribute__((visibility("default")))

namespace {

enum Result {
  kSuccess = 0,
  kInvalidInput = 3,
  kInvalidProgram = 4,
  kCompilation = 6,
  kLinking = 100
};
enum InputType { kBitcode = 100 };
constexpr const char kPrelude[] =
#include "rtc/prelude.hip"
    ;

// A folder that goes with its owner.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "hiprtc-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::filesystem::filesystem_error("mkdtemp", {});
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// True if the tool succeeded; what it printed is added to the log.
bool run(const Folder& folder, const std::vector<std::string>& words, std::string& log) {
  const char* const runner = std::getenv("HIPGEMM_EMULATOR_LLVM");
  std::string command = runner && *runner ? runner : "env";
  for (const std::string& word : words) command += " " + quoted(word);
  const auto output = folder.path / "log";
  const int code = std::system((command + " > " + quoted(output.string()) + " 2>&1").c_str());
  log += contents(output);
  if (code) log += "hiprtc: failed: " + command + "\n";
  return code == 0;
}

// "gfx950" of "gfx950:sramecc+:xnack-".
std::string processor(const std::string& target) { return target.substr(0, target.find(':')); }

std::string device_target() {
  const char* const arch = std::getenv("HIPGEMM_EMULATOR_ARCH");
  return arch && *arch ? arch : "gfx950";
}

bool link(const Folder& folder, const std::vector<std::string>& inputs, const std::string& target,
          std::string& code, std::string& log) {
  const std::string out = (folder.path / "out.co").string();
  std::vector<std::string> words{
      "ld.lld", "-shared", "-plugin-opt=mcpu=" + processor(target), "-plugin-opt=O3", "-o", out};
  words.insert(words.end(), inputs.begin(), inputs.end());
  if (!run(folder, words, log)) return false;
  code = contents(out);
  return true;
}

struct Program {
  std::string source, name, log, bitcode, code;
  std::vector<std::pair<std::string, std::string>> headers;  // name, text
};

struct LinkState {
  Folder folder;
  std::vector<std::string> inputs;
  std::string code, log;
};

bool compile(Program& p, const std::vector<std::string>& options) {
  const Folder folder;
  std::string target = device_target();
  bool relocatable = false;
  const std::string bitcode = (folder.path / "program.bc").string();
  std::vector<std::string> words{"clang",     "-x",         "hip",        "--offload-device-only",
                                 "-nogpuinc", "-nogpulib",  "-fdeclspec", "-std=c++17",
                                 "-O3",       "-emit-llvm", "-c"};
  for (const std::string& option : options) {
    if (option == "-fgpu-rdc" || option == "-dc") relocatable = true;
    const bool names_target =
        option.starts_with("--offload-arch=") || option.starts_with("--gpu-architecture=");
    if (names_target)
      target = option.substr(option.find('=') + 1);
    else
      words.push_back(option);
  }
  for (const auto& [name, text] : p.headers) {
    const auto path = folder.path / "include" / name;
    std::filesystem::create_directories(path.parent_path());
    write(path, text);
  }
  const auto source = folder.path / "program.hip";
  write(source, kPrelude + p.source);
  words.insert(words.end(), {"--offload-arch=" + target, "-I" + (folder.path / "include").string(),
                             source.string(), "-o", bitcode});
  if (!run(folder, words, p.log)) return false;
  p.bitcode = contents(bitcode);
  return relocatable || link(folder, {bitcode}, target, p.code, p.log);
}

// Calls f; its result, or that of an exception.
template <class F>
Result guarded(Result failure, F f) {
  try {
    return f();
  } catch (...) {
    return failure;
  }
}

Result give(const std::string& text, char* out) {
  if (!out) return kInvalidInput;
  text.copy(out, text.size());
  return kSuccess;
}

}  // namespace

RTC_API const char* hiprtcGetErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "HIPRTC_SUCCESS";
    case kInvalidInput:
      return "HIPRTC_ERROR_INVALID_INPUT";
    case kInvalidProgram:
      return "HIPRTC_ERROR_INVALID_PROGRAM";
    case kCompilation:
      return "HIPRTC_ERROR_COMPILATION";
    case kLinking:
      return "HIPRTC_ERROR_LINKING";
    default:
      return "unknown error";
  }
}

RTC_API Result hiprtcVersion(int* major, int* minor) {
  if (!major || !minor) return kInvalidInput;
  *major = 7, *minor = 2;
  return kSuccess;
}

RTC_API Result hiprtcCreateProgram(Program** program, const char* source, const char* name,
                                   int header_count, const char** headers, const char** names) {
  if (!program || !source || header_count < 0) return kInvalidInput;
  return guarded(kInvalidInput, [&] {
    auto made = std::make_unique<Program>();
    made->source = source;
    made->name = name ? name : "";
    for (int i = 0; i < header_count; ++i) made->headers.emplace_back(names[i], headers[i]);
    *program = made.release();
    return kSuccess;
  });
}

RTC_API Result hiprtcDestroyProgram(Program** program) {
  if (!program || !*program) return kInvalidProgram;
  delete *program;
  *program = nullptr;
  return kSuccess;
}

RTC_API Result hiprtcCompileProgram(Program* program, int count, const char** options) {
  if (!program) return kInvalidProgram;
  return guarded(kCompilation, [&] {
    return compile(*program, {options, options + count}) ? kSuccess : kCompilation;
  });
}

// The log with its zero.
RTC_API Result hiprtcGetProgramLogSize(Program* program, size_t* size) {
  if (!program || !size) return kInvalidProgram;
  *size = program->log.size() + 1;
  return kSuccess;
}
RTC_API Result hiprtcGetProgramLog(Program* program, char* log) {
  if (!program) return kInvalidProgram;
  if (log) log[program->log.size()] = 0;
  return give(program->log, log);
}
RTC_API Result hiprtcGetCodeSize(Program* program, size_t* size) {
  if (!program || !size) return kInvalidProgram;
  *size = program->code.size();
  return kSuccess;
}
RTC_API Result hiprtcGetCode(Program* program, char* code) {
  return program ? give(program->code, code) : kInvalidProgram;
}
RTC_API Result hiprtcGetBitcodeSize(Program* program, size_t* size) {
  if (!program || !size) return kInvalidProgram;
  *size = program->bitcode.size();
  return kSuccess;
}
RTC_API Result hiprtcGetBitcode(Program* program, char* bitcode) {
  return program ? give(program->bitcode, bitcode) : kInvalidProgram;
}

RTC_API Result hiprtcLinkCreate(unsigned, int*, void**, LinkState** state) {
  if (!state) return kInvalidInput;
  return guarded(kLinking, [&] {
    *state = new LinkState;
    return kSuccess;
  });
}

// Bitcode, or the text of LLVM IR, which becomes bitcode first.
RTC_API Result hiprtcLinkAddData(LinkState* state, int type, const void* image, size_t size,
                                 const char*, unsigned, int*, void**) {
  if (!state || !image || type != kBitcode) return kInvalidInput;
  return guarded(kLinking, [&] {
    const std::string text(static_cast<const char*>(image), size);
    const std::string file =
        (state->folder.path / ("input" + std::to_string(state->inputs.size()))).string();
    state->inputs.push_back(file + ".bc");
    if (text.starts_with("BC")) return write(file + ".bc", text), kSuccess;
    write(file + ".ll", text);
    const bool good = run(
        state->folder,
        {"clang", "-x", "ir", "--target=amdgcn-amd-amdhsa", "-mcpu=" + processor(device_target()),
         "-nogpulib", "-emit-llvm", "-c", file + ".ll", "-o", file + ".bc"},
        state->log);
    return good ? kSuccess : kLinking;
  });
}
RTC_API Result hiprtcLinkAddFile(LinkState* state, int type, const char* path, unsigned count,
                                 int* options, void** values) {
  if (!path) return kInvalidInput;
  return guarded(kLinking, [&] {
    const std::string text = contents(path);
    return hiprtcLinkAddData(state, type, text.data(), text.size(), path, count, options, values);
  });
}

RTC_API Result hiprtcLinkComplete(LinkState* state, void** code, size_t* size) {
  if (!state || !code || !size) return kInvalidInput;
  return guarded(kLinking, [&] {
    if (!link(state->folder, state->inputs, device_target(), state->code, state->log)) {
      std::fprintf(stderr, "%s", state->log.c_str());
      return kLinking;
    }
    *code = state->code.data();
    *size = state->code.size();
    return kSuccess;
  });
}

RTC_API Result hiprtcLinkDestroy(LinkState* state) {
  delete state;
  return state ? kSuccess : kInvalidInput;
}
