// Lines times vectors, sixteen values decoded at a time in registers: every format that decode_sixteen knows, any number
// of vectors.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/blocks.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace decoded_lines {

using decode_sixteen::CodeDecoder;
using packed::DecodeBuffers, packed::PreparedDequantize;
using blocks::fill;
using numbers::least, numbers::tile;
#if defined(__AVX512F__)
using decode_sixteen::Decoder;
using decode_vectors::PackedRun, decode_vectors::decode_run, decode_vectors::packed_run_of, decode_vectors::weights;

namespace {  // of this file alone

// A line times one vector, eight vectors of codes at a time in four sums; about five instructions for each 16 values
// of up to four bits.
template <Decoder decoder>
inline float dot_of_run(const CodeDecoder& given, const PackedRun& r, const float* x) {
    const CodeDecoder s = given;
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    // Vectors whose sixteen bytes can be read whole, four at a time; then the rest one by one, under a mask.
    i64 v = 0;
    // Four sums: a fused multiply-add takes four cycles to deliver, and one could start in each.
    for (; v + 4 <= r.safe; v += 4) {
        __builtin_prefetch(r.codes + v * 2 * s.bits + 2048);
#pragma GCC unroll 4
        for (i64 j = 0; j < 4; ++j)
            sums[j] = _mm512_fmadd_ps(weights<decoder, true>(s, r, v + j), _mm512_loadu_ps(x + 16 * (v + j)), sums[j]);
    }
    for (; v < r.vectors; ++v)
        sums[0] = _mm512_fmadd_ps(weights<decoder, false>(s, r, v), _mm512_loadu_ps(x + 16 * v), sums[0]);
    // Each of 64 lanes has summed n / 64 products; they are added as a tree, which the bound allows.
    return _mm512_reduce_add_ps((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

// Lines and rows of x that share their loads; 16 rows are what a call works on at once.
constexpr i64 lines_together = 4, rows_in_sums = 16;

namespace {  // of this file alone

// Four lines times four rows of x: 16 sums in registers, eight loads for 16 products.
inline void add_products(const float (*w)[tile], const float* x, i64 stride, i64 rows, i64 n, __m512 (*sums)[rows_in_sums]) {
    for (i64 b = 0; b < rows; b += 4) {
        // Rows beyond the last repeat it: their sums are not read.
        const float* from[4];
        __m512 sum[4][4];
        for (i64 r = 0; r < 4; ++r) from[r] = x + least(b + r, rows - 1) * stride;
#pragma GCC unroll 4
        for (i64 l = 0; l < 4; ++l)
#pragma GCC unroll 4
            for (i64 r = 0; r < 4; ++r) sum[l][r] = sums[l][b + r];
        // One load of x for four lines, one of each line for four rows.
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

// The covered vectors of up to four lines, times up to 16 rows of x; y[l][b] is written. Returns how many values of a
// line they cover.
template <Decoder decoder>
inline i64 gemv_lines(const Gemv& job, const PreparedDequantize& p, const CodeDecoder& s, DecodeBuffers& t, i64 line, i64 lines,
                      float (*y)[rows_in_sums]) {
    const i64 covered = job.n / 16 * 16;
    // One vector: decoded values go from registers into the product.
    if (job.batch == 1) {
        for (i64 l = 0; l < lines; ++l) {
            y[l][0] = 0.0f;
            // DecodeBuffers has a scale for each of 1,024 blocks, none shorter than 16: eight tiles fit.
            for (i64 start = 0; start < covered; start += 8 * tile) {  // a scale for each vector at most
                const PackedRun r = packed_run_of(p, t, s, line + l, start, least(8 * tile, covered - start));
                y[l][0] += dot_of_run<decoder>(s, r, job.x + start);
            }
        }
        return covered;
    }
    // Several: a tile of four lines is decoded once, 16 KiB, and multiplied with every row.
    alignas(64) float w[lines_together][tile];
    __m512 sums[lines_together][rows_in_sums];
    for (auto& of_line : sums)
        for (__m512& sum : of_line) sum = _mm512_setzero_ps();
    for (i64 start = 0; start < covered; start += tile) {
        const i64 n = least(tile, covered - start);
        for (i64 l = 0; l < lines_together; ++l) {
            if (l < lines) decode_run<decoder, false>(s, packed_run_of(p, t, s, line + l, start, n), 1.0f, w[l]);
            else fill(w[l], 0.0f, tile);
        }
        add_products(w, job.x + start, job.n, job.batch, n, sums);
    }
    for (i64 l = 0; l < lines; ++l)
        for (i64 b = 0; b < job.batch; ++b) y[l][b] = _mm512_reduce_add_ps(sums[l][b]);
    return covered;
}

}  // namespace

// Chooses the decoder; returns how many values of a line are covered, none without AVX-512.
inline i64 gemv_vectors(const Gemv& job, const PreparedDequantize& p, const CodeDecoder& s, DecodeBuffers& t, i64 line, i64 lines,
                        float (*y)[rows_in_sums]) {
    switch (s.decoder) {
        case Decoder::table: return gemv_lines<Decoder::table>(job, p, s, t, line, lines, y);
        case Decoder::integer: return gemv_lines<Decoder::integer>(job, p, s, t, line, lines, y);
        case Decoder::number: return gemv_lines<Decoder::number>(job, p, s, t, line, lines, y);
        case Decoder::number_or_nan: return gemv_lines<Decoder::number_or_nan>(job, p, s, t, line, lines, y);
        case Decoder::wide_integer: return gemv_lines<Decoder::wide_integer>(job, p, s, t, line, lines, y);
        case Decoder::wide_number: return gemv_lines<Decoder::wide_number>(job, p, s, t, line, lines, y);
        case Decoder::bfloat: return gemv_lines<Decoder::bfloat>(job, p, s, t, line, lines, y);
    }
    return 0;
}

#else

constexpr i64 lines_together = 4, rows_in_sums = 16;
inline i64 gemv_vectors(const Gemv&, const PreparedDequantize&, const CodeDecoder&, DecodeBuffers&, i64, i64, float (*)[rows_in_sums]) {
    return 0;
}

#endif

}  // namespace decoded_lines
