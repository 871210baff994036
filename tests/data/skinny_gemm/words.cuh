// What kernels/cuda/words.cuh has for 16-bit floats, on the CPU.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

typedef unsigned int Word;

struct bfloat16 {
    typedef unsigned short Item;
    static float opened(Item item) {
        const Word word = (Word)item << 16;
        float made;
        memcpy(&made, &word, 4);
        return made;
    }
    static Item rounded(float value) {
        Word word;
        memcpy(&word, &value, 4);
        return value != value ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
    }
    static Word closed(float low, float high) { return rounded(low) | (Word)rounded(high) << 16; }
};

struct float16 {
    typedef unsigned short Item;
    static float opened(Item item) {
        const int exponent = item >> 10 & 31, fraction = item & 1023;
        const float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                            : exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
        return item >> 15 ? -value : value;
    }
    static Item rounded(float value) {
        const Item sign = std::signbit(value) ? 0x8000 : 0;
        const float size = fabsf(value);
        if (size != size) return 0x7fff;
        if (size >= 65520) return sign | 0x7c00;
        int exponent = -14;  // of 0 and what is nearly so
        if (size > 0) frexpf(size, &exponent);
        const int last = exponent < -13 ? -24 : exponent - 11;  // power of 2 of the last place
        return sign | (((last + 24) << 10) + (int)rintf(ldexpf(size, -last)));
    }
    static Word closed(float low, float high) { return rounded(low) | (Word)rounded(high) << 16; }
};
