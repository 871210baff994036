// y = softmax of the rows of x: x (rows, n) of any stride between rows, y (rows, n) without gaps; both DTYPE.
//
// A cluster of CLUSTER blocks shares a row. Each element is read once: a thread keeps SLOTS pieces of 16 bytes of the
// row, the first REGISTERS of them in registers, the others in shared memory, where nobody else reads them: a copy into
// a piece of its own needs no barrier. While pieces arrive a thread keeps the largest element and the sum of powers of
// those that have; all warps of the cluster tell these to all of its blocks, and then each block writes its part. Several
// blocks of a multiprocessor do so at once: some load while others compute and write. (Clusters that stay, and ask for the
// next row's pieces as they write this one's, were 4 to 8 % slower on an H200.)
//
// Rows may begin anywhere. The pieces are x's aligned ones; what lies ahead of the first and behind the last of them,
// the row's ends, are of single threads of the last block. Where y's are elsewhere, rows are read again: see `alone`.

#include "words.cuh"

#ifndef DTYPE
#define DTYPE bfloat16
#endif
#ifndef CLUSTER
#define CLUSTER 4
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef SLOTS
#define SLOTS 16
#endif
#ifndef REGISTERS
#define REGISTERS 0
#endif
#ifndef RESIDENT
#define RESIDENT 1
#endif

// 16-byte pieces that are looked at together: one power more for each such group, to keep sums by one largest element
constexpr int GROUP = 4, WARPS = THREADS / 32, TOLD = CLUSTER * WARPS;
static_assert(THREADS % 32 == 0 && REGISTERS <= SLOTS && CLUSTER <= 8, "whole warps, portable clusters");
constexpr float LOG2_E = 1.4426950408889634f;
// Logarithms are by products with log2(e), whose rounding moves all powers of a row alike: by less than one for elements
// that are nearer to 0 than this, and so far for others (from 1e10 on) that a power is infinite or 0. So sums are by
// powers of what is -FAR at least, beside which all that is less is 0; a row of such elements only (masked by -1e30, or
// -inf), or with ones that are as large, has another way: see `alone`.
constexpr float FAR = 1e7f;
#define NONE __int_as_float(0xff800000)  // -inf

typedef DTYPE::Item Item;
constexpr int IN_WORD = 4 / sizeof(Item), IN_PIECE = 4 * IN_WORD;

struct alignas(16) Piece {
    Word at[4];
};

__device__ Piece nothing() { return {{DTYPE::NOTHING, DTYPE::NOTHING, DTYPE::NOTHING, DTYPE::NOTHING}}; }

// --- what the chip does ---

__device__ unsigned shared_address(const void *at) { return (unsigned)__cvta_generic_to_shared(at); }

__device__ float power(float x) {  // of 2
    float made;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(x));
    return made;
}

__device__ Piece read(const Piece *from) {
    Piece made;
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(made.at[0]), "=r"(made.at[1]), "=r"(made.at[2]), "=r"(made.at[3]) : "l"(from) : "memory");
    return made;
}

__device__ void copy(Piece *to, const Piece *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last LATER groups of this thread's copies are there.
template <int LATER> __device__ void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

__device__ void write(Piece *to, const Piece &piece) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(piece.at[0]), "r"(piece.at[1]),
                 "r"(piece.at[2]), "r"(piece.at[3]) : "memory");
}

// All blocks of the cluster have begun, and made their barriers, once `begun` returns.
__device__ void begin() {
    if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ void begun() {
    if (CLUSTER > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ float warp_largest(float x) {
    #pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

__device__ float warp_sum(float x) {  // the same in all lanes
    #pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

// --- loops whose index is a constant: registers and copies are by number ---

template <int I> struct Number {
    static constexpr int value = I;
};

template <int FIRST, int END, int STEP, typename Body> __device__ __forceinline__ void each(const Body &body) {
    if constexpr (FIRST < END) {
        body(Number<FIRST>());
        each<FIRST + STEP, END, STEP>(body);
    }
}

// --- a row ---

// A thread's part of a row: a piece of 16 bytes from x on, which goes to y, and as many, THREADS pieces apart, as begin
// ahead of `left` pieces. And one element of the row's ends, which is so far from the row's begin, or none: -1.
struct Part {
    const Item *x;
    Item *y;
    int skipped, left, end;  // elements from the row's begin to x, pieces, elements
};

__device__ Part part_of(const Item *x, Item *y, int n, int rank) {
    const int ahead = min(n, (int)((16 - (unsigned long long)x % 16) % 16 / sizeof(Item)));
    const int pieces = (n - ahead) / IN_PIECE, share = (pieces + 8 * CLUSTER - 1) / (8 * CLUSTER) * 8;
    const int first = rank * share + threadIdx.x, skipped = ahead + first * IN_PIECE;
    // Threads of the last block: the first ones' are ahead, the next ones' behind.
    int end = threadIdx.x, most = ahead;
    if (end >= IN_PIECE) end += ahead + (pieces - 1) * IN_PIECE, most = n;
    if (rank < CLUSTER - 1 || threadIdx.x >= 2 * IN_PIECE || end >= most) end = -1;
    return {x + skipped, y + skipped, skipped, min((rank + 1) * share, pieces) - first, end};
}

// Largest element, and the sum of powers of 2 of the elements' logarithms less `from`, which is of that.
struct Sum {
    float top, from, total;
};

// Rounded, always: were its product with log2(e) made part of a difference, unrounded, largest elements that are the same
// would have powers other than 1 of each other.
__device__ float reference(float top) { return __fmul_rn(fmaxf(top, -FAR), LOG2_E); }

// What the warps of a cluster tell a block: once, with a barrier of its own.
struct Told {
    float2 warps[TOLD];
    unsigned long long barrier;
};

__device__ void make(Told &told) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&told.barrier)) : "memory");
}

// A warp's numbers to every block of the cluster, and wait for those of all warps.
__device__ void tell(Told &told, int rank, float a, float b) {
    const int lane = threadIdx.x % 32;
    float2 *mine = told.warps + rank * WARPS + threadIdx.x / 32;
    if (CLUSTER == 1) {
        if (lane == 0) *mine = make_float2(a, b);
        __syncthreads();
        return;
    }
    const unsigned barrier = shared_address(&told.barrier);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "n"(TOLD * 8) : "memory");
    if (lane < CLUSTER)
        asm volatile("{\n"
                     "    .reg .b32 there, barrier;\n"
                     "    .reg .b64 numbers;\n"
                     "    mapa.shared::cluster.u32 there, %0, %4;\n"
                     "    mapa.shared::cluster.u32 barrier, %1, %4;\n"
                     "    mov.b64 numbers, {%2, %3};\n"
                     "    st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [there], numbers, [barrier];\n"
                     "}" ::"r"(shared_address(mine)), "r"(barrier), "f"(a), "f"(b), "r"(lane) : "memory");
    __syncwarp();
    asm volatile("{\n"
                 "    .reg .pred done;\n"
                 "again:\n"
                 "    mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "    @!done bra again;\n"
                 "}" ::"r"(barrier), "n"(0) : "memory");
}

// The row's Sum from those of its warps: the same in every thread of the cluster.
__device__ Sum row_sum(Told &told, int rank, const Sum &mine) {
    const float top = warp_largest(mine.top);
    tell(told, rank, top, warp_sum(mine.total * power(mine.from - reference(top))));
    float2 got[(TOLD + 31) / 32];
    float most = NONE, total = 0;
    #pragma unroll
    for (int i = 0; i < (TOLD + 31) / 32; i++) {
        const int place = i * 32 + threadIdx.x % 32;
        got[i] = place < TOLD ? told.warps[place] : make_float2(NONE, 0);
        most = fmaxf(most, got[i].x);
    }
    most = warp_largest(most);
    const float from = reference(most);
    #pragma unroll
    for (int i = 0; i < (TOLD + 31) / 32; i++) total += got[i].y * power(reference(got[i].x) - from);
    return {most, from, warp_sum(total)};
}

__device__ void put(Item *to, float value) { *to = (Item)DTYPE::closed(value, 0); }

// Softmax of a row element by element, from memory again, by differences, which are exact: where the largest element is
// far from 0, or no number, and where y has no pieces where x has them.
__device__ __noinline__ void alone(Part part, Told &told, int rank, float top) {
    const Item *__restrict__ const x = part.x - part.skipped;
    Item *__restrict__ const y = part.y - part.skipped;
    // The block's elements: neighbours are of neighbouring threads.
    const int begin = part.skipped - threadIdx.x * (IN_PIECE - 1), end = part.skipped + part.left * IN_PIECE;
    auto exponential = [&](float element) { return power((element - top) * LOG2_E); };
    auto over = [&](auto done) {  // several at once: each is waited for
        constexpr int MANY = 4;
        for (int i = begin; i < end; i += MANY * THREADS) {
            float got[MANY];
            #pragma unroll
            for (int j = 0; j < MANY; j++) got[j] = i + j * THREADS < end ? DTYPE::opened(x[i + j * THREADS]) : NONE;
            #pragma unroll
            for (int j = 0; j < MANY; j++) done(i + j * THREADS, exponential(got[j]));
        }
    };
    const float mine = part.end < 0 ? 0 : exponential(DTYPE::opened(x[part.end]));
    float total = mine, whole = 0;
    over([&](int i, float value) { total += i < end ? value : 0; });
    tell(told, rank, 0, warp_sum(total));
    for (int i = threadIdx.x % 32; i < TOLD; i += 32) whole += told.warps[i].y;
    const float scale = 1 / warp_sum(whole);
    if (part.end >= 0) put(y + part.end, mine * scale);
    over([&](int i, float value) { if (i < end) put(y + i, value * scale); });
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, RESIDENT)
cluster_softmax(const void *__restrict__ x, void *__restrict__ y, long long stride_x, int n) {
    extern __shared__ Piece slots[];
    __shared__ Told told[2];
    const int rank = blockIdx.x % CLUSTER;
    const long long row = blockIdx.x / CLUSTER;
    const Part part = part_of((const Item *)x + row * stride_x, (Item *)y + row * n, n, rank);
    Piece own[REGISTERS > 0 ? REGISTERS : 1], *const mine = slots + threadIdx.x;

    auto load = [&](auto number) {
        constexpr int I = decltype(number)::value;
        const Piece *from = (const Piece *)part.x + I * THREADS;
        const bool there = I * THREADS < part.left;
        if constexpr (I < REGISTERS) own[I] = there ? read(from) : nothing();
        else if (there) copy(mine + (I - REGISTERS) * THREADS, from);
        else mine[(I - REGISTERS) * THREADS] = nothing();
        if constexpr (I % GROUP == GROUP - 1 || I == SLOTS - 1) committed();
    };
    auto held = [&](auto number) {
        constexpr int I = decltype(number)::value;
        if constexpr (I < REGISTERS) return own[I];
        else return mine[(I - REGISTERS) * THREADS];
    };

    if (CLUSTER > 1) {
        if (threadIdx.x == 0) {
            make(told[0]);
            make(told[1]);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
        begin();
    }
    const float end = part.end < 0 ? NONE : DTYPE::opened(part.x[part.end - part.skipped]);
    each<0, SLOTS, 1>(load);
    begun();

    Sum sum = {end, reference(end), 0};
    sum.total = power(fmaf(end, LOG2_E, -sum.from));
    each<0, SLOTS, GROUP>([&](auto first) {
        constexpr int FIRST = decltype(first)::value, END = FIRST + GROUP < SLOTS ? FIRST + GROUP : SLOTS;
        arrived<(SLOTS + GROUP - 1) / GROUP - 1 - FIRST / GROUP>();
        Piece got[GROUP];
        Word most = DTYPE::NOTHING;
        each<FIRST, END, 1>([&](auto i) {
            got[decltype(i)::value - FIRST] = held(i);
            #pragma unroll
            for (int w = 0; w < 4; w++) most = DTYPE::larger(most, got[decltype(i)::value - FIRST].at[w]);
        });
        const float top = fmaxf(sum.top, fmaxf(DTYPE::opened(most, 0), DTYPE::opened(most, IN_WORD - 1)));
        const float from = reference(top);
        float more[4] = {};
        #pragma unroll
        for (int p = 0; p < END - FIRST; p++)
            #pragma unroll
            for (int w = 0; w < 4; w++)
                #pragma unroll
                for (int i = 0; i < IN_WORD; i++)
                    more[w] += power(fmaf(DTYPE::opened(got[p].at[w], i), LOG2_E, -from));
        sum = {top, from, sum.total * power(sum.from - from) + ((more[0] + more[1]) + (more[2] + more[3]))};
    });
    const Sum whole = row_sum(told[0], rank, sum);

    if (!(fabsf(whole.top) < FAR) || (unsigned long long)part.y % 16 != 0) {
        alone(part, told[1], rank, whole.top);
        return;
    }
    const float scale = 1 / whole.total;
    if (part.end >= 0) put(part.y - part.skipped + part.end, power(fmaf(end, LOG2_E, -whole.from)) * scale);
    each<0, SLOTS, 1>([&](auto number) {
        constexpr int I = decltype(number)::value;
        Piece piece = held(number);
        #pragma unroll
        for (int w = 0; w < 4; w++) {
            float value[2] = {};
            #pragma unroll
            for (int i = 0; i < IN_WORD; i++)
                value[i] = power(fmaf(DTYPE::opened(piece.at[w], i), LOG2_E, -whole.from)) * scale;
            piece.at[w] = DTYPE::closed(value[0], value[1]);
        }
        if (I * THREADS < part.left) write((Piece *)part.y + I * THREADS, piece);
    });
}
