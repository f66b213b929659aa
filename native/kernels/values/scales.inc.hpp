// What the values of a block share: from its largest magnitude to its scale.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace scales {

using numbers::Bits, numbers::Reals, numbers::binade, numbers::bits_of, numbers::infinity_bits, numbers::larger,
    numbers::magnitude_mask, numbers::vector;
using rounding::Constants, rounding::round_bits, rounding::value_of;
using vectors::any, vectors::broadcast, vectors::larger, vectors::largest_lane, vectors::read, vectors::smaller, vectors::write;

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

// The largest of n magnitudes in each lane, n a multiple of four vectors; four maxima side by side wait for nothing.
inline Bits largest_lanes(const float* x, i64 n) {
    Bits top[4]{};
    for (i64 i = 0; i < n; i += 4 * vector)
        for (i64 v = 0; v < 4; ++v) top[v] = larger(top[v], read<Bits>(x + i + v * vector) & magnitude_mask);
    return larger(larger(top[0], top[1]), larger(top[2], top[3]));
}

inline bool is_finite(const float* x, i64 n) {
    const i64 whole = n / (4 * vector) * (4 * vector);
    return !any(largest_lanes(x, whole) >= infinity_bits) && largest_of<0>(x + whole, n - whole) < infinity_bits;
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
    const i64 whole = n / (4 * vector) * (4 * vector);
    const i32 top = larger(largest_lane(largest_lanes(x, whole)), largest_of<0>(x + whole, n - whole));
    m.bad |= top >= infinity_bits;
    m.largest = larger(m.largest, top >= infinity_bits ? largest_finite(x, n) : top);
}

namespace {  // of this file alone

// 2^e for e in [-127, 127] in every lane: an exponent field, but for 2^-127, which is subnormal and above no field of zero.
inline Reals powers_of_two(Bits e) { return (Reals)larger((e + 127) << 23, broadcast(1 << 22)); }

}  // namespace

// Codes of the scales of n blocks with largest magnitudes as finite bits, one over them, and they themselves:
// kernels/reference/values/scales.py. A lane is a block; all arrays have room for whole vectors.
inline void ruled_scales(const Format& given, const i32* __restrict largest, i32* __restrict codes,
                         float* __restrict inverse, float* __restrict scale, i64 n) {
    const Format& f = given;
    const i32 first = f.rule_first, plus = f.rule_plus - f.emax, emin = f.scale_emin, emax = f.scale_emax,
              of_zeros = f.scale_zero, bias = f.scale_bias;
    for (i64 i = 0; i < n; i += vector) {
        const Bits top = read<Bits>(largest + i);
        // floor(log2) and its fraction; a subnormal is normalized by a product. Comparisons are -1 where they hold.
        const Bits subnormal = top < binade;
        const Bits b = (Bits)((Reals)top * (subnormal ? broadcast(0x1p24f) : broadcast(1.0f)));
        const Bits floor = (b >> 23) - 127 + (subnormal & -24);
        const Bits wanted = floor + plus - ((b & (binade - 1)) >= first);
        const Bits within = smaller(larger(wanted, broadcast(emin)), broadcast(emax));
        const Bits e = top == 0 ? broadcast(of_zeros) : within;
        // Both powers are float32 even at the ends: 2^-127 is subnormal and 2^127 the last binade.
        write(inverse + i, powers_of_two(-e));
        write(scale + i, powers_of_two(e));
        write(codes + i, e + bias);
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

struct RealRule {
    float element_max;
    i32 of_zeros, smallest;
    bool two_level;
};

// The same for scales that are numbers of a grid: their codes, what values are divided by, and what elements are
// multiplied by. Block i has the gain gains[i], or with gain_step 0 all have the first.
inline void real_scales(const RealRule& rule, const Constants& given, const i32* __restrict largest, const float* __restrict gains,
                        i64 gain_step, i32* __restrict codes, float* __restrict divisor, float* __restrict multiplier, i64 n) {
    const Constants k = given;
    const RealRule r = rule;
    const Reals inverse_max = broadcast(1.0f / r.element_max), element_max = broadcast(r.element_max);
    Reals gain = broadcast(gains[0]);  // without a second level it is one
    for (i64 i = 0; i < n; i += vector) {
        const Bits top = read<Bits>(largest + i);
        if (gain_step) gain = read<Reals>(gains + i);
        // The inner product is rounded first, as in the definition; compilers may not reassociate it.
        const Reals wanted = r.two_level ? (Reals)top * (gain * inverse_max) : (Reals)top / element_max;
        const Bits code = smaller(round_bits(k, (Bits)wanted & magnitude_mask), broadcast(k.limit_above));
        const Bits above = code == 0 ? broadcast(r.smallest) : code, chosen = top == 0 ? broadcast(r.of_zeros) : above;
        const Reals scale = value_of(k, chosen), quotient = scale / gain, least_float = broadcast(0x1p-149f);
        write(codes + i, chosen);
        write(multiplier + i, scale);
        // A quotient too small for float32 would be a division by zero later; the smallest float32 stands for it.
        write(divisor + i, quotient < least_float ? least_float : quotient);
    }
}

}  // namespace scales
