// The largest and the smallest magnitude of an array: what a scale of the whole array is chosen from.
#pragma once

#include "kernels/values/lines.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/scales.inc.hpp"

namespace magnitudes {

using lines::line_of;
using memory::at, memory::load;
using numbers::float_of, numbers::infinity_bits, numbers::least, numbers::tile;
using scales::Measured, scales::see, scales::smallest_of;

namespace {  // of this file alone

// Values in one item: enough that dividing the work costs nothing, few enough that a long line keeps every thread busy.
constexpr i64 measured_together = 8 * tile;

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
            }
            see(m, x, n);
            least_bits = smallest_of(x, n, least_bits);
        }
    }
    // least_bits is one less than the bits of a magnitude: that of zero, 2^32 - 1, is above every finite one. The
    // comparison is of integers, so that a subnormal counts whatever the thread does to subnormals.
    const double infinity = __builtin_inf(), smallest = static_cast<double>(float_of(static_cast<i32>(least_bits + 1)));
    return {static_cast<double>(float_of(m.largest)), least_bits < static_cast<u32>(infinity_bits) ? smallest : infinity, m.bad};
}

}  // namespace magnitudes
