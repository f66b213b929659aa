// Products of a packed matrix with few vectors, straight from the packed bits: a tile of a line is decoded in
// registers, or in the nearest cache for several vectors, and never reaches memory. Sums are float32, in an order that
// depends on the instruction set; |error| <= (n + 2) 2^-24 sum |x| |W|, docs/products.md.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/dequantize.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace {

inline float dot(const float* __restrict x, const float* __restrict w, i64 n) {
    constexpr i64 lanes_of_sum = 32;
    float sums[lanes_of_sum] = {};
    i64 i = 0;
    for (; i + lanes_of_sum <= n; i += lanes_of_sum)
        for (i64 j = 0; j < lanes_of_sum; ++j) sums[j] += x[i + j] * w[i + j];
    float sum = 0.0f;
    for (; i < n; ++i) sum += x[i] * w[i];
    for (i64 width = lanes_of_sum / 2; width > 0; width /= 2)
        for (i64 j = 0; j < width; ++j) sums[j] += sums[j + width];
    return sum + sums[0];
}

#if defined(__AVX512F__)

// A line times one vector, eight vectors of codes at a time in four sums; about five instructions for each 16 values
// of up to four bits.
template <Decoder decoder>
inline float one_product(const Sixteen& given, const Stretch& r, const float* x) {
    const Sixteen s = given;
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    i64 v = 0;
    for (; v + 4 <= r.safe; v += 4) {
        __builtin_prefetch(r.codes + v * 2 * s.bits + 2048);
#pragma GCC unroll 4
        for (i64 j = 0; j < 4; ++j)
            sums[j] = _mm512_fmadd_ps(weights<decoder, true>(s, r, v + j), _mm512_loadu_ps(x + 16 * (v + j)), sums[j]);
    }
    for (; v < r.vectors; ++v)
        sums[0] = _mm512_fmadd_ps(weights<decoder, false>(s, r, v), _mm512_loadu_ps(x + 16 * v), sums[0]);
    return _mm512_reduce_add_ps((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

constexpr i64 lines_together = 4, rows_in_sums = 16;

// Four lines times four rows of x: 16 sums in registers, eight loads for 16 products.
inline void add_products(const float (*w)[tile], const float* x, i64 stride, i64 rows, i64 n, __m512 (*sums)[rows_in_sums]) {
    for (i64 b = 0; b < rows; b += 4) {
        const float* from[4];
        __m512 sum[4][4];
        for (i64 r = 0; r < 4; ++r) from[r] = x + least(b + r, rows - 1) * stride;
#pragma GCC unroll 4
        for (i64 l = 0; l < 4; ++l)
#pragma GCC unroll 4
            for (i64 r = 0; r < 4; ++r) sum[l][r] = sums[l][b + r];
        for (i64 i = 0; i < n; i += 16) {
#pragma GCC unroll 4
            for (i64 r = 0; r < 4; ++r) {
                const __m512 v = _mm512_loadu_ps(from[r] + i);
#pragma GCC unroll 4
                for (i64 l = 0; l < 4; ++l) sum[l][r] = _mm512_fmadd_ps(_mm512_load_ps(w[l] + i), v, sum[l][r]);
            }
        }
#pragma GCC unroll 4
        for (i64 l = 0; l < 4; ++l)
#pragma GCC unroll 4
            for (i64 r = 0; r < 4; ++r) sums[l][b + r] = sum[l][r];
    }
}

// The whole vectors of up to four lines, times up to 16 rows of x; y[l][b] is written. Returns how many values of a
// line they cover.
template <Decoder decoder>
inline i64 gemv_lines(const Gemv& job, const RestorePlan& p, const Sixteen& s, RestoreBuffers& t, i64 line, i64 lines,
                      float (*y)[rows_in_sums]) {
    const i64 whole = job.n / 16 * 16;
    if (job.batch == 1) {
        for (i64 l = 0; l < lines; ++l) {
            y[l][0] = 0.0f;
            for (i64 start = 0; start < whole; start += 8 * tile) {  // a scale for each vector at most
                const Stretch r = stretch_of(p, t, s, line + l, start, least(8 * tile, whole - start));
                y[l][0] += one_product<decoder>(s, r, job.x + start);
            }
        }
        return whole;
    }
    alignas(64) float w[lines_together][tile];
    __m512 sums[lines_together][rows_in_sums];
    for (auto& of_line : sums)
        for (__m512& sum : of_line) sum = _mm512_setzero_ps();
    for (i64 start = 0; start < whole; start += tile) {
        const i64 n = least(tile, whole - start);
        for (i64 l = 0; l < lines_together; ++l) {
            if (l < lines) decode_stretch<decoder, false>(s, stretch_of(p, t, s, line + l, start, n), 1.0f, w[l]);
            else fill(w[l], 0.0f, tile);
        }
        add_products(w, job.x + start, job.n, job.batch, n, sums);
    }
    for (i64 l = 0; l < lines; ++l)
        for (i64 b = 0; b < job.batch; ++b) y[l][b] = _mm512_reduce_add_ps(sums[l][b]);
    return whole;
}

// Four-bit codes times one vector. A register of 64 bytes holds 128 codes, eight in each 32-bit lane; a permutation
// looks at the low four bits of each lane only, so a permutation gives 16 values, with no mask and no shuffle. The next
// eight bits come by a load one byte further, the four in between by a shift: a load costs less. The scale of a lane's
// eight codes is applied once: 23 instructions for 128 values, and a few for scales. Vector j of 128 holds
// the values 8 i + j, and so does Gemv::permuted. Lines go four at a time, because the vector is seldom in the nearest
// cache whole and would be read again for each.
constexpr i64 nibbles = 128, scaled_together = 4096, most_scales = scaled_together / 8;

inline bool takes_nibbles(const Gemv& job, const Sixteen& s) {
    const Format& f = job.format;
    const bool blocks = !has_blocks(f) || (f.block >= 8 && is_power_of_two(f.block));
    return job.permuted != nullptr && s.bits == 4 && s.decoder == Decoder::table && blocks && f.scales != Scales::shifted;
}

struct Nibbles {
    __m512 table;
    __m512i pick;        // which scale of a group each lane takes
    __mmask16 present;   // how many scales a group has
    i64 log_size;        // of blocks; no division in the loop: one takes longer than a group
    i64 whole;           // values of a line in whole groups
};

inline Nibbles nibbles_of(const Gemv& job, const Sixteen& s) {
    const Format& f = job.format;
    const i64 size = has_blocks(f) ? f.block : nibbles, in_group = size < nibbles ? nibbles / size : 1;
    Nibbles k{s.table, {}, static_cast<__mmask16>((1u << in_group) - 1), log2_of(size), job.n / nibbles * nibbles};
    alignas(64) i32 lanes_of_scales[16];
    for (i64 i = 0; i < 16; ++i) lanes_of_scales[i] = static_cast<i32>(8 * i / size);
    k.pick = _mm512_load_si512(lanes_of_scales);
    return k;
}

// Writes to y the products of the whole groups of `lines` lines.
template <i64 lines>
inline void nibble_products(const Gemv& job, const RestorePlan& p, const Nibbles& given, RestoreBuffers& t, i64 line) {
    const Nibbles k = given;
    const Format& f = p.f;
    const bool blocks = has_blocks(f);
    alignas(64) float scales[lines][most_scales];
    for (i64 l = 0; l < lines && !blocks; ++l) {
        scales[l][0] = 1.0f;
        if (one_scale(f)) restore_scales(p, t, line + l, 0, 1, scales[l]);
    }
    __m512 sums[lines];
    for (i64 l = 0; l < lines; ++l) sums[l] = _mm512_setzero_ps();
    for (i64 start = 0; start < k.whole; start += scaled_together) {
        const i64 n = least(scaled_together, k.whole - start), first = start >> k.log_size;
        const i64 count = ((start + n - 1) >> k.log_size) - first + 1;
        for (i64 l = 0; l < lines && blocks; ++l) restore_scales(p, t, line + l, first, count, scales[l]);
        const u8* codes = p.job.codes + line * p.bytes.codes + start / 2;
        const float* x = job.permuted + start;
        for (i64 g = 0; g < n; g += nibbles, codes += nibbles / 2, x += nibbles) {
            const u8* from[lines];
            alignas(64) u8 copies[lines][nibbles];
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) from[l] = codes + l * p.bytes.codes;
            if (line + lines == job.lines && start + g + nibbles == k.whole)  // nothing may be read beyond the end
                for (i64 l = 0; l < lines; ++l) from[l] = static_cast<u8*>(__builtin_memcpy(copies[l], from[l], nibbles / 2));
            __m512 group[lines];
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                __builtin_prefetch(codes + l * p.bytes.codes + 1024, 0, 2);
                group[l] = _mm512_setzero_ps();
            }
#pragma GCC unroll 4
            for (i64 j = 0; j < 4; ++j) {
                const __m512 low = _mm512_loadu_ps(x + 32 * j), high = _mm512_loadu_ps(x + 32 * j + 16);
#pragma GCC unroll 4
                for (i64 l = 0; l < lines; ++l) {
                    const __m512i c = _mm512_loadu_si512(from[l] + j);
                    const __m512 even = _mm512_permutexvar_ps(c, k.table);
                    group[l] = j == 0 ? _mm512_mul_ps(even, low) : _mm512_fmadd_ps(even, low, group[l]);
                    const __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), k.table);
                    group[l] = _mm512_fmadd_ps(odd, high, group[l]);
                }
            }
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                const __m512 some = _mm512_maskz_loadu_ps(k.present, scales[l] + (blocks ? g >> k.log_size : 0));
                sums[l] = _mm512_fmadd_ps(group[l], _mm512_permutexvar_ps(k.pick, some), sums[l]);
            }
        }
    }
    for (i64 l = 0; l < lines; ++l) job.y[line + l] = _mm512_reduce_add_ps(sums[l]);
}

// The same for many lines; returns how many values of a line are covered.
inline i64 gemv_nibbles(const Gemv& job, const RestorePlan& p, const Sixteen& s, RestoreBuffers& t, i64 first, i64 last) {
    const Nibbles k = nibbles_of(job, s);
    i64 line = first;
    for (; line + 4 <= last; line += 4) nibble_products<4>(job, p, k, t, line);
    for (; line < last; ++line) nibble_products<1>(job, p, k, t, line);
    return k.whole;
}

inline i64 gemv_vectors(const Gemv& job, const RestorePlan& p, const Sixteen& s, RestoreBuffers& t, i64 line, i64 lines,
                        float (*y)[rows_in_sums]) {
    switch (s.decoder) {
        case Decoder::table: return gemv_lines<Decoder::table>(job, p, s, t, line, lines, y);
        case Decoder::integer: return gemv_lines<Decoder::integer>(job, p, s, t, line, lines, y);
        case Decoder::half: return gemv_lines<Decoder::half>(job, p, s, t, line, lines, y);
    }
    return 0;
}

#else

constexpr i64 lines_together = 4, rows_in_sums = 16;
inline bool takes_nibbles(const Gemv&, const Sixteen&) { return false; }
inline i64 gemv_nibbles(const Gemv&, const RestorePlan&, const Sixteen&, RestoreBuffers&, i64, i64) { return 0; }
inline i64 gemv_vectors(const Gemv&, const RestorePlan&, const Sixteen&, RestoreBuffers&, i64, i64, float (*)[rows_in_sums]) {
    return 0;
}

#endif

// What gemv_vectors left of some lines, all of them on other instruction sets.
inline void gemv_rest(const Gemv& job, const RestorePlan& p, RestoreBuffers& t, i64 line, i64 lines, i64 from,
                      float (*y)[rows_in_sums]) {
    for (i64 l = 0; l < lines; ++l) {
        for (i64 start = from, n; start < job.n; start += n) {
            n = least(tile, job.n - start);
            restore_plainly(p, t, line + l, start, n, 1.0f);
            for (i64 b = 0; b < job.batch; ++b) y[l][b] += dot(job.x + b * job.n + start, t.values, n);
        }
    }
}

inline void gemv_stored(const Gemv& job, i64 first, i64 last) {
    Restore restored{job.format, {}, job.codes, job.scales, job.shifts, job.outer, nullptr, Real::f32, false};
    restored.geometry.n = job.n;
    const RestorePlan p = restore_plan_of(restored);
    RestoreBuffers t;
    for (i64 i = 0; i < tile; ++i) t.one[i] = 1.0f;
    const bool vectors = decodes_sixteen(job.format);
    const Sixteen s = vectors ? sixteen_of(p.f.grid) : Sixteen{};
    if (vectors && takes_nibbles(job, s)) {
        const i64 done = gemv_nibbles(job, p, s, t, first, last);
        for (i64 line = first; line < last; ++line) {
            float y[1][rows_in_sums] = {{job.y[line]}};
            gemv_rest(job, p, t, line, 1, done, y);
            job.y[line] = y[0][0] * outer_scale(p, line);
        }
        return;
    }
    for (i64 b = 0; b < job.batch; b += rows_in_sums) {
        Gemv some = job;
        some.x += b * job.n;
        some.batch = least(rows_in_sums, job.batch - b);
        for (i64 line = first; line < last; line += lines_together) {
            const i64 lines = least(lines_together, last - line);
            float y[lines_together][rows_in_sums] = {};
            const i64 done = vectors ? gemv_vectors(some, p, s, t, line, lines, y) : 0;
            gemv_rest(some, p, t, line, lines, done, y);
            for (i64 l = 0; l < lines; ++l) {
                const float scale = outer_scale(p, line + l);
                for (i64 r = 0; r < some.batch; ++r) job.y[(b + r) * job.stride + line + l] = y[l][r] * scale;
            }
        }
    }
}

}  // namespace
