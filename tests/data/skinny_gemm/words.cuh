// What kernels/cuda/words.cuh has for 16-bit floats, on the CPU.

#pragma once

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
        _Float16 made;
        memcpy(&made, &item, 2);
        return (float)made;
    }
    static Item rounded(float value) {
        const _Float16 made = (_Float16)value;
        Item item;
        memcpy(&item, &made, 2);
        return item;
    }
    static Word closed(float low, float high) { return rounded(low) | (Word)rounded(high) << 16; }
};
