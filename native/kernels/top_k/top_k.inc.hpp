// The places of the largest magnitudes of an array, exact: kernels/reference/top_k/top_k.py.
//
// One pass over the array keeps what is above all that is known to be too small. When there is no room for more, the k
// largest of it are found by a histogram of their bits; the least of them is then the bar for what follows: a value of
// its magnitude that comes later loses against it. Bars rise fast, so that of 1 % of random values a twentieth is ever
// written; where magnitudes rise to the end all are, and each is sorted out a few times.
#pragma once

#include "kernels/top_k/compaction.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace top_k {

using compaction::count_of_lanes, compaction::first_lanes, compaction::lanes_above, compaction::lanes_equal,
    compaction::write_chosen;
using numbers::Bits, numbers::bits_of, numbers::least, numbers::magnitude_mask, numbers::vector;
using vectors::broadcast, vectors::read, vectors::write;

namespace {  // of this file alone

// The magnitude that ranks last of the k largest, and how many of its size are among them.
struct Bar {
    i32 magnitude;
    i64 ties;
};

// The 31 bits of a magnitude in three digits, the upper first. Of a sample of one binade the first digit has only eight
// values: four counters for each, in turn, so that none waits for its own last addition.
constexpr i32 digit_shift[] = {20, 10, 0}, digit_bits = 11, digits = 1 << digit_bits, counters = 4;

inline Bar bar_of(const i32* magnitudes, i64 n, i64 k) {
    Bar bar{0, k};
    i32 above = 31;  // where the digits that are known begin
    for (const i32 shift : digit_shift) {
        alignas(64) i32 counts[counters][digits + 1] = {};
        const i32 mask = (1 << (above - shift)) - 1;
        // Those that differ in the digits so far are counted where nobody looks: a branch would often be predicted wrong.
        for (i64 i = 0; i < n; ++i) {
            const i32 m = magnitudes[i];
            ++counts[i & (counters - 1)][m >> above == bar.magnitude ? m >> shift & mask : digits];
        }
        // From the largest digit down to the one in which the last of the k lies.
        i32 digit = mask;
        for (;; --digit) {
            i64 here = 0;
            for (const auto& c : counts) here += c[digit];
            if (here >= bar.ties) break;
            bar.ties -= here;
        }
        bar.magnitude = bar.magnitude << (above - shift) | digit;
        above = shift;
    }
    return bar;
}

// One candidate behind those that are there, if it is chosen; no branch.
inline i64 append(const Candidates& to, i64 count, i32 magnitude, i32 place, bool chosen) {
    to.magnitudes[count] = magnitude;
    to.places[count] = place;
    return count + chosen;
}

// Whole vectors of candidates, likewise.
inline i64 append(const Candidates& to, i64 count, Bits magnitudes, Bits places, u32 chosen) {
    write_chosen(magnitudes, chosen, to.magnitudes + count);
    write_chosen(places, chosen, to.places + count);
    return count + count_of_lanes(chosen);
}

// The k largest of n candidates, k below n, move to the front in the same order; returns the least of them. What is read always lies behind what is
// written, a vector too.
inline i32 thin_out(const Candidates& c, i64 n, i64 k) {
    const Bar bar = bar_of(c.magnitudes, n, k);
    const Bits level = broadcast(bar.magnitude);
    i64 ties = bar.ties, count = 0, i = 0;
    for (; i + vector <= n; i += vector) {
        const Bits magnitudes = read<Bits>(c.magnitudes + i), places = read<Bits>(c.places + i);
        // Of equal magnitudes the first ones stay.
        const u32 same = first_lanes(lanes_equal(magnitudes, level), ties);
        ties -= count_of_lanes(same);
        count = append(c, count, magnitudes, places, lanes_above(magnitudes, level) | same);
    }
    for (; i < n; ++i) {
        const bool same = c.magnitudes[i] == bar.magnitude && ties > 0;
        ties -= same;
        count = append(c, count, c.magnitudes[i], c.places[i], c.magnitudes[i] > bar.magnitude || same);
    }
    return bar.magnitude;
}

// Magnitudes as 31 bits in the order of their size: those of 16 bits have zeros below.
inline Bits magnitudes_at(const float* x) { return read<Bits>(x) & magnitude_mask; }
inline i32 magnitude_of(float x) { return bits_of(x) & magnitude_mask; }

inline Bits magnitudes_at(const u16* x) {
    using Halves = u16 __attribute__((vector_size(vector * 2)));
    return __builtin_convertvector(read<Halves>(x), Bits) << 16 & magnitude_mask;
}
inline i32 magnitude_of(u16 x) { return (x & 0x7fff) << 16; }

// Those of n values from place `start` on that are above the bar become candidates.
template <class Number>
inline i64 collect(const Number* x, i64 start, i64 n, i32 bar, const Candidates& to, i64 count) {
    alignas(64) static constexpr i32 up[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Bits level = broadcast(bar), lanes = read<Bits>(up);
    i64 i = start;
    for (const i64 end = start + n; i < end; i += vector) {
        // The last values of an array may fill no vector.
        if (i + vector > end) {
            for (; i < end; ++i) count = append(to, count, magnitude_of(x[i]), static_cast<i32>(i), magnitude_of(x[i]) > bar);
            break;
        }
        const Bits magnitudes = magnitudes_at(x + i);
        const u32 chosen = lanes_above(magnitudes, level);
#if !defined(__AVX512F__)
        if (chosen == 0) continue;  // closing gaps takes longer here than now and then a branch that was predicted wrong
#endif
        count = append(to, count, magnitudes, lanes + static_cast<i32>(i), chosen);
    }
    return count;
}

}  // namespace

// The k candidates of largest magnitude, or all where there are less, move to the front; returns how many.
i64 keep_largest(const Candidates& c, i64 n, i64 k) {
    if (n > k) thin_out(c, n, k);
    return least(n, k);
}

// The k largest of items first to last - 1, or all where they have less, with room_of their values; returns how many.
i64 top_k(const TopK& job, const Candidates& c, i64 first, i64 last) {
    const i64 begin = first * ranked_together, end = least(last * ranked_together, job.n);
    const i64 room = room_of(job, end - begin);
    // All magnitudes are above the first bar.
    i64 count = 0;
    i32 bar = -1;
    for (i64 start = begin; start < end; start += ranked_together) {
        const i64 n = least(ranked_together, end - start);
        if (count + n + vector > room) {
            bar = thin_out(c, count, job.k);
            count = job.k;
        }
        count = job.type == Real::f32 ? collect(static_cast<const float*>(job.in), start, n, bar, c, count)
                                      : collect(static_cast<const u16*>(job.in), start, n, bar, c, count);
    }
    return keep_largest(c, count, job.k);
}

}  // namespace top_k
