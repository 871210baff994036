// y = softmax of the rows of x: x (rows, n) of any stride between rows, y (rows, n) without gaps; both DTYPE.
//
// A cluster of CLUSTER blocks shares a row. Each element is read once: a thread keeps SLOTS pieces of 16 bytes of the
// row, the first REGISTERS of them in registers, the others in shared memory, where nobody else reads them: a copy into
// a piece of its own needs no barrier. While pieces arrive a thread keeps the largest element and the sum of powers of
// those that have; all warps of the cluster tell these to all of its blocks, and then each block writes its part. A
// cluster that goes on to another row asks for its pieces as it is done with those of this one.
//
// Rows may begin anywhere. The pieces are x's aligned ones; what lies ahead of the first and behind the last of them,
// the row's ends, are of single threads of the last block.

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
// Sums are by powers of what is this small at least: by less, or -inf, they would be NaN. A row of such elements only,
// or of ones that are as large, has another way: see `wide`.
constexpr float FAR = 1e38f;
#define NONE __int_as_float(0xff800000)  // -inf

typedef unsigned int Word;

// --- elements: two or one in a word ---

struct bfloat16 {
    typedef unsigned short Item;
    static constexpr Word NOTHING = 0xff80ff80u;
    static __device__ float opened(Item item) { return __uint_as_float((Word)item << 16); }
    static __device__ float opened(Word word, int i) { return __uint_as_float(i ? word & 0xffff0000u : word << 16); }
    static __device__ Word larger(Word a, Word b) {
        Word made;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
        return made;
    }
    static __device__ Word closed(float low, float high) {
        Word made;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
        return made;
    }
};

struct float16 {
    typedef unsigned short Item;
    static constexpr Word NOTHING = 0xfc00fc00u;
    static __device__ float opened(Item item) {
        float made;
        asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(item));
        return made;
    }
    static __device__ float opened(Word word, int i) { return opened((Item)(i ? word >> 16 : word)); }
    static __device__ Word larger(Word a, Word b) {
        Word made;
        asm("max.f16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
        return made;
    }
    static __device__ Word closed(float low, float high) {
        Word made;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
        return made;
    }
};

struct float32 {
    typedef unsigned int Item;
    static constexpr Word NOTHING = 0xff800000u;
    static __device__ float opened(Item item, int = 0) { return __uint_as_float(item); }
    static __device__ Word larger(Word a, Word b) {
        return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
    }
    static __device__ Word closed(float low, float) { return __float_as_uint(low); }
};

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
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last LATER groups of this thread's copies are there.
template <int LATER> __device__ void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

__device__ void write(Piece *to, const Piece &piece) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(piece.at[0]), "r"(piece.at[1]),
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

// A block's part of a row: `pieces` of 16 bytes from `x` on, which go to `y`; the thread's own element of the row's
// ends is `end` elements from the row's begin, or there is none, and `end` is -1.
struct Part {
    const Item *x;
    Item *y;
    long long before_x, before_y;  // elements from the row's begin to x and y, negative: pointers of the row
    int pieces, end;
};

__device__ Part part_of(const Item *x, Item *y, int n, int rank) {
    const int ahead = min(n, (int)((16 - (unsigned long long)x % 16) % 16 / sizeof(Item)));
    const int pieces = (n - ahead) / IN_PIECE, share = (pieces + 8 * CLUSTER - 1) / (8 * CLUSTER) * 8;
    const int first = min(rank * share, pieces), skipped = ahead + first * IN_PIECE;
    int end = -1;
    if (rank == CLUSTER - 1 && threadIdx.x < 2 * IN_PIECE) {
        const int place = threadIdx.x, behind = ahead + pieces * IN_PIECE + place - IN_PIECE;
        if (place < IN_PIECE) end = place < ahead ? place : -1;
        else end = behind < n ? behind : -1;
    }
    return {x + skipped, y + skipped, -(long long)skipped, -(long long)skipped, min(share, pieces - first), end};
}

// Largest element, and the sum of powers of 2 of the elements' logarithms less `from`, which is of that.
struct Sum {
    float top, from, total;
};

__device__ float reference(float top) { return fmaxf(top, -FAR) * LOG2_E; }

// What the warps of a cluster tell a block: by turns of the rows, and of `wide`, each time with a phase of its barrier.
struct Told {
    float2 warps[TOLD];
    unsigned long long barrier;
};

__device__ void make(Told &told) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&told.barrier)) : "memory");
}

// A warp's numbers to every block of the cluster, and wait for those of all warps. A warp's next numbers say that it has
// read these: with two in turns none is written over that is still read.
__device__ void tell(Told &told, int phase, int rank, float a, float b) {
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
                 "}" ::"r"(barrier), "r"(phase) : "memory");
}

// The row's Sum from those of its warps: the same in every thread of the cluster.
__device__ Sum row_sum(Told &told, int phase, int rank, const Sum &mine) {
    const float top = warp_largest(mine.top);
    tell(told, phase, rank, top, warp_sum(mine.total * power(mine.from - reference(top))));
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

// Softmax of a row whose largest element is so far from 0, or no number, that its logarithm's product with log2(e) may
// be none: by differences, which are exact, from memory again.
__device__ __noinline__ void wide(Part part, Told &told, int phase, int rank, float top) {
    const Item *row = part.x + part.before_x;
    Item *to = part.y + part.before_y;
    const int elements = part.pieces * IN_PIECE;
    float total = part.end < 0 ? 0 : power((DTYPE::opened(row[part.end]) - top) * LOG2_E);
    for (int i = threadIdx.x; i < elements; i += THREADS) total += power((DTYPE::opened(part.x[i]) - top) * LOG2_E);
    tell(told, phase, rank, 0, warp_sum(total));
    float whole = 0;
    for (int i = threadIdx.x % 32; i < TOLD; i += 32) whole += told.warps[i].y;
    const float scale = 1 / warp_sum(whole);
    if (part.end >= 0) put(to + part.end, power((DTYPE::opened(row[part.end]) - top) * LOG2_E) * scale);
    for (int i = threadIdx.x; i < elements; i += THREADS)
        put(part.y + i, power((DTYPE::opened(part.x[i]) - top) * LOG2_E) * scale);
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, RESIDENT)
cluster_softmax(const void *__restrict__ x, void *__restrict__ y, long long stride_x, int rows, int n) {
    extern __shared__ Piece slots[];
    __shared__ Told told[3];
    const int rank = blockIdx.x % CLUSTER, clusters = gridDim.x / CLUSTER;
    Piece own[REGISTERS > 0 ? REGISTERS : 1];

    auto part_at = [&](int row) {
        return part_of((const Item *)x + row * stride_x, (Item *)y + (long long)row * n, n, rank);
    };
    auto load = [&](auto number, const Part &part) {
        constexpr int I = decltype(number)::value;
        const int place = I * THREADS + threadIdx.x;
        const Piece *from = (const Piece *)part.x + place;
        if constexpr (I < REGISTERS) {
            own[I] = place < part.pieces ? read(from) : nothing();
        } else {
            Piece *to = slots + place - REGISTERS * THREADS;
            if (place < part.pieces) copy(to, from);
            else *to = nothing();
        }
        if constexpr (I % GROUP == GROUP - 1 || I == SLOTS - 1) committed();
    };
    auto held = [&](auto number) {
        constexpr int I = decltype(number)::value;
        if constexpr (I < REGISTERS) return own[I];
        else return slots[(I - REGISTERS) * THREADS + threadIdx.x];
    };
    auto end_of = [&](const Part &part) { return part.end < 0 ? NONE : DTYPE::opened(part.x[part.before_x + part.end]); };

    if (CLUSTER > 1) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < 3; i++) make(told[i]);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        begin();
    }
    int row = blockIdx.x / CLUSTER, done = 0, wide_done = 0;
    Part part = part_at(min(row, rows - 1));
    float end = end_of(part);
    each<0, SLOTS, 1>([&](auto i) { load(i, part); });
    begun();

    for (; row < rows; row += clusters, done++) {
        Sum mine = {end, reference(end), 0};
        mine.total = power(end * LOG2_E - mine.from);
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
            const float top = fmaxf(mine.top, fmaxf(DTYPE::opened(most, 0), DTYPE::opened(most, IN_WORD - 1)));
            const float from = reference(top);
            float more[4] = {};
            #pragma unroll
            for (int p = 0; p < END - FIRST; p++)
                #pragma unroll
                for (int w = 0; w < 4; w++)
                    #pragma unroll
                    for (int i = 0; i < IN_WORD; i++)
                        more[w] += power(fmaf(DTYPE::opened(got[p].at[w], i), LOG2_E, -from));
            mine = {top, from, mine.total * power(mine.from - from) + ((more[0] + more[1]) + (more[2] + more[3]))};
        });
        const Sum whole = row_sum(told[done % 2], done / 2 % 2, rank, mine);

        const bool more = row + clusters < rows;
        Part now = part;
        const float end_now = end;
        if (more) {
            part = part_at(row + clusters);
            end = end_of(part);
        }
        if (!(fabsf(whole.top) < FAR)) {
            wide(now, told[2], wide_done++ % 2, rank, whole.top);
            now.pieces = 0, now.end = -1;  // are written
        }
        const float scale = 1 / whole.total;
        if (now.end >= 0)
            put(now.y + now.before_y + now.end, power(fmaf(end_now, LOG2_E, -whole.from)) * scale);
        const bool aligned = (unsigned long long)now.y % 16 == 0;
        each<0, SLOTS, 1>([&](auto i) {
            const int place = decltype(i)::value * THREADS + threadIdx.x;
            Piece piece = held(i);
            #pragma unroll
            for (int w = 0; w < 4; w++) {
                const float low = power(fmaf(DTYPE::opened(piece.at[w], 0), LOG2_E, -whole.from)) * scale;
                const float high =
                    IN_WORD == 1 ? 0 : power(fmaf(DTYPE::opened(piece.at[w], IN_WORD - 1), LOG2_E, -whole.from)) * scale;
                piece.at[w] = DTYPE::closed(low, high);
            }
            if (more) load(i, part);
            if (place < now.pieces) {
                if (aligned) {
                    write((Piece *)now.y + place, piece);
                } else {
                    Item *to = now.y + place * IN_PIECE;
                    #pragma unroll
                    for (int e = 0; e < IN_PIECE; e++)
                        to[e] = (Item)(piece.at[e / IN_WORD] >> (e % IN_WORD * 8 * sizeof(Item) % 32));
                }
            }
        });
    }
}
