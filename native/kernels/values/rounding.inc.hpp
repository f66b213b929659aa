// Rounding of scaled values to the codes and values of an element, in each of the modes, the stochastic one included, whose
// random bits come from stochastic_draws; and the values of codes.
#pragma once

#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace rounding {

using memory::prefetch;
using numbers::Bits, numbers::Reals, numbers::binade, numbers::bits_of, numbers::clamp, numbers::float_of, numbers::infinity_bits, numbers::larger,
    numbers::magnitude_mask, numbers::nan_bits, numbers::ordered, numbers::sign_bit, numbers::smaller, numbers::tile;
using numbers::vector;
using vectors::broadcast, vectors::larger, vectors::read, vectors::signs_of, vectors::smaller, vectors::store_nontemporal, vectors::write;

// A grid with everything derived from it that a loop would otherwise compute for each value. Kernels copy it to a
// local: the compiler then knows that no store changes it, and keeps it in registers.
struct Constants {
    i32 m, drop;         // drop: bits that float32 has below the last bit of a normal value
    i32 emin_field;      // exponent field of emin
    i32 emin_bits;       // the same in place
    float emin_value;    // 2^emin
    i32 limit_above, limit_below;
    float max, min;  // the largest magnitudes above and below zero
    i32 sign_mask;   // the sign bit of a code, where it has one
    i32 code_mask;   // the bits of a code
    i32 zero_signs;  // all ones where minus zero exists
    Sign sign;
    Overflow overflow;
    i32 nan, inf;
    i32 random_bits;  // of a draw
    u32 most_draw;    // 2^random_bits - 1
};

// Fixed point has no binade above that of emin, and no NaN.
inline bool is_fixed(const Grid& g) { return g.limit_above < 2 << g.m && !g.has_nan; }

namespace {  // of this file alone

inline i32 least_normal(const Constants& k) { return 1 << k.m; }

}  // namespace

// The value of a magnitude's code. Subnormals take the exponent of emin and lose its leading one again.
inline float value_of(const Constants& k, i32 c) {
    const bool subnormal = c < least_normal(k);
    const i32 field = subnormal ? k.emin_bits : k.emin_bits - binade;
    return float_of((c << k.drop) + field) - (subnormal ? k.emin_value : 0.0f);
}

// The same in every lane.
inline Reals value_of(const Constants& k, Bits c) {
    const Bits subnormal = c < least_normal(k);
    const Bits field = k.emin_bits - (~subnormal & binade);
    return (Reals)((c << k.drop) + field) - (Reals)((Bits)broadcast(k.emin_value) & subnormal);
}

inline Constants constants_of(const Grid& g, Overflow overflow, i32 random_bits = 16) {
    Constants k{};
    k.m = g.m;
    k.drop = 23 - g.m;
    k.emin_field = g.emin + 127;
    k.emin_bits = k.emin_field << 23;
    k.emin_value = float_of(k.emin_bits);
    k.limit_above = g.limit_above;
    k.limit_below = g.limit_below;
    k.max = value_of(k, g.limit_above);
    k.min = value_of(k, g.limit_below);
    k.sign_mask = g.sign == Sign::bit ? static_cast<i32>(1u << (g.bits - 1)) : 0;
    k.code_mask = g.bits == 32 ? -1 : static_cast<i32>((1u << g.bits) - 1);
    k.zero_signs = g.signed_zero ? -1 : 0;
    k.sign = g.sign;
    k.overflow = overflow;
    k.nan = g.nan;
    k.inf = g.inf;
    k.random_bits = random_bits;
    k.most_draw = ~u32{0} >> (32 - random_bits);
    return k;
}

// Code of |u| rounded, as if the exponent had no upper bound: drop_bits of kernels/reference/values/rounding.py. `lost` says
// that u is zero because it was too small for float32, which only directed rounding can see.
template <Rounding rounding>
inline i32 round_bits(const Constants& k, i32 magnitude, bool lost, bool negative, u32 draw) {
    // A subnormal float32 has the exponent of field 1 and no leading one; the subtraction leaves the implicit bit of
    // all others.
    const i32 field = larger(magnitude >> 23, 1);
    const i32 significand = (magnitude - ((field - 1) << 23)) | lost;
    // Below emin the steps stay those of emin, so more bits go. 30 is enough: a significand has 24 bits, and what is
    // shifted out by more is less than half of a step.
    const i32 binade_field = larger(field, k.emin_field);
    const i32 shift = binade_field - field + k.drop, s = smaller(shift, 30);
    const i32 kept = significand >> s, rest = significand - (kept << s);
    bool up = false;
    if (rounding == Rounding::nearest_even) up = 2 * rest + (kept & 1) > 1 << s;
    if (rounding == Rounding::nearest_away) up = 2 * rest >= 1 << s;
    if (rounding == Rounding::up) up = (rest > 0) & !negative;
    if (rounding == Rounding::down) up = (rest > 0) & negative;
    if (rounding == Rounding::stochastic)
        // What is dropped, cut to as many bits as the draw has, and the draw together reach one.
        up = (static_cast<u32>(rest) << clamp(k.random_bits - shift, 0, 31)) >> clamp(shift - k.random_bits, 0, 31) > k.most_draw - draw;
    // A carry out of the fraction runs into the exponent, which is the next value up.
    return ((binade_field - k.emin_field) << k.m) + kept + up;
}

// To nearest even in every lane, where nothing is lost.
inline Bits round_bits(const Constants& k, Bits magnitude) {
    const Bits field = larger(magnitude >> 23, broadcast(1));
    const Bits significand = magnitude - ((field - 1) << 23), binade_field = larger(field, broadcast(k.emin_field));
    const Bits s = smaller(binade_field - field + k.drop, broadcast(30));
    const Bits kept = significand >> s, rest = significand - (kept << s);
    // A comparison is -1 where it holds.
    return ((binade_field - k.emin_field) << k.m) + kept - (2 * rest + (kept & 1) > broadcast(1) << s);
}

// The code of a magnitude's code and a sign.
inline i32 with_sign(const Constants& k, i32 c, i32 x) {
    const i32 negative = x >> 31;
    if (k.sign == Sign::twos_complement) return ((c ^ negative) - negative) & k.code_mask;
    return c | (negative & k.sign_mask & (c != 0 ? -1 : k.zero_signs));
}

inline float with_sign(const Constants& k, float magnitude, i32 x) {
    return float_of(bits_of(magnitude) | (x & sign_bit & (magnitude != 0.0f ? -1 : k.zero_signs)));
}

// The bits of w a, which is finite if w is: the largest float32 stands for what is beyond it.
inline i32 scaled_bits(float w, float a) {
    const i32 u = bits_of(w * a);
    const bool beyond = ((u & magnitude_mask) == infinity_bits) & ((bits_of(w) & magnitude_mask) < infinity_bits);
    return u - (beyond ? 1 : 0);
}

// Rounds values in the general case. x holds the inputs, w the magnitudes of u are |w| a. What NaN, infinity and
// overflow become follows encode of kernels/reference/values/encode.py.
template <Rounding rounding, bool codes>
inline void round_all(const Constants& given, const float* __restrict x, const float* __restrict w,
                      const float* __restrict a, const float* __restrict b, const u32* __restrict draws,
                      float* __restrict values, i32* __restrict out, i64 n) {
    const Constants k = given;
    const bool saturate = k.overflow == Overflow::saturate;
    const i32 over_code = k.overflow == Overflow::inf ? k.inf : k.nan;
    const i32 over_bits = k.overflow == Overflow::inf ? infinity_bits : nan_bits;
    const i32 over_sign = k.overflow == Overflow::inf ? k.sign_mask : 0;
    for (i64 i = 0; i < n; ++i) {
        // The sign is that of x, not of the scaled value: a scale is positive, but its product may be a zero or NaN.
        const i32 xb = bits_of(x[i]), u = scaled_bits(w[i], a[i]) & magnitude_mask;
        const bool negative = xb < 0, lost = (u == 0) & ((bits_of(w[i]) & magnitude_mask) != 0);
        // All outcomes are computed and selected: a branch for one lane would keep the loop from becoming vectors.
        const i32 rounded =
            round_bits<rounding>(k, u, lost, negative, rounding == Rounding::stochastic ? draws[i] : 0);
        const i32 limit = negative ? k.limit_below : k.limit_above;
        const bool beyond = rounded > limit, infinite = u == infinity_bits;
        bool further = true;  // on to infinity, IEEE 754-2019, section 7.4
        if (rounding == Rounding::toward_zero) further = infinite;
        if (rounding == Rounding::up) further = !negative | infinite;
        if (rounding == Rounding::down) further = negative | infinite;
        const i32 c = beyond ? limit : rounded;
        const bool over = beyond & further & !saturate, nan = u > infinity_bits;
        if (codes) {
            const i32 number = over ? over_code | ((xb >> 31) & over_sign) : with_sign(k, c, xb);
            out[i] = nan ? k.nan : number;
        } else {
            const i32 special = over_bits == nan_bits ? nan_bits : infinity_bits | (xb & sign_bit);
            const i32 number = over ? special : bits_of(with_sign(k, value_of(k, c), xb));
            values[i] = float_of(nan ? nan_bits : number) * b[i];
        }
    }
}

// From a code to its value.
inline void decode_all(const Constants& given, bool has_nan, const i32* __restrict codes, const float* __restrict b,
                       float* __restrict values, i64 n) {
    const Constants k = given;
    const i32 magnitude = k.sign == Sign::none ? k.code_mask : static_cast<i32>(static_cast<u32>(k.code_mask) >> 1);
    for (i64 i = 0; i < n; ++i) {
        const i32 code = codes[i], negative = (code & (k.code_mask ^ magnitude)) != 0 ? -1 : 0;
        const i32 c = k.sign == Sign::twos_complement ? ((code ^ negative) - negative) & k.code_mask : code & magnitude;
        const float number = value_of(k, c);
        const i32 finite = bits_of(number) | (negative & sign_bit & (c != 0 ? -1 : k.zero_signs));
        // Codes above the limit are infinity and NaN; fnuz has its NaN in the place of minus zero.
        const i32 beyond = c == k.inf && k.inf != 0 ? infinity_bits | (negative & sign_bit) : nan_bits;
        const bool special = has_nan & ((c > k.limit_above) | (code == k.nan));
        values[i] = float_of(special ? beyond : finite) * b[i];
    }
}

// ---- tables

namespace {  // of this file alone

// Indices of the values that n inputs are rounded to: the range of each from its upper half, then a binary search. One
// step of all searches is one loop, which becomes vectors of gathers.
inline void find_all(const Table& given, const i32* __restrict keys, i32* __restrict at, i64 n) {
    const i32 *base = given.base, *limits = given.keys, last = given.count - 1;
    for (i64 i = 0; i < n; ++i) at[i] = base[(keys[i] >> 16) + 32768];
    for (i32 width = given.steps > 0 ? 1 << (given.steps - 1) : 0; width > 0; width >>= 1) {
        for (i64 i = 0; i < n; ++i) {
            // Indices beyond the last value are clamped for the read and then refused, so that no lane needs a branch.
            const i32 middle = at[i] + width;
            const bool reached = (middle <= last) & (limits[smaller(middle, last) - 1] <= keys[i]);
            at[i] = reached ? middle : at[i];
        }
    }
}

// Clamped to the ends of a table, where the fraction is zero or one and the draw decides nothing.
inline double within(double lowest, double highest, float u) {
    const double v = static_cast<double>(u);
    return v < lowest ? lowest : v > highest ? highest : v;
}

// The upper neighbour with probability floor(2^B f) / 2^B, f in float64, B random bits: _encode_table of the definition.
// A sum of the draw and of f in whole units of 2^-B reaches one where f reaches what the draw leaves; a NaN does not.
inline i32 drawn_index(const Table& t, float u, i32 index, i32 random_bits, u32 draw) {
    const double v = within(t.values[0], t.values[t.count - 1], u);
    const i32 i = smaller(index, t.count - 2);
    const double below = t.values[i], above = t.values[i + 1];
    const double one = static_cast<double>(i64{1} << random_bits);
    return i + ((v - below) / (above - below) * one >= one - static_cast<double>(draw));
}

// look_up_all for a table of two values with no NaN, whose difference is a power of two: a division by that is a product.
// There is nothing to search and nothing to gather.
template <bool codes, bool drawn>
inline void look_up_two(const Table& t, i32 random_bits, const float* __restrict x, const float* __restrict w, const float* __restrict a,
                        const float* __restrict b, const float* __restrict outer, const u32* __restrict draws,
                        float* __restrict values, i32* __restrict out, i64 n) {
    const i32 limit = t.keys[0], lower = t.codes[0], upper = t.codes[1];
    const double below = t.values[0], above = t.values[1], low = t.by_code[lower], high = t.by_code[upper];
    const double one = static_cast<double>(i64{1} << random_bits), factor = one / (above - below);
    for (i64 i = 0; i < n; ++i) {
        const float u = w[i] * a[i];
        bool up;
        if (drawn) {
            up = (within(below, above, u) - below) * factor >= one - static_cast<double>(draws[i]);
        } else {
            const bool lost = ((bits_of(u) & magnitude_mask) == 0) & (w[i] != 0.0f);
            up = limit <= ordered(lost ? float_of((bits_of(x[i]) & sign_bit) | 1) : u);
        }
        if (codes) {
            out[i] = up ? upper : lower;
        } else {
            const double scale = static_cast<double>(b[i]) * (outer ? static_cast<double>(outer[i]) : 1.0);
            values[i] = static_cast<float>((up ? high : low) * scale);
        }
    }
}

// Asks for the line of the cache `ahead` values behind value i, where i begins one, and unless `values` is null for that of the
// results. Always inlined: of a function that only prefetches GCC says that it has no effect, and drops its calls.
__attribute__((always_inline)) inline void ask(const float* x, const float* values, i64 i, i64 ahead) {
    constexpr i64 line = 16;
    if (i % line) return;
    prefetch(x + i + ahead, 1);
    if (values) __builtin_prefetch(values + i + ahead, 1);
}

inline bool is_power_of_two(double v) {
    u64 bits;
    __builtin_memcpy(&bits, &v, sizeof bits);
    return v > 0.0 && (bits & ((u64{1} << 52) - 1)) == 0;
}

}  // namespace

// Whether look_up_signs may do it: two values that are float32, of which zero becomes the upper, and any negative the lower.
inline bool splits_at_zero(const Table& t) {
    const double low = t.by_code[t.codes[0]], high = t.by_code[t.codes[1]];
    const bool floats = static_cast<double>(static_cast<float>(low)) == low && static_cast<double>(static_cast<float>(high)) == high;
    return t.count == 2 && !t.has_nan && t.keys[0] == 0 && floats;
}

// Rounds n finite values over their scales a to the two values of such a table, without the quotients. One below zero
// becomes minus zero, and so the upper value, where it is at most half the smallest float32: x >= -a 2^-150. Both sides
// times 2^100 are exact, or so large or small that it makes no difference. With `one_scale` all share the first of a and b.
// Meanwhile memory is asked for what lies `ahead` values further.
template <bool codes, bool one_scale>
inline void look_up_signs(const Table& t, const float* __restrict x, const float* __restrict a, const float* __restrict b,
                          float* __restrict values, [[maybe_unused]] bool past_caches, i32* __restrict out, i64 ahead, i64 n) {
    const i32 lower = t.codes[0], upper = t.codes[1];
    const float low = static_cast<float>(t.by_code[lower]), high = static_cast<float>(t.by_code[upper]);
    const auto is_down = [&](i64 i) { return x[i] * 0x1p100f < a[one_scale ? 0 : i] * -0x1p-50f; };
    i64 i = 0;
    if constexpr (codes) {
        for (; i < n; ++i) out[i] = is_down(i) ? lower : upper;
        return;
    }
    // Whole vectors, since they alone go past the caches.
    Reals below = broadcast(a[0] * -0x1p-50f), unit = broadcast(b[0]);
    for (; i + vector <= n; i += vector) {
        ask(x, past_caches ? nullptr : values, i, ahead);
        if (!one_scale) below = read<Reals>(a + i) * -0x1p-50f, unit = read<Reals>(b + i);
        const Reals v = (read<Reals>(x + i) * 0x1p100f < below ? broadcast(low) : broadcast(high)) * unit;
        if (past_caches) store_nontemporal(values + i, v);
        else write(values + i, v);
    }
    for (; i < n; ++i) values[i] = (is_down(i) ? low : high) * b[one_scale ? 0 : i];
}

// The same as codes of one bit each, set for the lower value, 32 in a word; all share one scale, and n is a multiple of 32.
inline void pack_signs(const float* __restrict x, float a, u8* __restrict out, i64 ahead, i64 n) {
    const Reals below = broadcast(a * -0x1p-50f);
    for (i64 i = 0; i < n; i += 32, out += 4) {
        ask(x, nullptr, i, ahead), ask(x, nullptr, i + 16, ahead);
        u32 down = 0;
#pragma GCC unroll 8
        for (i64 v = 0; v < 32; v += vector) down |= signs_of((Bits)(read<Reals>(x + i + v) * 0x1p100f < below)) << v;
        write(out, down);
    }
}

// Whether look_up_drawn_signs may do it.
inline bool is_plus_and_minus_one(const Table& t) { return t.count == 2 && !t.has_nan && t.values[0] == -1.0 && t.values[1] == 1.0; }

// Rounds n finite values over their scales a to -1 and 1, up or down by draws of 16 bits. A quotient u becomes 1 where
// (u + 1) 2^15 and the draw reach 2^16, so where u is at least 1 - 2^-15 draw, which is exact. The definition adds in float64,
// in which what lies above -2^-54 vanishes beside one: where that bound is zero it is lower by 2^-54, and all other bounds are
// so large that this difference vanishes beside them. With `one_scale` all share the first of a and b.
template <bool codes, bool one_scale>
inline void look_up_drawn_signs(const Table& t, const float* __restrict x, const float* __restrict a, const float* __restrict b,
                                const u32* __restrict draws, float* __restrict values, [[maybe_unused]] bool past_caches,
                                i32* __restrict out, i64 ahead, i64 n) {
    const i32 lower = t.codes[0], upper = t.codes[1];
    const auto bound = [](auto draw) { return draw * 0x1p-15f - 0x1p-54f; };
    const auto is_up = [&](i64 i) { return x[i] / a[one_scale ? 0 : i] >= bound(static_cast<float>(32768 - static_cast<i32>(draws[i]))); };
    i64 i = 0;
    Reals divisor = broadcast(a[0]), unit = broadcast(b[0]);
    for (; i + vector <= n; i += vector) {
        ask(x, codes || past_caches ? nullptr : values, i, ahead);
        if (!one_scale) divisor = read<Reals>(a + i), unit = read<Reals>(b + i);
        const Bits up = read<Reals>(x + i) / divisor >= bound(__builtin_convertvector(32768 - read<Bits>(draws + i), Reals));
        const Reals v = (up ? broadcast(1.0f) : broadcast(-1.0f)) * unit;
        if (codes) write(out + i, up ? broadcast(upper) : broadcast(lower));
        else if (past_caches) store_nontemporal(values + i, v);
        else write(values + i, v);
    }
    for (; i < n; ++i) {
        const bool up = is_up(i);
        if (codes) out[i] = up ? upper : lower;
        else values[i] = (up ? 1.0f : -1.0f) * b[one_scale ? 0 : i];
    }
}

// Rounds n values, at most a tile, to a table; the arguments are those of round_all, `outer` may be missing. random_bits
// are those of a draw, 0 where nothing is drawn.
template <bool codes>
inline void look_up_all(const Table& t, i32 random_bits, const float* __restrict x, const float* __restrict w,
                        const float* __restrict a, const float* __restrict b, const float* outer, const u32* draws,
                        float* __restrict values, i32* __restrict out, i64 n) {
    if (t.count == 2 && !t.has_nan && is_power_of_two(t.values[1] - t.values[0])) {
        const auto look_up = random_bits ? look_up_two<codes, true> : look_up_two<codes, false>;
        return look_up(t, random_bits, x, w, a, b, outer, draws, values, out, n);
    }
    alignas(64) i32 keys[tile], at[tile];
    for (i64 i = 0; i < n; ++i) {
        const i32 u = scaled_bits(w[i], a[i]);
        const bool lost = ((u & magnitude_mask) == 0) & (w[i] != 0.0f);  // too small for float32, but not zero
        keys[i] = ordered(float_of(lost ? (bits_of(x[i]) & sign_bit) | 1 : u));
    }
    find_all(t, keys, at, n);
    if (random_bits)
        for (i64 i = 0; i < n; ++i) at[i] = drawn_index(t, w[i] * a[i], at[i], random_bits, draws[i]);
    const i32 top = t.infinity_is_nan ? infinity_bits - 1 : infinity_bits;
    const i32 bottom = t.negative_is_nan ? 0 : -top;
    for (i64 i = 0; i < n; ++i) {
        const i32 code = t.codes[at[i]];
        // A quotient of a number that is beyond float32 is no infinity.
        const bool number = t.infinity_is_nan & ((bits_of(x[i]) & magnitude_mask) < infinity_bits);
        const bool nan = t.has_nan & !number & ((keys[i] > top) | (keys[i] < bottom));
        out[i] = nan ? t.nan : code;
    }
    if (codes) return;
    for (i64 i = 0; i < n; ++i) {
        const double scale = static_cast<double>(b[i]) * (outer ? static_cast<double>(outer[i]) : 1.0);
        values[i] = static_cast<float>(t.by_code[out[i]] * scale);
    }
}

}  // namespace rounding
