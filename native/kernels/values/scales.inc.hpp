// What the values of a block share: from its largest magnitude to its scale.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace scales {

using numbers::binade, numbers::bits_of, numbers::clamp, numbers::float_of, numbers::infinity_bits, numbers::larger,
    numbers::magnitude_mask, numbers::power_of_two, numbers::smaller;
using rounding::Constants, rounding::round_bits, rounding::value_of;

// Largest finite magnitude as bits, and whether all values are finite. Over floats this loop would stay scalar, since
// a maximum must not reorder NaN; over bit patterns it vectorizes, is exact, and puts infinities and NaN on top. The
// pragma keeps g++ from unrolling the loop of a block of 16 into scalars before the vectorizer sees it.
template <i64 fixed_n>
inline i32 largest_of(const float* in, i64 length) {
    const i64 n = fixed_n ? fixed_n : length;
    i32 largest = 0;
#pragma GCC unroll 1
    for (i64 i = 0; i < n; ++i) largest = larger(largest, bits_of(in[i]) & magnitude_mask);
    return largest;
}

inline i32 largest_finite(const float* in, i64 n) {
    i32 largest = 0;
    for (i64 i = 0; i < n; ++i) {
        const i32 magnitude = bits_of(in[i]) & magnitude_mask;
        largest = larger(largest, magnitude < infinity_bits ? magnitude : 0);
    }
    return largest;
}

// The bits of the smallest magnitude above zero, less one; not above `least_bits`.
inline u32 smallest_of(const float* x, i64 n, u32 least_bits) {
    for (i64 i = 0; i < n; ++i) {
        const u32 below = static_cast<u32>(bits_of(x[i]) & magnitude_mask) - 1;
        least_bits = below < least_bits ? below : least_bits;
    }
    return least_bits;
}

// Largest finite magnitude of what was seen, and whether something in it is not finite.
struct Measured {
    i32 largest;
    bool bad;
};

inline void see(Measured& m, const float* x, i64 n) {
    // The fast loop first: only where it meets an exponent field of all ones are finite values measured by themselves.
    const i32 top = largest_of<0>(x, n);
    m.bad |= top >= infinity_bits;
    m.largest = larger(m.largest, top >= infinity_bits ? largest_finite(x, n) : top);
}

namespace {  // of this file alone

// floor(log2) of a finite magnitude above zero, and its fraction; subnormals are normalized by a product.
struct Split {
    i32 exponent, fraction;
};

inline Split split(i32 magnitude) {
    const bool subnormal = magnitude < binade;
    const i32 b = bits_of(float_of(magnitude) * (subnormal ? 0x1p24f : 1.0f));
    return {(b >> 23) - (subnormal ? 151 : 127), b & (binade - 1)};
}

}  // namespace

// Codes of the scales of n blocks with largest magnitudes as finite bits, one over them, and they themselves:
// kernels/reference/values/scales.py.
inline void ruled_scales(const Format& given, const i32* __restrict largest, i32* __restrict codes,
                         float* __restrict inverse, float* __restrict scale, i64 n) {
    const Format f = given;
    for (i64 i = 0; i < n; ++i) {
        const Split a = split(largest[i]);
        codes[i] = a.exponent - f.emax + (a.fraction >= f.rule_first) + f.rule_plus;
    }
    for (i64 i = 0; i < n; ++i) {
        // Both powers are float32 even at the ends: 2^-127 is subnormal and 2^127 the last binade.
        const i32 e = largest[i] == 0 ? f.scale_zero : clamp(codes[i], f.scale_emin, f.scale_emax);
        inverse[i] = power_of_two(-e);
        scale[i] = power_of_two(e);
        codes[i] = e + f.scale_bias;
    }
}

namespace {  // of this file alone

inline float smaller_float(float a, float b) { return a < b ? a : b; }

constexpr float largest_float = 0x1.fffffep127f;

}  // namespace

// The outer scale of a line: what its largest magnitude is multiplied by to fill the format, and the inverse that
// decoding needs. Transformer Engine's NVFP4: g = (largest scale x largest element) / amax.
struct Outer {
    float gain, scale;
};

inline Outer outer_of(const Format& f, float whole) {
    const float gain = whole > 0.0f ? smaller_float(f.fill / whole, largest_float) : 1.0f;
    return {gain, smaller_float(1.0f / gain, largest_float)};
}

// The scale of a block: its code, what values are divided by, and what elements are multiplied by.
struct RealScale {
    i32 code;
    float divisor, multiplier;
};

struct RealRule {
    float element_max, inverse_max;
    i32 of_zeros, smallest;
    bool two_level;
};

inline RealScale real_scale(const RealRule& rule, const Constants& k, i32 largest, Outer outer) {
    const float a = float_of(largest);
    // The inner product is rounded first, as in the definition; compilers may not reassociate it.
    const float wanted = rule.two_level ? a * (outer.gain * rule.inverse_max) : a / rule.element_max;
    const i32 magnitude = bits_of(wanted) & magnitude_mask;
    const i32 rounded = round_bits<Rounding::nearest_even>(k, magnitude, false, false, 0);
    const i32 within = smaller(rounded, k.limit_above);
    const i32 code = largest == 0 ? rule.of_zeros : within == 0 ? rule.smallest : within;
    const float scale = value_of(k, code), divisor = scale / outer.gain;  // without a second level the gain is one
    // A quotient too small for float32 would be a division by zero later; the smallest float32 stands for it.
    return {code, divisor < 0x1p-149f ? 0x1p-149f : divisor, scale};
}

}  // namespace scales
