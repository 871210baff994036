// c (M, N) = ACTIVATION(x (M, K) times the transpose of w (N, K), + bias (N,)) for few rows of x: w is read once.
//
// x, w, bias, c are DTYPE, sums are float32. Rows of x and w begin at multiples of 16 bytes; M <= 8 M_TILES; c has no gaps;
// bias may be null.
//
// A block has ROWS rows of w, a warp 16 GROUPS of them, and of those a part of K: WARPS / SPREAD warps of each of CLUSTER
// blocks share it, by steps of 128 bytes. Tensor cores take w's rows as the m16 of m16n8k16, and x's as the n8. The order
// of a sum is free, so what a lane gives to two such products are 16 bytes as they lie in memory: elements 8t .. 8t + 7 of
// 32, of rows g and g + 8 of w and of row g of x (g = lane / 4, t = lane % 4). A warp loads what only it looks at, 4 rows
// at once, into DEPTH steps of shared memory of its own: there is no barrier for the block until the end. Only where SPREAD
// warps need the same part of x, each loads a share of it for all, and they wait for each other at every step. At the end
// warps add up in shared memory, and blocks tell each other their sums, each of a part of the tile, in a fixed order. Rows
// beyond M and N are copies of the last one: what comes of them is not written.

#include "words.cuh"

#ifndef DTYPE
#define DTYPE bfloat16
#endif
#ifndef ACTIVATION
#define ACTIVATION none
#endif
#ifndef M_TILES
#define M_TILES 1  // 8 rows of x each
#endif
#ifndef GROUPS
#define GROUPS 1  // 16 rows of w each, of a warp
#endif
#ifndef SPREAD
#define SPREAD 1  // warps of a block that have other rows of w, and share their part of x
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#ifndef DEPTH
#define DEPTH 4  // steps of a warp on their way
#endif
#ifndef DEPENDENT
#define DEPENDENT 0  // 1: launched while the kernel before it still runs
#endif

typedef DTYPE::Item Item;

struct alignas(16) Piece {
    Word at[4];
};
struct alignas(16) Four {
    float at[4];
};

constexpr int BYTES = 128, STEP = BYTES / sizeof(Item);  // of a step of a row: bytes, elements
constexpr int THREADS = 32 * WARPS, K_WARPS = WARPS / SPREAD, WAYS = K_WARPS * CLUSTER;
constexpr int WARP_ROWS = 16 * GROUPS, ROWS = WARP_ROWS * SPREAD, COLUMNS = 8 * M_TILES;
constexpr int OF_W = 4 * GROUPS, OF_X = 2 * M_TILES, OWN_X = OF_X / SPREAD;  // pieces of a thread and step; those it loads
constexpr int NEXT = WAYS * BYTES;  // from a step of a warp to its next one: the steps of all ways follow each other
constexpr int EARLY = 2;  // steps that are asked for while the kernel before still runs
// A warp's sums by column, so far apart that the lanes of a fragment write to 32 banks.
constexpr int PITCH = WARP_ROWS + 4, SUMS = COLUMNS * PITCH / 4;
// Shared memory in pieces: each warp's steps of w, where its sums go later; each part of K's steps of x; what blocks tell.
constexpr int W_RING = DEPTH * OF_W * 32, WARP_PIECES = W_RING > SUMS ? W_RING : SUMS, X_RING = DEPTH * OF_X * 32;
constexpr int X_BEGIN = WARPS * WARP_PIECES, TOLD_BEGIN = X_BEGIN + K_WARPS * X_RING;
constexpr int QUADS = COLUMNS * ROWS / 4, SLICE = QUADS / CLUSTER;
static_assert(WARPS % SPREAD == 0 && QUADS % CLUSTER == 0 && CLUSTER <= 8, "whole parts, portable clusters");
static_assert(OF_X % SPREAD == 0 && DEPTH >= 2, "equal shares of x, some steps on their way");
static_assert(SPREAD == 1 || K_WARPS < 16, "a barrier for each part of K");

// --- what the chip does ---

#define SHARED extern __shared__ Piece shared[]

__device__ unsigned shared_address(const void *at) { return (unsigned)__cvta_generic_to_shared(at); }

__device__ void copy_w(Piece *to, const char *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// Where every warp loads all of x that it needs, through L1.
__device__ void copy_x(Piece *to, const char *from) {
    if (SPREAD == 1)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
    else asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last LATER groups of this thread's copies are there.
template <int LATER> __device__ void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

template <typename T> struct Product;
template <> struct Product<bfloat16> {
    static __device__ void add(float (&to)[4], Word a0, Word a1, Word a2, Word a3, Word b0, Word b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
            "%2, %3};" : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3),
            "r"(b0), "r"(b1));
    }
};
template <> struct Product<float16> {
    static __device__ void add(float (&to)[4], Word a0, Word a1, Word a2, Word a3, Word b0, Word b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
            "%2, %3};" : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3),
            "r"(b0), "r"(b1));
    }
};

// The warps that have the same part of K are here, and what they wrote and what arrived for them can be read.
__device__ void together(int part) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + part), "n"(32 * SPREAD) : "memory");
}

// To the same place of another block's shared memory.
__device__ void tell(Four *to, int rank, const Four &sum) {
    asm volatile("{\n"
                 "    .reg .b32 there;\n"
                 "    mapa.shared::cluster.u32 there, %0, %5;\n"
                 "    st.shared::cluster.v4.f32 [there], {%1, %2, %3, %4};\n"
                 "}" ::"r"(shared_address(to)), "f"(sum.at[0]), "f"(sum.at[1]), "f"(sum.at[2]), "f"(sum.at[3]), "r"(rank)
                 : "memory");
}

// All blocks of the cluster have begun once `begun` returns: there is somebody to tell.
__device__ void begin() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void begun() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// All of them have told, and what they told is there. Nobody looks into another block's memory later: each may leave.
__device__ void told() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ void prefetch(const char *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
__device__ void earlier_done() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ void later_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Of many rows of x an address is made once, and not anew for every step: what the compiler can't see through it keeps.
// For 64 rows that was up to a sixth of the time on an H200; for fewer the registers are better used otherwise.
__device__ void keep(const char *&from) {
    if (M_TILES > 4) asm volatile("" : "+l"(from));
}

__device__ void write(Item *to, Word low, Word high) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(low), "r"(high) : "memory");
}

// --- a thread's part of x and w ---

struct Part {
    const char *w[OF_W], *x[OWN_X];  // rows, from this thread's piece of the first step on
    int count;  // of whole steps, NEXT bytes apart
};

typedef float Sums[GROUPS][M_TILES][4];

// Adds the products of a step, of whose halves the pieces are w(half, row / 8) and x(half, row / 8).
template <typename W, typename X> __device__ __forceinline__ void multiply(Sums &sums, const W &w, const X &x) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        Piece column[M_TILES];
        #pragma unroll
        for (int j = 0; j < M_TILES; j++) column[j] = x(half, j);
        #pragma unroll
        for (int r = 0; r < GROUPS; r++) {
            const Piece a = w(half, 2 * r), b = w(half, 2 * r + 1);
            #pragma unroll
            for (int j = 0; j < M_TILES; j++) {
                const Piece &c = column[j];
                Product<DTYPE>::add(sums[r][j], a.at[0], b.at[0], a.at[1], b.at[1], c.at[0], c.at[1]);
                Product<DTYPE>::add(sums[r][j], a.at[2], b.at[2], a.at[3], b.at[3], c.at[2], c.at[3]);
            }
        }
    }
}

// A warp's steps, through its own ring of w and one of x for its part of K.
__device__ __forceinline__ void whole_steps(Sums &sums, const Part &part, Piece *w, Piece *x, int part_of_k) {
    // A row's 8 pieces follow each other, the halves of odd rows exchanged: what 8 lanes read is in 32 banks.
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int put = lane ^ lane / 8 % 2 * 4, get = g * 8 + t + g % 2 * 4;
    Piece *const to_w = w + put, *const to_x = x + put + (SPREAD == 1 ? 0 : threadIdx.x / 32 % SPREAD * OWN_X * 32);
    const Piece *const of_halves[2] = {w + get, w + (get ^ 4)}, *const x_of_halves[2] = {x + get, x + (get ^ 4)};
    auto load = [&](int slot, int i) {
        const long long at = (long long)i * NEXT;
        #pragma unroll
        for (int p = 0; p < OF_W; p++) copy_w(to_w + (slot * OF_W + p) * 32, part.w[p] + at);
        #pragma unroll
        for (int p = 0; p < OWN_X; p++) copy_x(to_x + (slot * OF_X + p) * 32, part.x[p] + at);
    };
    auto use = [&](int slot) {
        multiply(sums, [&](int half, int rows) { return of_halves[half][(slot * OF_W + 2 * rows) * 32]; },
                 [&](int half, int rows) { return x_of_halves[half][(slot * OF_X + 2 * rows) * 32]; });
    };
    constexpr int AHEAD = SPREAD == 1 ? DEPTH : DEPTH - 1;
    #pragma unroll
    for (int d = 0; d < AHEAD; d++) {
        if (d < part.count) load(d, d);
        committed();
    }
    for (int i = 0, slot = 0, before = DEPTH - 1; i < part.count; i++) {
        arrived<AHEAD - 1>();
        if (SPREAD > 1) {  // for all; and all are done with the step before
            together(part_of_k);
            if (i + AHEAD < part.count) load(before, i + AHEAD);
            committed();
            use(slot);
        } else {
            __syncwarp();
            use(slot);
            __syncwarp();
            if (i + AHEAD < part.count) load(slot, i + AHEAD);
            committed();
        }
        before = slot;
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
    }
}

// The first `left` elements of a piece, then 0.
__device__ __noinline__ Piece some_of(const char *from, int left) {
    Piece made = {{0, 0, 0, 0}};
    #pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < left) made.at[i / 2] |= (Word)((const Item *)from)[i] << (i % 2 * 16);
    return made;
}

// The step at whose begin, so far from the first one's, rows have `left` elements, less than a whole one's, from this
// thread's first piece on. row(r), column(j): rows of w and x from there, 8 r and 8 j below the thread's first.
template <typename Row, typename Column>
__device__ __forceinline__ void last_step(Sums &sums, const Row &row, const Column &column, long long at, int left) {
    constexpr int HALF = STEP / 2;
    multiply(sums, [&](int half, int r) { return some_of(row(r) + at + half * (BYTES / 2), left - half * HALF); },
             [&](int half, int j) { return some_of(column(j) + at + half * (BYTES / 2), left - half * HALF); });
}

// --- the tile ---

struct none {
    static __device__ float of(float x) { return x; }
};
struct relu {
    static __device__ float of(float x) { return x < 0 ? 0 : x; }  // and not fmaxf, which would make 0 of NaN
};
struct gelu {
    static __device__ float of(float x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }
};
struct silu {
    static __device__ float of(float x) { return x / (1 + expf(-x)); }
};

__device__ void put(Item *c, const Item *bias, int M, int N, int tile, int quad, Four sum) {
    const int m = quad / (ROWS / 4), n = tile * ROWS + quad % (ROWS / 4) * 4;
    if (m >= M || n >= N) return;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (bias && n + i < N) sum.at[i] += DTYPE::opened(bias[n + i]);
        sum.at[i] = ACTIVATION::of(sum.at[i]);
    }
    Item *to = c + (long long)m * N + n;
    if (N % 4 == 0) {
        write(to, DTYPE::closed(sum.at[0], sum.at[1]), DTYPE::closed(sum.at[2], sum.at[3]));
        return;
    }
    #pragma unroll
    for (int i = 0; i < 4; i++)
        if (n + i < N) to[i] = (Item)DTYPE::closed(sum.at[i], 0);
}

__device__ void add(Four &to, const Four &more) {
    #pragma unroll
    for (int i = 0; i < 4; i++) to.at[i] += more.at[i];
}

// bias is not restrict: its elements would be read as what nobody writes while this kernel runs (ld.global.nc), and the
// kernel before may.
extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS)
skinny_gemm(const void *__restrict__ x, const void *__restrict__ w, const void *bias, void *__restrict__ c,
            long long stride_x, long long stride_w, int M, int N, int K) {
    SHARED;
    if constexpr (CLUSTER > 1) begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rank = blockIdx.x % CLUSTER, tile = blockIdx.x / CLUSTER;
    const int row = tile * ROWS + warp % SPREAD * WARP_ROWS, way = rank * K_WARPS + warp / SPREAD, steps = K / STEP;

    // Rows that begin so far below the first of w's for this warp, and of x, from a piece of its first step on.
    auto w_row = [&](int down, int piece) {
        return (const char *)w + 2 * (min(row + down, N - 1) * stride_w) + (long long)way * BYTES + 16 * piece;
    };
    auto x_row = [&](int down, int piece) {
        return (const char *)x + 2 * (min(down, M - 1) * stride_x) + (long long)way * BYTES + 16 * piece;
    };
    Part part;
    part.count = (steps - way + WAYS - 1) / WAYS;
    const int own = SPREAD == 1 ? 0 : warp % SPREAD * OWN_X;
    #pragma unroll
    for (int p = 0; p < OF_W; p++) keep(part.w[p] = w_row(lane / 8 + 4 * p, lane % 8));
    #pragma unroll
    for (int p = 0; p < OWN_X; p++) keep(part.x[p] = x_row(lane / 8 + 4 * (own + p), lane % 8));
    if constexpr (DEPENDENT) {
        // Nothing is read until the kernel before has ended, not even what seems constant: that kernel may be writing it.
        // But what this warp begins with is brought into the L2, which sees what is written.
        for (int i = lane; i < min(part.count, EARLY) * WARP_ROWS; i += 32)
            prefetch(w_row(i % WARP_ROWS, 0) + i / WARP_ROWS * NEXT);
        earlier_done();
    }

    Sums sums = {};
    whole_steps(sums, part, shared + warp * WARP_PIECES, shared + X_BEGIN + warp / SPREAD * X_RING, warp / SPREAD);
    if (K % STEP && way == WAYS - 1)
        last_step(sums, [&](int r) { return w_row(g + 8 * r, t); }, [&](int j) { return x_row(g + 8 * j, t); },
                  (long long)(steps - way) * BYTES, K - steps * STEP - 8 * t);
    __syncwarp();  // a lane's sums go where others had pieces

    float *const mine = (float *)(shared + warp * WARP_PIECES) + 2 * t * PITCH + g;
    #pragma unroll
    for (int r = 0; r < GROUPS; r++)
        #pragma unroll
        for (int j = 0; j < M_TILES; j++)
            #pragma unroll
            for (int i = 0; i < 4; i++) mine[(8 * j + i % 2) * PITCH + 16 * r + i / 2 * 8] = sums[r][j][i];
    if constexpr (CLUSTER > 1) begun();
    __syncthreads();
    // Now nothing is read any more but a bias: the kernel behind may be somebody else's, and write before it waits to
    // memory that was given back when this one was launched.
    if constexpr (DEPENDENT) later_may_begin();

    Four *const received = (Four *)(shared + TOLD_BEGIN);  // by the block that tells
    for (int quad = threadIdx.x; quad < min(M, COLUMNS) * (ROWS / 4); quad += THREADS) {
        const int m = quad / (ROWS / 4), n = quad % (ROWS / 4) * 4;
        const Four *from = (const Four *)(shared + n / WARP_ROWS * WARP_PIECES) + (m * PITCH + n % WARP_ROWS) / 4;
        Four sum = *from;
        #pragma unroll
        for (int i = 1; i < K_WARPS; i++) add(sum, from[i * SPREAD * WARP_PIECES]);
        if constexpr (CLUSTER == 1) put((Item *)c, (const Item *)bias, M, N, tile, quad, sum);
        else tell(received + rank * SLICE + quad % SLICE, quad / SLICE, sum);
    }
    if constexpr (CLUSTER == 1) return;
    told();
    for (int i = threadIdx.x; i < SLICE; i += THREADS) {
        const int quad = rank * SLICE + i;
        if (quad >= M * (ROWS / 4)) return;
        Four sum = received[i];
        #pragma unroll
        for (int from = 1; from < CLUSTER; from++) add(sum, received[from * SLICE + i]);
        put((Item *)c, (const Item *)bias, M, N, tile, quad, sum);
    }
}
