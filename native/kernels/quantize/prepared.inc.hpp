// A job to round values, prepared: what all of its tiles share, and the buffers that they pass through.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/packing.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/stochastic_draws.inc.hpp"

namespace prepared {

using numbers::long_tile, numbers::tile, numbers::vector;
using packing::Joining, packing::joined, packing::joining_of;
using rounding::Constants, rounding::constants_of, rounding::is_fixed, rounding::is_plus_and_minus_one,
    rounding::splits_at_zero;
using stochastic_draws::drawn_together;

// What one thread works in, one tile of each intermediate result: about 60 KiB of short tiles; with long ones few of the buffers are
// in use. Each buffer begins a cache line and so a vector; a tile is a whole number of vectors, and rounding a tail may write up to
// the end of one.
struct alignas(64) Buffers {
    float x[long_tile];      // values
    float w[long_tile];      // what is rounded is |w| a; its code or value has the sign of x
    float a[long_tile];
    float b[long_tile];      // what an element is multiplied by
    float outer[long_tile];  // the same for a second level
    float ones[long_tile];
    float values[long_tile];  // results
    i32 codes[long_tile], shifts[long_tile];
    i32 pairs[long_tile];  // shifts of pairs beside each value, in place
    u32 draws[long_tile + drawn_together];
    i32 largest[long_tile], scales[long_tile];  // of blocks: largest finite magnitude, code of the scale
    i32 of_line[long_tile + vector];            // the first of these for a whole line
    float divisor[long_tile], multiplier[long_tile];
    alignas(64) u8 packed[2 * long_tile + 2 * joined];  // codes of up to 16 bits, and what joining the last ones writes too much
    bool bad[long_tile];  // whether a block holds something that is not finite
};

// Blocks of 24 that are as many values as a whole number of draws.
constexpr i64 drawn_spinors = 3 * drawn_together;

// Everything about a job that its tiles share.
struct PreparedQuantize {
    const Quantize& job;
    const Format& f;
    const Geometry& g;
    Constants element, scale;
    bool values, real, two_level, stochastic;
    bool by_sign;     // rounded by look_up_signs, or look_up_drawn_signs, where all is finite
    bool in_vectors;  // a case of round_vectors, but for what is not finite
    bool unscaled;    // so only where whole lines of a cache are rounded, without scales
    bool same;        // that in the binades of float32
    bool joins;       // codes of such a case are packed in registers
    i64 tile;         // values worked on at once, at most
    Joining joining;        // by what
    Joining scale_joining;  // the same of scales
};

namespace {  // of this file alone

// A sign bit, for zero too, and one limit for both signs.
inline bool is_symmetric(const Grid& g) { return g.sign == Sign::bit && g.signed_zero && g.limit_above == g.limit_below && g.bits < 32; }

}  // namespace

// Decides once for each thread what the loops would otherwise ask of the format again and again.
inline PreparedQuantize prepare_quantize(const Quantize& job) {
    const Format& f = job.format;
    PreparedQuantize p{
        .job = job,
        .f = f,
        .g = job.geometry,
        .element = {},
        .scale = {},
        .values = job.values != nullptr,
        .real = f.scales == Scales::real || f.scales == Scales::two_level,
        .two_level = f.scales == Scales::two_level,
        .stochastic = f.rounding == Rounding::stochastic,
        .by_sign = false,
        .in_vectors = false,
        .unscaled = false,
        .same = false,
        .joins = false,
        .tile = tile,
        .joining = {},
        .scale_joining = f.scales == Scales::none ? Joining{} : joining_of(f.scale_bits),
    };
    // A table has no grid, and only real scales are rounded to one.
    if (!f.tabled) p.element = constants_of(f.grid, f.overflow, p.stochastic ? f.random_bits : 16);
    const bool two = f.tabled && p.real && !p.two_level && !f.whole_bad;
    p.by_sign = two && (p.stochastic ? f.random_bits == 16 && is_plus_and_minus_one(f.table) : splits_at_zero(f.table));
    if (p.real) p.scale = constants_of(f.scale_grid, Overflow::saturate);
    // Where limits differ round_vectors gives zero no sign, as no fixed-point format with such limits has one.
    const bool zeros = !f.tabled && is_fixed(f.grid) && f.grid.signed_zero && f.grid.limit_above != f.grid.limit_below;
    // It needs that what it adds stays within float32 (Grid::rounds_by_addition), one of the two roundings that it knows,
    // and saturation, which it does by a minimum.
    const bool rounds = !f.tabled && (f.rounding == Rounding::nearest_even || p.stochastic) && !f.whole_bad && !zeros;
    p.in_vectors = rounds && f.grid.rounds_by_addition && f.overflow == Overflow::saturate;
    if (rounds && f.scales == Scales::none && is_symmetric(f.grid)) {
        // Infinity follows the largest value, and a carry out of that must reach it.
        const bool infinite = f.overflow == Overflow::inf && (f.grid.inf & ((1 << (f.grid.bits - 1)) - 1)) == f.grid.limit_above + 1;
        p.same = !f.grid.rounds_by_addition && f.grid.emin == -126 && f.grid.m > 0 && f.grid.m < 23;
        p.unscaled = infinite ? p.same || f.grid.rounds_by_addition : p.same && f.overflow == Overflow::saturate;
        if (infinite && p.same) p.unscaled = f.grid.limit_above == (255 << f.grid.m) - 1;
    }
    if (p.in_vectors || p.unscaled) p.tile = long_tile;
    if (p.stochastic && f.block == 24) p.tile = p.tile / drawn_spinors * drawn_spinors;
    // Codes of other widths go through a buffer.
    const i32 bits = bits_of_element(f);
    p.joins = (p.in_vectors || p.unscaled) && !p.values && (bits <= 8 || bits == 16);
    // The code of infinity follows that of the largest value.
    const bool infinite = f.overflow == Overflow::inf;
    if (p.joins) p.joining = joining_of(bits, f.grid.sign, f.grid.signed_zero, infinite ? -1 : f.grid.limit_above, infinite ? -1 : f.grid.limit_below);
    return p;
}

}  // namespace prepared
