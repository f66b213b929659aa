// Products of a packed matrix with one vector, four neighbouring values at a time, so that a 2:4 stream and the codes of
// all values give the same sums: values that are not kept take part as zeros. A lane holds the same positions of each
// group of four (of two groups, where products are of bfloat16), and x is permuted to that order once.
//
// Codes of 16 bits are multiplied in float32. Codes of 4 and 8 bits are multiplied as bfloat16, where every value of x is
// one: 32 products by one instruction. It takes subnormals for zero; there are none among the elements, and the scale
// comes later. Everything else expands a line to its codes first. 2:4 has half the values: 64 of them cost 17
// instructions for bfloat16, 128 cost 24 for 4 bits and 27 for 8.
#pragma once

#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/dense_lines.inc.hpp"
#include "kernels/gemv/group_products.inc.hpp"
#include "kernels/gemv/group_tables.inc.hpp"
#include "kernels/gemv/nibbles.inc.hpp"
#include "kernels/nm/stream.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace groups_of_four {

using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales, packed::outer_scale,
    packed::prepare_dequantize;
using decoded_lines::rows_in_sums;
using dense_lines::gemv_rest;
using stream::expand_line;
using numbers::bits_of, numbers::least, numbers::tile;
#if defined(__AVX512F__)
using group_products::Places, group_products::gemv_words, group_products::places_of;
using group_tables::Groups, group_tables::Kind, group_tables::group_block, group_tables::groups_of;
using nibbles::most_scales, nibbles::scaled_together;
#endif
#if defined(__AVX512BF16__)
using group_products::gemv_narrow;
#endif

// The packed parts from `line` on, whose codes lie at `codes`.
inline Dequantize lines_from(const Gemv& job, const u8* codes, i64 line) {
    const Format& f = job.format;
    const LineBytes bytes = line_bytes(f, job.n);
    Dequantize r{
        .format = f,
        .geometry = {},
        .codes = codes,
        .scales = job.scales,
        .shifts = job.shifts,
        .outer = job.outer,
        .values = nullptr,
        .values_type = Real::f32,
        .nontemporal = false,
    };
    r.format.keep = 0;
    r.geometry.n = job.n;
    if (has_blocks(f)) r.scales += line * bytes.scales;
    if (f.scales == Scales::shifted && f.shift_bits) r.shifts += line * bytes.shifts;
    if (f.scales == Scales::two_level && !f.whole_known) r.outer += line;
    return r;
}

// One line of N:M codes; expand_line is told where it lies.
inline NmLines line_shape(const Format& f, i64 n) {
    return {
        .lines = 1,
        .n = n,
        .bits = bits_of_element(f),
        .keep = f.keep,
        .group = f.group,
        .zero = f.zero,
        .minus_zero = f.zero,
        .in = nullptr,
        .out = nullptr,
    };
}

#if defined(__AVX512F__)

namespace {  // of this file alone

// Position p of group g of each segment at value (segment / 4) p + g.
template <class To, class Change>
inline void by_position(const float* x, i64 n, i64 segment, To* out, Change change) {
    for (i64 start = 0; start < n; start += segment)
        for (i64 g = 0; g < segment / 4; ++g)
            for (i64 p = 0; p < 4; ++p) out[start + segment / 4 * p + g] = change(x[start + 4 * g + p]);
}

// Adds the values `begin` to `end` of some lines, whole segments that begin a block, to the sums; `from` is where
// each line has value `begin`.
template <Kind kind, bool sparse, i64 lines>
inline void add_group_products(const Groups& given, const PreparedDequantize& p, DecodeBuffers& t, i64 line, const u8* const* from, i64 begin, i64 end,
                       __m512* sums) {
    // Copies of what the loop reads, so that stores do not make the compiler read them again.
    const Groups q = given;
    constexpr i64 segment = kind == Kind::bfloat16 || kind == Kind::half ? 64 : 128;
    const i32 bits = kind == Kind::nibbles ? 4 : kind == Kind::bytes ? 8 : 16;
    const bool blocks = has_blocks(p.f);
    // How far ahead codes are asked for: two blocks of dense codes, four of a stream.
    const i64 prefetched = (sparse ? 4 : 2) * q.in_block;
    alignas(64) float scales[lines][most_scales + 16];  // read 16 at once: a masked load takes longer
    __m512 sum[lines];
    // Sums stay in registers for the whole line; without blocks one scale is decoded here.
    for (i64 l = 0; l < lines; ++l) {
        sum[l] = sums[l];
        scales[l][0] = 1.0f;
        if (one_scale(p.f)) decode_scales(p, t, line + l, 0, 1, scales[l]);
    }
    for (i64 start = begin; start < end; start += scaled_together) {
        // Scales of 4,096 values at a time, decoded ahead of their products.
        const i64 stop = least(start + scaled_together, end), first = blocks ? start >> q.scales.log_size : 0;
        if (segment == 128 && blocks) {
            const i64 count = ((stop - 1) >> q.scales.log_size) - first + 1;
            for (i64 l = 0; l < lines; ++l) {
                decode_scales(p, t, line + l, first, count, scales[l]);
                const u8* next = p.job.scales + (line + l) * p.bytes.scales + bytes_for(first + count, p.f.scale_bits);
                __builtin_prefetch(next);
                __builtin_prefetch(next + 64);
            }
        }
        for (i64 block = start; block < stop; block += group_block) {
            const i64 offset = (block - begin) / group_block * q.in_block, n = least(group_block, stop - block);
            for (i64 l = 0; l < lines && sparse; ++l) __builtin_prefetch(from[l] + offset + prefetched);  // a mask
            for (i64 in = 0; in < n; in += segment) {
                // Codes of 16 bits: four products of 16 float32.
                if (segment == 64) {
                    const float* x = static_cast<const float*>(q.x) + block + in;
#pragma GCC unroll 4
                    for (i64 l = 0; l < lines; ++l) {
                        const Places at = places_of<sparse, segment>(from[l] + offset, in, bits);
                        __builtin_prefetch(at.codes + prefetched);
                        sum[l] = gemv_words<kind == Kind::half ? Kind::half : Kind::bfloat16, sparse>(at, x, sum[l]);
                    }
                }
#if defined(__AVX512BF16__)
                // Codes of four and eight bits: four operands of x, read once for all lines, then the scale of each
                // lane's groups.
                if (segment == 128) {
                    const u16* x = static_cast<const u16*>(q.x) + block + in;
                    __m512i four[4];
#pragma GCC unroll 4
                    for (i64 i = 0; i < 4; ++i) four[i] = _mm512_loadu_si512(x + 32 * i);
#pragma GCC unroll 4
                    for (i64 l = 0; l < lines; ++l) {
                        const Places at = places_of<sparse, segment>(from[l] + offset, in, bits);
                        __builtin_prefetch(at.codes + prefetched);
                        const __m512 product = gemv_narrow<kind == Kind::bytes ? Kind::bytes : Kind::nibbles, sparse>(q, at, four);
                        const __m512 scale = _mm512_loadu_ps(scales[l] + (blocks ? ((block + in) >> q.scales.log_size) - first : 0));
                        sum[l] = _mm512_fmadd_ps(product, _mm512_permutexvar_ps(q.scales.pick, scale), sum[l]);
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
inline void gemv_group_lines(const Gemv& job, const Groups& q, const PreparedDequantize& stored, DecodeBuffers& t, i64 line, u8* rest) {
    const i64 stride = line_bytes(job.format, job.n).codes, codes = count_of(stored.bytes.codes, 64) * 64;
    const i64 in_stream = q.direct ? job.n / group_block * group_block : 0;
    const u8* from[lines];
    __m512 sums[lines];
    for (i64 l = 0; l < lines; ++l) {
        from[l] = job.codes + (line + l) * stride;
        sums[l] = _mm512_setzero_ps();
    }
    if (q.sparse) {
        // Whole blocks of a 2:4 stream are read as they are. The rest of the line, and other patterns, are expanded.
        if (q.direct) add_group_products<kind, true, lines>(q, stored, t, line, from, 0, in_stream, sums);
        const Format& f = job.format;
        const NmLines shape = line_shape(f, job.n);
        for (i64 l = 0; l < lines; ++l) {
            expand_line(shape, from[l], in_stream, rest + l * codes);
            from[l] = rest + l * codes + in_stream * bits_of_element(f) / 8;
        }
    }
    Groups expanded = q;
    // Expanded codes are dense.
    expanded.in_block = group_block * bits_of_element(job.format) / 8;
    add_group_products<kind, false, lines>(expanded, stored, t, line, from, in_stream, q.n, sums);
    for (i64 l = 0; l < lines; ++l) {
        float y[1][rows_in_sums] = {{_mm512_reduce_add_ps(sums[l])}};
        // What is less than a segment at the end of a line is decoded by loops.
        if (q.n < job.n) {
            const Dequantize this_line = lines_from(job, q.sparse ? rest + l * codes : from[l], line + l);
            gemv_rest(job, prepare_dequantize(this_line), t, 0, 1, q.n, y);
        }
        job.y[line + l] = y[0][0] * outer_scale(stored, line + l);
    }
}

// Four lines at a time share the loads of x; the last ones go alone. A line has the same sum either way.
template <Kind kind>
inline void gemv_all_group_lines(const Gemv& job, const Groups& q, const PreparedDequantize& p, DecodeBuffers& t, i64 first, i64 last, u8* rest) {
    i64 line = first;
    for (; line + 4 <= last; line += 4) gemv_group_lines<kind, 4>(job, q, p, t, line, rest);
    for (; line < last; ++line) gemv_group_lines<kind, 1>(job, q, p, t, line, rest);
}

}  // namespace

// Whether the lines are done.
inline bool gemv_by_groups(const Gemv& job, u8* workspace, bool prepared, i64 first, i64 last) {
    Groups q = groups_of(job, job.format);
    if (q.kind == Kind::none) return false;
    // x by position at the start of the workspace, expanded codes behind it.
    q.x = workspace;
    if (!prepared && q.segment == 64) by_position(job.x, q.n, q.segment, reinterpret_cast<float*>(workspace), [](float v) { return v; });
    if (!prepared && q.segment != 64) by_position(job.x, q.n, q.segment, reinterpret_cast<u16*>(workspace), [](float v) { return static_cast<u16>(static_cast<u32>(bits_of(v)) >> 16); });
    u8* rest = workspace + count_of(job.n, 16) * 64;
    // The codes are read by the loops above; this is for their scales.
    const Dequantize packed = lines_from(job, job.codes, 0);
    const PreparedDequantize p = prepare_dequantize(packed);
    DecodeBuffers t;
    for (i64 i = 0; i < tile; ++i) t.ones[i] = 1.0f;
    switch (q.kind) {
        // The kind is known to the compiler from here on.
        case Kind::bfloat16: gemv_all_group_lines<Kind::bfloat16>(job, q, p, t, first, last, rest); break;
        case Kind::half: gemv_all_group_lines<Kind::half>(job, q, p, t, first, last, rest); break;
        case Kind::nibbles: gemv_all_group_lines<Kind::nibbles>(job, q, p, t, first, last, rest); break;
        default: gemv_all_group_lines<Kind::bytes>(job, q, p, t, first, last, rest);
    }
    return true;
}

#else
inline bool gemv_by_groups(const Gemv&, u8*, bool, i64, i64) { return false; }
#endif

}  // namespace groups_of_four
