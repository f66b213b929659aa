// Random bits for stochastic rounding, indexed by position: Threefry 4x32, as in kernels/reference/values/threefry.py.
// rounding adds them to what it drops. The words of 16 counters in a row are draws for neighbours: of 32 bits, position p
// has word p / 16 % 4 of counter p / 64 * 16 + p % 16, after 13 rounds; of 16 bits, half p / 16 % 2 of word p / 32 % 4 of
// counter p / 128 * 16 + p % 16, after 12.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace stochastic_draws {

using numbers::Naturals, numbers::vector;
using vectors::write;

constexpr int strands = 2;  // vectors of counters at once: one alone waits for its own sums
constexpr i64 counters_together = strands * vector > 16 ? strands * vector : 16;
constexpr i64 drawn_together = 8 * counters_together;  // at most, of 16 bits

// How many positions 16 counters serve.
inline constexpr i64 positions_of(i32 random_bits) { return random_bits == 32 ? 64 : 128; }

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

// The draws of counters_together counters, from that of position `first` on, which is a multiple of positions_of. A draw
// of 32 bits is a word, two of 16 bits are its halves.
template <i32 random_bits>
inline void draw_together(u64 seed, i64 first, u32* __restrict out) {
    const u32 low = static_cast<u32>(seed), high = static_cast<u32>(seed >> 32);
    // The seed is the key (low, high, 0, 0); the fifth word is the exclusive or of all four with the constant of
    // Threefish.
    const u32 keys[5] = {low, high, 0, 0, low ^ high ^ 0x1BD11BDAu};
    Naturals lane{};
    for (i64 i = 0; i < vector; ++i) lane[i] = static_cast<u32>(i);
    for (i64 from = 0; from < counters_together; from += strands * vector) {
        Words w{};
        for (int s = 0; s < strands; ++s) {
            const u64 counter = static_cast<u64>(first / positions_of(random_bits) * 16 + from + s * vector);
            w.x[0][s] = lane + static_cast<u32>(counter);  // a multiple of the vector: nothing carries
            w.x[1][s] += static_cast<u32>(counter >> 32);
        }
        // Twelve rounds or thirteen, keys after every four; rotations are the table of Threefry 4x32, which begins again
        // after eight.
        add_keys<0>(w, keys);
        mix_neighbours<10, 26>(w), mix_others<11, 21>(w), mix_neighbours<13, 27>(w), mix_others<23, 5>(w);
        add_keys<1>(w, keys);
        mix_neighbours<6, 20>(w), mix_others<17, 11>(w), mix_neighbours<25, 10>(w), mix_others<18, 20>(w);
        add_keys<2>(w, keys);
        mix_neighbours<10, 26>(w), mix_others<11, 21>(w), mix_neighbours<13, 27>(w), mix_others<23, 5>(w);
        add_keys<3>(w, keys);
        if (random_bits == 32) mix_neighbours<6, 20>(w);
        for (int s = 0; s < strands; ++s)
            for (int word = 0; word < 4; ++word) {
                // Word `word` of 16 counters in a row, or half of it: 16 neighbours of the positions that they serve.
                const i64 c = from + s * vector;
                u32* to = out + c / 16 * positions_of(random_bits) + c % 16;
                if (random_bits == 32) {
                    write(to + 16 * word, w.x[word][s]);
                } else {
                    write(to + 32 * word, w.x[word][s] & 0xffffu);
                    write(to + 32 * word + 16, w.x[word][s] >> 16);
                }
            }
    }
}

template <i32 random_bits>
inline void draw_bits(u64 seed, i64 first, i64 step, i64 n, u32* __restrict out, const u32** start) {
    constexpr i64 together = positions_of(random_bits), drawn = counters_together / 16 * together;
    if (step != 1) {
        // Positions that do not follow each other: each costs a whole block of draws, of which one is used.
        u32 block[drawn];
        for (i64 i = 0; i < n; ++i) {
            const i64 p = first + i * step;
            draw_together<random_bits>(seed, p / together * together, block);
            out[i] = block[p % together];
        }
        *start = out;
        return;
    }
    // First: it has left the core when it is read, in one vector with what lies beside it.
    const i64 before = first % together;
    *start = out + before;
    for (i64 done = 0; done < n + before; done += drawn) draw_together<random_bits>(seed, first - before + done, out + done);
}

}  // namespace

// The draws of n positions from `first` on, `step` apart, at `*start`, of 16 or 32 random bits each. n is at most a tile;
// `out` has room for drawn_together more.
inline void draw(u64 seed, i32 random_bits, i64 first, i64 step, i64 n, u32* __restrict out, const u32** start) {
    if (random_bits == 32) return draw_bits<32>(seed, first, step, n, out, start);
    draw_bits<16>(seed, first, step, n, out, start);
}

}  // namespace stochastic_draws
