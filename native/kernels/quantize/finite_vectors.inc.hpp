// The common cases, a vector of values at a time: rounding to nearest even or by draws, every input finite. What is too large
// becomes the largest value, or infinity where values have no scale. Chosen here, from the loops over all vectors.
#pragma once

#include "kernels/quantize/vector_rounding.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/packing.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace finite_vectors {

using numbers::Bits, numbers::Reals, numbers::binade, numbers::bits_of, numbers::exponent_mask, numbers::float_of,
    numbers::magnitude_mask, numbers::one_bits, numbers::vector;
using packing::Joining, packing::join, packing::joined, packing::joined_bytes;
using rounding::Constants;
using vector_rounding::BinadeTable, vector_rounding::Binades, vector_rounding::Draws, vector_rounding::Result,
    vector_rounding::Scaling, vector_rounding::VectorRounding, vector_rounding::ask, vector_rounding::binade_table,
    vector_rounding::block_of, vector_rounding::cuts_sums, vector_rounding::draws_of, vector_rounding::has_few_binades, vector_rounding::is_wide,
    vector_rounding::limited, vector_rounding::numbers_of_spinors, vector_rounding::own, vector_rounding::round_to_nearest,
    vector_rounding::round_together, vector_rounding::round_vector, vector_rounding::shift_of_pairs,
    vector_rounding::values_beyond, vector_rounding::whole;
using vectors::broadcast, vectors::larger, vectors::read, vectors::smaller, vectors::store_nontemporal, vectors::write;

namespace {  // of this file alone

// Stores vectors of results from value i on.
// One test for all of them. Past the caches they go one after the other, so that a line of the cache leaves whole.
template <Result result, i64 count>
inline void store_run(const VectorRounding& q, i64 i, const Bits* rounded) {
    if (result == Result::values && q.nontemporal) {
#pragma GCC unroll 8
        for (i64 v = 0; v < count; ++v) store_nontemporal(q.values + i + v * vector, (Reals)rounded[v]);
        return;
    }
#pragma GCC unroll 8
    for (i64 v = 0; v < count; ++v)
        if (result == Result::codes) write(q.codes + i + v * vector, rounded[v]);
        else write(q.values + i + v * vector, rounded[v]);
}

// One instance for each kind of job, so that nothing within the loops is asked of the format again. Values and codes go a run at a
// time, two lines of a cache; packed codes four vectors at a time, which are bytes of one register.
// `per` values share a number in a and b. Memory is asked for a line of the cache at a time, of `line` values.
template <i64 per, Result result, bool plain, Binades binades, Scaling scaling, Draws draws, bool pairs, bool infinite = false>
void round_vectors(const Constants& given, const VectorRounding& given_rounding) {
    const Constants k = given;
    const VectorRounding q = given_rounding;
    // Magnitudes that are packed are limited by their sign once more when they get it.
    const bool to_max = !infinite && (result == Result::packed  ? k.limit_below <= k.limit_above
                                      : draws != Draws::none ? k.limit_above == k.limit_below
                                                             : plain && result != Result::values);
    const Reals most = broadcast(to_max ? k.max : float_of((bits_of(k.max) & exponent_mask) + binade));
    const BinadeTable table = binade_table(k);
    constexpr bool together = plain && !infinite && result == Result::values && draws == Draws::sixteen &&
                              (pairs || binades == Binades::many || binades == Binades::wide);
    constexpr i64 line = 16;
    // A number for all stays in one register, as that of a block does for all vectors of the block.
    Reals a = broadcast(q.a[0]), b = broadcast(q.b[0]);
    if constexpr (result == Result::packed) {
        const Joining joining = *q.joining;
        const i64 group_bytes = joined * joining.bits / 8, last = q.n - joined;
        const u8* last_roomy = q.end - joined_bytes(joining);
        // `out` follows the groups, so that no address is computed from i but at the end.
        u8 *out = q.packed, buffer[2 * joined];
        for (i64 i = 0;;) {
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
                // Blocks of 24 begin anywhere in four vectors, and in the middle of one.
                if (per == 24) a = numbers_of_spinors(q.a, at), b = numbers_of_spinors(q.b, at);
                else if (per > 0) a = broadcast(as[block_of<per>(v * vector)]), b = broadcast(bs[block_of<per>(v * vector)]);
                x[v] = read<Bits>(q.x + at);
                u32 of_vector = 0;
                codes[v] = round_vector<per, result, plain, binades, scaling, draws, pairs, infinite>(k, q, table, most, at, a, b, of_vector);
                shifts |= of_vector << v * vector / 2;
            }
            // What the next codes do not cover again, and others may own, is not written: by way of a buffer.
            const bool roomy = out <= last_roomy;
            join(joining, codes, x, roomy ? out : buffer);
            if (!roomy) __builtin_memcpy(out, buffer, static_cast<u64>(group_bytes));
            if (pairs) __builtin_memcpy(q.shifts + block_of<16>(i), &shifts, joined / 16);
            if (i == last) break;
            i += joined, out += group_bytes;
            // The last four vectors end with the values: they may repeat some of those before.
            if (i > last) i = last, out = q.packed + block_of<8>(i) * static_cast<u64>(joining.bits);
        }
    } else {
        // Counts that the compiler knows, and one test for all stores: nothing of a loop remains.
        const auto round_run = [&]<i64 count>(i64 i) __attribute__((always_inline)) {
            const float *of_run = q.a + block_of<per>(i), *back = q.b + block_of<per>(i);
            Bits rounded[count];
            Reals as[count], bs[count];
#pragma GCC unroll 8
            for (i64 v = 0; v < count; ++v) {
                const i64 at = i + v * vector;
                if (v * vector % line == 0) ask<result>(q, at);
                if (per == own) a = read<Reals>(q.a + at), b = read<Reals>(q.b + at);
                if (per == 24) a = numbers_of_spinors(of_run, v * vector), b = numbers_of_spinors(back, v * vector);  // runs begin blocks
                else if (per > 0) a = broadcast(of_run[block_of<per>(v * vector)]), b = broadcast(back[block_of<per>(v * vector)]);
                as[v] = a, bs[v] = b;
            }
            if constexpr (together) {
                round_together<per, binades, scaling, pairs, count>(k, q, most, i, as, bs, rounded);
            } else {
#pragma GCC unroll 8
                for (i64 v = 0; v < count; ++v) {
                    u32 shifts;
                    rounded[v] = round_vector<per, result, plain, binades, scaling, draws, pairs, infinite>(k, q, table, most, i + v * vector,
                                                                                                            as[v], bs[v], shifts);
                }
            }
            store_run<result, count>(q, i, rounded);
        };
        // Two lines in a run, so that there is enough to do side by side; one of what waits for divisions and has little else to do.
        constexpr bool waits = per != 32 && binades == Binades::wide && scaling != Scaling::powers;
        // Blocks of 24 make whole lines two by two.
        constexpr i64 run = per == 24 ? 48 : waits ? line : 2 * line;
        i64 i = 0;
        for (; i + run <= q.n; i += run) round_run.template operator()<run / vector>(i);
        // A line is left where n is an odd number of them; blocks of 24 and 32 leave none.
        if (per != 24 && per != 32 && i < q.n) round_run.template operator()<line / vector>(i);
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
        write(values[0] + i, limited<plain, false>(k, upper, round_to_nearest(k, field, above * up).value, unit));
        write(values[1] + i, limited<plain, false>(k, lower, round_to_nearest(k, field, below * up).value, unit));
    }
}

inline bool is_plain(const Constants& k) { return k.limit_above == k.limit_below && k.zero_signs != 0; }

// The flags of a job choose one of the instances of round_vectors, in three steps.
using RoundVectors = void (*)(const Constants&, const VectorRounding&);

// Pairs are those of fixed-point elements in blocks.
template <i64 per, Result result, bool plain, Binades binades, Draws draws>
inline RoundVectors vectors_for(Scaling scaling, bool pairs) {
    if constexpr (per > 0 && plain && binades == Binades::one)
        if (pairs) return round_vectors<per, result, plain, binades, Scaling::powers, draws, true>;
    if (scaling == Scaling::powers) return round_vectors<per, result, plain, binades, Scaling::powers, draws, false>;
    // Codes know nothing of a second level.
    if constexpr (result == Result::values)
        if (scaling == Scaling::two_levels) return round_vectors<per, result, plain, binades, Scaling::two_levels, draws, false>;
    return round_vectors<per, result, plain, binades, Scaling::quotients, draws, false>;
}

template <i64 per, Result result, bool plain, Binades binades>
inline RoundVectors vectors_for(const Constants& k, Scaling scaling, bool drawn, bool pairs) {
    if constexpr (binades != Binades::few) {
        const Draws draws = draws_of<binades>(k, drawn, scaling);
        if (draws == Draws::sixteen) return vectors_for<per, result, plain, binades, Draws::sixteen>(scaling, pairs);
        if constexpr (cuts_sums)
            if (draws == Draws::in_sum) return vectors_for<per, result, plain, binades, Draws::in_sum>(scaling, pairs);
        if (draws == Draws::any) return vectors_for<per, result, plain, binades, Draws::any>(scaling, pairs);
    }
    return vectors_for<per, result, plain, binades, Draws::none>(scaling, pairs);
}

// Without scales, and with the same limit for both signs, which has_own_overflow says.
template <Result result, Binades binades, bool infinite>
inline RoundVectors unscaled_for(const Constants& k, bool drawn) {
    const Draws draws = draws_of<binades>(k, drawn, Scaling::powers);
    if constexpr (binades != Binades::same)
        if (draws == Draws::sixteen) return round_vectors<whole, result, true, binades, Scaling::powers, Draws::sixteen, false, infinite>;
    if constexpr (cuts_sums && binades != Binades::same)
        if (draws == Draws::in_sum) return round_vectors<whole, result, true, binades, Scaling::powers, Draws::in_sum, false, infinite>;
    return draws == Draws::none ? round_vectors<whole, result, true, binades, Scaling::powers, Draws::none, false, infinite>
                                : round_vectors<whole, result, true, binades, Scaling::powers, Draws::any, false, infinite>;
}

template <Result result>
inline RoundVectors unscaled_for(const Constants& k, bool same, bool drawn) {
    const bool infinite = k.overflow == Overflow::inf;
    if (same && infinite) return unscaled_for<result, Binades::same, true>(k, drawn);
    return same ? unscaled_for<result, Binades::same, false>(k, drawn) : unscaled_for<result, Binades::many, true>(k, drawn);
}

template <i64 per, Result result>
inline RoundVectors vectors_for(const Constants& k, bool fixed, Scaling scaling, bool drawn, bool pairs) {
    // Packed magnitudes get their signs later.
    const bool plain = result == Result::packed ? k.limit_above == k.limit_below : is_plain(k);
    if (plain && fixed) return vectors_for<per, result, true, Binades::one>(k, scaling, drawn, pairs);
    if constexpr (result == Result::packed)
        if (plain && !drawn && has_few_binades(k)) return vectors_for<per, result, true, Binades::few>(k, scaling, drawn, pairs);
    // Draws of 16 bits fit below the last bit of such elements: no step is needed but for tiny values.
    if constexpr (result == Result::values)
        if (plain && drawn && is_wide(k) && draws_of<Binades::many>(k, drawn, scaling) != Draws::any)
            return vectors_for<per, result, true, Binades::wide, Draws::sixteen>(scaling, pairs);
    if (plain) return vectors_for<per, result, true, Binades::many>(k, scaling, drawn, pairs);
    if (fixed) return vectors_for<per, result, false, Binades::one>(k, scaling, drawn, pairs);
    return vectors_for<per, result, false, Binades::many>(k, scaling, drawn, pairs);
}

// Of fixed point with scales that are divided by alone: blocks of 24 real numbers, as spinors have them, need no other instances,
// and each instance is compiled for each instruction set.
template <i64 per, Result result>
inline RoundVectors fixed_quotients_for(const Constants& k, bool drawn) {
    const Draws draws = draws_of<Binades::one>(k, drawn, Scaling::quotients);
    const auto chosen = [&]<bool plain>() -> RoundVectors {
        if (draws == Draws::sixteen) return round_vectors<per, result, plain, Binades::one, Scaling::quotients, Draws::sixteen, false>;
        if constexpr (cuts_sums)
            if (draws == Draws::in_sum) return round_vectors<per, result, plain, Binades::one, Scaling::quotients, Draws::in_sum, false>;
        if (draws == Draws::any) return round_vectors<per, result, plain, Binades::one, Scaling::quotients, Draws::any, false>;
        return round_vectors<per, result, plain, Binades::one, Scaling::quotients, Draws::none, false>;
    };
    const bool plain = result == Result::packed ? k.limit_above == k.limit_below : is_plain(k);
    return plain ? chosen.template operator()<true>() : chosen.template operator()<false>();
}

}  // namespace finite_vectors
