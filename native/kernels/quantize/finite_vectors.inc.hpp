// The common cases, a vector of values at a time: rounding to nearest even or by draws, saturating, every input finite.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace finite_vectors {

using numbers::Bits, numbers::Naturals, numbers::Reals, numbers::binade, numbers::bits_of, numbers::exponent_mask,
    numbers::larger, numbers::magnitude_mask, numbers::one_bits, numbers::sign_bit, numbers::smaller, numbers::vector;
using rounding::Constants, rounding::with_sign;
using vectors::broadcast, vectors::larger, vectors::read, vectors::shuffled, vectors::smaller,
    vectors::store_nontemporal, vectors::write;

namespace {  // of this file alone

constexpr i64 prefetched = 512;  // values between what is rounded and what is asked for from memory meanwhile

}  // namespace

// What is rounded is |w| times its number in a, or over it; the result has the sign of x, and a value is multiplied by
// its number in b. a and b have one number for each block, or for each value.
struct VectorRounding {
    const float *x, *w, *a, *b;
    float outer;       // of what is divided, the second factor
    const u32* draws;  // for each value
    i32 most_shift;    // of pairs, in place in the exponent field
    float* values;
    i32* codes;
    i32* pairs;  // their shifts beside both values, in place
    i64 n;          // whole vectors
    bool nontemporal;   // values go past the caches
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

// The binade of u, in place, but none below that of emin, where subnormals share a step. `fixed`: all values share it, and
// beyond them it does not matter.
template <bool fixed>
inline Bits binade_of(const Constants& k, Reals u) {
    return fixed ? broadcast(k.emin_bits) : larger((Bits)u & exponent_mask, broadcast(k.emin_bits));
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

// Up or down by a draw: exact, because what is left of u above the value below is a multiple of its own last bit and
// less than a step. `up` when floor(2^32 fraction) exceeds the draw.
inline Rounded round_drawn(const Constants& k, Bits field, Reals u, Naturals draws) {
    const Reals step = (Reals)(field - (k.m << 23));
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
    // 2^32 over the step, from its exponent field: the product below is exact.
    const Naturals inverse = (static_cast<u32>(254 + k.m + 32) << 23) - (Naturals)field;
    const Reals scaled = (u - r.value) * (Reals)inverse;  // by 2^32 / step
    const Bits up = (Bits)(floor_of(scaled) > draws);
    return {r.steps - up, up ? r.value + step : r.value};
}

// A rounded magnitude, not above the largest, with the sign of x. `plain`: see round_vectors.
template <bool plain>
inline Reals limited(const Constants& k, Bits x, Reals magnitude) {
    const Reals limit = plain ? broadcast(k.max) : x < 0 ? broadcast(k.min) : broadcast(k.max);
    const Reals within = magnitude < limit ? magnitude : limit;
    const Bits sign = x & sign_bit & (plain ? broadcast(-1) : within != 0.0f ? broadcast(-1) : broadcast(k.zero_signs));
    return (Reals)((Bits)within | sign);
}

// `per` values share a number in a and b; 0: each has its own. `plain` says that the limits of both signs are one and that
// minus zero exists, which saves three instructions.
template <i64 per, bool codes, bool plain, bool fixed, bool divided, bool drawn, bool pairs>
void round_vectors(const Constants& given, const VectorRounding& given_rounding) {
    const Constants k = given;
    const VectorRounding q = given_rounding;
    // What lies beyond twice the largest value is taken for it, so that M stays within float32.
    const i32 cap = (bits_of(k.max) & exponent_mask) + binade;
    for (i64 i = 0, j = 0; i < q.n; ++j) {
        // A scale for each block stays in one register for all vectors of the block.
        Reals a{}, b{};
        if (per) a = broadcast(q.a[j]), b = broadcast(q.b[j]);
#pragma GCC unroll 2
        for (const i64 end = i + (per ? per : vector); i < end; i += vector) {
            if (!per) a = read<Reals>(q.a + i), b = read<Reals>(q.b + i);
            __builtin_prefetch(q.x + i + prefetched);
            const Bits x = read<Bits>(q.x + i);
            const Reals w = (Reals)((per ? x : read<Bits>(q.w + i)) & magnitude_mask);
            Reals u = divided ? w / a : w * a, unit = b;
            if (pairs) {
                const Bits shift = shift_of_pairs(u, q.most_shift);
                u *= (Reals)(one_bits + shift);
                unit *= (Reals)(one_bits - shift);
                if (codes) write(q.pairs + i, shift);
            }
            if (codes || drawn) u = (Reals)smaller((Bits)u, broadcast(cap));
            const Bits field = binade_of<fixed>(k, u);
            const Rounded r = drawn ? round_drawn(k, field, u, read<Naturals>(q.draws + i)) : round_to_nearest(k, field, u);
            if (codes) {
                // The code counts steps: those of the binades below that of u, and its own.
                const Bits c = ((field - k.emin_bits) >> k.drop) + r.steps;
                const Bits limit = plain ? broadcast(k.limit_above) : x < 0 ? broadcast(k.limit_below) : broadcast(k.limit_above);
                const Bits within = smaller(c, limit);
                const Bits code = plain ? within | (x >> 31 & k.sign_mask) : with_sign(k, within, x);
                write(q.codes + i, code);
            } else {
                const Reals value = limited<plain>(k, x, r.value) * unit;
                const Reals result = divided ? value * q.outer : value;
                if (q.nontemporal)
                    store_nontemporal(q.values + i, result);
                else
                    write(q.values + i, result);
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
        write(values[0] + i, limited<plain>(k, upper, round_to_nearest(k, field, above * up).value) * unit);
        write(values[1] + i, limited<plain>(k, lower, round_to_nearest(k, field, below * up).value) * unit);
    }
}

inline bool is_plain(const Constants& k) { return k.limit_above == k.limit_below && k.zero_signs != 0; }

namespace {  // of this file alone

// The flags of a job choose one of the instances of round_vectors, in three steps.
using RoundVectors = void (*)(const Constants&, const VectorRounding&);

}  // namespace

template <i64 per, bool codes, bool plain, bool fixed>
inline RoundVectors vectors_for(bool divided, bool drawn, bool pairs) {
    if (divided && drawn) return round_vectors<per, codes, plain, fixed, true, true, false>;
    if (divided) return round_vectors<per, codes, plain, fixed, true, false, false>;
    if (pairs && drawn) return round_vectors<per, codes, plain, true, false, true, true>;
    if (pairs) return round_vectors<per, codes, plain, true, false, false, true>;
    return drawn ? round_vectors<per, codes, plain, fixed, false, true, false> : round_vectors<per, codes, plain, fixed, false, false, false>;
}

// Pairs are those of fixed-point elements.
template <i64 per, bool codes>
inline RoundVectors vectors_for(const Constants& k, bool fixed, bool divided, bool drawn, bool pairs) {
    const bool plain = is_plain(k);
    if (plain && fixed) return vectors_for<per, codes, true, true>(divided, drawn, pairs);
    if (plain) return vectors_for<per, codes, true, false>(divided, drawn, pairs);
    if (fixed) return vectors_for<per, codes, false, true>(divided, drawn, pairs);
    return vectors_for<per, codes, false, false>(divided, drawn, pairs);
}

}  // namespace finite_vectors
