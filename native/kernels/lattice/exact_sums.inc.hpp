// Exact sums of doubles, as a few doubles that together are the sum.
//
// Rump, Ogita and Oishi, Accurate floating-point summation, 2008: adding and taking off a power of two far above all
// numbers leaves their leading bits, multiples of one unit, whose sum has no rounding; the rest is smaller by as many bits.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace exact_sums {

using numbers::Doubles, numbers::log2_of, numbers::vector;
using vectors::broadcast, vectors::read, vectors::write;

namespace {  // of this file alone

// Bits of the largest magnitude: their maximum is exact, and NaN and infinity come out on top.
inline i64 largest_bits(const double* v, i64 n) {
    i64 largest = 0;
    for (i64 i = 0; i < n; ++i) {
        i64 bits;
        __builtin_memcpy(&bits, v + i, sizeof bits);
        bits &= 0x7fffffffffffffff;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

}  // namespace

// Writes the parts of the sum of n numbers, a multiple of 16; the numbers are used up. Of numbers that are not finite, or
// near the largest double, it writes their plain sum.
inline void write_parts(double* v, i64 n, double* parts) {
    constexpr i64 step = vector / 2;
    const i64 room = log2_of(n > 1 ? n : 1) + 2;  // 2^room is at least twice n
    for (i64 part = 0; part < most_parts; ++part) {
        const i64 largest = largest_bits(v, n);
        if (largest == 0) return;
        // All magnitudes are below 2^exponent, in the bias of the format.
        const i64 exponent = (largest >> 52 ? largest >> 52 : 1) + 1, raised = exponent + room;
        if (raised >= 0x7ff) {
            double sum = 0;
            for (i64 i = 0; i < n; ++i) sum += v[i];
            parts[part] = sum;
            return;
        }
        const i64 bits = raised << 52;
        double power;
        __builtin_memcpy(&power, &bits, sizeof power);
        const Doubles far = broadcast(power);
        Doubles sum = {};
        for (i64 i = 0; i < n; i += step) {
            const Doubles all = read<Doubles>(v + i), leading = (all + far) - far;
            write(v + i, all - leading);
            sum += leading;
        }
        double total = 0;
        for (i64 l = 0; l < step; ++l) total += sum[l];
        parts[part] = total;
    }
}

}  // namespace exact_sums
