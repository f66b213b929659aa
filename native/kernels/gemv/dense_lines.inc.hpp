// Products of a packed matrix with few vectors, straight from the packed bits: a tile of a line is decoded in
// registers, or in the nearest cache for more than eight vectors, and never reaches memory. Sums are float32, in an order that
// depends on the instruction set; |error| <= (n + 2) 2^-24 sum |x| |W|, docs/products.md.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/dequantize.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/in_registers.inc.hpp"
#include "kernels/gemv/several_rows.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace dense_lines {

using decode_sixteen::CodeDecoder, decode_sixteen::code_decoder_of;
using decode_vectors::decodes_in_registers;
using dequantize::decode_by_loops;
using packed::DecodeBuffers, packed::PreparedDequantize, packed::outer_scale, packed::prepare_dequantize;
using decoded_lines::dot_decoded, decoded_lines::rows_in_sums;
using in_registers::multiply_few, in_registers::multiply_one, in_registers::permute_one, in_registers::takes_few, in_registers::takes_one;
using several_rows::gemv_several;
using numbers::least, numbers::tile;

namespace {  // of this file alone

// A product of decoded values: 32 sums side by side, added as a tree.
inline float dot(const float* __restrict x, const float* __restrict w, i64 n) {
    // 32 lanes are two registers of AVX-512 or eight of SSE2: enough to hide the time of an addition.
    constexpr i64 lanes_of_sum = 32;
    float sums[lanes_of_sum] = {};
    i64 i = 0;
    for (; i + lanes_of_sum <= n; i += lanes_of_sum)
        for (i64 j = 0; j < lanes_of_sum; ++j) sums[j] += x[i + j] * w[i + j];
    float sum = 0.0f;
    for (; i < n; ++i) sum += x[i] * w[i];
    // Halves are added to each other: 32, 16, 8, 4, 2, 1.
    for (i64 width = lanes_of_sum / 2; width > 0; width /= 2)
        for (i64 j = 0; j < width; ++j) sums[j] += sums[j + width];
    return sum + sums[0];
}

}  // namespace

// The values from `from` on of some lines, by loops.
inline void gemv_rest(const Gemv& job, const PreparedDequantize& p, DecodeBuffers& t, i64 line, i64 lines, i64 from,
                      float (*y)[rows_in_sums]) {
    for (i64 l = 0; l < lines; ++l) {
        for (i64 start = from, n; start < job.n; start += n) {
            // Tile by tile in the nearest cache; the outer scale, the same for the line, multiplies its sum once.
            n = least(tile, job.n - start);
            decode_by_loops(p, t, line + l, start, n, 1.0f);
            for (i64 b = 0; b < job.batch; ++b) y[l][b] += dot(job.x + b * job.n + start, t.values, n);
        }
    }
}

// One vector as gemv_stored wants it beside the job: null, or in the order of codes that are looked up or times a unit at `room`,
// which has room for n values and has them already where it is prepared.
inline const float* permuted_for(const Gemv& job, bool prepared, float* room) {
    if (!takes_one(job)) return nullptr;
    if (!prepared) permute_one(job, room);
    return room;
}

// Lines first to last - 1 of a matrix whose every value is stored, by the fastest way that knows the format.
inline void gemv_stored(const Gemv& job, const float* permuted, i64 first, i64 last) {
    Dequantize packed{
        .format = job.format,
        .geometry = {},
        .codes = job.codes,
        .scales = job.scales,
        .shifts = job.shifts,
        .outer = job.outer,
        .values = nullptr,
        .values_type = Real::f32,
        .combine = Combine::replace,
        .nontemporal = false,
    };
    // Of a geometry decoding needs the length of a line only.
    packed.geometry.n = job.n;
    const PreparedDequantize p = prepare_dequantize(packed);
    const bool few = takes_few(job);
    if (job.batch > 1 && !few) return gemv_several(job, p, first, last);
    DecodeBuffers t;
    for (i64 i = 0; i < tile; ++i) t.ones[i] = 1.0f;
    // One vector or few: whole groups of the codes, then what is left of each line.
    if (permuted != nullptr || few) {
        const i64 done = few ? multiply_few(job, p, t, first, last) : multiply_one(job, p, permuted, t, first, last);
        for (i64 line = first; line < last; ++line) {
            float y[1][rows_in_sums];
            for (i64 b = 0; b < job.batch; ++b) y[0][b] = job.y[b * job.stride + line];
            gemv_rest(job, p, t, line, 1, done, y);
            for (i64 b = 0; b < job.batch; ++b) job.y[b * job.stride + line] = y[0][b] * outer_scale(p, line);
        }
        return;
    }
#if defined(__AVX2__)
    // Whole vectors in registers.
    if (decodes_in_registers(job.format)) {
        const CodeDecoder s = code_decoder_of(p.f);
        const i64 done = job.n / 16 * 16;
        for (i64 line = first; line < last; ++line) {
            float y[1][rows_in_sums] = {{dot_decoded(p, s, t, line, job.x, done)}};
            gemv_rest(job, p, t, line, 1, done, y);
            job.y[line] = y[0][0] * outer_scale(p, line);
        }
        return;
    }
#endif
    for (i64 line = first; line < last; ++line) {
        float y[1][rows_in_sums] = {};
        gemv_rest(job, p, t, line, 1, 0, y);
        job.y[line] = y[0][0] * outer_scale(p, line);
    }
}

}  // namespace dense_lines
