// What skinny_gemm.cu asks of the chip, as the emulation has it: declared here, where the kernel's section for it was.

#define SHARED Piece *const shared = shared_memory()

static Piece *shared_memory();
static void copy_w(Piece *to, const char *from);
static void copy_x(Piece *to, const char *from);
static void committed();
static void wait_for_copies(int later);
template <int LATER> static void arrived() { wait_for_copies(LATER); }
static void multiply_tiles(float (&to)[4], const Word (&a)[4], const Word (&b)[2]);
template <typename T> struct Product {
    static void add(float (&to)[4], Word a0, Word a1, Word a2, Word a3, Word b0, Word b1) {
        multiply_tiles(to, {a0, a1, a2, a3}, {b0, b1});
    }
};
static void together(int part);
static void tell(Four *to, int rank, const Four &sum);
static void begin();
static void begun();
static void told();
static void prefetch(const char *from);
static void earlier_done();
static void later_may_begin();
static void keep(const char *&) {}
static void write(Item *to, Word low, Word high);
