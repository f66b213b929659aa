// Products of a packed matrix with one vector, four neighbouring values at a time, so that a 2:4 stream and the codes of
// all values give the same sums: values that are not kept take part as zeros. A lane holds the same positions of each
// group of four (of two groups, where products are of bfloat16), and x is permuted to that order once.
//
// Codes of 16 bits are multiplied in float32. Codes of 4 and 8 bits are multiplied as bfloat16, where every value of x is
// one: 32 products by one instruction. It takes subnormals for zero; there are none among the elements, and the scale
// comes later. Everything else expands a line to its codes first. 2:4 has half the values: 64 of them cost 17
// instructions for bfloat16, 128 cost 24 for 4 bits and 27 for 8.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/gemv.inc.hpp"
#include "kernels/nm/stream.inc.hpp"
#include "kernels/values/elements.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace {

// The packed parts from `line` on, whose codes lie at `codes`.
inline Restore lines_from(const Gemv& job, const u8* codes, i64 line) {
    const Format& f = job.format;
    const LineBytes bytes = line_bytes(f, job.n);
    Restore r{f, {}, codes, job.scales, job.shifts, job.outer, nullptr, Real::f32, false};
    r.format.keep = 0;
    r.geometry.n = job.n;
    if (has_blocks(f)) r.scales += line * bytes.scales;
    if (f.scales == Scales::shifted && f.shift_bits) r.shifts += line * bytes.shifts;
    if (f.scales == Scales::two_level && !f.whole_known) r.outer += line;
    return r;
}

#if defined(__AVX512F__)

constexpr i64 quad_block = 512;  // values, of which a 2:4 stream has one mask

struct Quads {
    enum class Kind : i32 { none, bfloat16, half, nibbles, bytes } kind;
    bool sparse, direct;  // whether the codes are streams, and such as are read without expanding them
    i64 segment;        // values that are worked on at once
    i64 n;              // values of a line in whole segments
    i64 in_block;       // bytes of the codes, or the stream, of quad_block values
    const void* x;      // permuted
    Nibbles scales;     // of 128 values
    __m512i table[4];   // nibbles: bfloat16 of the codes, twice; bytes: low and high bytes of the magnitudes
    __m512i even;       // the even ones of 64 pairs of bytes
    __mmask64 absolute; // bytes: two's complement
};

using Kind = Quads::Kind;

// Whether n values are zeros, NaN, or bfloat16 that are not subnormal; writes the bfloat16.
inline bool as_bfloat16(const float* values, i64 n, u16* out) {
    bool fits = true;
    for (i64 i = 0; i < n; ++i) {
        const i32 b = bits_of(values[i]), magnitude = b & magnitude_mask;
        fits &= (b & 0xffff) == 0 && (magnitude == 0 || magnitude >= binade);
        out[i] = static_cast<u16>(static_cast<u32>(b) >> 16);
    }
    return fits;
}

inline bool is_nan(u16 bfloat16) { return (bfloat16 & 0x7fff) > 0x7f80; }

inline Kind sixteen_bits(const Format& f) {
    const Grid& g = f.grid;
    if (f.tabled || g.bits != 16 || g.sign != Sign::bit || f.scales != Scales::none || g.inf == 0) return Kind::none;
    return g.m == 7 && g.emin == -126 ? Kind::bfloat16 : g.m == 10 && g.emin == -14 ? Kind::half : Kind::none;
}

#if defined(__AVX512BF16__)

// Tables of the elements as bfloat16; Kind::none where they cannot be.
inline Kind tables_of(const Format& f, Quads& q) {
    const Grid& g = f.grid;
    const bool blocks = !has_blocks(f) || (f.block >= 8 && is_power_of_two(f.block));
    if (f.tabled || !blocks || f.scales == Scales::shifted || (g.bits != 4 && g.bits != 8)) return Kind::none;
    alignas(64) i32 codes[256];
    alignas(64) float one[256], values[256];
    alignas(64) u16 wide[256];
    const i64 count = i64{1} << g.bits;
    for (i64 i = 0; i < 256; ++i) {
        codes[i] = static_cast<i32>(i % count);
        one[i] = 1.0f;
    }
    decode_all(constants_of(g, Overflow::saturate), g.has_nan, codes, one, values, 256);
    if (!as_bfloat16(values, 256, wide)) return Kind::none;
    if (g.bits == 4) {
        q.table[0] = _mm512_load_si512(wide);
        return Kind::nibbles;
    }
    // The sign is the highest bit of a code, and -128 is none of them.
    if (g.sign == Sign::none || (g.sign == Sign::twos_complement && g.limit_below > 127)) return Kind::none;
    q.absolute = g.sign == Sign::twos_complement ? ~u64{0} : 0;
    for (i64 i = g.sign == Sign::bit ? 0 : 1; i < 128; ++i)
        if (u16 other = wide[g.sign == Sign::bit ? i + 128 : 256 - i]; (wide[i] ^ 0x8000) != other && (wide[i] != other || !is_nan(other)))
            return Kind::none;
    alignas(64) u8 low[128], high[128];
    for (i64 i = 0; i < 128; ++i) {
        low[i] = static_cast<u8>(wide[i]);
        high[i] = static_cast<u8>(wide[i] >> 8);
    }
    for (i64 i = 0; i < 2; ++i) {
        q.table[i] = _mm512_load_si512(low + 64 * i);
        q.table[2 + i] = _mm512_load_si512(high + 64 * i);
    }
    return Kind::bytes;
}

#else
inline Kind tables_of(const Format&, Quads&) { return Kind::none; }
#endif

inline Quads quads_of(const Gemv& job, const Format& f) {
    Quads q{};
    q.sparse = f.keep != 0;
    q.direct = f.keep == 2 && f.group == 4 && f.zero == 0;
    if (job.batch != 1) return q;
    q.kind = sixteen_bits(f);
    if (q.kind == Kind::none && job.narrow) q.kind = tables_of(f, q);
    if (q.kind == Kind::none) return q;
    q.segment = sixteen_bits(f) == Kind::none ? 128 : 64;
    q.n = job.n / q.segment * q.segment;
    const i32 bits = bits_of_element(f);
    q.in_block = q.direct ? sparse_block_bytes(quad_block, bits, 2, 4) : quad_block * bits / 8;
    q.scales = nibbles_of(job, Sixteen{});
    alignas(64) u16 even[32];
    for (i32 i = 0; i < 32; ++i) even[i] = static_cast<u16>(2 * i);
    q.even = _mm512_load_si512(even);
    return q;
}

// Position p of group g of each segment at value (segment / 4) p + g.
template <class To, class Change>
inline void by_position(const float* x, i64 n, i64 segment, To* out, Change change) {
    for (i64 start = 0; start < n; start += segment)
        for (i64 g = 0; g < segment / 4; ++g)
            for (i64 p = 0; p < 4; ++p) out[start + segment / 4 * p + g] = change(x[start + 4 * g + p]);
}

// Where a segment of some lines is: codes, or the masks and the codes that are kept.
struct Places {
    const u8 *masks, *codes;
};

template <bool sparse, i64 segment>
inline Places places_of(const u8* block, i64 in, i32 bits) {
    if (sparse) return {block + in / 32, block + quad_block / 8 + in / 2 * bits / 8};
    return {nullptr, block + in * bits / 8};
}

constexpr i64 mask_step = quad_block / 32;  // bytes of a mask for one position

template <Kind kind>
inline __m512 low_values(__m512i pairs) {
    if (kind == Kind::bfloat16) return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
}

template <Kind kind>
inline __m512 high_values(__m512i pairs) {
    if (kind == Kind::bfloat16) return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<i32>(0xffff0000u))));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
}

// 64 values of 16 bits.
template <Kind kind, bool sparse>
inline __m512 gemv_words(const Places& at, const float* x, __m512 sum) {
    __m512 w[4];
    if (sparse) {
        const __m512i kept = _mm512_loadu_si512(at.codes);
        place_quads(at.masks, mask_step, _mm512_castps_si512(low_values<kind>(kept)), _mm512_castps_si512(high_values<kind>(kept)),
                    [&](i64 p, __m512i v) __attribute__((always_inline)) { w[p] = _mm512_castsi512_ps(v); });
    } else {
        const __m512i a = _mm512_loadu_si512(at.codes), b = _mm512_loadu_si512(at.codes + 64);
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i first = _mm512_permutex2var_epi32(a, even, b);
        const __m512i second = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
        w[0] = low_values<kind>(first);
        w[1] = high_values<kind>(first);
        w[2] = low_values<kind>(second);
        w[3] = high_values<kind>(second);
    }
#pragma GCC unroll 4
    for (i64 p = 0; p < 4; ++p) sum = _mm512_fmadd_ps(w[p], _mm512_loadu_ps(x + 16 * p), sum);
    return sum;
}

#if defined(__AVX512BF16__)

// The bfloat16 of the low and of the high bytes of 32 pairs of codes.
inline void look_up_bytes(const Quads& q, __m512i codes, __m512i* low, __m512i* high) {
    const __m512i magnitude = _mm512_mask_abs_epi8(codes, q.absolute, codes), of_low = _mm512_set1_epi16(0x00ff);
    const __m512i lows = _mm512_permutex2var_epi8(q.table[0], magnitude, q.table[1]);
    const __m512i highs = _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(q.table[2], magnitude, q.table[3]), codes,
                                                    _mm512_set1_epi8(-128), 0xf8);  // with the sign
    *low = _mm512_ternarylogic_epi32(_mm512_slli_epi16(highs, 8), lows, of_low, 0xf8);  // a | (b & c)
    *high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(lows, 8), highs, of_low, 0xf4);  // a | (b & ~c)
}

// 128 values of 4 or 8 bits, each position of 32 groups as bfloat16.
template <Kind kind, bool sparse>
inline __m512 gemv_narrow(const Quads& q, const Places& at, const __m512i* x) {
    __m512i w[4];
    if (sparse) {
        __mmask32 m[4];
#pragma GCC unroll 4
        for (i64 p = 0; p < 4; ++p) {
            u32 bits;
            __builtin_memcpy(&bits, at.masks + p * mask_step, sizeof bits);
            m[p] = bits;
        }
        if (kind == Kind::nibbles) {  // the permutation looks at the low five bits, of which the table ignores one
            const __m512i c = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at.codes)));
            w[0] = _mm512_maskz_permutexvar_epi16(m[0], c, q.table[0]);
            w[1] = _mm512_maskz_permutexvar_epi16(m[1], _mm512_mask_srli_epi16(c, m[0], c, 4), q.table[0]);
            w[2] = _mm512_maskz_permutexvar_epi16(m[2], _mm512_mask_srli_epi16(c, static_cast<__mmask32>(~m[3]), c, 4), q.table[0]);
            w[3] = _mm512_maskz_permutexvar_epi16(m[3], _mm512_srli_epi16(c, 4), q.table[0]);
        } else {
            __m512i first, second;
            look_up_bytes(q, _mm512_loadu_si512(at.codes), &first, &second);
            w[0] = _mm512_maskz_mov_epi16(m[0], first);
            w[1] = _mm512_maskz_mov_epi16(m[1], _mm512_mask_mov_epi16(first, m[0], second));
            w[2] = _mm512_maskz_mov_epi16(m[2], _mm512_mask_mov_epi16(second, m[3], first));
            w[3] = _mm512_maskz_mov_epi16(m[3], second);
        }
    } else if (kind == Kind::nibbles) {
        const __m512i c = _mm512_loadu_si512(at.codes);
#pragma GCC unroll 4
        for (i32 p = 0; p < 4; ++p) w[p] = _mm512_permutexvar_epi16(_mm512_srli_epi16(c, 4 * p), q.table[0]);
    } else {
        const __m512i a = _mm512_loadu_si512(at.codes), b = _mm512_loadu_si512(at.codes + 64);
        look_up_bytes(q, _mm512_permutex2var_epi16(a, q.even, b), w, w + 1);
        look_up_bytes(q, _mm512_permutex2var_epi16(a, _mm512_add_epi16(q.even, _mm512_set1_epi16(1)), b), w + 2, w + 3);
    }
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (i64 p = 0; p < 4; ++p) sum = _mm512_dpbf16_ps(sum, (__m512bh)w[p], (__m512bh)x[p]);
    return sum;
}

#endif

// Adds the values `begin` to `end` of some lines, whole segments that begin a block, to the sums; `from` is where
// each line has value `begin`.
template <Kind kind, bool sparse, i64 lines>
inline void gemv_quads(const Quads& given, const RestorePlan& p, RestoreBuffers& t, i64 line, const u8* const* from, i64 begin, i64 end,
                       __m512* sums) {
    const Quads q = given;
    constexpr i64 segment = kind == Kind::bfloat16 || kind == Kind::half ? 64 : 128;
    const i32 bits = kind == Kind::nibbles ? 4 : kind == Kind::bytes ? 8 : 16;
    const bool blocks = has_blocks(p.f);
    const i64 ahead = (sparse ? 4 : 2) * q.in_block;
    alignas(64) float scales[lines][most_scales + 16];  // read 16 at once: a masked load takes longer
    __m512 sum[lines];
    for (i64 l = 0; l < lines; ++l) {
        sum[l] = sums[l];
        scales[l][0] = 1.0f;
        if (one_scale(p.f)) restore_scales(p, t, line + l, 0, 1, scales[l]);
    }
    for (i64 start = begin; start < end; start += scaled_together) {
        const i64 stop = least(start + scaled_together, end), first = blocks ? start >> q.scales.log_size : 0;
        if (segment == 128 && blocks) {
            const i64 count = ((stop - 1) >> q.scales.log_size) - first + 1;
            for (i64 l = 0; l < lines; ++l) {
                restore_scales(p, t, line + l, first, count, scales[l]);
                const u8* next = p.job.scales + (line + l) * p.bytes.scales + bytes_for(first + count, p.f.scale_bits);
                __builtin_prefetch(next);
                __builtin_prefetch(next + 64);
            }
        }
        for (i64 block = start; block < stop; block += quad_block) {
            const i64 offset = (block - begin) / quad_block * q.in_block, n = least(quad_block, stop - block);
            for (i64 l = 0; l < lines && sparse; ++l) __builtin_prefetch(from[l] + offset + ahead);  // a mask
            for (i64 in = 0; in < n; in += segment) {
                if (segment == 64) {
                    const float* x = static_cast<const float*>(q.x) + block + in;
#pragma GCC unroll 4
                    for (i64 l = 0; l < lines; ++l) {
                        const Places at = places_of<sparse, segment>(from[l] + offset, in, bits);
                        __builtin_prefetch(at.codes + ahead);
                        sum[l] = gemv_words<kind == Kind::half ? Kind::half : Kind::bfloat16, sparse>(at, x, sum[l]);
                    }
                }
#if defined(__AVX512BF16__)
                if (segment == 128) {
                    const u16* x = static_cast<const u16*>(q.x) + block + in;
                    __m512i four[4];
#pragma GCC unroll 4
                    for (i64 i = 0; i < 4; ++i) four[i] = _mm512_loadu_si512(x + 32 * i);
#pragma GCC unroll 4
                    for (i64 l = 0; l < lines; ++l) {
                        const Places at = places_of<sparse, segment>(from[l] + offset, in, bits);
                        __builtin_prefetch(at.codes + ahead);
                        const __m512 found = gemv_narrow<kind == Kind::bytes ? Kind::bytes : Kind::nibbles, sparse>(q, at, four);
                        const __m512 some = _mm512_loadu_ps(scales[l] + (blocks ? ((block + in) >> q.scales.log_size) - first : 0));
                        sum[l] = _mm512_fmadd_ps(found, _mm512_permutexvar_ps(q.scales.pick, some), sum[l]);
                    }
                }
#endif
            }
        }
    }
    for (i64 l = 0; l < lines; ++l) sums[l] = sum[l];
}

// The lines `line` to `line + lines`; `rest` has room for the codes of one line.
template <Kind kind, i64 lines>
inline void gemv_quad_lines(const Gemv& job, const Quads& q, const RestorePlan& stored, RestoreBuffers& t, i64 line, u8* rest) {
    const i64 stride = line_bytes(job.format, job.n).codes, codes = count_of(stored.bytes.codes, 64) * 64;
    const i64 in_stream = q.direct ? job.n / quad_block * quad_block : 0;
    const u8* from[lines];
    __m512 sums[lines];
    for (i64 l = 0; l < lines; ++l) {
        from[l] = job.codes + (line + l) * stride;
        sums[l] = _mm512_setzero_ps();
    }
    if (q.sparse) {
        if (q.direct) gemv_quads<kind, true, lines>(q, stored, t, line, from, 0, in_stream, sums);
        const Format& f = job.format;
        const SparseLines shape{1, job.n, bits_of_element(f), f.keep, f.group, f.zero, f.zero, nullptr, nullptr};
        for (i64 l = 0; l < lines; ++l) {
            expand_line(shape, from[l], in_stream, rest + l * codes);
            from[l] = rest + l * codes + in_stream * bits_of_element(f) / 8;
        }
    }
    Quads whole = q;
    whole.in_block = quad_block * bits_of_element(job.format) / 8;
    gemv_quads<kind, false, lines>(whole, stored, t, line, from, in_stream, q.n, sums);
    for (i64 l = 0; l < lines; ++l) {
        float y[1][rows_in_sums] = {{_mm512_reduce_add_ps(sums[l])}};
        if (q.n < job.n) {
            const Restore one = lines_from(job, q.sparse ? rest + l * codes : from[l], line + l);
            gemv_rest(job, restore_plan_of(one), t, 0, 1, q.n, y);
        }
        job.y[line + l] = y[0][0] * outer_scale(stored, line + l);
    }
}

template <Kind kind>
inline void gemv_all_quads(const Gemv& job, const Quads& q, const RestorePlan& p, RestoreBuffers& t, i64 first, i64 last, u8* rest) {
    i64 line = first;
    for (; line + 4 <= last; line += 4) gemv_quad_lines<kind, 4>(job, q, p, t, line, rest);
    for (; line < last; ++line) gemv_quad_lines<kind, 1>(job, q, p, t, line, rest);
}

// Whether the lines are done.
inline bool gemv_by_quads(const Gemv& job, u8* room, i64 first, i64 last) {
    Quads q = quads_of(job, job.format);
    if (q.kind == Kind::none) return false;
    q.x = room;
    if (q.segment == 64) by_position(job.x, q.n, q.segment, reinterpret_cast<float*>(room), [](float v) { return v; });
    else by_position(job.x, q.n, q.segment, reinterpret_cast<u16*>(room), [](float v) { return static_cast<u16>(static_cast<u32>(bits_of(v)) >> 16); });
    u8* rest = room + count_of(job.n, 16) * 64;
    const Restore restored = lines_from(job, job.codes, 0);
    const RestorePlan p = restore_plan_of(restored);
    RestoreBuffers t;
    for (i64 i = 0; i < tile; ++i) t.one[i] = 1.0f;
    switch (q.kind) {
        case Kind::bfloat16: gemv_all_quads<Kind::bfloat16>(job, q, p, t, first, last, rest); break;
        case Kind::half: gemv_all_quads<Kind::half>(job, q, p, t, first, last, rest); break;
        case Kind::nibbles: gemv_all_quads<Kind::nibbles>(job, q, p, t, first, last, rest); break;
        default: gemv_all_quads<Kind::bytes>(job, q, p, t, first, last, rest);
    }
    return true;
}

#else
inline bool gemv_by_quads(const Gemv&, u8*, i64, i64) { return false; }
#endif

// The permuted vector, and the codes of four lines.
i64 gemv_workspace(const Gemv& job) {
    const i64 codes = bytes_for(job.n, bits_of_element(job.format));
    return count_of(job.n, 16) * 64 + lines_together * count_of(codes, 64) * 64 + 64;
}

void gemv(const Gemv& job, u8* room, i64 first, i64 last) {
    if (gemv_by_quads(job, room, first, last)) return;
    const Format& f = job.format;
    if (f.keep == 0) return gemv_stored(job, first, last);
    const SparseLines shape{1, job.n, bits_of_element(f), f.keep, f.group, f.zero, f.zero, nullptr, nullptr};
    const LineBytes bytes = line_bytes(f, job.n);
    Gemv some = job;
    some.format.keep = 0;
    const i64 codes = bytes_for(job.n, bits_of_element(f));
    u8* const expanded = room + count_of(job.n, 16) * 64;
    some.codes = expanded;
    for (i64 line = first; line < last; line += lines_together) {
        some.lines = least(lines_together, last - line);
        for (i64 l = 0; l < some.lines; ++l) expand_line(shape, job.codes + (line + l) * bytes.codes, 0, expanded + l * codes);
        const Restore here = lines_from(job, expanded, line);
        some.scales = here.scales;
        some.shifts = here.shifts;
        some.outer = here.outer;
        some.y = job.y + line;
        gemv_stored(some, 0, some.lines);
    }
}

}  // namespace
