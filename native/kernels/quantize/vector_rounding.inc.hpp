// How vectors of values are rounded, to nearest even or by draws, where every input is finite: one by one, or several together.
#pragma once

#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/packing.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace vector_rounding {

using memory::prefetch;
using numbers::Bits, numbers::Naturals, numbers::Reals, numbers::binade, numbers::bits_of, numbers::exponent_mask,
    numbers::infinity_bits, numbers::magnitude_mask, numbers::one_bits, numbers::sign_bit, numbers::tile, numbers::vector;
using packing::Joining;
using rounding::Constants;
using vectors::any, vectors::broadcast, vectors::larger, vectors::read, vectors::shuffled, vectors::smaller;

// How far ahead of what is rounded memory is asked for: a tile, and so many values beyond. The next tile is measured as soon as this
// one is rounded, faster than it comes from memory: more is under way meanwhile.
constexpr i64 values_beyond = tile;

// What a vector of values becomes: values again, codes one in each number, or packed codes.
enum class Result { values, codes, packed };

// How many values share a number in a and b: 16, 32, 24 where that is a whole number of vectors, or
constexpr i64 own = 0, whole = -1;  // each has its own, all share one

// What is rounded is |w| times its number in a, or over it; the result has the sign of x, and a value is multiplied by
// its number in b.
struct VectorRounding {
    const float *x, *w, *a, *b;
    float outer;       // of what is divided, the second factor
    const u32* draws;  // for each value
    i64 n;             // whole lines of a cache; packed, at least `joined`
    i64 ahead;         // values between what is rounded and what is asked for from memory meanwhile
    float* values;
    bool nontemporal;  // values go past the caches
    i32* codes;
    const Joining* joining;  // of packed codes
    u8 *packed, *end;        // where they go, and where bytes begin that are not to be written
    u8* shifts;              // one bit for each pair
};

// How elements and scales make values: as products with powers of two, or as products whose elements are quotients, of one level
// or of two.
enum class Scaling { powers, quotients, two_levels };

// How far down a pair shifts, in place: it grows by what its larger member leaves free below one.
inline Bits shift_of_pairs(Reals u, i32 most_shift) {
    // Each lane beside its neighbour of the pair: one permutation.
    const Bits others = shuffled((Bits)u, (Bits)u, [](int lane) { return lane ^ 1; });
    const Bits gap = one_bits - (larger((Bits)u, others) & exponent_mask);
    return smaller(larger(gap, Bits{}), broadcast(most_shift));
}

namespace {  // of this file alone

inline Bits with_sign(const Constants& k, Bits c, Bits x) {
    // All ones in lanes of negative inputs.
    const Bits negative = x >> 31;
    if (k.sign == Sign::twos_complement) return ((c ^ negative) - negative) & k.code_mask;
    return c | (negative & k.sign_mask & (c != 0 ? broadcast(-1) : broadcast(k.zero_signs)));
}

// floor(v) for v in [0, 2^32).
inline Naturals floor_of(Reals v) {
#if defined(__AVX512F__)
    return __builtin_convertvector(v, Naturals);
#else  // in two parts: only conversions to signed integers are an instruction
    const Bits half = __builtin_convertvector(v * 0.5f, Bits);
    const Bits odd = v - 2.0f * __builtin_convertvector(half, Reals) >= 1.0f;
    return (Naturals)(2 * (Naturals)half - (Naturals)odd);
#endif
}

}  // namespace

// How the step of a value is found: `one` for all, as in fixed point; looked up in a register that has a lane for each of
// `few` binades; computed, of `many`. The binades of a float32 itself, as bfloat16 has them, need no step: `same`. Nor do values
// that are drawn in a range so `wide` that those below emin are rare.
enum class Binades { one, few, many, wide, same };

namespace {  // of this file alone

// The binade of u, in place, but none below that of emin, where subnormals share a step. Beyond the values of fixed point,
// which share it, it does not matter.
template <Binades binades>
inline Bits binade_of(const Constants& k, Reals u) {
    return binades == Binades::one ? broadcast(k.emin_bits) : larger((Bits)u & exponent_mask, broadcast(k.emin_bits));
}

}  // namespace

namespace {  // of this file alone

// The count in the fraction of a sum. Packing with VBMI takes its lowest bytes, or words, and no instruction is needed here.
inline Bits in_fraction(Bits sum) {
#if defined(__AVX512VBMI__)
    return sum;
#else
    return sum & (binade - 1);
#endif
}

}  // namespace

// |u| rounded, as a multiple of the step of its binade and as the value. With M = 2^(s+23), where the values of u's
// binade are multiples of 2^s, the sum u + M lies in [M, 2M), where float32 itself holds multiples of 2^s only. That
// needs M within float32 (Grid::rounds_by_addition) and no contraction or reassociation by the compiler. Far beyond the largest value
// M leaves the exponent field; the value then stays as large as u, or becomes NaN, and the steps mean nothing.
struct Rounded {
    Bits steps;
    Reals value;
};

inline Naturals added_to_nearest(const Constants& k, Bits field) { return (Naturals)field + static_cast<u32>(k.drop << 23); }

inline Rounded round_to_nearest(const Constants& k, Bits field, Reals u) {
    const Naturals m = added_to_nearest(k, field);
    const Reals sum = u + (Reals)m;
    return {(Bits)((Naturals)sum - m), sum - (Reals)m};
}

#if defined(__AVX2__)

// Of each binade of few what round_to_nearest adds, and the count of steps below that binade: it is even, so that ties go where they
// went, and the fraction of the sum is the code. A binade has the lane that the low bits of its exponent field say.
struct BinadeTable {
    Bits added;
};

inline bool has_few_binades(const Constants& k) { return k.m > 0 && (bits_of(k.max) >> 23) - k.emin_field < vector; }

inline BinadeTable binade_table(const Constants& k) {
    Bits lane{};
    for (i32 i = 0; i < vector; ++i) lane[i] = i;
    const Bits above = (lane - k.emin_field) & static_cast<i32>(vector - 1);
    return {((above + (k.emin_field + k.drop)) << 23) + (above << k.m)};
}

namespace {  // of this file alone

inline Bits select_lane(Bits table, Bits lanes) {
#if defined(__AVX512F__)
    return (Bits)_mm512_permutexvar_epi32((__m512i)lanes, (__m512i)table);
#else
    return (Bits)_mm256_permutevar8x32_epi32((__m256i)table, (__m256i)lanes);
#endif
}

// The sum whose fraction is the code of u, which is not above the largest value: four instructions, where others take eight.
inline Bits sum_of(const Constants& k, const BinadeTable& t, Reals u) {
    const Bits field = (Bits)((Naturals)larger((Bits)u, broadcast(k.emin_bits)) >> 23);
    return (Bits)(u + (Reals)select_lane(t.added, field));
}

}  // namespace

#else

struct BinadeTable {};
inline bool has_few_binades(const Constants&) { return false; }
inline BinadeTable binade_table(const Constants&) { return {}; }

namespace {  // of this file alone

inline Bits sum_of(const Constants&, const BinadeTable&, Reals u) { return (Bits)u; }

}  // namespace

#endif

namespace {  // of this file alone

inline Reals clamped(Reals u, Reals least, Reals most) {
    const Reals below = u < most ? u : most;
    return below > least ? below : least;
}

// |u|, but not above `most`.
inline Reals magnitude_within(Reals u, Reals most) {
#if defined(__AVX512F__)
    return (Reals)_mm512_range_ps((__m512)u, (__m512)most, 10);  // the smaller magnitude, without a sign
#else
    return (Reals)smaller((Bits)u & magnitude_mask, (Bits)most);
#endif
}

}  // namespace

// How values are drawn: not at all, by draws of `sixteen` bits that are added to a count of steps with 16 bits behind the
// point, by such draws that are added to the bits of a float32 which is that count `in_sum`, or by any draws.
enum class Draws { none, sixteen, in_sum, any };

// Whether an instruction adds and cuts: in_sum then takes fewer than sixteen does.
#if defined(__AVX512F__)
constexpr bool cuts_sums = true;
#else
constexpr bool cuts_sums = false;
#endif

// Whether draws are `sixteen`: the count of steps fits an integer with the draw, u being below 2^(m + 1) steps, or at most one
// less. In one binade with one limit for both signs u is at most a whole number of steps. There, too, steps times scales are made
// beforehand and have to be exact: scales are at least 2^-127, and float32 has 2^-149. Quotients have steps of one. Where the count
// with all bits behind the point fits the fraction of a float32, u being at most 2^(m + 1) steps, draws are added `in_sum`.
template <Binades binades>
inline Draws draws_of(const Constants& k, bool drawn, Scaling scaling) {
    constexpr bool one = binades == Binades::one;
    const bool small = k.random_bits == 16 && k.m <= (one && k.limit_above == k.limit_below ? 14 : 13);
    const i32 step = k.emin_bits - (k.m << 23), least_step = scaling == Scaling::powers ? one_bits - 21 * binade : one_bits;
    const bool exact = !one || (least_step <= step && step <= one_bits);
    if (!drawn) return Draws::none;
    if (binades == Binades::same) return Draws::any;
    if (cuts_sums && k.random_bits == 16 && k.m <= 6) return Draws::in_sum;
    return small && exact ? Draws::sixteen : Draws::any;
}

// Whether draws of `sixteen` bits are added to values in binades of float32 itself: below the last bit that is kept there is room
// for them, and of blocks whose largest value has the largest binade, values more than seven below it are few.
inline bool is_wide(const Constants& k) { return k.drop >= 16 && (bits_of(k.max) >> 23) - k.emin_field > 8; }

namespace {  // of this file alone

// A magnitude with the sign of x times a unit.
inline Reals signed_product(Reals magnitude, Bits x, Reals unit) { return (Reals)((Bits)magnitude | (x & sign_bit)) * unit; }

// Counts of steps with the signs of x: one instruction of AVX2.
inline Bits with_signs(Bits steps, Bits x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (Bits)_mm256_sign_epi32((__m256i)steps, (__m256i)x);
#else
    const Bits negative = x >> 31;
    return (steps ^ negative) - negative;
#endif
}

// |u| in steps of its binade with as many bits behind the point as a draw of `sixteen` has, cut.
inline Bits steps_of(const Constants& k, Bits field, Reals u) {
    // 2^16 over the step, from its exponent field: products with it are exact. The difference fits; what it is taken from does
    // not, as a signed number.
    return __builtin_convertvector(u * (Reals)((static_cast<u32>(254 + k.m + 16) << 23) - (Naturals)field), Bits);
}

// u + m, cut. With M = 2^(s+23) for m and u not negative and below it: M plus the multiple of 2^s that is not above u.
inline Reals cut_sum(Reals u, Reals m) {
#if defined(__AVX512F__)
    return (Reals)_mm512_add_round_ps((__m512)u, (__m512)m, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#else
    const Reals sum = u + m;
    return (Reals)((Bits)sum + (Bits)(sum - m > u));
#endif
}

// What is added to |u| in its binade, to have a sum with 16 bits behind the point.
inline Reals added_with_draws(const Constants& k, Bits field) { return (Reals)((Naturals)field + static_cast<u32>((k.drop - 16) << 23)); }

// u, drawn by that sum with m: a draw is added, and the bits behind the point are cut. A carry out of the fraction is 2 M. With the
// sign of both the value has it too, but for zero.
inline Rounded round_in_sum(Reals u, Reals m, Naturals draws) {
    const Reals sum = (Reals)(((Naturals)cut_sum(u, m) + draws) & 0xffff0000u);
    return {((Bits)sum - (Bits)m) >> 16, sum - m};
}

// Up or down by a draw of B bits: the fraction of a step that is dropped, cut to B bits, and the draw together reach one.
template <Draws drawn>
inline Rounded round_drawn(const Constants& k, Bits field, Reals u, Naturals draws) {
    const Reals step = (Reals)(field - (k.m << 23));
    // The draw is added to the count of steps, and what is behind the point is cut.
    if constexpr (drawn == Draws::sixteen) {
        // Behind the last value lanes hold anything, whose sum may not fit: it is that of naturals, which wraps.
        const Bits steps = (Bits)((Naturals)steps_of(k, field, u) + draws) >> 16;
        return {steps, __builtin_convertvector(steps, Reals) * step};
    }
    if constexpr (drawn == Draws::in_sum) return round_in_sum(u, added_with_draws(k, field), draws);
    const Reals inverse = (Reals)((static_cast<u32>(254 + k.m + k.random_bits) << 23) - (Naturals)field);
    // Else in two parts. What is left of u above the value below it is exact: a multiple of its own last bit, less than a
    // step.
    const Reals m = (Reals)((Naturals)field + static_cast<u32>(k.drop << 23)), sum = cut_sum(u, m);
    const Rounded r{(Bits)sum - (Bits)m, sum - m};
    const Bits up = (Bits)(floor_of((u - r.value) * inverse) > k.most_draw - draws);
    return {r.steps - up, up ? r.value + step : r.value};
}

// A magnitude in binades of float32: the bits that are dropped, and half of the last one that is kept, or a draw, together
// reach one or not. A carry into the exponent is the next value up, and from the last binade infinity.
template <bool drawn>
inline Bits round_same(const Constants& k, Bits magnitude, const u32* draws) {
    const Bits kept = broadcast(-1) << k.drop;
    if constexpr (!drawn) return (magnitude + ((1 << (k.drop - 1)) - 1) + (magnitude >> k.drop & 1)) & kept;
    const Naturals d = read<Naturals>(draws);
    return (magnitude + (Bits)(k.drop < k.random_bits ? d >> (k.random_bits - k.drop) : d << (k.drop - k.random_bits))) & kept;
}

}  // namespace

// A rounded magnitude, not above the largest, or infinity, with the sign of x, times a unit. `plain`: see round_vector.
template <bool plain, bool infinite>
inline Reals limited(const Constants& k, Bits x, Reals magnitude, Reals unit) {
    const Reals limit = plain ? broadcast(k.max) : x < 0 ? broadcast(k.min) : broadcast(k.max);
    // Halfway to what would be the next value and beyond, a magnitude was rounded to it.
    const Reals within = infinite ? (magnitude <= limit ? magnitude : (Reals)broadcast(infinity_bits)) : magnitude < limit ? magnitude : limit;
    if constexpr (plain) return signed_product(within, x, unit);
    // Adding zero makes zero of minus zero and leaves all else; adding minus zero leaves all.
    return ((Reals)((Bits)within | (x & sign_bit)) + broadcast(k.zero_signs ? -0.0f : 0.0f)) * unit;
}

namespace {  // of this file alone

// Which pairs of magnitudes lie below one, both of them; what is chosen for the lanes of those and of all others; one bit for
// each pair.
#if defined(__AVX512F__)

using PairsBelow = __mmask8;

// Twice what is one or more has the upper bit of an exponent field, and nothing less has it: one test of both lanes together.
inline PairsBelow pairs_below_one(Reals u) { return _mm512_testn_epi64_mask((__m512i)(u + u), _mm512_set1_epi32(1 << 30)); }
inline Reals chosen(PairsBelow below, Reals half, Reals wide) { return (Reals)_mm512_mask_blend_pd(below, (__m512d)wide, (__m512d)half); }
inline u32 bits_of_pairs(PairsBelow below) { return below; }

#else

using PairsBelow = Bits;

// Compared as floats: of integers GCC makes a minimum and a comparison.
inline PairsBelow pairs_below_one(Reals u) {
    return (Reals)larger((Bits)u, shuffled((Bits)u, (Bits)u, [](int lane) { return lane ^ 1; })) < broadcast(1.0f);
}
inline Reals chosen(PairsBelow below, Reals half, Reals wide) { return below ? half : wide; }
inline u32 bits_of_pairs(PairsBelow below) {
#if defined(__AVX2__)
    return static_cast<u32>(_mm256_movemask_pd((__m256d)below));
#else
    u32 bits = 0;
    for (int i = 0; i < vector; i += 2) bits |= static_cast<u32>(below[i] != 0) << i / 2;
    return bits;
#endif
}

#endif

}  // namespace

// Asks for the line of the cache that is rounded later, as far as the second level: the nearest may be too small for
// tiles that wait beside those at work. Without stores past the caches, for the room of its results too.
// Always inlined: of a function that only prefetches GCC says that it has no effect, and drops its calls.
template <Result result>
__attribute__((always_inline)) inline void ask(const VectorRounding& q, i64 i) {
    prefetch(q.x + i + q.ahead, 1);
    if (result == Result::values && !q.nontemporal) __builtin_prefetch(q.values + i + q.ahead, 1);
}

namespace {  // of this file alone

// Rounds pairs of magnitudes, as round_vector does: one below one has half the step, twice the count of steps, and a shift.
template <Result result, Draws draws>
inline Bits round_pairs(const Constants& k, Bits x, Reals u, Reals b, Naturals drawn, u32& shifts) {
    constexpr bool codes = result != Result::values;
    const PairsBelow below = pairs_below_one(u);
    if (codes) shifts = bits_of_pairs(below);
    // Codes; values are rounded together: see round_pairs_together.
    if constexpr (draws == Draws::sixteen) {
        const Reals inverse = (Reals)broadcast((254 + 16 + k.m - k.emin_field) << 23), most = inverse * k.max;
        const Bits within = smaller((Bits)(u * chosen(below, inverse + inverse, inverse)), (Bits)most);
        return (Bits)((Naturals)__builtin_convertvector((Reals)within, Bits) + drawn) >> 16;
    }
    const Reals most = broadcast(k.max), limit = chosen(below, 0.5f * most, most);
    if constexpr (draws == Draws::in_sum) {
        const Reals added = added_with_draws(k, broadcast(k.emin_bits)), m = chosen(below, (Reals)((Bits)added - binade), added);
        const Rounded r = round_in_sum((Reals)smaller((Bits)u, (Bits)limit), m, drawn);
        return codes ? r.steps : (Bits)signed_product(r.value, x, b);
    }
    const Bits added = broadcast(k.emin_bits + (k.drop << 23));
    const Reals m = chosen(below, (Reals)(added - binade), (Reals)added), sum = u + m;
    if (codes) return in_fraction((Bits)sum);
    const Reals value = sum - m;
    return (Bits)signed_product(value < limit ? value : limit, x, b);
}

}  // namespace

// Rounds the vector from value i on to values, to codes, or to be packed to magnitudes of codes, and returns their bits.
// `plain` says that the limits of both signs are one and, but for what is packed, that minus zero exists. What lies beyond
// `most` and becomes a code, or is drawn, is rounded as `most`: the largest value, or where a sign has a limit of its own
// enough above it that M stays within float32. With `infinite` values, and `same` ones, are not scaled; the code of infinity
// follows that of the largest value.
template <i64 per, Result result, bool plain, Binades binades, Scaling scaling, Draws draws, bool pairs, bool infinite>
inline Bits round_vector(const Constants& k, const VectorRounding& q, const BinadeTable& table, Reals most, i64 i, Reals a, Reals b,
                         u32& shifts) {
    constexpr bool codes = result != Result::values, drawn = draws != Draws::none, from_w = per == own;
    const Bits x = read<Bits>(q.x + i);
    if constexpr (binades == Binades::same) {
        const Bits rounded = round_same<drawn>(k, x & magnitude_mask, q.draws + i);
        const Bits within = infinite ? rounded : smaller(rounded, broadcast(bits_of(k.max)));
        return codes ? (Bits)((Naturals)within >> k.drop) : within | (x & sign_bit);
    }
    const Bits from = from_w ? read<Bits>(q.w + i) : x;
    // Of integers drawn to values each sign has its own limit; those drawn in a sum have the sign of x from here on, so that zero gets none.
    constexpr bool integers = (draws == Draws::sixteen || draws == Draws::in_sum) && binades == Binades::one && !plain && !codes;
    constexpr bool signed_sum = integers && draws == Draws::in_sum;
    // A sign goes where the magnitude is limited: that of pairs at once, to be compared; their largest value is not below one.
    const Bits magnitude = codes ? from : from & magnitude_mask;
    const Reals w = (Reals)(signed_sum ? magnitude | (x & sign_bit) : magnitude);
    Reals u = scaling == Scaling::powers ? w * a : w / a, unit = b;
    if (codes && pairs) u = magnitude_within(u, most);
    if constexpr (pairs && draws != Draws::any)
        return round_pairs<result, draws>(k, x, u, b, drawn ? read<Naturals>(q.draws + i) : Naturals{}, shifts);
    if (pairs) {
        // A pair below one shifts by one.
        const PairsBelow below = pairs_below_one(u);
        u = chosen(below, u + u, u);
        unit = chosen(below, 0.5f * b, b);
        if (codes) shifts = bits_of_pairs(below);
    }
    if (codes) u = magnitude_within(u, most);
    else if (signed_sum) u = clamped(u, broadcast(-k.min), broadcast(k.max));
    else if (integers) u = (Reals)smaller((Bits)u, x < 0 ? (Bits)broadcast(k.min) : (Bits)broadcast(k.max));
    else if (drawn) u = (Reals)smaller((Bits)u, (Bits)most);
    if (codes && binades == Binades::few) return in_fraction(sum_of(k, table, u));
    const Bits field = binade_of<binades>(k, u);
    Rounded r;
    if constexpr (signed_sum) r = round_in_sum(u, (Reals)((Bits)added_with_draws(k, field) | (x & sign_bit)), read<Naturals>(q.draws + i));
    else if constexpr (drawn) r = round_drawn<draws>(k, field, u, read<Naturals>(q.draws + i));
    else if constexpr (result == Result::packed && binades == Binades::one) return in_fraction((Bits)(u + (Reals)added_to_nearest(k, field)));
    else r = round_to_nearest(k, field, u);
    if (codes) {
        // The code counts steps: those of the binades below that of u, and its own.
        const Bits c = binades == Binades::one ? r.steps : ((field - k.emin_bits) >> k.drop) + r.steps;
        if (result == Result::packed) return c;
        const Bits within = plain || infinite ? c : smaller(c, x < 0 ? broadcast(k.limit_below) : broadcast(k.limit_above));
        return plain ? within | (x >> 31 & k.sign_mask) : with_sign(k, within, x);
    }
    Reals value;
    if constexpr (signed_sum) {
        value = r.value * unit;
    } else if constexpr (draws == Draws::sixteen && binades == Binades::one) {
        // Integers have their signs as counts of steps: one instruction, and zero gets none.
        const Reals step = (Reals)(field - (k.m << 23)), count = __builtin_convertvector(integers ? with_signs(r.steps, x) : r.steps, Reals);
        // Of a block the step times the scale is made once. Scales of single values may be too small for that.
        constexpr bool each = per == own && scaling == Scaling::powers;
        const Reals number = each ? count * step : count, grid = each || scaling != Scaling::powers ? unit : step * unit;
        value = integers ? number * grid : signed_product(number, x, grid);
    }
    // What was limited before it was drawn needs its sign only.
    else if constexpr (drawn && plain && !infinite) value = signed_product(r.value, x, unit);
    else value = limited<plain, infinite>(k, x, r.value, unit);
    return (Bits)(scaling == Scaling::two_levels ? value * q.outer : value);
}

namespace {  // of this file alone

// What is rounded of the vector from value i on.
template <i64 per, Scaling scaling>
inline Reals scaled_magnitude(const VectorRounding& q, i64 i, Reals a) {
    const Reals w = (Reals)(read<Bits>((per == own ? q.w : q.x) + i) & magnitude_mask);
    return scaling == Scaling::powers ? w * a : w / a;
}

// Numbers times 2^by, where `by` is known when the kernel runs. A shift of each lane by its own count is one instruction with AVX2;
// one of all lanes by the same takes two.
inline Bits moved_up(Bits v, i32 by) {
#if defined(__AVX2__)
    return v << broadcast(by);
#else
    return v << by;
#endif
}

// round_together for pairs: one below one has half the step and twice the count of steps. Both kinds share the limit, in units of
// 2^-16 steps.
template <i64 per, i64 count>
inline void round_pairs_together(const Constants& k, const VectorRounding& q, i64 i, const Reals* a, const Reals* b, Bits* rounded) {
    const Reals inverse = (Reals)broadcast((254 + 16 + k.m - k.emin_field) << 23), twice = inverse + inverse;
    const Bits most = (Bits)(inverse * k.max), step = broadcast(k.emin_bits - (k.m << 23));
    Reals u[count], grid[count];
    Bits steps[count];
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v) u[v] = scaled_magnitude<per, Scaling::powers>(q, i + v * vector, a[v]);
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v) {
        const PairsBelow below = pairs_below_one(u[v]);
        const Reals wide = (Reals)step * b[v];
        grid[v] = chosen(below, 0.5f * wide, wide);
        u[v] *= chosen(below, twice, inverse);
    }
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v) steps[v] = __builtin_convertvector((Reals)smaller((Bits)u[v], most), Bits);
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v) steps[v] = (steps[v] + read<Bits>(q.draws + i + v * vector)) >> 16;
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v) u[v] = __builtin_convertvector(steps[v], Reals);
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v) rounded[v] = (Bits)signed_product(u[v], read<Bits>(q.x + i + v * vector), grid[v]);
}

}  // namespace

// Rounds `count` vectors to values by draws of sixteen bits, as round_vector does, where the limits of both signs are one and minus
// zero exists. One step of all vectors follows the other: the steps of one wait for each other, and a CPU that is given all of
// them first has no room to look for others. With `wide` binades draws are added to the bits of values, as in round_same; if
// some value lies below emin, which is rare, zeros apart, all are rounded again with steps.
template <i64 per, Binades binades, Scaling scaling, bool pairs, i64 count>
inline void round_together(const Constants& k, const VectorRounding& q, Reals most, i64 i, const Reals* a, const Reals* b, Bits* rounded) {
    if constexpr (pairs) return round_pairs_together<per, count>(k, q, i, a, b, rounded);
    Bits u[count];
    Naturals least_below = Naturals{} - 1;  // of all but zero, less one
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v) {
        u[v] = (Bits)scaled_magnitude<per, scaling>(q, i + v * vector, a[v]);
        if constexpr (binades == Binades::wide) {
            const Naturals below = (Naturals)u[v] - 1;
            least_below = below < least_below ? below : least_below;
        }
        u[v] = smaller(u[v], (Bits)most);
    }
    if (binades == Binades::many || __builtin_expect(any((Bits)(least_below < static_cast<u32>(k.emin_bits - 1))), 0)) {
        Bits field[count], steps[count];
#pragma GCC unroll 8
        for (i64 v = 0; v < count; ++v) field[v] = binade_of<Binades::many>(k, (Reals)u[v]);
#pragma GCC unroll 8
        for (i64 v = 0; v < count; ++v) steps[v] = steps_of(k, field[v], (Reals)u[v]);
#pragma GCC unroll 8
        for (i64 v = 0; v < count; ++v) steps[v] = (steps[v] + (Bits)read<Naturals>(q.draws + i + v * vector)) >> 16;
#pragma GCC unroll 8
        for (i64 v = 0; v < count; ++v) u[v] = (Bits)(__builtin_convertvector(steps[v], Reals) * (Reals)(field[v] - (k.m << 23)));
    } else {
        const Bits kept = broadcast(-1) << k.drop;
#pragma GCC unroll 8
        for (i64 v = 0; v < count; ++v) u[v] = (u[v] + moved_up(read<Bits>(q.draws + i + v * vector), k.drop - 16)) & kept;
    }
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v) {
        const Reals value = signed_product((Reals)u[v], read<Bits>(q.x + i + v * vector), b[v]);
        rounded[v] = (Bits)(scaling == Scaling::two_levels ? value * q.outer : value);
    }
}

// Of numbers that are not negative a division is one shift.
template <i64 per>
inline u64 block_of(i64 i) {
    return static_cast<u64>(i) / (per > 0 ? per : 1);
}

// The numbers of the blocks, of 24 values each, to which the lanes from value i on belong. Two blocks meet in the middle of a vector of
// sixteen, if in one at all.
inline Reals numbers_of_spinors(const float* numbers, i64 i) {
    const Reals first = broadcast(numbers[block_of<24>(i)]);
#if defined(__AVX512F__)
    return (Reals)_mm512_mask_broadcastss_ps((__m512)first, 0xff00, _mm_load_ss(numbers + block_of<24>(i + vector / 2)));
#else
    return first;
#endif
}

}  // namespace vector_rounding
