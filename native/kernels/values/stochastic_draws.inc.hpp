// Random bits for stochastic rounding, indexed by position: Threefry 4x32-13, as in kernels/reference/values/threefry.py.
// rounding compares them with what it drops. The draw of position p is word p / 16 % 4 of counter p / 64 * 16 + p % 16: the
// words of 16 counters in a row are draws for neighbours.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace stochastic_draws {

using numbers::Naturals, numbers::vector;

constexpr int strands = 2;  // vectors of counters at once: one alone waits for its own sums
constexpr i64 drawn_together = 64 * (strands * vector > 16 ? strands * vector / 16 : 1);

namespace {  // of this file alone

// Rotation to the left; compilers make one instruction of it where the CPU has one.
inline Naturals rotated(Naturals v, int by) { return v << by | v >> (32 - by); }

// Four words of each of `strands` vectors of counters.
struct Words {
    Naturals x[4][strands];
};

// One MIX of Threefry: an addition, a rotation and an exclusive or for two of the four words, in every lane.
template <int even, int odd, int by>
inline void mix(Words& w) {
#pragma GCC unroll 2
    for (int s = 0; s < strands; ++s) {
        w.x[even][s] += w.x[odd][s];
        w.x[odd][s] = rotated(w.x[odd][s], by) ^ w.x[even][s];
    }
}

// The two MIXes of an even round pair words 0, 1 and 2, 3; those of an odd round pair 0, 3 and 2, 1.
template <int first, int second>
inline void mix_neighbours(Words& w) {
    mix<0, 1, first>(w);
    mix<2, 3, second>(w);
}

template <int first, int second>
inline void mix_others(Words& w) {
    mix<0, 3, first>(w);
    mix<2, 1, second>(w);
}

// The key schedule: word i takes key injection + i of the five, and the last word the number of the injection besides.
template <u32 injection>
inline void add_keys(Words& w, const u32* keys) {
#pragma GCC unroll 4
    for (u32 i = 0; i < 4; ++i)
#pragma GCC unroll 2
        for (int s = 0; s < strands; ++s) w.x[i][s] += keys[(injection + i) % 5] + (i == 3 ? injection : 0);
}

// The draws of drawn_together positions from `first` on, a multiple of 64.
inline void draw_together(u64 seed, i64 first, u32* __restrict out) {
    const u32 low = static_cast<u32>(seed), high = static_cast<u32>(seed >> 32);
    // The seed is the key (low, high, 0, 0); the fifth word is the exclusive or of all four with the constant of
    // Threefish.
    const u32 keys[5] = {low, high, 0, 0, low ^ high ^ 0x1BD11BDAu};
    Naturals lane{};
    for (i64 i = 0; i < vector; ++i) lane[i] = static_cast<u32>(i);
    for (i64 from = 0; from < drawn_together / 4; from += strands * vector) {
        Words w{};
        for (int s = 0; s < strands; ++s) {
            const u64 counter = static_cast<u64>(first / 4 + from + s * vector);
            w.x[0][s] = lane + static_cast<u32>(counter);  // a multiple of the vector: nothing carries
            w.x[1][s] += static_cast<u32>(counter >> 32);
        }
        // Thirteen rounds, keys after every four; rotations are the table of Threefry 4x32, which begins again after
        // eight.
        add_keys<0>(w, keys);
        mix_neighbours<10, 26>(w), mix_others<11, 21>(w), mix_neighbours<13, 27>(w), mix_others<23, 5>(w);
        add_keys<1>(w, keys);
        mix_neighbours<6, 20>(w), mix_others<17, 11>(w), mix_neighbours<25, 10>(w), mix_others<18, 20>(w);
        add_keys<2>(w, keys);
        mix_neighbours<10, 26>(w), mix_others<11, 21>(w), mix_neighbours<13, 27>(w), mix_others<23, 5>(w);
        add_keys<3>(w, keys);
        mix_neighbours<6, 20>(w);
        for (int s = 0; s < strands; ++s)
            for (int word = 0; word < 4; ++word) {
                const i64 c = from + s * vector;
                // Word `word` of 16 counters in a row: 16 neighbours of the 64 positions that these counters serve.
                __builtin_memcpy(out + c / 16 * 64 + 16 * word + c % 16, &w.x[word][s], sizeof(Naturals));
            }
    }
}

}  // namespace

// The draws of n positions from `first` on, `step` apart, at `*start`. n is at most a tile; `out` has room for
// drawn_together more.
inline void draw(u64 seed, i64 first, i64 step, i64 n, u32* __restrict out, u32** start) {
    if (step != 1) {
        // Positions that do not follow each other: each costs a whole block of draws, of which one is used.
        u32 block[drawn_together];
        for (i64 i = 0; i < n; ++i) {
            const i64 p = first + i * step;
            draw_together(seed, p / 64 * 64, block);
            out[i] = block[p % 64];
        }
        *start = out;
        return;
    }
    const i64 before = first % 64;
    for (i64 done = 0; done < n + before; done += drawn_together)
        draw_together(seed, first - before + done, out + done);
    *start = out + before;
}

}  // namespace stochastic_draws
