// Runs one scenario of HIP calls again and again, each time in a process of its own in which the
// n-th call that the emulator makes for memory or a thread fails: malloc and its kin, mmap,
// mprotect, pthread_create. Each HIP call must then return success or an error, and after it the
// same scenario must work, without anything left over.
//
//   failing_calls LIBRARY CODE_OBJECT MODE FIRST STEP
//
// MODE: once (only the n-th call fails), on (it and all later ones of the scenario), threads
// (once, pthread_create only). Prints a line for each n that went wrong, and how many were tried.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- calls that fail on demand --------------------------------------------------------------------

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static uintptr_t library_begin, library_end;
static atomic_long calls, fail_at = -1;
static atomic_int persistent, threads_only, verbose;

// Blocks that the library holds, in a table of its own.
enum { kSlots = 1 << 20 };
static void* held[kSlots];
static long held_count;
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static void hold(void* p) {
  if (!p) return;
  pthread_mutex_lock(&held_lock);
  size_t at = ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 44;
  while (held[at] && held[at] != (void*)1) at = (at + 1) % kSlots;
  held[at] = p;
  ++held_count;
  pthread_mutex_unlock(&held_lock);
}
static void drop(void* p) {
  if (!p) return;
  pthread_mutex_lock(&held_lock);
  size_t at = ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 44;
  for (; held[at]; at = (at + 1) % kSlots)
    if (held[at] == p) {
      held[at] = (void*)1;
      --held_count;
      break;
    }
  pthread_mutex_unlock(&held_lock);
}

static int ours(const void* caller) {
  return (uintptr_t)caller >= library_begin && (uintptr_t)caller < library_end;
}
// Whether this call is the one to fail.
static int fails(const void* caller, int thread, const char* what) {
  if (!ours(caller) || (threads_only && !thread)) return 0;
  const long n = atomic_fetch_add(&calls, 1), at = fail_at;
  const int now = at >= 0 && (n == at || (persistent && n > at));
  if (now && verbose) {
    char line[96];
    const int size = snprintf(line, sizeof line, "%s at +0x%lx fails\n", what,
                              (unsigned long)((uintptr_t)caller - library_begin));
    if (write(2, line, (size_t)size) < 0) _exit(9);
  }
  return now;
}
#define CALLER __builtin_return_address(0)

void* malloc(size_t n) {
  if (fails(CALLER, 0, "malloc")) return errno = ENOMEM, NULL;
  void* p = __libc_malloc(n);
  if (ours(CALLER)) hold(p);
  return p;
}
void* calloc(size_t n, size_t size) {
  if (fails(CALLER, 0, "calloc")) return errno = ENOMEM, NULL;
  void* p = __libc_calloc(n, size);
  if (ours(CALLER)) hold(p);
  return p;
}
void* realloc(void* old, size_t n) {
  if (fails(CALLER, 0, "realloc")) return errno = ENOMEM, NULL;
  void* p = __libc_realloc(old, n);
  if (p && ours(CALLER)) drop(old), hold(p);
  return p;
}
void* aligned_alloc(size_t align, size_t n) {
  if (fails(CALLER, 0, "aligned_alloc")) return errno = ENOMEM, NULL;
  void* p = __libc_memalign(align, n);
  if (ours(CALLER)) hold(p);
  return p;
}
int posix_memalign(void** out, size_t align, size_t n) {
  if (fails(CALLER, 0, "posix_memalign")) return ENOMEM;
  *out = __libc_memalign(align, n);
  if (ours(CALLER)) hold(*out);
  return *out ? 0 : ENOMEM;
}
void free(void* p) {
  drop(p);
  __libc_free(p);
}
void* mmap(void* at, size_t n, int protection, int flags, int file, off_t offset) {
  if (fails(CALLER, 0, "mmap")) return errno = ENOMEM, MAP_FAILED;
  return (void*)syscall(SYS_mmap, at, n, protection, flags, file, offset);
}
int mprotect(void* at, size_t n, int protection) {
  if (fails(CALLER, 0, "mprotect")) return errno = ENOMEM, -1;
  return (int)syscall(SYS_mprotect, at, n, protection);
}
static int (*real_create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  if (fails(CALLER, 1, "pthread_create")) return EAGAIN;
  return real_create(thread, attributes, run, argument);
}

// ---- the library ------------------------------------------------------------------------------------

static void* library;

static int note_range(struct dl_phdr_info* info, size_t size, void* name) {
  (void)size;
  if (!info->dlpi_name || strcmp(info->dlpi_name, name)) return 0;
  library_begin = ~(uintptr_t)0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    if (at < library_begin) library_begin = at;
    if (at + info->dlpi_phdr[i].p_memsz > library_end)
      library_end = at + info->dlpi_phdr[i].p_memsz;
  }
  return 1;
}

static void* function(const char* name) {
  void* f = dlsym(library, name);
  if (!f) fprintf(stderr, "%s is missing\n", name), _exit(9);
  return f;
}

// ---- the scenario -----------------------------------------------------------------------------------

enum { kCount = 4096, kGroups = kCount / 64 };
enum { kBig = 3 << 20 };  // has a mapping of its own
static unsigned char* image;
static int first_error;
static const char* failed_in;

// Calls by pointers of one shape: all arguments are integers or pointers.
typedef long (*Any)(uintptr_t, ...);
static int check(const char* name, long code) {
  if (code == 0) return 1;
  if (verbose) {
    const char* (*report)(void) = (const char* (*)(void))dlsym(library, "hipgemm_emulator_last_report");
    fprintf(stderr, "%s: %ld: %s\n", name, code, report ? report() : "");
  }
  if (!first_error) first_error = (int)code, failed_in = name;
  return 0;
}
#define HIP(name, ...) check(#name, (int)((Any)function(#name))(__VA_ARGS__))
#define P(x) ((uintptr_t)(x))

static void called(void* data) { ++*(atomic_int*)data; }

// Everything once. 0: all calls succeeded and all values are right; 1: a call failed; 2: no call
// failed, and a value is wrong.
static int scenario(void) {
  void *module = NULL, *kernel = NULL, *device = NULL, *big = NULL, *pinned = NULL, *pooled = NULL;
  void *a = NULL, *b = NULL, *start = NULL, *stop = NULL;
  static unsigned back[kCount], source[kCount];
  static atomic_int calls_of_host;
  int count = 0, wrong = 0;
  first_error = 0;
  failed_in = "";
  calls_of_host = 0;
  memset(back, 0, sizeof back);
  for (int i = 0; i < kCount; ++i) source[i] = 3 * (unsigned)i;

  HIP(hipGetDeviceCount, P(&count));
  if (!HIP(hipModuleLoadData, P(&module), P(image))) module = NULL;
  if (!module || !HIP(hipModuleGetFunction, P(&kernel), P(module), P("add_lane"))) kernel = NULL;
  HIP(hipMalloc, P(&device), sizeof back);
  HIP(hipMalloc, P(&big), kBig);
  HIP(hipHostMalloc, P(&pinned), sizeof back, 0);
  HIP(hipStreamCreateWithFlags, P(&a), 1);
  HIP(hipStreamCreate, P(&b));
  HIP(hipEventCreate, P(&start));
  HIP(hipEventCreate, P(&stop));
  if (a) HIP(hipMallocAsync, P(&pooled), 1000, P(a));
  if (a && start) HIP(hipEventRecord, P(start), P(a));
  if (a && device) HIP(hipMemcpyAsync, P(device), P(source), sizeof source, 1, P(a));  // pageable
  if (a && device && kernel) {
    void* arguments[] = {&device};
    HIP(hipModuleLaunchKernel, P(kernel), kGroups, 1, 1, 64, 1, 1, 0, P(a), P(arguments), 0);
  }
  if (a && stop) HIP(hipEventRecord, P(stop), P(a));
  if (b && stop) HIP(hipStreamWaitEvent, P(b), P(stop), 0);
  if (b && pinned && device) HIP(hipMemcpyAsync, P(pinned), P(device), sizeof back, 2, P(b));
  if (b) HIP(hipLaunchHostFunc, P(b), P(called), P(&calls_of_host));
  if (b)  // starts the worker
    for (int i = 0; i < 5000; ++i) {
      const long code = (int)((Any)function("hipStreamQuery"))(P(b));
      if (code != 600) {
        check("hipStreamQuery", code);
        break;
      }
      usleep(200);
    }
  if (b) HIP(hipStreamSynchronize, P(b));
  if (a) HIP(hipStreamSynchronize, P(a));
  if (device) HIP(hipMemcpy, P(back), P(device), sizeof back, 2);
  if (big) HIP(hipMemset, P(big), 5, kBig);
  float milliseconds = -1;
  if (start && stop && first_error == 0)
    HIP(hipEventElapsedTime, P(&milliseconds), P(start), P(stop));
  if (pooled && a) HIP(hipFreeAsync, P(pooled), P(a));
  HIP(hipDeviceSynchronize, 0);
  if (!first_error) {
    for (int i = 0; i < kCount; ++i)
      wrong |= back[i] != 4 * (unsigned)i || ((unsigned*)pinned)[i] != 4 * (unsigned)i;
    wrong |= calls_of_host != 1 || ((unsigned char*)big)[kBig - 1] != 5;
  }
  const int error = first_error;
  const char* where = failed_in;
  // What there is goes even if a call fails; those that free memory are tried twice, since nothing
  // else of the program could.
  for (int twice = 0; twice < 2; ++twice) {
    first_error = 0;
    if (start && HIP(hipEventDestroy, P(start))) start = NULL;
    if (stop && HIP(hipEventDestroy, P(stop))) stop = NULL;
    if (a && HIP(hipStreamDestroy, P(a))) a = NULL;
    if (b && HIP(hipStreamDestroy, P(b))) b = NULL;
    if (device && HIP(hipFree, P(device))) device = NULL;
    if (big && HIP(hipFree, P(big))) big = NULL;
    if (pinned && HIP(hipHostFree, P(pinned))) pinned = NULL;
    if (module && HIP(hipModuleUnload, P(module))) module = NULL;
    fail_at = -1;
  }
  const int stuck = first_error;
  first_error = error;
  failed_in = where;
  if (stuck) return 2;
  return error ? 1 : wrong ? 2 : 0;
}

static size_t free_bytes(void) {
  size_t available = 0, total = 0;
  ((Any)function("hipMemGetInfo"))(P(&available), P(&total));
  return available;
}

// ---- one process for each n ---------------------------------------------------------------------------

enum { kFine, kDone, kFirst, kLater, kLeak, kMemory };
static const char* const kWords[] = {"", "", "a wrong value, or memory that cannot be freed",
                                     "the next run fails", "host memory is lost",
                                     "device memory is lost"};

// `reference`: the blocks that the library holds after good runs alone.
static int child(long n, long reference, long* reached) {
  alarm(30);
  calls = 0;
  fail_at = n;
  const int first = scenario();
  *reached = calls;
  fail_at = -1;
  if (n >= 0 && verbose)
    fprintf(stderr, "n = %ld: %d, first error %d in %s\n", n, first, first_error, failed_in);
  if (first == 2 || (n < 0 && first)) return kFirst;
  if (first) {  // errors that are still pending
    ((Any)function("hipDeviceSynchronize"))(0);
    ((Any)function("hipGetLastError"))(0);
  }
  // Host threads meet in more and more ways, and what they need is kept for the next launch.
  for (int i = 0; i < (n < 0 ? 60 : 8); ++i)
    if (scenario()) {
      fprintf(stderr, "n = %ld: then %d in %s\n", n, first_error, failed_in);
      return kLater;
    }
  const size_t before = free_bytes();
  if (scenario() || free_bytes() != before) return kMemory;
  for (int i = 0; i < 1000 && held_count > reference; ++i) usleep(1000);  // threads that end
  if (n >= 0 && held_count > reference) {
    fprintf(stderr, "n = %ld: %ld blocks held, not %ld\n", n, held_count, reference);
    return kLeak;
  }
  if (n < 0) *reached = held_count;
  return n >= 0 && *reached <= n ? kDone : kFine;
}

static int in_process(long n, long reference, long* reached, int* status) {
  long* shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  fflush(NULL);
  const pid_t pid = fork();
  if (pid == 0) {
    const int result = child(n, reference, shared);
    fflush(NULL);
    _exit(result);
  }
  waitpid(pid, status, 0);
  *reached = *shared;
  munmap(shared, 4096);
  return WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
}

int main(int argc, char** argv) {
  if (argc != 6) return 9;
  real_create = (int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*))dlsym(
      RTLD_NEXT, "pthread_create");
  library = dlopen(argv[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 9;
  dl_iterate_phdr(note_range, argv[1]);
  FILE* file = fopen(argv[2], "rb");
  if (!file) return perror(argv[2]), 9;
  image = __libc_malloc(1 << 20);
  if (!fread(image, 1, 1 << 20, file)) return 9;
  fclose(file);
  persistent = !strcmp(argv[3], "on");
  threads_only = !strcmp(argv[3], "threads");
  verbose = getenv("VERBOSE") != NULL;
  long reference = 0, reached = 0, tried = 0, bad = 0;
  int status;
  for (int i = 0; i < 4; ++i) {
    if (in_process(-1, 1 << 30, &reached, &status) != kFine) return printf("no good run\n"), 1;
    if (reached > reference) reference = reached;
  }
  for (long n = atol(argv[4]);; n += atol(argv[5])) {
    const int result = in_process(n, reference, &reached, &status);
    if (result == kDone) break;
    ++tried;
    if (result == kFine) continue;
    ++bad;
    if (result > 0)
      printf("n = %ld: %s\n", n, result <= kMemory ? kWords[result] : "?");
    else if (WTERMSIG(status) == SIGALRM)
      printf("n = %ld: a hang\n", n);
    else
      printf("n = %ld: signal %d\n", n, WTERMSIG(status));
    if (bad > 20) break;
  }
  printf("tried %ld\n", tried);
  return bad != 0;
}
