// From values to values or to packed codes and scales: the steps that a tile of values is taken through, in buffers
// that stay in the nearest cache. The scale of every value is written out beside it, so that each step is one flat loop.
#pragma once

#include "kernels/quantize/finite_vectors.inc.hpp"
#include "kernels/values/draws.inc.hpp"
#include "kernels/values/elements.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/scales.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace {

struct alignas(64) Buffers {
    float x[tile];       // values
    float w[tile];       // what is rounded is |w| a; its code or value has the sign of x
    float a[tile];
    float b[tile];       // what an element is multiplied by
    float outer[tile];   // the same for a second level
    float one[tile];
    float values[tile];  // results
    i32 codes[tile], shifts[tile];
    i32 pairs[tile];  // shifts of pairs beside each value, in place
    u32 draws[tile + drawn_together];
    i32 largest[tile], scales[tile];  // of blocks: largest finite magnitude, code of the scale
    float divisor[tile], multiplier[tile];
    bool bad[tile];  // whether a block holds something that is not finite
};

// Everything about a job that its tiles share.
struct Plan {
    const Job& job;
    const Format& f;
    const Geometry& g;
    Constants element, scale;
    bool values, real, two_level, stochastic;
    bool quick;  // a case of round_vectors, but for what is not finite
};

inline Plan plan_of(const Job& job) {
    const Format& f = job.format;
    Plan p{job, f, job.geometry, {}, {}, false, false, false, false, false};
    if (!f.tabled) p.element = constants_of(f.grid, f.overflow);
    p.real = f.scales == Scales::real || f.scales == Scales::two_level;
    p.two_level = f.scales == Scales::two_level;
    if (p.real) p.scale = constants_of(f.scale_grid, Overflow::saturate);
    p.values = job.values != nullptr;
    p.stochastic = f.rounding == Rounding::stochastic;
    p.quick = !f.tabled && f.grid.quick && (f.rounding == Rounding::nearest_even || p.stochastic) &&
              f.overflow == Overflow::saturate && !f.whole_bad;
    return p;
}

// The largest value of the input's own type, which stands for infinity where Nonfinite::saturate says so.
inline i32 largest_input(Real type) {
    return type == Real::f32 ? largest_bits : type == Real::bf16 ? 0x7f7f0000 : bits_of(65504.0f);
}

inline void replace_nonfinite(float* x, i64 n, Real type) {
    const i32 top = largest_input(type);
    for (i64 i = 0; i < n; ++i) {
        const i32 b = bits_of(x[i]), magnitude = b & magnitude_mask;
        x[i] = float_of(magnitude > infinity_bits ? 0 : magnitude == infinity_bits ? top | (b & sign_bit) : b);
    }
}

inline const float* zero_nonfinite(const float* x, i64 n, float* out) {
    for (i64 i = 0; i < n; ++i) out[i] = (bits_of(x[i]) & magnitude_mask) < infinity_bits ? x[i] : 0.0f;
    return out;
}

template <bool codes>
inline void round_by(const Plan& p, const float* x, const float* w, const float* a, const float* b, const u32* draws,
                     float* values, i32* out, i64 n) {
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

// Whether values go from registers to memory past the caches.
inline bool nontemporal(const Plan& p, const Buffers& t, const float* values) {
    return p.job.nontemporal && values != t.values && starts_vector(values);
}

template <i64 per>
inline void round_vectors_of(const Plan& p, const Quick& q, bool pairs) {
    const auto pick = p.values ? vectors_for<per, false> : vectors_for<per, true>;
    pick(p.element, is_fixed(p.f.grid), p.real, p.stochastic, pairs)(p.element, q);
}

// Rounds n values to nearest even or by draws; buffers take a last vector that is not whole.
inline void round_quickly(const Plan& p, Buffers& t, Quick q, i64 n) {
    const bool whole = n % vector == 0;
    float* values = q.values;
    if (!whole) {
        if (q.x != t.x) __builtin_memcpy(t.x, q.x, static_cast<u64>(n) * sizeof(float));
        if (q.w == q.x) q.w = t.x;
        q.x = t.x;
        q.values = t.values;
        q.nontemporal = false;
    }
    q.n = count_of(n, vector) * vector;
    round_vectors_of<0>(p, q, false);
    if (!whole && p.values && values != t.values) __builtin_memcpy(values, t.values, static_cast<u64>(n) * sizeof(float));
}

// Rounds n values to the table or the grid. What is rounded is |w| a or, with real scales, w over a. `place` is that of
// the first value, the next are `place_step` further.
inline void round_tile(const Plan& p, Buffers& t, const float* x, const float* w, const float* a, const float* b,
                       bool finite, i64 place, i64 place_step, float* values, i32* codes, i64 n) {
    u32* draws = nullptr;
    const float* outer = p.two_level ? t.outer : nullptr;
    if (p.stochastic) draw(p.f.seed, place, place_step, n, t.draws, &draws);
    const bool quick = p.quick && finite;
    if (p.real && !quick) {
        for (i64 i = 0; i < n; ++i) t.w[i] = w[i] / a[i];
        w = t.w;
        a = t.one;
    }
    if (p.f.tabled && p.values)
        look_up_all<false>(p.f.table, p.stochastic, x, w, a, b, outer, draws, values, codes, n);
    else if (p.f.tabled)
        look_up_all<true>(p.f.table, p.stochastic, x, w, a, b, outer, draws, values, codes, n);
    else if (quick)
        round_quickly(p, t, {x, w, a, b, 1.0f, draws, 0, values, codes, nullptr, 0, !outer && nontemporal(p, t, values)}, n);
    else if (p.values)
        round_by<false>(p, x, w, a, b, draws, values, codes, n);
    else
        round_by<true>(p, x, w, a, b, draws, values, codes, n);
    if (outer && p.values && !p.f.tabled)
        for (i64 i = 0; i < n; ++i) values[i] *= outer[i];
}

inline void fill(float* out, float v, i64 n) {
    for (i64 i = 0; i < n; ++i) out[i] = v;
}

template <i64 fixed_size>
inline void largest_of_blocks(const float* x, i64 n, i64 size, i32* largest) {
    const i64 width = fixed_size ? fixed_size : size;
    i64 j = 0, at = 0;
    for (; at + width <= n; at += width) largest[j++] = largest_of<fixed_size>(x + at, width);
    if (at < n) largest[j] = largest_of<0>(x + at, n - at);
}

// Maxima of the even and odd lanes of a, then of b: halves the lanes that belong to each.
inline Bits merge(Bits a, Bits b) {
    Bits even{}, odd{};
    for (i64 i = 0; i < vector; ++i) {
        even[i] = static_cast<i32>(2 * i);
        odd[i] = static_cast<i32>(2 * i + 1);
    }
    const Bits p = __builtin_shuffle(a, b, even), q = __builtin_shuffle(a, b, odd);
    return p > q ? p : q;
}

// Largest magnitudes of `vector` blocks at a time, merged like a tournament: three instructions for each merge instead
// of nine for the reduction of one block alone.
template <i64 size>
inline void largest_of_many(const float* x, i64 blocks, i32* largest) {
    for (i64 j = 0; j < blocks; j += vector) {
        Bits top[vector];
#pragma GCC unroll 16
        for (i64 b = 0; b < vector; ++b) {
            Bits most{};
#pragma GCC unroll 16
            for (i64 i = 0; i < size; i += vector) {
                Bits v;
                __builtin_memcpy(&v, x + (j + b) * size + i, sizeof v);
                v &= magnitude_mask;
                most = v > most ? v : most;
            }
            top[b] = most;
        }
#pragma GCC unroll 16
        for (i64 n = vector / 2; n > 0; n /= 2)
#pragma GCC unroll 16
            for (i64 b = 0; b < n; ++b) top[b] = merge(top[2 * b], top[2 * b + 1]);
        __builtin_memcpy(largest + j, &top[0], sizeof top[0]);
    }
}

template <i64 fixed_size>
inline void spread(const float* per_block, i64 n, i64 size, float* __restrict out) {
    const i64 width = fixed_size ? fixed_size : size;
    i64 j = 0, at = 0;
    for (; at + width <= n; at += width, ++j)
        for (i64 i = 0; i < width; ++i) out[at + i] = per_block[j];
    for (; at < n; ++at) out[at] = per_block[j];
}

// The number of each block beside each of its values.
inline void spread_blocks(const float* per_block, i64 n, i64 size, float* out) {
    if (size == 32)
        spread<32>(per_block, n, size, out);
    else if (size == 16)
        spread<16>(per_block, n, size, out);
    else if (size == 24)  // a spinor's real numbers
        spread<24>(per_block, n, size, out);
    else
        spread<0>(per_block, n, size, out);
}

// Largest magnitudes of the blocks of a tile, and which of them hold something that is not finite. Returns whether
// the whole tile is finite.
inline bool measure_blocks(Buffers& t, const float* x, i64 n, i64 size, i64 blocks) {
    const bool many = n == blocks * size && blocks % vector == 0;
    if (size == 32 && many)
        largest_of_many<32>(x, blocks, t.largest);
    else if (size == 16 && many)
        largest_of_many<16>(x, blocks, t.largest);
    else if (size == 32)
        largest_of_blocks<32>(x, n, size, t.largest);
    else if (size == 16)
        largest_of_blocks<16>(x, n, size, t.largest);
    else if (size == 24)
        largest_of_blocks<24>(x, n, size, t.largest);
    else
        largest_of_blocks<0>(x, n, size, t.largest);
    i32 top = 0;
    for (i64 j = 0; j < blocks; ++j) top = larger(top, t.largest[j]);
    const bool finite = top < infinity_bits;
    for (i64 j = 0; j < blocks; ++j) t.bad[j] = t.largest[j] >= infinity_bits;
    if (!finite)
        for (i64 j = 0; j < blocks; ++j)
            if (t.bad[j]) t.largest[j] = largest_finite(x + j * size, least(size, n - j * size));
    return finite;
}

// shift_line for pairs, a whole vector of them at a time.
inline void shift_pairs(i32 largest_shift, Buffers& t, const float* x, i64 n) {
    for (i64 i = 0; i < n; i += vector) {
        const Reals u = (Reals)(read<Bits>(x + i) & magnitude_mask) * read<Reals>(t.a + i);
        const Bits shift = shift_of_pairs(u, largest_shift << 23);
        write(t.w + i, u * (Reals)(one_bits + shift));
        write(t.b + i, read<Reals>(t.b + i) * (Reals)(one_bits - shift));
        write(t.pairs + i, shift);
    }
}

// The shift of each pair, from beside both its values.
inline void gather_pairs(Buffers& t, i64 n) {
    for (i64 j = 0; j < (n + 1) / 2; ++j) t.shifts[j] = t.pairs[2 * j] >> 23;
}

// The shifts of a tile's sub-blocks along the line: t.w becomes |x| over the scale of its sub-block, t.b what an
// element is multiplied by. Directed rounding has to see what is too small for that, and not zero.
inline void shift_line(const Format& f, Buffers& t, const float* x, i64 n, bool codes) {
    if (f.sub_block == 2) {
        if (n % vector) {
            for (i64 i = 0; i < tile; ++i) t.x[i] = i < n ? x[i] : 0.0f;
            for (i64 i = n; i % vector; ++i) t.a[i] = t.b[i] = 0.0f;  // zero times what was left there may be NaN
            x = t.x;
        }
        shift_pairs(f.largest_shift, t, x, n);
        if (codes) gather_pairs(t, n);
    } else {
        for (i64 i = 0; i < n; ++i) t.w[i] = float_of(bits_of(x[i]) & magnitude_mask) * t.a[i];
        for (i64 start = 0, j = 0; start < n; start += f.sub_block, ++j) {
            const i64 count = least(f.sub_block, n - start);
            const i32 gap = one_bits - (largest_of<0>(t.w + start, count) & exponent_mask);
            const i32 shift = clamp(gap, 0, f.largest_shift << 23);
            t.shifts[j] = shift >> 23;
            for (i64 i = start; i < start + count; ++i) {
                t.w[i] *= float_of(one_bits + shift);
                t.b[i] *= float_of(one_bits - shift);
            }
        }
    }
    if (f.rounding == Rounding::up || f.rounding == Rounding::down)
        for (i64 i = 0; i < n; ++i) t.w[i] = t.w[i] == 0.0f && x[i] != 0.0f ? float_of(1) : t.w[i];
}

template <class OuterOf>
inline void real_scales(const Plan& p, Buffers& t, i64 blocks, OuterOf outer) {
    const Constants k = p.scale;
    const RealRule rule{p.f.element_max, 1.0f / p.f.element_max, p.f.scale_of_zeros, p.f.scale_smallest, p.two_level};
    for (i64 j = 0; j < blocks; ++j) {
        const RealScale s = real_scale(rule, k, t.largest[j], outer(j));
        t.scales[j] = s.code;
        t.divisor[j] = s.divisor;
        t.multiplier[j] = s.multiplier;
    }
}

// Scales of blocks from their t.largest and t.bad; block j has the outer scale outer[j * outer_step].
inline void choose_scales(const Plan& p, Buffers& t, i64 blocks, const Outer* outer, i64 outer_step) {
    const Format& f = p.f;
    if (p.real) {
        if (outer_step == 0)
            real_scales(p, t, blocks, [&](i64) { return outer[0]; });
        else
            real_scales(p, t, blocks, [&](i64 j) { return outer[j]; });
    } else {
        ruled_scales(f, t.largest, t.scales, t.divisor, t.multiplier, blocks);
    }
    const i32 nan = f.scale_nan;
    if (f.nonfinite == Nonfinite::block_nan)
        for (i64 j = 0; j < blocks; ++j) t.scales[j] = t.bad[j] ? nan : t.scales[j];
}

inline void overwrite(const Plan& p, float* values, i32* codes, i64 n) {
    for (i64 i = 0; i < n; ++i) {
        if (p.values)
            values[i] = float_of(nan_bits);
        else
            codes[i] = 0;
    }
}

}  // namespace
