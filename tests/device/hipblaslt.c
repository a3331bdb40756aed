// A stand-in for hipBLASLt: computes the one kind of product that it is asked for, or returns a
// status that says which argument is not as its header describes. On the emulator, device memory
// can be read here.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int type;
  uint64_t rows, columns;
  int64_t pitch;
} Layout;
typedef struct {
  int transa;
  const float *a_scale, *b_scale;
} Product;
static uint64_t limit;

int hipblasLtCreate(void** handle) {
  *handle = &limit;
  return 0;
}

int hipblasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns,
                                int64_t pitch) {
  Layout* layout = malloc(sizeof *layout);
  *layout = (Layout){type, rows, columns, pitch};
  *made = layout;
  return pitch < (int64_t)rows ? 100 : 0;
}

int hipblasLtMatmulDescCreate(void** made, int compute, int scale) {
  *made = calloc(1, sizeof(Product));
  return compute == 2 && scale == 0 ? 0 : 101;  // HIPBLAS_COMPUTE_32F, HIP_R_32F
}

int hipblasLtMatmulDescSetAttribute(void* product, int attribute, const void* value, size_t size) {
  Product* p = product;
  if (attribute == 0 && size == 4)
    memcpy(&p->transa, value, size);  // HIPBLASLT_MATMUL_DESC_TRANSA
  else if (attribute == 5 && size == 8)
    memcpy(&p->a_scale, value, size);  // .._A_SCALE_POINTER
  else if (attribute == 6 && size == 8)
    memcpy(&p->b_scale, value, size);  // .._B_SCALE_POINTER
  else
    return 102;
  return 0;
}

int hipblasLtMatmulPreferenceCreate(void** made) {
  *made = &limit;
  return 0;
}

int hipblasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value,
                                          size_t size) {
  if (attribute != 1 || size != 8) return 103;  // HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
  memcpy(preference, value, size);
  return 0;
}

int hipblasLtMatmulAlgoGetHeuristic(void* handle, void* product, Layout* a, Layout* b, Layout* c,
                                    Layout* d, void* preference, int wanted, char* results,
                                    int* count) {
  if (handle != &limit || preference != &limit || wanted != 1 || c != d) return 104;
  if (((Product*)product)->transa != 112) return 105;  // HIPBLAS_OP_T
  if (a->rows != b->rows || d->rows != a->columns || d->columns != b->columns) return 106;
  memcpy(results, "algorithm", 10);
  *count = a->rows < 1000;
  return 0;
}

static float value_of(const void* matrix, int type, int64_t i) {
  const uint8_t* byte = (const uint8_t*)matrix + i;
  if (type == 28) {  // HIP_R_8F_E4M3
    int exponent = *byte >> 3 & 15, mantissa = *byte & 7;
    float x = ldexpf(exponent ? 8 + mantissa : mantissa, (exponent ? exponent : 1) - 10);
    return *byte & 0x80 ? -x : x;
  }
  uint32_t bits = (uint32_t)((const uint16_t*)matrix)[i] << 16;  // HIP_R_16BF
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

int hipblasLtMatmul(void* handle, Product* product, const float* alpha, const void* a,
                    Layout* a_layout, const void* b, Layout* b_layout, const float* beta,
                    const void* c, Layout* c_layout, uint16_t* d, Layout* d_layout,
                    const char* algorithm, void* workspace, size_t bytes, void* stream) {
  if (handle != &limit || *alpha != 1 || *beta != 0 || c != d || c_layout != d_layout ||
      d_layout->type != 14)
    return 107;
  if (strcmp(algorithm, "algorithm") != 0 || !workspace || bytes != limit || !stream) return 108;
  float scale =
      (product->a_scale ? *product->a_scale : 1) * (product->b_scale ? *product->b_scale : 1);
  for (uint64_t j = 0; j < d_layout->columns; j++)
    for (uint64_t i = 0; i < d_layout->rows; i++) {
      float sum = 0;
      for (uint64_t k = 0; k < a_layout->rows; k++)
        sum += value_of(a, a_layout->type, k + i * a_layout->pitch) *
               value_of(b, b_layout->type, k + j * b_layout->pitch);
      uint32_t bits;
      sum *= scale;
      memcpy(&bits, &sum, 4);
      d[i + j * d_layout->pitch] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
  return 0;
}
