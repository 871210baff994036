/* c = a @ b for row-major, contiguous float32: a is (M, K), b is (K, N), c is (M, N).
 *
 * The scheme is Goto's: a tile of MR x NR sums stays in registers for the whole of a KC-long slice of K, the tiles of
 * one NR-wide panel of b follow one another so that the panel stays in the first cache, and the MC rows of a and the NC
 * columns of b they come from stay in the second. Either input may be copied into panels first (read in order, no
 * cache-set conflicts, no page walks) or be read in place (no copying, which is what counts when M or N is small); the
 * ragged last panel is always copied, and filled up with zeros.
 *
 * VEC     floats in a vector: 4, 8 or 16; no more are used than the target has in a register
 * MR, NR  rows and columns of a register tile
 * MC, NC  rows and columns of a block of c
 * KC      longest slice of K summed in registers
 * PACK_A  1: copy blocks of a into panels of MR rows; 0: read them in place
 * PACK_B  1: copy blocks of b into panels of NR columns; 0: read them in place
 *
 * A work unit is one block of c; there are ceil(M / MC) * ceil(N / NC), down the columns first. A call shares the copy
 * of b among the units below one another, so a contiguous range for each thread is the cheapest division.
 */
#include <stdint.h>
#include <string.h>

#ifndef VEC
#define VEC 8
#endif
#ifndef MR
#define MR 6
#endif
#ifndef NR
#define NR 16
#endif
#ifndef MC
#define MC 48
#endif
#ifndef NC
#define NC 256
#endif
#ifndef KC
#define KC 256
#endif
#ifndef PACK_A
#define PACK_A 1
#endif
#ifndef PACK_B
#define PACK_B 1
#endif

/* Floats in the target's widest register. */
#if defined __AVX512F__
#define WIDEST 16
#elif defined __AVX__
#define WIDEST 8
#else
#define WIDEST 4
#endif

_Static_assert(VEC == 4 || VEC == 8 || VEC == 16, "VEC is a vector width in floats: 4, 8 or 16");
_Static_assert(NR % VEC == 0, "NR must be a multiple of VEC: the row of a tile is whole vectors");
_Static_assert(MC % MR == 0, "MC must be a multiple of MR: a block is whole tiles");
_Static_assert(NC % NR == 0, "NC must be a multiple of NR: a block is whole tiles");
_Static_assert(MR * NR / VEC >= 6, "MR * NR / VEC must be at least 6: fewer sums do not hide the latency of an FMA");
_Static_assert(MR * NR / VEC <= 24, "MR * NR / VEC must be at most 24: more sums do not fit 32 registers with their inputs");
_Static_assert(KC >= 1 && (PACK_A == 0 || PACK_A == 1) && (PACK_B == 0 || PACK_B == 1), "KC is >= 1, PACK_* are 0 or 1");

/* gcc takes a vector wider than a register apart through memory, 15 times slower: VEC is a wish. */
enum { LANES = VEC < WIDEST ? VEC : WIDEST, NV = NR / LANES };

typedef float vec __attribute__((vector_size(4 * LANES)));
/* The same vector at any float's address: rows of c, and of b in place, are aligned to nothing more. */
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Loops over a register tile must vanish, or the tile lives in memory; -O2 alone would keep them. */
#define UNROLL _Pragma("GCC unroll 64")

/* One side of a block, as panels: where panel i begins, and how far apart its rows lie. */
struct panels {
  const float *whole, *ragged;
  int64_t ragged_at, step, stride, ragged_stride;
};

/* Static, as allocating them per call would cost a page fault for every 4 KiB; the thread's end frees them. */
static _Thread_local float a_copy[(PACK_A ? MC : MR) * KC] __attribute__((aligned(64)));
static _Thread_local float b_copy[KC * (PACK_B ? NC : NR)] __attribute__((aligned(64)));

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

static inline __attribute__((always_inline)) void multiply(
    int64_t k, const float *restrict a, int64_t lda, const float *restrict b, int64_t ldb, vec sum[MR][NV]) {
  UNROLL for (int i = 0; i < MR; i++)
    UNROLL for (int v = 0; v < NV; v++) sum[i][v] = (vec){0};
  for (int64_t p = 0; p < k; p++) {
    vec row[NV];
    UNROLL for (int v = 0; v < NV; v++) row[v] = ((const loose_vec *)(b + p * ldb))[v];
    UNROLL for (int i = 0; i < MR; i++) {
      float x = PACK_A ? a[p * MR + i] : a[i * lda + p];
      UNROLL for (int v = 0; v < NV; v++) sum[i][v] += x * row[v];
    }
  }
}

static void store(int64_t m, int64_t n, vec sum[MR][NV], float *c, int64_t ldc, int add) {
  float tile[MR][NR];
  memcpy(tile, sum, sizeof tile);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) c[i * ldc + j] = add ? c[i * ldc + j] + tile[i][j] : tile[i][j];
}

static void tile(int64_t m, int64_t n, int64_t k, const float *restrict a, int64_t lda, const float *restrict b, int64_t ldb,
                 float *restrict c, int64_t ldc, int add) {
  vec sum[MR][NV];
  multiply(k, a, lda, b, ldb, sum);
  if (m < MR || n < NR) {
    vec spilled[MR][NV]; /* a copy, so that `sum` itself never has an address and stays in registers */
    UNROLL for (int i = 0; i < MR; i++)
      UNROLL for (int v = 0; v < NV; v++) spilled[i][v] = sum[i][v];
    store(least(MR, m), least(NR, n), spilled, c, ldc, add);
    return;
  }
  UNROLL for (int i = 0; i < MR; i++) {
    loose_vec *out = (loose_vec *)(c + i * ldc);
    UNROLL for (int v = 0; v < NV; v++) {
      if (add) sum[i][v] += out[v];
      out[v] = sum[i][v];
    }
  }
}

static void pack_rows(int64_t m, int64_t k, const float *restrict a, int64_t lda, float *restrict to) {
  for (int64_t i = 0; i < m; i += MR, to += MR * k)
    for (int64_t r = 0; r < MR; r++)
      for (int64_t p = 0; p < k; p++) to[PACK_A ? p * MR + r : r * k + p] = i + r < m ? a[(i + r) * lda + p] : 0.0f;
}

static void pack_columns(int64_t k, int64_t n, const float *restrict b, int64_t ldb, float *restrict to) {
  int64_t whole = n / NR * NR;
  for (int64_t p = 0; p < k; p++, b += ldb) {
    for (int64_t j = 0; j < whole; j += NR) memcpy(to + j * k + p * NR, b + j, NR * sizeof *b);
    for (int64_t j = whole; whole < n && j < whole + NR; j++) to[whole * k + p * NR + j - whole] = j < n ? b[j] : 0.0f;
  }
}

static struct panels rows_of(const float *a, int64_t m, int64_t k, int64_t lda) {
  int64_t whole = m / MR * MR;
  if (PACK_A) {
    pack_rows(m, k, a, lda, a_copy);
    return (struct panels){a_copy, a_copy + whole * k, whole, k, MR, MR};
  }
  pack_rows(m - whole, k, a + whole * lda, lda, a_copy);
  return (struct panels){a, a_copy, whole, lda, lda, k};
}

static struct panels columns_of(const float *b, int64_t n, int64_t k, int64_t ldb) {
  int64_t whole = n / NR * NR;
  if (PACK_B) {
    pack_columns(k, n, b, ldb, b_copy);
    return (struct panels){b_copy, b_copy + whole * k, whole, k, NR, NR};
  }
  pack_columns(k, n - whole, b + whole, ldb, b_copy);
  return (struct panels){b, b_copy, whole, 1, ldb, NR};
}

static void block(int64_t m, int64_t n, int64_t k, struct panels a, struct panels b, float *c, int64_t ldc, int add) {
  for (int64_t j = 0; j < n; j += NR) {
    const float *right = j < b.ragged_at ? b.whole + j * b.step : b.ragged;
    int64_t ldb = j < b.ragged_at ? b.stride : b.ragged_stride;
    for (int64_t i = 0; i < m; i += MR) {
      const float *left = i < a.ragged_at ? a.whole + i * a.step : a.ragged;
      int64_t lda = i < a.ragged_at ? a.stride : a.ragged_stride;
      tile(m - i, n - j, k, left, lda, right, ldb, c + i * ldc + j, ldc, add);
    }
  }
}

/* Blocks that lie below one another: m rows and at most NC columns of c. */
static void column(const float *a, const float *b, float *c, int64_t m, int64_t n, int64_t N, int64_t K) {
  int64_t slice = ceil_div(K, ceil_div(K, KC)); /* equal slices: a short last one would be all loads and stores of c */
  for (int64_t p = 0; p < K; p += slice) {
    int64_t k = least(slice, K - p);
    struct panels right = columns_of(b + p * N, n, k, N);
    for (int64_t i = 0; i < m; i += MC) {
      int64_t rows = least(MC, m - i);
      block(rows, n, k, rows_of(a + i * K + p, rows, k, K), right, c + i * N, N, p > 0);
    }
  }
}

void matmul(const float *a, const float *b, float *c, int64_t M, int64_t N, int64_t K, int64_t begin, int64_t end) {
  int64_t down = ceil_div(M, MC);
  while (begin < end) {
    int64_t i = begin % down * MC, j = begin / down * NC, units = least(down - begin % down, end - begin);
    int64_t m = least(units * MC, M - i), n = least(NC, N - j);
    if (K > 0)
      column(a + i * K, b + j, c + i * N + j, m, n, N, K);
    else
      for (int64_t r = 0; r < m; r++) memset(c + (i + r) * N + j, 0, (size_t)n * sizeof *c);
    begin += units;
  }
}
