// What the element of each value is multiplied by: its scale, with the shift of its sub-block.
#pragma once

#include "kernels/quantize/block_magnitudes.inc.hpp"
#include "kernels/quantize/block_scales.inc.hpp"
#include "kernels/quantize/prepared.inc.hpp"
#include "kernels/values/blocks.inc.hpp"
#include "kernels/values/lines.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/scales.inc.hpp"

namespace element_units {

using block_magnitudes::measure_blocks;
using block_scales::choose_scales, block_scales::shift_line;
using prepared::Buffers, prepared::PreparedQuantize;
using blocks::fill, blocks::spread_blocks;
using lines::tile_of, lines::whole_of;
using numbers::bits_of, numbers::least;
using scales::Outer, scales::outer_of;

// The outer scale, which is known before: 1 without a second level.
inline Outer outer_of_all(const PreparedQuantize& p) {
    return p.two_level ? outer_of(p.f, whole_of(p.f)) : Outer{1.0f, 1.0f};
}

// Beside each of n finite values that begin a block, without the outer scale. The blocks are measured again, which takes
// a tenth of the time of the sums; quantize/ keeps no scales where it writes values.
inline void units_of(const PreparedQuantize& p, Buffers& t, const float* x, i64 n, float* unit) {
    const Format& f = p.f;
    const Outer outer = outer_of_all(p);
    if (f.scales == Scales::none) return fill(unit, 1.0f, n);
    // A scale of the line or of the array: the largest magnitude that it is chosen from was measured before.
    if (one_scale(f)) {
        t.largest[0] = bits_of(whole_of(f));
        choose_scales(p, t, 1, &outer.gain, 0, true);
        return fill(unit, t.multiplier[0], n);
    }
    // Blocks of the tensor: as many at once as the buffers of quantize/ hold, the last one may be shorter.
    const i64 together = tile_of(f);
    for (i64 start = 0; start < n; start += together) {
        const i64 count = least(together, n - start), blocks = count_of(count, f.block);
        const bool finite = measure_blocks(t, x + start, count, f.block, blocks);
        choose_scales(p, t, blocks, &outer.gain, 0, finite);
        if (f.scales == Scales::shifted) {
            // Shifts follow the scaled magnitudes of a sub-block; t.b becomes the scale with its shift.
            spread_blocks(t.divisor, count, f.block, t.a);
            spread_blocks(t.multiplier, count, f.block, t.b);
            shift_line(f, t, x + start, count, false);
            __builtin_memcpy(unit + start, t.b, static_cast<u64>(count) * sizeof(float));
        } else {
            spread_blocks(t.multiplier, count, f.block, unit + start);
        }
    }
}

}  // namespace element_units
