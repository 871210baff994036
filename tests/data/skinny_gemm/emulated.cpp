// Runs skinny_gemm.cu itself on the CPU, thread by thread: in random order, copies late or early, memory full of NaN.
//
//     emulated M N K SEED ...     prints "ok", or what is wrong, for each four numbers

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <vector>

using std::min;

#define __device__
#define __global__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)

static struct {
    int x;
} threadIdx, blockIdx;
static void __syncthreads();
static void __syncwarp();

#include "kernel.cu"

// --- threads, blocks, a cluster ---

struct Barrier {
    int size, count = 0;
    long generation = 0;
};

struct Copy {
    Piece *to;
    const char *from;
};

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(65536);
    int block, number;
    bool done, waited;  // `waited`: for the kernel before
    Barrier *at;  // where it waits, and of which generation
    long generation, cluster_generation;
    std::deque<std::vector<Copy>> groups;
    std::vector<Copy> open;
};

struct Warp {
    Barrier barrier{32};
    Word a[32][4], b[32][2];
};

struct Block {
    std::vector<Piece> shared;
    std::vector<Barrier> parts = std::vector<Barrier>(32, Barrier{32 * SPREAD});
    Barrier barrier{THREADS};
    Warp warps[WARPS];
    bool begun = false, over = false;  // `over`: the kernel behind may have begun
    int left = THREADS;
};

struct Range {
    const char *begin, *end;
};

static std::vector<Thread> threads;
static std::vector<Block> blocks;
static Barrier cluster;
static Thread *me;
static ucontext_t scheduler;
static std::mt19937 draw;
static int first_block, early_copies;  // 0: as late as can be, 1: at once, 2: either

static Range in_x, in_w, in_c;
static struct {
    Item *x, *w, *bias, *c;
    long long stride_x, stride_w;
    int M, N, K;
} given;

static void fail(const char *why) {
    printf("%s: block %d, thread %d\n", why, first_block + me->block, me->number);
    exit(1);
}

static Block &my_block() { return blocks[me->block]; }
static Warp &my_warp() { return my_block().warps[me->number / 32]; }

static void be(Thread *thread) {
    me = thread;
    threadIdx.x = me->number;
    blockIdx.x = first_block + me->block;
}

static void pause() {
    Thread *const thread = me;
    swapcontext(&thread->context, &scheduler);
    be(thread);
}

static void arrive(Barrier &barrier) {
    if (++barrier.count == barrier.size) barrier.count = 0, barrier.generation++;
}

static void wait(Barrier &barrier, long generation) {
    me->at = &barrier, me->generation = generation;
    while (barrier.generation == generation) pause();
    me->at = nullptr;
}

static void sync(Barrier &barrier) {
    const long generation = barrier.generation;
    arrive(barrier);
    wait(barrier, generation);
    if (draw() % 4 == 0) pause();
}

static void __syncthreads() { sync(my_block().barrier); }
static void __syncwarp() { sync(my_warp().barrier); }
static void together(int part) { sync(my_block().parts[part]); }

static void begin() {
    me->cluster_generation = cluster.generation;
    arrive(cluster);
    if (draw() % 2) pause();
}
static void begun() { wait(cluster, me->cluster_generation); }
static void told() { sync(cluster); }

// --- memory ---

static Piece *shared_memory() { return my_block().shared.data(); }

static void check(const char *at, const Range &range, int bytes) {
    if (at < range.begin || at + bytes > range.end) fail("an address outside of an array");
    if ((uintptr_t)at % bytes) fail("an address that is not aligned");
}

static void copy(Piece *to, const char *from, const Range &range) {
    check(from, range, 16);
    if (DEPENDENT && !me->waited) fail("read before the kernel before had ended");
    if (my_block().over) fail("read when the kernel behind may have begun");
    std::vector<Piece> &shared = my_block().shared;
    if (to < shared.data() || to >= shared.data() + shared.size()) fail("a copy outside of shared memory");
    if (early_copies == 1 || (early_copies == 2 && draw() % 2)) {
        memcpy(to, from, 16);
    } else {
        memset(to, 0xff, 16);
        me->open.push_back({to, from});
    }
}

static void copy_w(Piece *to, const char *from) { copy(to, from, in_w); }
static void copy_x(Piece *to, const char *from) { copy(to, from, in_x); }

static void committed() {
    me->groups.push_back(me->open);
    me->open.clear();
}

static void wait_for_copies(int later) {
    for (; (int)me->groups.size() > later; me->groups.pop_front())
        for (const Copy &copy : me->groups.front()) memcpy(copy.to, copy.from, 16);
    if (draw() % 8 == 0) pause();
}

static void write(Item *to, Word low, Word high) {
    check((const char *)to, in_c, 8);
    memcpy(to, &low, 4);
    memcpy(to + 2, &high, 4);
}

static void tell(Four *to, int rank, const Four &sum) {
    if (rank < 0 || rank >= CLUSTER || !blocks[rank].begun || !blocks[rank].left) fail("told a block that is not there");
    const long at = (char *)to - (char *)my_block().shared.data();
    if (at < 0 || at + 16 > (long)(16 * blocks[rank].shared.size())) fail("told outside of shared memory");
    memcpy((char *)blocks[rank].shared.data() + at, &sum, 16);
    if (draw() % 4 == 0) pause();
}

static void prefetch(const char *from) { check((const char *)((uintptr_t)from & ~15ull), in_w, 16); }
static void earlier_done() { me->waited = true; }
static void later_may_begin() { my_block().over = true; }

// mma.m16n8k16: of a lane's a, registers 0 and 2 are row lane / 4, 1 and 3 the one 8 below; 0 and 1 are columns 2 (lane % 4)
// and the next, 2 and 3 those 8 behind. Of its b, column lane / 4, rows as a's columns.
static void multiply_tiles(float (&to)[4], const Word (&a)[4], const Word (&b)[2]) {
    Warp &warp = my_warp();
    const int lane = me->number % 32;
    memcpy(warp.a[lane], a, sizeof a);
    memcpy(warp.b[lane], b, sizeof b);
    sync(warp.barrier);
    auto half = [](Word word, int i) { return (double)DTYPE::opened((Item)(i ? word >> 16 : word)); };
    float made[4];
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
        double sum = to[i];
        for (int k = 0; k < 16; k++) {
            const int by = k % 8 / 2, register_a = (row >= 8) + 2 * (k >= 8);
            sum += half(warp.a[row % 8 * 4 + by][register_a], k % 2) * half(warp.b[column * 4 + by][k >= 8], k % 2);
        }
        made[i] = (float)sum;
    }
    sync(warp.barrier);
    memcpy(to, made, sizeof made);
}

// --- a launch ---

static void body() {
    Thread *const thread = me;
    be(thread);
    my_block().begun = true;
    skinny_gemm(given.x, given.w, given.bias, given.c, given.stride_x, given.stride_w, given.M, given.N, given.K);
    thread->done = true;
    blocks[thread->block].left--;
    swapcontext(&thread->context, &scheduler);
}

static void run_cluster(int number) {
    first_block = number * CLUSTER;
    blocks.clear();
    blocks.resize(CLUSTER);
    cluster = Barrier{CLUSTER * THREADS};
    for (Block &block : blocks) {
        block.shared.resize(SHARED_BYTES / 16);
        memset((void *)block.shared.data(), 0xff, SHARED_BYTES);
    }
    threads.resize(CLUSTER * THREADS);
    std::vector<int> alive;
    for (int i = 0; i < CLUSTER * THREADS; i++) {
        Thread &one = threads[i];
        one.block = i / THREADS, one.number = i % THREADS, one.done = one.waited = false, one.at = nullptr;
        one.groups.clear();
        getcontext(&one.context);
        one.context.uc_stack.ss_sp = one.stack.data(), one.context.uc_stack.ss_size = one.stack.size();
        makecontext(&one.context, body, 0);
        alive.push_back(i);
    }
    const int late = draw() % (CLUSTER + 1);  // a block that begins when others wait for it
    int slow_warp = 0, slow_for = 0;
    for (long rounds = 0; !alive.empty(); rounds++) {
        std::shuffle(alive.begin(), alive.end(), draw);
        if (slow_for-- <= 0) slow_warp = draw() % (CLUSTER * WARPS), slow_for = draw() % 30;
        bool ran = false;
        for (int i : alive) {
            Thread &one = threads[i];
            if (one.at && one.at->generation == one.generation) continue;
            ran = true;
            const bool held = CLUSTER > 1 && one.block == late && !blocks[late].begun && rounds < 200;
            if (held || (i / 32 == slow_warp && draw() % 16)) continue;
            me = &one;
            swapcontext(&scheduler, &one.context);
        }
        if (!ran) fail("all wait for each other");
        alive.erase(std::remove_if(alive.begin(), alive.end(), [](int i) { return threads[i].done; }), alive.end());
    }
}

// --- what is right ---

static double exact(none, double x) { return x; }
static double exact(relu, double x) { return x < 0 ? 0 : x; }
static double exact(gelu, double x) { return 0.5 * x * (1 + erf(x * sqrt(0.5))); }
static double exact(silu, double x) { return x / (1 + exp(-x)); }

static Item *normal(long rows, long used, long pitch, double scale) {  // NaN beyond `used`
    std::normal_distribution<float> of;
    Item *const made = (Item *)aligned_alloc(64, (rows * pitch * 2 + 63) / 64 * 64);
    for (long i = 0; i < rows * pitch; i++) made[i] = i % pitch < used ? DTYPE::rounded(scale * of(draw)) : 0x7fff;
    return made;
}

static bool is_right(int M, int N, int K, int seed) {
    draw.seed(seed);
    early_copies = seed % 3;
    const long whole = (K + 7) / 8 * 8, apart_x = whole + seed % 2 * 24, apart_w = whole + seed % 3 * 8;
    const double scale = 1 / sqrt(K + 1.0);
    Item *const x = normal(M, K, apart_x, 1), *const w = normal(N, K, apart_w, scale), *const bias = normal(1, N, N, 1);
    std::vector<Item> c(M * N + 128, 0x7ffe);
    given = {x, w, seed % 2 ? bias : nullptr, c.data(), apart_x, apart_w, M, N, K};
    in_x = {(char *)x, (char *)(x + M * apart_x)}, in_w = {(char *)w, (char *)(w + N * apart_w)};
    in_c = {(char *)c.data(), (char *)(c.data() + M * N)};
    for (int tile = 0; tile < (N + ROWS - 1) / ROWS; tile++) run_cluster(tile);
    double worst = 0;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            double sum = given.bias ? DTYPE::opened(bias[n]) : 0;
            for (int k = 0; k < K; k++) sum += (double)DTYPE::opened(x[m * apart_x + k]) * DTYPE::opened(w[n * apart_w + k]);
            const double right = exact(ACTIVATION(), sum), off = fabs(DTYPE::opened(c[m * N + n]) - right) / (1 + fabs(right));
            worst = off <= worst ? worst : off;
        }
    bool fine = worst < 5e-3;
    for (int i = 0; i < 128; i++) fine = fine && c[M * N + i] == 0x7ffe;
    printf("%s: M=%d N=%d K=%d seed %d, off by %.1e\n", fine ? "ok" : "WRONG", M, N, K, seed, worst);
    free(x), free(w), free(bias);
    return fine;
}

int main(int n, char **argv) {
    bool fine = true;
    for (int i = 1; i + 3 < n; i += 4)
        fine = is_right(atoi(argv[i]), atoi(argv[i + 1]), atoi(argv[i + 2]), atoi(argv[i + 3])) && fine;
    return !fine;
}
