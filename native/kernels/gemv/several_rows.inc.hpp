// Lines times several vectors: a part of 16 lines is decoded once, in the second cache, and multiplied with every row of x
// by blocks of lines and rows whose sums stay in registers.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace several_rows {

using decode_sixteen::CodeDecoder;
using packed::DecodeBuffers, packed::PreparedDequantize;
using numbers::Reals, numbers::least, numbers::vector;
using vectors::broadcast, vectors::read;

// Lines that are decoded at once, and rows of x whose sums stand beside them.
constexpr i64 lines_decoded = 16, most_rows = 64;

#if defined(__AVX2__)
using decode_vectors::decode_vectors;
using decoded_lines::multiply_add, decoded_lines::total;

// Values of a line that are decoded at once, and rows of x that are copied beside each other at once: rows as the caller
// has them often lie a power of two apart, where few of them fit a cache.
constexpr i64 piece = 512, rows_copied = 32;

// Sums of so many lines times so many rows stay in registers: 24 of 32, or 12 of 16, besides operands.
#if defined(__AVX512F__)
constexpr i64 lines_in_block = 4, rows_in_block = 6;
#else
constexpr i64 lines_in_block = 2, rows_in_block = 6;
#endif

// 32 KiB of weights, 64 KiB of x, and the sums, 64 KiB with AVX-512.
struct alignas(64) RowBuffers {
    float w[lines_decoded][piece], x[rows_copied][piece];
    Reals sums[lines_decoded][most_rows];
};

namespace {  // of this file alone

// A block of lines times `rows` rows: per vector of values a load for each line and each row, and a product for each pair.
template <i64 rows>
inline void add_block(const float (*w)[piece], const float (*x)[piece], i64 n, Reals (*sums)[most_rows]) {
    Reals sum[lines_in_block][rows];
#pragma GCC unroll 4
    for (i64 l = 0; l < lines_in_block; ++l)
#pragma GCC unroll 6
        for (i64 r = 0; r < rows; ++r) sum[l][r] = sums[l][r];
    for (i64 i = 0; i < n; i += vector) {
        Reals of_lines[lines_in_block];
#pragma GCC unroll 4
        for (i64 l = 0; l < lines_in_block; ++l) of_lines[l] = read<Reals>(w[l] + i);
#pragma GCC unroll 6
        for (i64 r = 0; r < rows; ++r) {
            const Reals of_row = read<Reals>(x[r] + i);
#pragma GCC unroll 4
            for (i64 l = 0; l < lines_in_block; ++l) sum[l][r] = multiply_add(of_lines[l], of_row, sum[l][r]);
        }
    }
#pragma GCC unroll 4
    for (i64 l = 0; l < lines_in_block; ++l)
#pragma GCC unroll 6
        for (i64 r = 0; r < rows; ++r) sums[l][r] = sum[l][r];
}

// All blocks of lines times up to six rows.
inline void add_rows(RowBuffers& t, i64 lines, i64 from, i64 to, i64 rows, i64 n) {
    for (i64 l = 0; l < lines; l += lines_in_block) {
        const auto w = t.w + l;
        const auto x = t.x + from;
        Reals(*sums)[most_rows] = reinterpret_cast<Reals(*)[most_rows]>(&t.sums[l][to]);
        // The number of rows is known to the compiler: sums of rows that are not there would cost as much.
        switch (rows) {
            case 1: add_block<1>(w, x, n, sums); break;
            case 2: add_block<2>(w, x, n, sums); break;
            case 3: add_block<3>(w, x, n, sums); break;
            case 4: add_block<4>(w, x, n, sums); break;
            case 5: add_block<5>(w, x, n, sums); break;
            default: add_block<rows_in_block>(w, x, n, sums); break;
        }
    }
}

}  // namespace

// Up to 16 lines times up to 64 rows of x, (rows, stride), of which the first n values count, whole vectors of them. The
// sums are in t.sums, [line][row], each 8 or 16 lanes that are still to be added.
inline void multiply_rows(const PreparedDequantize& p, const CodeDecoder& s, DecodeBuffers& d, RowBuffers& t, i64 line, i64 lines,
                          const float* x, i64 rows, i64 stride, i64 n) {
    for (i64 l = 0; l < lines_decoded; ++l)
        for (i64 r = 0; r < rows; ++r) t.sums[l][r] = broadcast(0.0f);
    for (i64 start = 0; start < n; start += piece) {
        const i64 count = least(piece, n - start);
        // Lines that are not there keep what they had: their sums are not read.
        for (i64 l = 0; l < lines; ++l) decode_vectors<false>(p, s, d, line + l, start, count, 1.0f, t.w[l]);
        for (i64 b = 0; b < rows; b += rows_copied) {
            const i64 here = least(rows_copied, rows - b);
            for (i64 r = 0; r < here; ++r) __builtin_memcpy(t.x[r], x + (b + r) * stride + start, static_cast<u64>(count) * sizeof(float));
            // In blocks of nearly the same size: seven rows are four and three.
            const i64 blocks = count_of(here, rows_in_block);
            for (i64 i = 0; i < blocks; ++i) {
                const i64 from = here * i / blocks;
                add_rows(t, lines, from, b + from, here * (i + 1) / blocks - from, count);
            }
        }
    }
}

#endif

}  // namespace several_rows
