// y = sums of the rows of x: x (rows, n), row-major, of any type that converts to float; y (rows,) in float32.
//
// TX threads share a row, a block has TY rows. A thread loads VEC neighbours at once and has UNROLL such loads under
// way; sums meet by shuffles within a warp, and in shared memory between the warps of a row.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef TX
#define TX 256
#endif
#ifndef TY
#define TY 1
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef UNROLL
#define UNROLL 1
#endif

constexpr int WARPS = TX / 32;
static_assert(TX % 32 == 0 && TX * TY <= 1024, "whole warps, and at most 1024 threads");

template <typename T> struct alignas(sizeof(T) * VEC) Pack {
    T at[VEC];
};

template <typename T>
__global__ void __launch_bounds__(TX *TY) row_sums(const T *__restrict__ x, float *__restrict__ y, int rows, int n) {
    static_assert(sizeof(Pack<T>) <= 16, "a load has at most 16 bytes");
    __shared__ float parts[TY][WARPS];
    const int row = blockIdx.x * TY + threadIdx.y;
    const T *mine = x + (long long)row * n;
    float total[UNROLL] = {};
    int done = 0;
    if (row < rows && reinterpret_cast<unsigned long long>(mine) % sizeof(Pack<T>) == 0) {
        const Pack<T> *packs = reinterpret_cast<const Pack<T> *>(mine);
        const int whole = n / VEC;
        int i = threadIdx.x;
        for (; i + (UNROLL - 1) * TX < whole; i += UNROLL * TX) {
            Pack<T> got[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL; u++) got[u] = packs[i + u * TX];
            #pragma unroll
            for (int u = 0; u < UNROLL; u++)
                #pragma unroll
                for (int v = 0; v < VEC; v++) total[u] += float(got[u].at[v]);
        }
        for (; i < whole; i += TX) {
            const Pack<T> got = packs[i];
            #pragma unroll
            for (int v = 0; v < VEC; v++) total[0] += float(got.at[v]);
        }
        done = whole * VEC;
    }
    if (row < rows)
        for (int i = done + threadIdx.x; i < n; i += TX) total[0] += float(mine[i]);

    float sum = 0;
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) sum += total[u];
    #pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_down_sync(0xffffffff, sum, lanes);
    if (threadIdx.x % 32 == 0) parts[threadIdx.y][threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0 && row < rows) {
        sum = 0;
        for (int warp = 0; warp < WARPS; warp++) sum += parts[threadIdx.y][warp];
        y[row] = sum;
    }
}
