// The common cases, a vector of values at a time: rounding to nearest even or by draws, every input finite. What is too large
// becomes the largest value, or infinity where values have no scale.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/packing.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace finite_vectors {

using numbers::Bits, numbers::Naturals, numbers::Reals, numbers::binade, numbers::bits_of, numbers::exponent_mask, numbers::float_of,
    numbers::infinity_bits, numbers::larger, numbers::least, numbers::magnitude_mask, numbers::one_bits, numbers::sign_bit, numbers::smaller,
    numbers::tile, numbers::vector;
using packing::Joining, packing::join, packing::joined, packing::joined_bytes;
using rounding::Constants, rounding::with_sign;
using vectors::broadcast, vectors::larger, vectors::read, vectors::shuffled, vectors::smaller,
    vectors::store_nontemporal, vectors::write;

// How far ahead of what is rounded memory is asked for. The next tile is measured as soon as this one is rounded, faster
// than it comes from memory: a tile more is under way meanwhile.
constexpr i64 values_ahead = 2 * tile;

// What a vector of values becomes: values again, codes one in each number, or packed codes.
enum class Result { values, codes, packed };

// How many values share a number in a and b: 16, 32, or
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

// How the step of a value is found: `one` for all, as in fixed point; looked up in a register that has a lane for each of
// `few` binades; computed. The binades of a float32 itself, as bfloat16 has them, need no step: `same`.
enum class Binades { one, few, many, same };

// The binade of u, in place, but none below that of emin, where subnormals share a step. Beyond the values of fixed point,
// which share it, it does not matter.
template <Binades binades>
inline Bits binade_of(const Constants& k, Reals u) {
    return binades == Binades::one ? broadcast(k.emin_bits) : larger((Bits)u & exponent_mask, broadcast(k.emin_bits));
}

// |u| rounded, as a multiple of the step of its binade and as the value. With M = 2^(s+23), where the values of u's
// binade are multiples of 2^s, the sum u + M lies in [M, 2M), where float32 itself holds multiples of 2^s only. That
// needs M within float32 (Grid::rounds_by_addition) and no contraction or reassociation by the compiler. Far beyond the largest value
// M leaves the exponent field; the value then stays as large as u, or becomes NaN, and the steps mean nothing.
struct Rounded {
    Bits steps;
    Reals value;
};

inline Rounded round_to_nearest(const Constants& k, Bits field, Reals u) {
    const Naturals m = (Naturals)field + static_cast<u32>(k.drop << 23);
    const Reals sum = u + (Reals)m;
    return {(Bits)((Naturals)sum - m), sum - (Reals)m};
}

#if defined(__AVX2__)

// Of each binade of few what round_to_nearest adds, and what is then taken from the bits of the sum to leave the code. A
// binade has the lane that the low bits of its exponent field say.
struct BinadeTable {
    Bits added, taken;
};

inline bool has_few_binades(const Constants& k) { return (bits_of(k.max) >> 23) - k.emin_field < vector; }

inline BinadeTable binade_table(const Constants& k) {
    Bits lane{};
    for (i32 i = 0; i < vector; ++i) lane[i] = i;
    const Bits above = (lane - k.emin_field) & static_cast<i32>(vector - 1), added = (above + (k.emin_field + k.drop)) << 23;
    return {added, added - (above << k.m)};
}

inline Bits select_lane(Bits table, Bits lanes) {
#if defined(__AVX512F__)
    return (Bits)_mm512_permutexvar_epi32((__m512i)lanes, (__m512i)table);
#else
    return (Bits)_mm256_permutevar8x32_epi32((__m256i)table, (__m256i)lanes);
#endif
}

// The code of u, which is not above the largest value: six instructions, where others take eight.
inline Bits code_of(const Constants& k, const BinadeTable& t, Reals u) {
    const Bits field = (Bits)((Naturals)larger((Bits)u, broadcast(k.emin_bits)) >> 23);
    return (Bits)(u + (Reals)select_lane(t.added, field)) - select_lane(t.taken, field);
}

#else

struct BinadeTable {};
inline bool has_few_binades(const Constants&) { return false; }
inline BinadeTable binade_table(const Constants&) { return {}; }
inline Bits code_of(const Constants&, const BinadeTable&, Reals u) { return (Bits)u; }

#endif

// |u|, but not above `most`.
inline Reals magnitude_within(Reals u, Reals most) {
#if defined(__AVX512F__)
    return (Reals)_mm512_range_ps((__m512)u, (__m512)most, 10);  // the smaller magnitude, without a sign
#else
    return (Reals)smaller((Bits)u & magnitude_mask, (Bits)most);
#endif
}

// How values are drawn: not at all, by draws of `sixteen` bits that are added to a count of steps with 16 bits behind the
// point, or by any draws.
enum class Draws { none, sixteen, any };

// Whether draws are `sixteen`: the count of steps fits an integer with the draw, u being below 2^(m + 1) steps, or at most one
// less. In one binade with one limit for both signs u is at most a whole number of steps.
template <Binades binades>
inline Draws draws_of(const Constants& k, bool drawn) {
    const bool small = k.random_bits == 16 && k.m <= (binades == Binades::one && k.limit_above == k.limit_below ? 14 : 13);
    return !drawn ? Draws::none : small && binades != Binades::same ? Draws::sixteen : Draws::any;
}

// Counts of steps with the signs of x: one instruction of AVX2.
inline Bits with_signs(Bits steps, Bits x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (Bits)_mm256_sign_epi32((__m256i)steps, (__m256i)x);
#else
    const Bits negative = x >> 31;
    return (steps ^ negative) - negative;
#endif
}

// Up or down by a draw of B bits: the fraction of a step that is dropped, cut to B bits, and the draw together reach one.
template <Draws drawn>
inline Rounded round_drawn(const Constants& k, Bits field, Reals u, Naturals draws) {
    const Reals step = (Reals)(field - (k.m << 23));
    // 2^B over the step, from its exponent field: products with it are exact. The difference fits; what it is taken from
    // does not, as a signed number.
    const Reals inverse = (Reals)((static_cast<u32>(254 + k.m + k.random_bits) << 23) - (Naturals)field);
    // The draw is added to the count of steps, and what is behind the point is cut.
    if constexpr (drawn == Draws::sixteen) {
        const Bits steps = (__builtin_convertvector(u * inverse, Bits) + (Bits)draws) >> 16;
        return {steps, __builtin_convertvector(steps, Reals) * step};
    }
    // Else in two parts. What is left of u above the value below it is exact: a multiple of its own last bit, less than a
    // step.
#if defined(__AVX512F__)
    const Naturals m = (Naturals)field + static_cast<u32>(k.drop << 23);
    const Reals sum = (Reals)_mm512_add_round_ps((__m512)u, (__m512)m, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const Rounded r{(Bits)((Naturals)sum - m), sum - (Reals)m};
#else
    Rounded r = round_to_nearest(k, field, u);
    const Bits over = r.value > u;
    r.value -= (Reals)((Bits)step & over);
    r.steps += over;
#endif
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

// A rounded magnitude, not above the largest, or infinity, with the sign of x. `plain`: see round_vector.
template <bool plain, bool infinite>
inline Reals limited(const Constants& k, Bits x, Reals magnitude) {
    const Reals limit = plain ? broadcast(k.max) : x < 0 ? broadcast(k.min) : broadcast(k.max);
    // Halfway to what would be the next value and beyond, a magnitude was rounded to it.
    const Reals within = infinite ? (magnitude <= limit ? magnitude : (Reals)broadcast(infinity_bits)) : magnitude < limit ? magnitude : limit;
    const Reals number = (Reals)((Bits)within | (x & sign_bit));
    // Adding zero makes zero of minus zero and leaves all else; adding minus zero leaves all.
    return plain ? number : number + broadcast(k.zero_signs ? -0.0f : 0.0f);
}

// Of a pair both lanes have the larger magnitude: whether it lies below one, one bit for each pair.
inline u32 bits_of_pairs(Bits top) {
#if defined(__AVX512F__)
    // Both lanes as one number of 64 bits: the upper decides.
    return _mm512_cmplt_epi64_mask((__m512i)top, _mm512_set1_epi64(static_cast<i64>(one_bits) << 32));
#elif defined(__AVX2__)
    return static_cast<u32>(_mm256_movemask_pd((__m256d)(top < one_bits)));
#else
    u32 bits = 0;
    for (int i = 0; i < vector; i += 2) bits |= static_cast<u32>(top[i] < one_bits) << i / 2;
    return bits;
#endif
}

// Asks for the line of the cache that is rounded later, and without stores past the caches for the room of its results.
// Always inlined: of a function that only prefetches GCC says that it has no effect, and drops its calls.
template <Result result>
__attribute__((always_inline)) inline void ask(const VectorRounding& q, i64 i) {
    __builtin_prefetch(q.x + i + q.ahead);
    if (result == Result::values && !q.nontemporal) __builtin_prefetch(q.values + i + q.ahead, 1);
}

// Rounds the vector from value i on to values, to codes, or to be packed to magnitudes of codes, and returns their bits.
// `plain` says that the limits of both signs are one and, but for what is packed, that minus zero exists. What lies beyond
// `most` and becomes a code, or is drawn, is rounded as `most`: the largest value, or where a sign has a limit of its own
// enough above it that M stays within float32. With `infinite` values, and `same` ones, are not scaled; the code of infinity
// follows that of the largest value.
template <Result result, bool from_w, bool plain, Binades binades, bool divided, Draws draws, bool pairs, bool infinite>
inline Bits round_vector(const Constants& k, const VectorRounding& q, const BinadeTable& table, Reals most, i64 i, Reals a, Reals b,
                         u32& shifts) {
    constexpr bool codes = result != Result::values, drawn = draws != Draws::none;
    const Bits x = read<Bits>(q.x + i);
    if constexpr (binades == Binades::same) {
        const Bits rounded = round_same<drawn>(k, x & magnitude_mask, q.draws + i);
        const Bits within = infinite ? rounded : smaller(rounded, broadcast(bits_of(k.max)));
        return codes ? (Bits)((Naturals)within >> k.drop) : within | (x & sign_bit);
    }
    const Bits from = from_w ? read<Bits>(q.w + i) : x;
    // A sign goes where the magnitude is limited.
    const Reals w = (Reals)(codes && !pairs ? from : from & magnitude_mask);
    Reals u = divided ? w / a : w * a, unit = b;
    if (pairs) {
        // A pair below one shifts by one: each lane beside its neighbour is one permutation.
        const Bits top = larger((Bits)u, shuffled((Bits)u, (Bits)u, [](int lane) { return lane ^ 1; }));
        u = top < one_bits ? u + u : u;
        unit = top < one_bits ? 0.5f * b : b;
        if (codes) shifts = bits_of_pairs(top);
    }
    if (codes) u = magnitude_within(u, most);
    else if (drawn) u = (Reals)smaller((Bits)u, (Bits)most);
    if (codes && binades == Binades::few) return code_of(k, table, u);
    const Bits field = binade_of<binades>(k, u);
    Rounded r;
    if constexpr (drawn) r = round_drawn<draws>(k, field, u, read<Naturals>(q.draws + i));
    else r = round_to_nearest(k, field, u);
    if (codes) {
        // The code counts steps: those of the binades below that of u, and its own.
        const Bits c = binades == Binades::one ? r.steps : ((field - k.emin_bits) >> k.drop) + r.steps;
        const Bits within = plain || infinite ? c : smaller(c, x < 0 ? broadcast(k.limit_below) : broadcast(k.limit_above));
        if (result == Result::packed) return within;
        return plain ? within | (x >> 31 & k.sign_mask) : with_sign(k, within, x);
    }
    // Integers have their signs and limits as counts of steps: three instructions, where numbers take six. Zero gets no sign.
    if constexpr (draws == Draws::sixteen && binades == Binades::one && !plain) {
        const Bits within = smaller(larger(with_signs(r.steps, x), broadcast(-k.limit_below)), broadcast(k.limit_above));
        const Reals value = __builtin_convertvector(within, Reals) * (Reals)(field - (k.m << 23)) * unit;
        return (Bits)(divided ? value * q.outer : value);
    }
    // What was limited before it was drawn needs its sign only.
    const Reals number = drawn && plain && !infinite ? (Reals)((Bits)r.value | (x & sign_bit)) : limited<plain, infinite>(k, x, r.value);
    const Reals value = number * unit;
    return (Bits)(divided ? value * q.outer : value);
}

// Of numbers that are not negative a division is one shift.
template <i64 per>
inline u64 block_of(i64 i) {
    return static_cast<u64>(i) / (per > 0 ? per : 1);
}

// `per` values share a number in a and b. Memory is asked for a line of the cache at a time, of `line` values.
template <i64 per, Result result, bool plain, Binades binades, bool divided, Draws draws, bool pairs, bool infinite = false>
void round_vectors(const Constants& given, const VectorRounding& given_rounding) {
    const Constants k = given;
    const VectorRounding q = given_rounding;
    const bool to_max = !infinite && (draws != Draws::none ? k.limit_above == k.limit_below : plain && result != Result::values);
    const Reals most = broadcast(to_max ? k.max : float_of((bits_of(k.max) & exponent_mask) + binade));
    const BinadeTable table = binade_table(k);
    constexpr i64 line = 16, run = per > 0 ? per : line;
    // A number for all stays in one register, as that of a block does for all vectors of the block.
    Reals a = broadcast(q.a[0]), b = broadcast(q.b[0]);
    if constexpr (result == Result::packed) {
        const Joining joining = *q.joining;
        const i64 room = joined_bytes(joining), group_bytes = joined * joining.bits / 8;
        // The last four vectors end with the values: they may repeat some of those before.
        for (i64 i = 0;; i = least(i + joined, q.n - joined)) {
            Bits codes[4], x[4];
            u32 shifts = 0;
            // Blocks are whole, so that i begins one, or half of one where no more is joined: lanes count from there.
            const float *as = q.a + block_of<per>(i), *bs = q.b + block_of<per>(i);
#pragma GCC unroll 4
            for (i64 v = 0; v < joined; v += line) ask<result>(q, i + v);
#pragma GCC unroll 4
            for (i64 v = 0; v < 4; ++v) {
                const i64 at = i + v * vector;
                if (per == own) a = read<Reals>(q.a + at), b = read<Reals>(q.b + at);
                if (per > 0) a = broadcast(as[block_of<per>(v * vector)]), b = broadcast(bs[block_of<per>(v * vector)]);
                x[v] = read<Bits>(q.x + at);
                u32 of_vector = 0;
                codes[v] = round_vector<result, per == own, plain, binades, divided, draws, pairs, infinite>(k, q, table, most, at, a, b, of_vector);
                shifts |= of_vector << v * vector / 2;
            }
            // What the next codes do not cover again, and others may own, is not written: by way of a buffer.
            u8 *out = q.packed + block_of<8>(i) * static_cast<u64>(joining.bits), buffer[2 * joined];
            const bool roomy = q.end - out >= room;
            join(joining, codes, x, roomy ? out : buffer);
            if (!roomy) __builtin_memcpy(out, buffer, static_cast<u64>(group_bytes));
            if (pairs) __builtin_memcpy(q.shifts + block_of<16>(i), &shifts, joined / 16);
            if (i == q.n - joined) break;
        }
    } else {
        for (i64 i = 0; i < q.n;) {
            if (per > 0) a = broadcast(q.a[block_of<per>(i)]), b = broadcast(q.b[block_of<per>(i)]);
#pragma GCC unroll 2
            for (const i64 end = i + run; i < end; i += line) {
                ask<result>(q, i);
#pragma GCC unroll 4
                for (i64 at = i; at < i + line; at += vector) {
                    if (per == own) a = read<Reals>(q.a + at), b = read<Reals>(q.b + at);
                    u32 shifts;
                    const Bits r = round_vector<result, per == own, plain, binades, divided, draws, pairs, infinite>(k, q, table, most, at, a, b, shifts);
                    if (result == Result::codes)
                        write(q.codes + at, r);
                    else if (q.nontemporal)
                        store_nontemporal(q.values + at, (Reals)r);
                    else
                        write(q.values + at, r);
                }
            }
        }
    }
}

}  // namespace

// Pairs of fixed-point values one above the other, in two rows, to nearest even. a and b have a number for each lane.
template <bool plain>
void round_pairs_of_rows(const Constants& given, const float* const* x, const float* a, const float* b, i32 most_shift,
                         float* const* values, i64 n) {
    const Constants k = given;
    for (i64 i = 0; i < n; i += vector) {
        const Bits upper = read<Bits>(x[0] + i), lower = read<Bits>(x[1] + i);
        const Reals above = (Reals)(upper & magnitude_mask) * read<Reals>(a + i), below = (Reals)(lower & magnitude_mask) * read<Reals>(a + i);
        const Bits gap = one_bits - (larger((Bits)above, (Bits)below) & exponent_mask);
        const Bits shift = smaller(larger(gap, Bits{}), broadcast(most_shift)), field = broadcast(k.emin_bits);
        const Reals up = (Reals)(one_bits + shift), unit = read<Reals>(b + i) * (Reals)(one_bits - shift);
        write(values[0] + i, limited<plain, false>(k, upper, round_to_nearest(k, field, above * up).value) * unit);
        write(values[1] + i, limited<plain, false>(k, lower, round_to_nearest(k, field, below * up).value) * unit);
    }
}

inline bool is_plain(const Constants& k) { return k.limit_above == k.limit_below && k.zero_signs != 0; }

// The flags of a job choose one of the instances of round_vectors, in three steps.
using RoundVectors = void (*)(const Constants&, const VectorRounding&);

// Pairs are those of fixed-point elements in blocks.
template <i64 per, Result result, bool plain, Binades binades, Draws draws>
inline RoundVectors vectors_for(bool divided, bool pairs) {
    if constexpr (per > 0 && plain && binades == Binades::one)
        if (pairs) return round_vectors<per, result, plain, binades, false, draws, true>;
    return divided ? round_vectors<per, result, plain, binades, true, draws, false> : round_vectors<per, result, plain, binades, false, draws, false>;
}

template <i64 per, Result result, bool plain, Binades binades>
inline RoundVectors vectors_for(const Constants& k, bool divided, bool drawn, bool pairs) {
    if constexpr (binades != Binades::few) {
        const Draws draws = draws_of<binades>(k, drawn);
        if (draws == Draws::sixteen) return vectors_for<per, result, plain, binades, Draws::sixteen>(divided, pairs);
        if (draws == Draws::any) return vectors_for<per, result, plain, binades, Draws::any>(divided, pairs);
    }
    return vectors_for<per, result, plain, binades, Draws::none>(divided, pairs);
}

// Without scales, and with the same limit for both signs, which has_own_overflow says.
template <Result result, Binades binades, bool infinite>
inline RoundVectors unscaled_for(const Constants& k, bool drawn) {
    const Draws draws = draws_of<binades>(k, drawn);
    if constexpr (binades != Binades::same)
        if (draws == Draws::sixteen) return round_vectors<whole, result, true, binades, false, Draws::sixteen, false, infinite>;
    return draws == Draws::none ? round_vectors<whole, result, true, binades, false, Draws::none, false, infinite>
                                : round_vectors<whole, result, true, binades, false, Draws::any, false, infinite>;
}

template <Result result>
inline RoundVectors unscaled_for(const Constants& k, bool same, bool drawn) {
    const bool infinite = k.overflow == Overflow::inf;
    if (same && infinite) return unscaled_for<result, Binades::same, true>(k, drawn);
    return same ? unscaled_for<result, Binades::same, false>(k, drawn) : unscaled_for<result, Binades::many, true>(k, drawn);
}

template <i64 per, Result result>
inline RoundVectors vectors_for(const Constants& k, bool fixed, bool divided, bool drawn, bool pairs) {
    // Packed magnitudes get their signs later.
    const bool plain = result == Result::packed ? k.limit_above == k.limit_below : is_plain(k);
    if (plain && fixed) return vectors_for<per, result, true, Binades::one>(k, divided, drawn, pairs);
    if constexpr (result == Result::packed)
        if (plain && !drawn && has_few_binades(k)) return vectors_for<per, result, true, Binades::few>(k, divided, drawn, pairs);
    if (plain) return vectors_for<per, result, true, Binades::many>(k, divided, drawn, pairs);
    if (fixed) return vectors_for<per, result, false, Binades::one>(k, divided, drawn, pairs);
    return vectors_for<per, result, false, Binades::many>(k, divided, drawn, pairs);
}

}  // namespace finite_vectors
