// c = a · b in float32, all row-major: a (M, K), b (K, N), c (M, N), of any size.
//
// A block computes a tile of BM × BN, a thread TM × TN of it in registers, in groups of 4 × 4 that lie apart, so that
// the threads of a warp read shared memory without conflicts. Tiles of a and b pass through two buffers: while one is
// multiplied, the next is on its way. Blocks are numbered so that GROUP rows of tiles share their columns in the L2.

#ifndef BM
#define BM 128
#endif
#ifndef BN
#define BN 128
#endif
#ifndef BK
#define BK 8
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 8
#endif
#ifndef GROUP
#define GROUP 8
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int A_LOADS = BM * BK / 4 / THREADS, B_LOADS = BN * BK / 4 / THREADS; // of 4 floats, by each thread
constexpr int A_PITCH = BM + 4;  // a tile of a is stored by columns; the gap spreads its stores over the banks
constexpr int A_STEP = BM / (TM / 4), B_STEP = BN / (TN / 4); // between a thread's groups of 4 rows, or columns
static_assert(BM % TM == 0 && BN % TN == 0 && TM % 4 == 0 && TN % 4 == 0, "threads must tile the block by 4 x 4");
static_assert(BK % 4 == 0 && A_LOADS * THREADS * 4 == BM * BK, "the threads must share the loads of a evenly");
static_assert(B_LOADS * THREADS * 4 == BN * BK, "the threads must share the loads of b evenly");

// Four neighbours in a row, zeros beyond the matrix.
__device__ inline float4 load(const float *x, int row, int column, int rows, int columns, bool whole) {
    float4 v = make_float4(0, 0, 0, 0);
    if (row >= rows || column >= columns) return v;
    const float *at = x + (long long)row * columns + column;
    if (whole) return *reinterpret_cast<const float4 *>(at);
    v.x = at[0];
    if (column + 1 < columns) v.y = at[1];
    if (column + 2 < columns) v.z = at[2];
    if (column + 3 < columns) v.w = at[3];
    return v;
}

__device__ inline bool by_four(const void *x, int columns) {
    return columns % 4 == 0 && reinterpret_cast<unsigned long long>(x) % 16 == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int M, int N, int K) {
    extern __shared__ float4 shared[];
    float *as = reinterpret_cast<float *>(shared);  // [2][BK][A_PITCH]
    float *bs = as + 2 * BK * A_PITCH;              // [2][BK][BN]

    const int down = (M + BM - 1) / BM, across = (N + BN - 1) / BN;
    const int first = blockIdx.x / (GROUP * across) * GROUP, rows = min(down - first, GROUP);
    const int row0 = (first + blockIdx.x % (GROUP * across) % rows) * BM;
    const int column0 = blockIdx.x % (GROUP * across) / rows * BN;
    const int thread = threadIdx.x, tx = thread % (BN / TN), ty = thread / (BN / TN);
    const bool a_whole = by_four(a, K), b_whole = by_four(b, N), c_whole = by_four(c, N);

    float4 a_next[A_LOADS], b_next[B_LOADS];
    float total[TM][TN] = {};

    auto fetch = [&](int k0) {
        #pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            const int at = thread + i * THREADS;
            a_next[i] = load(a, row0 + at / (BK / 4), k0 + at % (BK / 4) * 4, M, K, a_whole);
        }
        #pragma unroll
        for (int i = 0; i < B_LOADS; i++) {
            const int at = thread + i * THREADS;
            b_next[i] = load(b, k0 + at / (BN / 4), column0 + at % (BN / 4) * 4, K, N, b_whole);
        }
    };
    auto put = [&](int buffer) {
        float *to_a = as + buffer * BK * A_PITCH, *to_b = bs + buffer * BK * BN;
        #pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            const int at = thread + i * THREADS, row = at / (BK / 4), k = at % (BK / 4) * 4;
            to_a[(k + 0) * A_PITCH + row] = a_next[i].x;
            to_a[(k + 1) * A_PITCH + row] = a_next[i].y;
            to_a[(k + 2) * A_PITCH + row] = a_next[i].z;
            to_a[(k + 3) * A_PITCH + row] = a_next[i].w;
        }
        #pragma unroll
        for (int i = 0; i < B_LOADS; i++) *reinterpret_cast<float4 *>(to_b + (thread + i * THREADS) * 4) = b_next[i];
    };

    fetch(0);
    put(0);
    __syncthreads();
    int buffer = 0;
    for (int k0 = 0; k0 < K; k0 += BK) {
        const bool more = k0 + BK < K;
        if (more) fetch(k0 + BK);
        const float *from_a = as + buffer * BK * A_PITCH, *from_b = bs + buffer * BK * BN;
        #pragma unroll
        for (int k = 0; k < BK; k++) {
            float x[TM], y[TN];
            #pragma unroll
            for (int i = 0; i < TM; i += 4)
                *reinterpret_cast<float4 *>(x + i) =
                    *reinterpret_cast<const float4 *>(from_a + k * A_PITCH + ty * 4 + i / 4 * A_STEP);
            #pragma unroll
            for (int j = 0; j < TN; j += 4)
                *reinterpret_cast<float4 *>(y + j) =
                    *reinterpret_cast<const float4 *>(from_b + k * BN + tx * 4 + j / 4 * B_STEP);
            #pragma unroll
            for (int i = 0; i < TM; i++)
                #pragma unroll
                for (int j = 0; j < TN; j++) total[i][j] += x[i] * y[j];
        }
        if (more) put(buffer ^ 1);
        __syncthreads();
        buffer ^= 1;
    }

    #pragma unroll
    for (int i = 0; i < TM; i++) {
        const int row = row0 + ty * 4 + i / 4 * A_STEP + i % 4;
        if (row >= M) continue;
        #pragma unroll
        for (int j = 0; j < TN; j += 4) {
            const int column = column0 + tx * 4 + j / 4 * B_STEP;
            float *to = c + (long long)row * N + column;
            if (c_whole && column < N) {
                *reinterpret_cast<float4 *>(to) =
                    make_float4(total[i][j], total[i][j + 1], total[i][j + 2], total[i][j + 3]);
            } else {
                for (int q = 0; q < 4 && column + q < N; q++) to[q] = total[i][j + q];
            }
        }
    }
}
