// From values to values or to packed codes and scales: the steps that a tile of values is taken through, in buffers
// that stay in the nearest cache. The scale of every value is written out beside it, so that each step is one flat loop.
#pragma once

#include "kernels/quantize/finite_vectors.inc.hpp"
#include "kernels/quantize/prepared.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/stochastic_draws.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace tiles {

using finite_vectors::Result, finite_vectors::Scaling, finite_vectors::VectorRounding, finite_vectors::own, finite_vectors::values_beyond,
    finite_vectors::vectors_for;
using prepared::Buffers, prepared::PreparedQuantize;
using numbers::bits_of, numbers::float_of, numbers::infinity_bits, numbers::largest_bits, numbers::least, numbers::magnitude_mask,
    numbers::nan_bits, numbers::sign_bit, numbers::tile;
using rounding::Constants, rounding::is_fixed, rounding::look_up_all, rounding::look_up_drawn_signs, rounding::look_up_signs, rounding::round_all;
using stochastic_draws::draw;
using vectors::starts_vector;

namespace {  // of this file alone

// The largest value of the input's own type, which stands for infinity where Nonfinite::saturate says so.
inline i32 largest_input(Real type) {
    return type == Real::f32 ? largest_bits : type == Real::bf16 ? 0x7f7f0000 : bits_of(65504.0f);
}

}  // namespace

// NaN becomes zero, infinity the largest value with its sign; a select, so that the loop vectorizes.
inline void replace_nonfinite(float* x, i64 n, Real type) {
    const i32 top = largest_input(type);
    for (i64 i = 0; i < n; ++i) {
        const i32 b = bits_of(x[i]), magnitude = b & magnitude_mask;
        x[i] = float_of(magnitude > infinity_bits ? 0 : magnitude == infinity_bits ? top | (b & sign_bit) : b);
    }
}

// A copy in which whatever is not finite is zero.
inline const float* zero_nonfinite(const float* x, i64 n, float* out) {
    for (i64 i = 0; i < n; ++i) out[i] = (bits_of(x[i]) & magnitude_mask) < infinity_bits ? x[i] : 0.0f;
    return out;
}

namespace {  // of this file alone

// From a rounding that is known when the job runs to one that the compiler knows: the loop inside has no branch on it.
template <bool codes>
inline void round_by(const PreparedQuantize& p, const float* x, const float* w, const float* a, const float* b, const u32* draws,
                     float* values, i32* out, i64 n) {
    // A copy, which no store through `values` or `out` can change.
    const Constants k = p.element;
    switch (p.f.rounding) {
        case Rounding::nearest_even: return round_all<Rounding::nearest_even, codes>(k, x, w, a, b, draws, values, out, n);
        case Rounding::nearest_away: return round_all<Rounding::nearest_away, codes>(k, x, w, a, b, draws, values, out, n);
        case Rounding::toward_zero: return round_all<Rounding::toward_zero, codes>(k, x, w, a, b, draws, values, out, n);
        case Rounding::up: return round_all<Rounding::up, codes>(k, x, w, a, b, draws, values, out, n);
        case Rounding::down: return round_all<Rounding::down, codes>(k, x, w, a, b, draws, values, out, n);
        case Rounding::stochastic: return round_all<Rounding::stochastic, codes>(k, x, w, a, b, draws, values, out, n);
    }
}

}  // namespace

// Whether values go from registers to memory past the caches.
inline bool nontemporal(const PreparedQuantize& p, const Buffers& t, const float* values) {
    return p.job.nontemporal && values != t.values && starts_vector(values);
}

namespace {  // of this file alone

// Rounds n values to nearest even or by draws, each with a scale of its own; buffers take a last line of the cache that is
// not in_place.
inline void round_as_vectors(const PreparedQuantize& p, Buffers& t, VectorRounding q, i64 n) {
    constexpr i64 line = 16;
    const bool in_place = n % line == 0;
    float* values = q.values;
    // The last line is not whole: read and written in buffers, so that nothing beyond the arrays is touched.
    if (!in_place) {
        if (q.x != t.x) __builtin_memcpy(t.x, q.x, static_cast<u64>(n) * sizeof(float));
        // w may be the same array as x, or t.w already.
        if (q.w == q.x) q.w = t.x;
        q.x = t.x;
        q.values = t.values;
        q.nontemporal = false;
    }
    q.n = count_of(n, line) * line;
    const auto pick = p.values ? vectors_for<own, Result::values> : vectors_for<own, Result::codes>;
    pick(p.element, is_fixed(p.f.grid), p.real ? Scaling::quotients : Scaling::powers, p.stochastic, false)(p.element, q);
    if (!in_place && p.values && values != t.values) __builtin_memcpy(values, t.values, static_cast<u64>(n) * sizeof(float));
}

}  // namespace

// Rounds n finite values to a table that splits at zero, or to -1 and 1 by draws. `place` is that of the first value. Memory is
// asked for what lies `ahead` values further.
template <bool one_scale>
inline void round_signs(const PreparedQuantize& p, Buffers& t, const float* x, const float* a, const float* b, i64 place, i64 place_step,
                        float* values, i32* codes, i64 ahead, i64 n) {
    if (p.stochastic) {
        const auto look_up = p.values ? look_up_drawn_signs<false, one_scale> : look_up_drawn_signs<true, one_scale>;
        const bool past_caches = nontemporal(p, t, values);
        // A few at a time, so that memory is busy while bits are drawn.
        constexpr i64 piece = 256;
        for (i64 at = 0; at < n; at += piece) {
            const i64 count = least(piece, n - at), scale = one_scale ? 0 : at;
            const u32* draws;
            draw(p.f.seed, p.f.random_bits, place + at * place_step, place_step, count, t.draws, &draws);
            look_up(p.f.table, x + at, a + scale, b + scale, draws, values + at, past_caches, codes + at, ahead, count);
        }
        return;
    }
    const auto look_up = p.values ? look_up_signs<false, one_scale> : look_up_signs<true, one_scale>;
    look_up(p.f.table, x, a, b, values, nontemporal(p, t, values), codes, ahead, n);
}

// Rounds n values to the table or the grid. What is rounded is |w| a or, with real scales, w over a. `place` is that of
// the first value, the next are `place_step` further.
inline void round_tile(const PreparedQuantize& p, Buffers& t, const float* x, const float* w, const float* a, const float* b,
                       bool finite, i64 place, i64 place_step, float* values, i32* codes, i64 n) {
    if (p.by_sign && finite) return round_signs<false>(p, t, w, a, b, place, place_step, values, codes, 0, n);
    const u32* draws = nullptr;
    const float* outer = p.two_level ? t.outer : nullptr;
    if (p.stochastic) draw(p.f.seed, p.f.random_bits, place, place_step, n, t.draws, &draws);
    // Only round_all knows what becomes of NaN and infinity.
    const bool in_vectors = p.in_vectors && finite;
    // Real scales divide: a quotient is rounded correctly, the product with an inverse would not be.
    if (p.real && !in_vectors) {
        for (i64 i = 0; i < n; ++i) t.w[i] = w[i] / a[i];
        w = t.w;
        a = t.ones;
    }
    if (p.f.tabled && p.values)
        look_up_all<false>(p.f.table, p.stochastic ? p.f.random_bits : 0, x, w, a, b, outer, draws, values, codes, n);
    else if (p.f.tabled)
        look_up_all<true>(p.f.table, p.stochastic ? p.f.random_bits : 0, x, w, a, b, outer, draws, values, codes, n);
    else if (in_vectors)
        round_as_vectors(p, t,
                         {
                             .x = x,
                             .w = w,
                             .a = a,
                             .b = b,
                             .outer = 1.0f,
                             .draws = draws,
                             .n = 0,
                             .ahead = p.tile + values_beyond,
                             .values = values,
                             .nontemporal = !outer && nontemporal(p, t, values),
                             .codes = codes,
                             .joining = nullptr,
                             .packed = nullptr,
                             .end = nullptr,
                             .shifts = nullptr,
                         },
                         n);
    else if (p.values)
        round_by<false>(p, x, w, a, b, draws, values, codes, n);
    else
        round_by<true>(p, x, w, a, b, draws, values, codes, n);
    // The second level is a rounding of its own; tables do both products in double precision themselves.
    if (outer && p.values && !p.f.tabled)
        for (i64 i = 0; i < n; ++i) values[i] *= outer[i];
}

// Makes NaN of n values; of codes zeros, since the scale of the block is NaN then.
inline void overwrite(const PreparedQuantize& p, float* values, i32* codes, i64 n) {
    for (i64 i = 0; i < n; ++i) {
        if (p.values)
            values[i] = float_of(nan_bits);
        else
            codes[i] = 0;
    }
}

}  // namespace tiles
