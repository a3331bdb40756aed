// Files of emulator/isa that execute instructions are compiled once per CPU level, each time into
// a namespace of its own. Their inline helpers must be there too: a shared inline function could
// be linked in its AVX-512 version and then run on a CPU without it.
#pragma once

#define EMU_JOIN_(a, b) a##b
#define EMU_JOIN(a, b) EMU_JOIN_(a, b)
#ifndef EMU_LEVEL
#define EMU_LEVEL base
#endif
#define EMU_NS EMU_JOIN(isa_, EMU_LEVEL)

// True in exactly one of those compilations: for files that hold no per-level code (the decoder).
#define EMU_FIRST_base 1
#define EMU_FIRST_v2 1
#define EMU_FIRST_v3 0
#define EMU_FIRST_v4 0
#define EMU_FIRST_LEVEL EMU_JOIN(EMU_FIRST_, EMU_LEVEL)
