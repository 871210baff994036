/* y = softmax(x) along the rows of a row-major, contiguous float32 matrix (rows, n), each row's largest value subtracted
 * first, so that nothing overflows.
 *
 * A row is read two or three times: for its maximum, for exp and its sum, for the division; or, ONLINE, for maximum and
 * sum at once (the sum is rescaled whenever the maximum grows) and for exp and division at once, which costs a second exp
 * and saves a pass over memory. ROWS rows go through each pass together, so that the folding of one row's lanes into one
 * number overlaps with the next row's work; UNROLL vectors go through a pass together, so that their chains of dependent
 * operations overlap. exp is a polynomial of degree 5 (relative error below 2e-7); anything below exp(-87.3), where
 * subnormal numbers begin, is 0. A NaN or +inf makes its whole row NaN, as does a row of nothing but -inf.
 *
 * VEC       floats in a vector: 4, 8 or 16; no more are used than the target has in a register
 * UNROLL    vectors in flight at once
 * ROWS      rows that go through each pass together
 * ONLINE    1: maximum and sum in one pass, and exp twice; 0: three passes, and exp once
 * PREFETCH  how far ahead of use x and y are asked for, in vectors; 0: left to the machine
 *
 * A work unit is ROWS rows; there are ceil(rows / ROWS).
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef VEC
#define VEC 8
#endif
#ifndef UNROLL
#define UNROLL 2
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef ONLINE
#define ONLINE 0
#endif
#ifndef PREFETCH
#define PREFETCH 0
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
_Static_assert(UNROLL >= 1 && UNROLL <= 8, "UNROLL must be 1 to 8: more vectors in flight do not fit the registers");
_Static_assert(ROWS >= 1 && ROWS <= 64, "ROWS must be 1 to 64: the rows of a unit should fit a cache together");
_Static_assert(ONLINE == 0 || ONLINE == 1, "ONLINE is 0 or 1");
_Static_assert(PREFETCH >= 0 && PREFETCH <= 1024, "PREFETCH is a distance in vectors, or 0; beyond 1024 it has left a cache again");

/* Floats summed at a time: a lane's sum of a long row would lose digits to its own size. */
enum { PIECE = 1024 };

/* gcc takes a vector wider than a register apart through memory, 15 times slower: VEC is a wish. */
enum { LANES = VEC < WIDEST ? VEC : WIDEST };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
/* The same vector at any float's address: rows are aligned to nothing more. */
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define EACH _Pragma("GCC unroll 8")
/* A number, as no pointer may point beyond its array, even if nothing is read there. */
#define AHEAD(at) ((const void *)((uintptr_t)(at) + PREFETCH * sizeof(vec)))

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

INLINE vec all(float x) { return (vec){0} + x; }
INLINE vec pick(bits where, vec yes, vec no) { return (vec)((where & (bits)yes) | (~where & (bits)no)); }
/* x second: a NaN compares as false, and so is never taken for a maximum. */
INLINE vec larger(vec m, vec x) { return pick((bits)(x > m), x, m); }

/* The vector at x, filled up with -inf (whose exp is 0) from the end of the row. */
INLINE vec load(const float *x, int64_t left) {
  if (left >= LANES) return *(const loose_vec *)x;
  vec part = all(-INFINITY);
  memcpy(&part, x, (size_t)left * sizeof *x);
  return part;
}

INLINE void store(float *y, int64_t left, vec value) {
  if (left >= LANES)
    *(loose_vec *)y = value;
  else
    memcpy(y, &value, (size_t)left * sizeof *y);
}

/* exp of x <= 0: x = whole * log(2) + rest, and exp(x) = 2**whole * exp(rest) with |rest| <= log(2) / 2. */
INLINE vec exponential(vec x) {
  const float lowest = -87.3f, round = 12582912.0f + 127; /* 1.5 * 2**23 rounds; 127 is the bias of an exponent */
  bits none = (bits)(x < lowest);
  vec bounded = pick(none, all(lowest), x);
  vec shifted = bounded * 1.44269504f + round, whole = shifted - round;
  vec rest = bounded - whole * 0.693359375f - whole * -2.12194440e-4f; /* log(2) in two parts; the first product is exact */
  vec sum = all(0.00829026382f);
  sum = sum * rest + 0.0418981612f;
  sum = sum * rest + 0.166676387f;
  sum = sum * rest + 0.499991477f;
  sum = sum * rest + 0.999999702f;
  sum = sum * rest + 1.0f;
  vec power = (vec)((bits)shifted << 23);
  return (vec)(~none & (bits)(sum * power));
}

INLINE float fold_larger(vec m) {
  float lane[LANES];
  memcpy(lane, &m, sizeof lane);
  for (int w = LANES / 2; w > 0; w /= 2)
    for (int i = 0; i < w; i++) lane[i] = lane[i + w] > lane[i] ? lane[i + w] : lane[i];
  return lane[0];
}

INLINE float fold_sum(vec s) {
  float lane[LANES];
  memcpy(lane, &s, sizeof lane);
  for (int w = LANES / 2; w > 0; w /= 2)
    for (int i = 0; i < w; i++) lane[i] += lane[i + w];
  return lane[0];
}

static float maximum(const float *x, int64_t n) {
  vec m[UNROLL];
  EACH for (int u = 0; u < UNROLL; u++) m[u] = all(-FLT_MAX);
  int64_t i = 0;
  for (; i + UNROLL * LANES <= n; i += UNROLL * LANES)
    EACH for (int u = 0; u < UNROLL; u++) {
      if (PREFETCH) __builtin_prefetch(AHEAD(x + i + u * LANES), 0);
      m[u] = larger(m[u], load(x + i + u * LANES, LANES));
    }
  for (; i < n; i += LANES) m[0] = larger(m[0], load(x + i, n - i));
  EACH for (int u = 1; u < UNROLL; u++) m[0] = larger(m[0], m[u]);
  return fold_larger(m[0]);
}

static float exponentials_of_piece(const float *x, float *y, int64_t n, float max) {
  vec s[UNROLL];
  EACH for (int u = 0; u < UNROLL; u++) s[u] = all(0);
  int64_t i = 0;
  for (; i + UNROLL * LANES <= n; i += UNROLL * LANES)
    EACH for (int u = 0; u < UNROLL; u++) {
      if (PREFETCH) __builtin_prefetch(AHEAD(y + i + u * LANES), 1);
      vec e = exponential(load(x + i + u * LANES, LANES) - max);
      store(y + i + u * LANES, LANES, e);
      s[u] += e;
    }
  for (; i < n; i += LANES) {
    vec e = exponential(load(x + i, n - i) - max);
    store(y + i, n - i, e);
    s[0] += e;
  }
  EACH for (int u = 1; u < UNROLL; u++) s[0] += s[u];
  return fold_sum(s[0]);
}

static float exponentials(const float *x, float *y, int64_t n, float max) {
  float sum = 0;
  for (int64_t i = 0; i < n; i += PIECE) sum += exponentials_of_piece(x + i, y + i, least(PIECE, n - i), max);
  return sum;
}

static void scale(float *y, int64_t n, float by) {
  int64_t i = 0;
  for (; i + UNROLL * LANES <= n; i += UNROLL * LANES)
    EACH for (int u = 0; u < UNROLL; u++) store(y + i + u * LANES, LANES, load(y + i + u * LANES, LANES) * by);
  for (; i < n; i += LANES) store(y + i, n - i, load(y + i, n - i) * by);
}

/* Each lane keeps its own maximum and the sum that belongs to it, rescaled once for every UNROLL vectors. */
static float maximum_and_sum_of_piece(const float *x, int64_t n, float *max) {
  vec m = all(-FLT_MAX), s = all(0);
  int64_t i = 0;
  for (; i + UNROLL * LANES <= n; i += UNROLL * LANES) {
    vec before = m, e = all(0);
    EACH for (int u = 0; u < UNROLL; u++) {
      if (PREFETCH) __builtin_prefetch(AHEAD(x + i + u * LANES), 0);
      m = larger(m, load(x + i + u * LANES, LANES));
    }
    EACH for (int u = 0; u < UNROLL; u++) e += exponential(load(x + i + u * LANES, LANES) - m);
    s = s * exponential(before - m) + e;
  }
  for (; i < n; i += LANES) {
    vec before = m;
    m = larger(m, load(x + i, n - i));
    s = s * exponential(before - m) + exponential(load(x + i, n - i) - m);
  }
  *max = fold_larger(m);
  return fold_sum(s * exponential(m - *max));
}

static float maximum_and_sum(const float *x, int64_t n, float *max) {
  float sum = 0;
  *max = -FLT_MAX;
  for (int64_t i = 0; i < n; i += PIECE) {
    float before = *max, here, more = maximum_and_sum_of_piece(x + i, least(PIECE, n - i), &here);
    if (here > *max) *max = here;
    sum = sum * exponential(all(before - *max))[0] + more * exponential(all(here - *max))[0];
  }
  return sum;
}

static void scaled_exponentials(const float *x, float *y, int64_t n, float max, float by) {
  int64_t i = 0;
  for (; i + UNROLL * LANES <= n; i += UNROLL * LANES)
    EACH for (int u = 0; u < UNROLL; u++) {
      if (PREFETCH) __builtin_prefetch(AHEAD(y + i + u * LANES), 1);
      store(y + i + u * LANES, LANES, exponential(load(x + i + u * LANES, LANES) - max) * by);
    }
  for (; i < n; i += LANES) store(y + i, n - i, exponential(load(x + i, n - i) - max) * by);
}

static void unit(const float *x, float *y, int64_t rows, int64_t n) {
  float max[ROWS], sum[ROWS];
  if (ONLINE) {
    for (int64_t r = 0; r < rows; r++) sum[r] = maximum_and_sum(x + r * n, n, &max[r]);
    for (int64_t r = 0; r < rows; r++) scaled_exponentials(x + r * n, y + r * n, n, max[r], 1.0f / sum[r]);
  } else {
    for (int64_t r = 0; r < rows; r++) max[r] = maximum(x + r * n, n);
    for (int64_t r = 0; r < rows; r++) sum[r] = exponentials(x + r * n, y + r * n, n, max[r]);
    for (int64_t r = 0; r < rows; r++) scale(y + r * n, n, 1.0f / sum[r]);
  }
}

void softmax(const float *x, float *y, int64_t rows, int64_t n, int64_t begin, int64_t end) {
  for (int64_t r = begin * ROWS; r < least(end * ROWS, rows); r += ROWS) unit(x + r * n, y + r * n, least(ROWS, rows - r), n);
}
