// The largest and the smallest magnitude of an array: what a scale of the whole array is chosen from.
#pragma once

#include "kernels/values/lines.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/scales.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace magnitudes {

using lines::line_of;
using memory::at, memory::load, memory::open_pages, memory::prefetch;
using numbers::Bits, numbers::Naturals, numbers::float_of, numbers::infinity_bits, numbers::larger, numbers::least,
    numbers::magnitude_mask, numbers::tile, numbers::vector;
using scales::Measured, scales::see, scales::smallest_of;
using vectors::any, vectors::larger, vectors::largest_lane, vectors::read;

namespace {  // of this file alone

// Values in one item: enough that dividing the work costs nothing, few enough that a long line keeps every thread busy.
constexpr i64 measured_together = 8 * tile;

// Values between what is measured and what is asked for from memory meanwhile.
constexpr i64 values_ahead = tile / 2;

// Both extremes of n values in one pass: what `see` and smallest_of find. Four pairs of registers side by side wait for
// nothing, so that memory alone is the limit.
inline void see_both(Measured& m, u32& least_bits, const float* x, i64 n) {
    Bits top[4]{};
    Naturals below[4];
    for (Naturals& b : below) b = Naturals{} - 1;
    const i64 whole = n / (4 * vector) * (4 * vector);
    for (i64 i = 0; i < whole; i += 4 * vector) {
#pragma GCC unroll 4
        for (i64 line = 0; line < 4 * vector; line += 16) prefetch(x + i + line + values_ahead, 1);
#pragma GCC unroll 4
        for (i64 v = 0; v < 4; ++v) {
            const Bits magnitude = read<Bits>(x + i + v * vector) & magnitude_mask;
            const Naturals less = (Naturals)magnitude - 1;  // zero comes last
            top[v] = larger(top[v], magnitude);
            below[v] = less < below[v] ? less : below[v];
        }
    }
    Bits largest = top[0];
    Naturals smallest = below[0];
    for (i64 v = 1; v < 4; ++v) largest = larger(largest, top[v]), smallest = below[v] < smallest ? below[v] : smallest;
    for (i64 i = 0; i < vector; ++i) least_bits = smallest[i] < least_bits ? smallest[i] : least_bits;
    least_bits = smallest_of(x + whole, n - whole, least_bits);
    // What is not finite is rare: those values are then looked at again.
    const bool finite = !any(largest >= infinity_bits);
    if (finite) m.largest = larger(m.largest, largest_lane(largest));
    see(m, finite ? x + whole : x, finite ? n - whole : n);
}

}  // namespace

// Items never cross a line, so that each knows its values by a start and a step.
i64 measure_items(const Geometry& g) { return lines_in(g) * count_of(g.n, measured_together); }

Magnitudes measure(const void* in, Real type, const Geometry& g, i64 first, i64 last) {
    alignas(64) float buffer[tile];
    const i64 in_line = count_of(g.n, measured_together);
    Measured m{0, false};
    u32 least_bits = ~u32{0};  // of magnitudes, less one: zero comes last
    for (i64 item = first; item < last; ++item) {
        const i64 line = line_of(g, item / in_line).in, end = least(g.n, (item % in_line + 1) * measured_together);
        for (i64 start = item % in_line * measured_together; start < end; start += tile) {
            const i64 n = least(tile, end - start);
            // float32 values that follow each other are read where they lie; all others through the buffer.
            const void* from = at(in, type, line + start * g.step);
            const float* x = static_cast<const float*>(from);
            if (type != Real::f32 || g.step != 1) {
                load(from, type, g.step, n, buffer);
                x = buffer;
            } else {
                open_pages(x + values_ahead, n * i64{sizeof(float)});
            }
            see_both(m, least_bits, x, n);
        }
    }
    // least_bits is one less than the bits of a magnitude: that of zero, 2^32 - 1, is above every finite one. The
    // comparison is of integers, so that a subnormal counts whatever the thread does to subnormals.
    const double infinity = __builtin_inf(), smallest = static_cast<double>(float_of(static_cast<i32>(least_bits + 1)));
    return {static_cast<double>(float_of(m.largest)), least_bits < static_cast<u32>(infinity_bits) ? smallest : infinity, m.bad};
}

}  // namespace magnitudes
