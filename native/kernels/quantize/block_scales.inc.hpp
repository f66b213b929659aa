// The scales of the blocks of a tile, and the shifts of their sub-blocks.
#pragma once

#include "kernels/quantize/finite_vectors.inc.hpp"
#include "kernels/quantize/prepared.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/scales.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace block_scales {

using finite_vectors::shift_of_pairs;
using prepared::Buffers, prepared::PreparedQuantize;
using numbers::Bits, numbers::Reals, numbers::bits_of, numbers::clamp, numbers::exponent_mask, numbers::float_of,
    numbers::least, numbers::magnitude_mask, numbers::one_bits, numbers::vector;
using scales::RealRule, scales::largest_of, scales::real_scales, scales::ruled_scales;
using vectors::read, vectors::write;

namespace {  // of this file alone

// shift_line for pairs, a whole vector of them at a time.
inline void shift_pairs(i32 largest_shift, Buffers& t, const float* x, i64 n) {
    for (i64 i = 0; i < n; i += vector) {
        // Lanes 2 i and 2 i + 1 are a pair; both get the same shift, so that no lane needs another register.
        const Reals u = (Reals)(read<Bits>(x + i) & magnitude_mask) * read<Reals>(t.a + i);
        const Bits shift = shift_of_pairs(u, largest_shift << 23);
        write(t.w + i, u * (Reals)(one_bits + shift));
        write(t.b + i, read<Reals>(t.b + i) * (Reals)(one_bits - shift));
        write(t.pairs + i, shift);
    }
}

}  // namespace

// The shift of each pair, from beside both its values.
inline void gather_pairs(Buffers& t, i64 n) {
    for (i64 j = 0; j < (n + 1) / 2; ++j) t.shifts[j] = t.pairs[2 * j] >> 23;
}

// The shifts of a tile's sub-blocks along the line: t.w becomes |x| over the scale of its sub-block, t.b what an
// element is multiplied by. Directed rounding has to see what is too small for that, and not zero.
inline void shift_line(const Format& f, Buffers& t, const float* x, i64 n, bool codes) {
    if (f.sub_block == 2) {
        // A tail: zeros fill the last vector.
        if (n % vector) {
            for (i64 i = 0; i < count_of(n, vector) * vector; ++i) t.x[i] = i < n ? x[i] : 0.0f;
            for (i64 i = n; i % vector; ++i) t.a[i] = t.b[i] = 0.0f;  // zero times what was left there may be NaN
            x = t.x;
        }
        shift_pairs(f.largest_shift, t, x, n);
        if (codes) gather_pairs(t, n);
    } else {
        // Sub-blocks of other sizes: first the scaled magnitudes, then the shift of each sub-block.
        for (i64 i = 0; i < n; ++i) t.w[i] = float_of(bits_of(x[i]) & magnitude_mask) * t.a[i];
        for (i64 start = 0, j = 0; start < n; start += f.sub_block, ++j) {
            const i64 count = least(f.sub_block, n - start);
            // How many binades the largest member lies below one, in place of an exponent field; never below zero.
            const i32 gap = one_bits - (largest_of<0>(t.w + start, count) & exponent_mask);
            const i32 shift = clamp(gap, 0, f.largest_shift << 23);
            t.shifts[j] = shift >> 23;
            // Powers of two from sums of bit patterns: 1.0 plus or minus the shift in its exponent field. Both products
            // are exact.
            for (i64 i = start; i < start + count; ++i) {
                t.w[i] *= float_of(one_bits + shift);
                t.b[i] *= float_of(one_bits - shift);
            }
        }
    }
    if (f.rounding == Rounding::up || f.rounding == Rounding::down)
        for (i64 i = 0; i < n; ++i) t.w[i] = t.w[i] == 0.0f && x[i] != 0.0f ? float_of(1) : t.w[i];
}

// Scales of blocks from their t.largest and, unless all values are finite, t.bad; block j has the outer gain
// gains[j * gain_step].
inline void choose_scales(const PreparedQuantize& p, Buffers& t, i64 blocks, const float* gains, i64 gain_step, bool finite) {
    const Format& f = p.f;
    if (p.real) {
        const RealRule rule{
            .element_max = f.element_max,
            .of_zeros = f.scale_of_zeros,
            .smallest = f.scale_smallest,
            .two_level = p.two_level,
        };
        real_scales(rule, p.scale, t.largest, gains, gain_step, t.scales, t.divisor, t.multiplier, blocks);
    } else {
        ruled_scales(f, t.largest, t.scales, t.divisor, t.multiplier, blocks);
    }
    const i32 nan = f.scale_nan;
    if (!finite && f.nonfinite == Nonfinite::block_nan)
        // Where NaN poisons its block, the code of the scale says so.
        for (i64 j = 0; j < blocks; ++j) t.scales[j] = t.bad[j] ? nan : t.scales[j];
}

}  // namespace block_scales
