// Lines of a 2:4 stream times one vector, straight from the stream, without the values that are not kept: for 128 dense
// values of four bits AVX-512 spends 34 instructions, 26 where x has bfloat16 in it, and reads 52 bytes of codes, masks and
// scales. Sums are float32; docs/products.md has their bound.
//
// What is left out would have been a zero times a number. Where x is not finite, the caller takes the way of dense codes, and
// so does a line here whose sum is not finite: its codes, scales or sums have something that this way does not treat.
#pragma once

#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/dense_lines.inc.hpp"
#include "kernels/gemv/expanded_lines.inc.hpp"
#include "kernels/gemv/kept_operands.inc.hpp"
#include "kernels/nm/stream.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace kept_lines {

#if defined(__AVX2__)

using decoded_lines::rows_in_sums;
using dense_lines::gemv_rest;
using expanded_lines::line_shape, expanded_lines::lines_from;
using kept_operands::Halves, kept_operands::Kept, kept_operands::Kind;
using kept_operands::all_finite, kept_operands::arrange, kept_operands::bits_of, kept_operands::choose, kept_operands::decode,
    kept_operands::in_step, kept_operands::is_beyond, kept_operands::is_paired, kept_operands::kept_of, kept_operands::product_of_bfloat16,
    kept_operands::scales_of,
    kept_operands::stream_block, kept_operands::times_plus, kept_operands::x_bytes;
using numbers::Bits, numbers::Reals, numbers::vector;
using numbers::infinity_bits, numbers::least, numbers::magnitude_mask, numbers::tile;
using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales, packed::outer_scale, packed::prepare_dequantize;
using stream::expand_line;

namespace {  // of this file alone

// Scales are decoded ahead of their products, those of 4,096 values at a time, and read a register at once.
constexpr i64 scaled_together = 4096, most_scales = scaled_together / 8 + 16;

// How far ahead of the codes memory is asked for more.
constexpr i64 prefetched = 2048;

// Adds the products of a block of `values` values to the sums; what is known of its length makes its places constants.
// The block of each line begins at blocks[l], its scales at scales[l].
template <Kind kind, Halves halves, bool scaled, i64 lines>
inline __attribute__((always_inline)) void add_block(const Kept& k, const u8* const* blocks, i64 values, const float (*scales)[most_scales], i64 first_scale,
                                                     const u8* x, Reals* sum, Bits* worst) {
    constexpr i32 bits = bits_of(kind);
    // The mask of a block, an eighth of a byte for each value, lies before its codes, and position after position in it.
    const i64 stride = values / 32, codes = values / 8;
#pragma GCC unroll 8
    for (i64 in = 0; in < values; in += in_step, x += k.x_step) {
        const i64 scale = first_scale + (in >> k.log_size);
#pragma GCC unroll 4
        for (i64 l = 0; l < lines; ++l) {
            if constexpr (halves == Halves::bfloat16) {
                const Reals product = product_of_bfloat16(k, blocks[l] + in / 32, stride, blocks[l] + codes + in / 16 * bits, x);
                sum[l] = scaled ? times_plus(product, scales_of(k, scales[l] + scale), sum[l]) : sum[l] + product;
                continue;
            }
            Reals w[2][2], chosen[2][2];
            choose<halves>(k, blocks[l] + in / 32, stride, x, chosen);
            decode<kind, halves>(k, blocks[l] + codes + in / 16 * bits, w, worst[l]);
            // Groups in the order of the line: first values, second values, the next vector of groups.
            if constexpr (scaled) {
                // A lane has two neighbouring groups, which share a scale.
                Reals product = times_plus(w[0][1], chosen[0][1], w[0][0] * chosen[0][0]);
                product = times_plus(w[1][1], chosen[1][1], times_plus(w[1][0], chosen[1][0], product));
                sum[l] = times_plus(product, scales_of(k, scales[l] + scale), sum[l]);
            } else {
                for (i64 v = 0; v < 2; ++v) sum[l] = times_plus(w[v][1], chosen[v][1], times_plus(w[v][0], chosen[v][0], sum[l]));
            }
        }
    }
}

// The sums of the covered values of some lines, without `unit` and a scale that serves all of a line; `worsts` as decode has
// it.
template <Kind kind, Halves halves, bool scaled, i64 lines>
inline void add_kept(const Kept& given, const PreparedDequantize& p, DecodeBuffers& t, i64 line, const u8* const* from, Reals* sums,
                     Bits* worsts) {
    const Kept k = given;  // copies, so that stores do not make the compiler read them again
    alignas(64) float scales[lines][most_scales];
    Reals sum[lines];
    Bits worst[lines];
    for (i64 l = 0; l < lines; ++l) {
        sum[l] = Reals{};
        worst[l] = Bits{};
    }
    for (i64 start = 0; start < k.covered; start += scaled_together) {
        const i64 stop = least(start + scaled_together, k.covered), first = start >> k.log_size;
        if constexpr (scaled) {
            const i64 count = ((stop - 1) >> k.log_size) - first + 1;
            for (i64 l = 0; l < lines; ++l) decode_scales(p, t, line + l, first, count, scales[l]);
        }
        for (i64 block = start; block < stop; block += stream_block) {
            const u8* blocks[lines];
            for (i64 l = 0; l < lines; ++l) {
                blocks[l] = from[l] + block / stream_block * k.in_block;
                memory::prefetch(blocks[l] + prefetched, k.in_block);
            }
            const u8* const x = k.x + block / in_step * k.x_step;
            const i64 scale = (block >> k.log_size) - first;
            if (stop - block >= stream_block) add_block<kind, halves, scaled, lines>(k, blocks, stream_block, scales, scale, x, sum, worst);
            else add_block<kind, halves, scaled, lines>(k, blocks, stop - block, scales, scale, x, sum, worst);
        }
    }
    for (i64 l = 0; l < lines; ++l) {
        sums[l] = sum[l];
        worsts[l] = worst[l];
    }
}

// The numbers of a register, added as a tree.
inline float total(Reals sums) {
    for (i64 width = vector / 2; width > 0; width /= 2)
        for (i64 i = 0; i < width; ++i) sums[i] += sums[i + width];
    return sums[0];
}

// The lines `line` to `line + lines`; `rest` has room for the codes of one.
template <Kind kind, Halves halves, i64 lines>
inline void gemv_kept_lines(const Gemv& job, const Kept& k, const PreparedDequantize& p, DecodeBuffers& t, i64 line, u8* rest) {
    const i64 stride = line_bytes(job.format, job.n).codes;
    const u8* from[lines];
    Reals sums[lines];
    Bits worst[lines];
    for (i64 l = 0; l < lines; ++l) from[l] = job.codes + (line + l) * stride;
    // Only narrow elements have scales.
    if (is_paired(kind) && k.scaled) add_kept<kind, halves, is_paired(kind), lines>(k, p, t, line, from, sums, worst);
    else add_kept<kind, halves, false, lines>(k, p, t, line, from, sums, worst);
    for (i64 l = 0; l < lines; ++l) {
        float y[1][rows_in_sums] = {{total(sums[l]) * k.unit}};
        if (!k.scaled && p.f.scales != Scales::none) {
            float scale[16];  // read by whole registers
            decode_scales(p, t, line + l, 0, 1, scale);
            y[0][0] *= scale[0];
        }
        // What is no whole block, and all of a line that has to be done again, is expanded and decoded by loops.
        const bool again = (bits_of(y[0][0]) & magnitude_mask) >= infinity_bits || is_beyond<kind>(k, worst[l]);
        const i64 done = again ? 0 : k.covered;
        if (again) y[0][0] = 0.0f;
        if (done < job.n) {
            expand_line(line_shape(job.format, job.n), from[l], done, rest);
            const Dequantize this_line = lines_from(job, rest, line + l);
            gemv_rest(job, prepare_dequantize(this_line), t, 0, 1, done, y);
        }
        job.y[line + l] = y[0][0] * outer_scale(p, line + l);
    }
}

// Four lines at a time share the loads of x; the last ones go alone. A line has the same sum either way.
template <Kind kind, Halves halves>
inline void gemv_all_kept(const Gemv& job, const Kept& k, const PreparedDequantize& p, DecodeBuffers& t, i64 first, i64 last, u8* rest) {
    i64 line = first;
    for (; line + 4 <= last; line += 4) gemv_kept_lines<kind, halves, 4>(job, k, p, t, line, rest);
    for (; line < last; ++line) gemv_kept_lines<kind, halves, 1>(job, k, p, t, line, rest);
}

template <Kind kind>
inline void gemv_kept_of(const Gemv& job, const Kept& k, const PreparedDequantize& p, DecodeBuffers& t, i64 first, i64 last, u8* rest) {
#if defined(__AVX512F__)
    if constexpr (is_paired(kind)) {
#if defined(__AVX512BF16__)
        if constexpr (kind == Kind::nibbles)
            if (k.halves == Halves::bfloat16) return gemv_all_kept<kind, Halves::bfloat16>(job, k, p, t, first, last, rest);
#endif
        if constexpr (bits_of(kind) == 8)
            if (k.halves == Halves::unpacked) return gemv_all_kept<kind, Halves::unpacked>(job, k, p, t, first, last, rest);
        if (k.halves == Halves::upper) gemv_all_kept<kind, Halves::upper>(job, k, p, t, first, last, rest);
        else gemv_all_kept<kind, Halves::apart>(job, k, p, t, first, last, rest);
        return;
    }
#endif
    gemv_all_kept<kind, Halves::together>(job, k, p, t, first, last, rest);
}

}  // namespace

// Whether the lines are done; if not, nothing is written but the workspace. Of that the 64 bytes at `state` say, once it is
// prepared, how x lies in it.
inline bool gemv_kept(const Gemv& job, u8* workspace, u8* state, bool prepared, i64 first, i64 last) {
    Kept k = kept_of(job);
    if (k.kind == Kind::none) return false;
    if (!prepared) {
        const bool finite = all_finite(job.x, job.n, k.halves);
#if defined(__AVX512F__)
        if (!is_paired(k.kind)) k.halves = Halves::together;
#if defined(__AVX512BF16__)
        if (k.kind == Kind::nibbles && job.narrow) k.halves = Halves::bfloat16;
#endif
        // Eight groups side by side share a scale.
        const bool alike = !k.scaled || k.log_size >= 5;
        if (k.halves == Halves::apart && bits_of(k.kind) == 8 && alike) k.halves = Halves::unpacked;
#else
        k.halves = Halves::together;
#endif
        state[0] = finite;
        state[1] = static_cast<u8>(k.halves);
        if (finite) arrange(job.x, k, workspace);
    }
    if (!state[0]) return false;
    k.halves = static_cast<Halves>(state[1]);
    k.x = workspace;
    k.x_step = x_bytes(k.halves);
    u8* rest = workspace + count_of(job.n, 16) * 64;
    // Codes are read by the loops above; this is for their scales.
    const Dequantize packed = lines_from(job, job.codes, 0);
    const PreparedDequantize p = prepare_dequantize(packed);
    DecodeBuffers t;
    for (i64 i = 0; i < tile; ++i) t.ones[i] = 1.0f;
    // The kind is known to the compiler from here on.
    switch (k.kind) {
        case Kind::bfloat16: gemv_kept_of<Kind::bfloat16>(job, k, p, t, first, last, rest); break;
        case Kind::half: gemv_kept_of<Kind::half>(job, k, p, t, first, last, rest); break;
        case Kind::floats: gemv_kept_of<Kind::floats>(job, k, p, t, first, last, rest); break;
        case Kind::nibbles: gemv_kept_of<Kind::nibbles>(job, k, p, t, first, last, rest); break;
        default: gemv_kept_of<Kind::integers>(job, k, p, t, first, last, rest);
    }
    return true;
}

#else
inline bool gemv_kept(const Gemv&, u8*, u8*, bool, i64, i64) { return false; }
#endif

}  // namespace kept_lines
