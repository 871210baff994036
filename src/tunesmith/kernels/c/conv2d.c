/* y = conv2d(x, w): direct convolution without padding, stride 1, contiguous float32: x is (N, C, H, W), w is
 * (K, C, R, S), y is (N, K, P, Q) with P = H - R + 1 and Q = W - S + 1.
 *
 * A tile of KB output channels by QV vectors of neighbouring outputs stays in registers for the whole sum over C, R and S:
 * each vector of x that is loaded serves KB channels, each weight QV vectors. The KB channels' weights are copied side by
 * side first. Tiles follow one another along a line of outputs. A line is one row of y; or, FLAT, PB rows at once, taken
 * W apart as they lie in x: the S - 1 sums between two rows are computed for nothing, but only the last tile of PB rows is
 * ragged, and rows shorter than a tile fill it. A ragged tile reads past its line, into whatever of x follows, and drops
 * those sums; where nothing follows, the last few outputs are summed one by one.
 *
 * VEC   floats in a vector: 4, 8 or 16; no more are used than the target has in a register
 * KB    output channels of a register tile
 * QV    vectors of outputs of a register tile
 * PB    rows of y in a work unit
 * FLAT  1: a line is the PB rows of the unit; 0: a line is one row
 *
 * A work unit is PB rows of KB channels of one image; there are N * ceil(K / KB) * ceil(P / PB), down the rows first, then
 * the channels. A call copies weights once for all the units below one another, so a contiguous range for each thread is
 * the cheapest division.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef VEC
#define VEC 8
#endif
#ifndef KB
#define KB 8
#endif
#ifndef QV
#define QV 1
#endif
#ifndef PB
#define PB 4
#endif
#ifndef FLAT
#define FLAT 0
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
_Static_assert(KB * QV >= 6, "KB * QV must be at least 6: fewer sums do not hide the latency of an FMA");
_Static_assert(KB * QV <= 24, "KB * QV must be at most 24: more sums do not fit 32 registers with their inputs");
_Static_assert(PB >= 1 && (FLAT == 0 || FLAT == 1), "PB is >= 1, FLAT is 0 or 1");

/* gcc takes a vector wider than a register apart through memory, 15 times slower: VEC is a wish. */
enum { LANES = VEC < WIDEST ? VEC : WIDEST };

typedef float vec __attribute__((vector_size(4 * LANES)));
/* The same vector at any float's address: rows are aligned to nothing more. */
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
/* Loops over a register tile must vanish, or the tile lives in memory; -O2 alone would keep them. */
#define UNROLL _Pragma("GCC unroll 64")

struct shape {
  int64_t N, C, H, W, K, R, S, P, Q;
};

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/* Weights of up to KB channels as (C, R, S, KB), missing channels zero. */
static void pack(const struct shape *d, const float *restrict w, int64_t channels, float *restrict to) {
  int64_t taps = d->C * d->R * d->S;
  for (int64_t k = 0; k < KB; k++)
    for (int64_t t = 0; t < taps; t++) to[t * KB + k] = k < channels ? w[k * taps + t] : 0.0f;
}

INLINE void convolve(const struct shape *d, const float *restrict x, const float *restrict w, int vectors, vec sum[KB][QV]) {
  UNROLL for (int k = 0; k < KB; k++)
    UNROLL for (int v = 0; v < vectors; v++) sum[k][v] = (vec){0};
  for (int64_t c = 0; c < d->C; c++)
    for (int64_t r = 0; r < d->R; r++) {
      const float *from = x + (c * d->H + r) * d->W;
      for (int64_t s = 0; s < d->S; s++, from++, w += KB) {
        vec in[QV];
        UNROLL for (int v = 0; v < vectors; v++) in[v] = ((const loose_vec *)from)[v];
        UNROLL for (int k = 0; k < KB; k++)
          UNROLL for (int v = 0; v < vectors; v++) sum[k][v] += w[k] * in[v];
      }
    }
}

/* `count` outputs of each channel from output `at` of the line on, which begins in row 0 of y. */
INLINE void store(const struct shape *d, int64_t channels, int64_t at, int64_t count, int vectors, vec sum[KB][QV], float *y) {
  int64_t p = at / d->W, q = at % d->W;
  if (count == vectors * LANES && q + count <= d->Q) {
    UNROLL for (int k = 0; k < KB; k++) {
      loose_vec *out = (loose_vec *)(y + (k * d->P + p) * d->Q + q);
      if (k < channels) UNROLL for (int v = 0; v < vectors; v++) out[v] = sum[k][v];
    }
    return;
  }
  float tile[KB][QV * LANES];
  UNROLL for (int k = 0; k < KB; k++)
    UNROLL for (int v = 0; v < vectors; v++) ((loose_vec *)tile[k])[v] = sum[k][v];
  for (int64_t i = 0; i < count; i += d->W - q, q = 0, p++) {
    int64_t run = least(d->Q - q, count - i);
    for (int64_t k = 0; k < channels; k++)
      for (int64_t j = 0; j < run; j++) y[(k * d->P + p) * d->Q + q + j] = tile[k][i + j];
  }
}

static void tile(const struct shape *d, const float *x, const float *w, int64_t channels, int64_t at, float *y) {
  vec sum[KB][QV];
  convolve(d, x + at, w, QV, sum);
  store(d, channels, at, QV * LANES, QV, sum, y);
}

static void narrow_tile(const struct shape *d, const float *x, const float *w, int64_t channels, int64_t at, int64_t count, float *y) {
  vec sum[KB][QV];
  convolve(d, x + at, w, 1, sum);
  store(d, channels, at, count, 1, sum, y);
}

static void one_by_one(const struct shape *d, const float *x, const float *w, int64_t channels, int64_t at, int64_t count, float *y) {
  for (int64_t i = at; i < at + count; i++) {
    int64_t p = i / d->W, q = i % d->W;
    for (int64_t k = 0; q < d->Q && k < channels; k++) {
      const float *weight = w + k;
      float sum = 0;
      for (int64_t c = 0; c < d->C; c++)
        for (int64_t r = 0; r < d->R; r++)
          for (int64_t s = 0; s < d->S; s++, weight += KB) sum += *weight * x[(c * d->H + r) * d->W + s + i];
      y[(k * d->P + p) * d->Q + q] = sum;
    }
  }
}

/* Outputs that follow one another; `readable` floats of x lie behind the first one's last tap. */
static void line(const struct shape *d, const float *x, int64_t readable, const float *w, int64_t channels, int64_t length, float *y) {
  int64_t at = 0;
  for (; at + QV * LANES <= length; at += QV * LANES) tile(d, x, w, channels, at, y);
  for (; at < length && at + LANES <= readable; at += LANES) narrow_tile(d, x, w, channels, at, least(LANES, length - at), y);
  if (at < length) one_by_one(d, x, w, channels, at, length - at, y);
}

static void unit(const struct shape *d, const float *x, int64_t images, const float *w, int64_t channels, int64_t p, float *y) {
  int64_t rows = least(PB, d->P - p), planes = d->C * d->H * d->W;
  int64_t last_tap = ((d->C - 1) * d->H + d->R - 1) * d->W + d->S - 1;
  for (int64_t row = p; row < p + rows; row += FLAT ? rows : 1)
    line(d, x + row * d->W, images * planes - last_tap - row * d->W, w, channels, (FLAT ? rows - 1 : 0) * d->W + d->Q,
         y + row * d->Q);
}

void conv2d(const float *x, const float *w, float *y, int64_t N, int64_t C, int64_t H, int64_t W, int64_t K, int64_t R,
            int64_t S, int64_t begin, int64_t end) {
  struct shape d = {N, C, H, W, K, R, S, H - R + 1, W - S + 1};
  int64_t down = ceil_div(d.P, PB), across = ceil_div(K, KB), packed_for = -1;
  float *packed = begin < end ? malloc((size_t)(C * R * S * KB + 1) * sizeof *w) : NULL; /* + 1: none may be NULL */
  if (begin < end && !packed) abort(); /* there is no way to say it, and no result without */
  for (int64_t u = begin; u < end; u++) {
    int64_t p = u % down * PB, k = u / down % across * KB, n = u / down / across;
    if (k != packed_for) pack(&d, w + k * C * R * S, least(KB, K - k), packed);
    packed_for = k;
    unit(&d, x + n * C * H * W, N - n, packed, least(KB, K - k), p, y + (n * K + k) * d.P * d.Q);
  }
  free(packed);
}
