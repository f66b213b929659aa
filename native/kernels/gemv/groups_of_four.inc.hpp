// Products of a packed matrix with one vector, four neighbouring values at a time: a lane holds the same positions of each
// group of four (of two groups, where products are of bfloat16), and x is permuted to that order once.
//
// Codes of 16 bits are multiplied in float32. Codes of 8 bits are multiplied as bfloat16, where every value of x is
// one: 32 products by one instruction. It takes subnormals for zero; there are none among the elements, and the scale
// comes later.
#pragma once

#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/dense_lines.inc.hpp"
#include "kernels/gemv/expanded_lines.inc.hpp"
#include "kernels/gemv/group_products.inc.hpp"
#include "kernels/gemv/group_tables.inc.hpp"
#include "kernels/gemv/nibbles.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace groups_of_four {

using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales, packed::outer_scale,
    packed::prepare_dequantize;
using decoded_lines::rows_in_sums;
using dense_lines::gemv_rest;
using expanded_lines::lines_from;
using numbers::bits_of, numbers::least, numbers::tile;
#if defined(__AVX512F__)
using group_products::gemv_words;
using group_tables::Groups, group_tables::Kind, group_tables::group_block, group_tables::groups_of;
using nibbles::most_scales, nibbles::scaled_together;
#endif
#if defined(__AVX512BF16__)
using group_products::gemv_narrow;
#endif

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
template <Kind kind, i64 lines>
inline void add_group_products(const Groups& given, const PreparedDequantize& p, DecodeBuffers& t, i64 line, const u8* const* from, i64 begin, i64 end,
                       __m512* sums) {
    // Copies of what the loop reads, so that stores do not make the compiler read them again.
    const Groups q = given;
    constexpr i64 segment = kind == Kind::bfloat16 || kind == Kind::half ? 64 : 128;
    const i32 bits = kind == Kind::bytes ? 8 : 16;
    const bool blocks = has_blocks(p.f);
    // How far ahead codes are asked for: two blocks.
    const i64 prefetched = 2 * q.in_block;
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
            for (i64 in = 0; in < n; in += segment) {
                // Codes of 16 bits: four products of 16 float32.
                if (segment == 64) {
                    const float* x = static_cast<const float*>(q.x) + block + in;
#pragma GCC unroll 4
                    for (i64 l = 0; l < lines; ++l) {
                        const u8* codes = from[l] + offset + in * bits / 8;
                        memory::prefetch(codes + prefetched, 1);
                        sum[l] = gemv_words<kind == Kind::half ? Kind::half : Kind::bfloat16>(codes, x, sum[l]);
                    }
                }
#if defined(__AVX512BF16__)
                // Codes of eight bits: four operands of x, read once for all lines, then the scale of each
                // lane's groups.
                if (segment == 128) {
                    const u16* x = static_cast<const u16*>(q.x) + block + in;
                    __m512i four[4];
#pragma GCC unroll 4
                    for (i64 i = 0; i < 4; ++i) four[i] = _mm512_loadu_si512(x + 32 * i);
#pragma GCC unroll 4
                    for (i64 l = 0; l < lines; ++l) {
                        const u8* codes = from[l] + offset + in * bits / 8;
                        memory::prefetch(codes + prefetched, 1);
                        const __m512 product = gemv_narrow(q, codes, four);
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

// The lines `line` to `line + lines`.
template <Kind kind, i64 lines>
inline void gemv_group_lines(const Gemv& job, const Groups& q, const PreparedDequantize& stored, DecodeBuffers& t, i64 line) {
    const u8* from[lines];
    __m512 sums[lines];
    for (i64 l = 0; l < lines; ++l) {
        from[l] = job.codes + (line + l) * stored.bytes.codes;
        sums[l] = _mm512_setzero_ps();
    }
    add_group_products<kind, lines>(q, stored, t, line, from, 0, q.n, sums);
    for (i64 l = 0; l < lines; ++l) {
        float y[1][rows_in_sums] = {{_mm512_reduce_add_ps(sums[l])}};
        // What is less than a segment at the end of a line is decoded by loops.
        if (q.n < job.n) gemv_rest(job, stored, t, line + l, 1, q.n, y);
        job.y[line + l] = y[0][0] * outer_scale(stored, line + l);
    }
}

// Four lines at a time share the loads of x; the last ones go alone. A line has the same sum either way.
template <Kind kind>
inline void gemv_all_group_lines(const Gemv& job, const Groups& q, const PreparedDequantize& p, DecodeBuffers& t, i64 first, i64 last) {
    i64 line = first;
    for (; line + 4 <= last; line += 4) gemv_group_lines<kind, 4>(job, q, p, t, line);
    for (; line < last; ++line) gemv_group_lines<kind, 1>(job, q, p, t, line);
}

}  // namespace

// What lines of dense codes share, with x by position at the start of the workspace, where it is already if `prepared`;
// Kind::none where the format is another way's.
inline Groups groups_with(const Gemv& job, u8* workspace, bool prepared) {
    Groups q = groups_of(job, job.format);
    q.x = workspace;
    if (q.kind == Kind::none || prepared) return q;
    if (q.segment == 64) by_position(job.x, q.n, q.segment, reinterpret_cast<float*>(workspace), [](float v) { return v; });
    else by_position(job.x, q.n, q.segment, reinterpret_cast<u16*>(workspace), [](float v) { return static_cast<u16>(static_cast<u32>(bits_of(v)) >> 16); });
    return q;
}

// Whether the lines are those of this way.
inline bool knows(const Groups& q) { return q.kind != Kind::none; }

// Whether the lines are done.
inline bool gemv_by_groups(const Gemv& job, const Groups& q, i64 first, i64 last) {
    if (!knows(q)) return false;
    const Dequantize packed = lines_from(job, job.codes, 0);
    const PreparedDequantize p = prepare_dequantize(packed);
    DecodeBuffers t;
    for (i64 i = 0; i < tile; ++i) t.ones[i] = 1.0f;
    switch (q.kind) {
        // The kind is known to the compiler from here on.
        case Kind::bfloat16: gemv_all_group_lines<Kind::bfloat16>(job, q, p, t, first, last); break;
        case Kind::half: gemv_all_group_lines<Kind::half>(job, q, p, t, first, last); break;
        default: gemv_all_group_lines<Kind::bytes>(job, q, p, t, first, last);
    }
    return true;
}

#else

struct Groups {};
inline bool knows(const Groups&) { return false; }
inline Groups groups_with(const Gemv&, u8*, bool) { return {}; }
inline bool gemv_by_groups(const Gemv&, const Groups&, i64, i64) { return false; }

#endif

}  // namespace groups_of_four
