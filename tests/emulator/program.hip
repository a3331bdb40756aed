// A program as hipcc compiles it, without its headers: kernels are launched by <<<>>>, and its
// variables copied by name. With an argument, it launches a kernel that has findings of two checks,
// with two one whose lanes use one LDS bank.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __host__ __attribute__((host))
typedef struct ihipStream_t* hipStream_t;
struct dim3 {
  unsigned x, y, z;
  __host__ dim3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern "C" {
int printf(const char*, ...);
int hipMalloc(void**, unsigned long);
int hipMemcpy(void*, const void*, unsigned long, int);
int hipMemcpyToSymbol(const void*, const void*, unsigned long, unsigned long, int);
int hipMemcpyFromSymbol(void*, const void*, unsigned long, unsigned long, int);
int hipGetSymbolAddress(void**, const void*);
int hipGetSymbolSize(unsigned long*, const void*);
int hipLaunchKernel(const void*, dim3, dim3, void**, unsigned long, hipStream_t);
int __hipPushCallConfiguration(dim3, dim3, unsigned long = 0, hipStream_t = 0);
int __hipPopCallConfiguration(dim3*, dim3*, unsigned long*, hipStream_t*);
}

__device__ int factor = 2;

template <class T>
__global__ void scale(T* x, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) x[i] *= factor;
}

__global__ void faulty(int* to) {
  __shared__ int tile[128];
  int i = __builtin_amdgcn_workitem_id_x();
  tile[i % 64] = i;  // two waves
  to[i] = tile[i % 64 + 64];  // which nothing has written
}

__global__ void slow(int* to) {
  __shared__ int tile[64 * 32];
  int i = __builtin_amdgcn_workitem_id_x();
  tile[i * 32] = to[i];  // one bank
  to[i] = tile[(i ^ 1) * 32];
}

int main(int argc, char**) {
  int x[128], three = 3, now = 0;
  for (int i = 0; i < 128; i++) x[i] = i;
  int* d;
  void* address;
  unsigned long bytes = 0;
  int errors = hipMalloc((void**)&d, sizeof x) + hipMemcpy(d, x, sizeof x, 1);
  scale<<<2, 64>>>(d, 100);
  errors += hipMemcpyToSymbol(&factor, &three, sizeof three, 0, 1);
  scale<<<2, 64>>>(d, 100);
  errors += hipMemcpy(x, d, sizeof x, 2) + hipMemcpyFromSymbol(&now, &factor, sizeof now, 0, 2);
  errors += hipGetSymbolAddress(&address, &factor) + hipGetSymbolSize(&bytes, &factor);
  if (argc > 2) slow<<<3, 64>>>(d);
  if (argc == 2) faulty<<<1, 128>>>(d);
  if (argc > 1) errors += hipMemcpy(x, d, sizeof x, 2);
  printf("%d errors, %d, %d, %d, %lu bytes\n", errors, x[99], x[100], now, bytes);
}
