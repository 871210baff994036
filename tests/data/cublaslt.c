/* cuBLASLt as far as one float32 product asks for it, on the CPU: what it is given is checked, and it multiplies.
   Built from cublasLt.h's declarations, so that a caller with other sizes or places of arguments is wrong here too. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint64_t data[8]; } Algo;
typedef struct { Algo algo; size_t workspace; int state; float waves; int reserved[4]; } Result;
typedef struct { int compute, scale, transa, transb; uint32_t epilogue; const float *bias; int bias_type; } Desc;
typedef struct { int type; uint64_t rows, columns; int64_t pitch; } Layout;
typedef struct { uint64_t workspace; uint32_t reductions, alignment[4]; } Preference;

int fake_alive = 0;     /* what was made and not destroyed */
int last_algorithm = 0; /* that was launched */
int no_context = 0;     /* whether the thread has not used the GPU yet */
int refuses_bias = 0;   /* whether no other address of a bias is taken */

size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtCreate(void **handle) { *handle = (void *)0x1234; return 0; }
int cublasLtMatmulDescCreate(void **made, int compute, int scale) {
  Desc *desc = calloc(1, sizeof *desc);
  desc->compute = compute, desc->scale = scale, desc->epilogue = 1, desc->bias_type = -1;
  *made = desc, fake_alive++;
  return compute == 68 && scale == 0 ? 0 : 7;
}
int cublasLtMatmulDescSetAttribute(void *to, int which, const void *value, size_t size) {
  Desc *desc = to;
  if (which == 3 && size == 4) return memcpy(&desc->transa, value, 4), 0;
  if (which == 4 && size == 4) return memcpy(&desc->transb, value, 4), 0;
  if (which == 7 && size == 4) return memcpy(&desc->epilogue, value, 4), 0;
  if (which == 8 && refuses_bias) return 13;
  if (which == 8 && size == 8) return memcpy(&desc->bias, value, 8), 0;
  if (which == 26 && size == 4) return memcpy(&desc->bias_type, value, 4), 0;
  return 7;
}
int cublasLtMatmulDescDestroy(void *desc) { return free(desc), fake_alive--, 0; }
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t pitch) {
  Layout *layout = calloc(1, sizeof *layout);
  *layout = (Layout){type, rows, columns, pitch};
  *made = layout, fake_alive++;
  return type == 0 && pitch >= (int64_t)rows ? 0 : 7;
}
int cublasLtMatrixLayoutDestroy(void *layout) { return free(layout), fake_alive--, 0; }
int cublasLtMatmulPreferenceCreate(void **made) {
  *made = calloc(1, sizeof(Preference)), fake_alive++;
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(void *to, int which, const void *value, size_t size) {
  Preference *preference = to;
  if (which == 1 && size == 8) return memcpy(&preference->workspace, value, 8), 0;
  if (which == 3 && size == 4) return memcpy(&preference->reductions, value, 4), 0;
  if (which >= 5 && which <= 8 && size == 4) return memcpy(&preference->alignment[which - 5], value, 4), 0;
  return 7;
}
int cublasLtMatmulPreferenceDestroy(void *preference) { return free(preference), fake_alive--, 0; }

/* Three algorithms, of which the second can't be used; the last takes all the workspace that there may be. Where
   addresses are not aligned they stand in another order; behind rows of a great pitch there are others, or none. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *of, void *of_a, void *of_b, void *c, void *d, void *asked,
                                   int most, Result *results, int *number) {
  Preference *preference = asked;
  Desc *desc = of;
  Layout *a = of_a, *b = of_b;
  if (handle != (void *)0x1234 || c != d || preference->alignment[0] != preference->alignment[3]) return 7;
  if (desc->epilogue & 4 && (!desc->bias || (uintptr_t)desc->bias % preference->alignment[0])) return 7;
  if (desc->epilogue & 4 && (uintptr_t)desc->bias % (2 * preference->alignment[0]) == 0) return 7;
  int64_t pitch = a->pitch > b->pitch ? a->pitch : b->pitch;
  if (pitch >= 1000) return 15;
  for (*number = 0; *number < 3 && *number < most; ++*number) {
    int which = preference->alignment[0] == 16 ? *number : 2 - *number;
    Result one = {{{0}}, which == 2 ? preference->workspace : 0, which == 1 ? 15 : 0, 1, {0}};
    one.algo.data[0] = (pitch >= 500 ? 7100 : 7000) + which, one.algo.data[7] = 42;
    if (pitch >= 700) one.state = 15;
    results[*number] = one;
  }
  return 0;
}
/* The id alone tells them apart; 8 is an attribute that this version does not have. */
int cublasLtMatmulAlgoConfigGetAttribute(const Algo *algo, int which, void *value, size_t size, size_t *written) {
  if (which < 0 || which > 7 || size != (which == 7 ? 2 : 4)) return 7;
  memset(value, 0, size);
  if (which == 0) memcpy(value, &algo->data[0], 4);
  return *written = size, 0;
}

int cublasLtMatmul(void *handle, void *of, const void *alpha, const void *a, void *of_a, const void *b, void *of_b,
                   const void *beta, const void *c, void *of_c, void *d, void *of_d, const Algo *algo, void *workspace,
                   size_t workspace_bytes, void *stream) {
  if (no_context) return 13;
  Desc *desc = of;
  Layout *la = of_a, *lb = of_b, *ld = of_d;
  const float *x = a, *y = b;
  float *out = d;
  if (handle != (void *)0x1234 || c != d || of_c != of_d || *(float *)alpha != 1 || *(float *)beta != 0) return 7;
  last_algorithm = (int)algo->data[0];
  if (algo->data[0] / 1000 != 7 || algo->data[7] != 42 || (stream && stream != (void *)77)) return 7;
  if (algo->data[0] % 100 == 2 ? !workspace || !workspace_bytes : workspace || workspace_bytes) return 7;
  uint64_t m = desc->transa ? la->columns : la->rows, k = desc->transa ? la->rows : la->columns;
  uint64_t n = desc->transb ? lb->rows : lb->columns;
  if (m != ld->rows || n != ld->columns || k != (desc->transb ? lb->columns : lb->rows)) return 7;
  if ((desc->epilogue & 4) && (!desc->bias || desc->bias_type != 0)) return 7;
  for (uint64_t i = 0; i < m; i++)
    for (uint64_t j = 0; j < n; j++) {
      float sum = desc->epilogue & 4 ? desc->bias[i] : 0;
      for (uint64_t l = 0; l < k; l++)
        sum += x[desc->transa ? l + i * la->pitch : i + l * la->pitch] *
               y[desc->transb ? j + l * lb->pitch : l + j * lb->pitch];
      out[i + j * ld->pitch] = (desc->epilogue & 2) && sum < 0 ? 0 : sum;
    }
  return 0;
}
