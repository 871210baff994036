// Elements as 32-bit words have them, two or one: the largest of each place, to and from float. Nothing is included.

#pragma once

typedef unsigned int Word;

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
