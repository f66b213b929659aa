// Products of decoded lines with the panels of several rows, in blocks whose sums stay in registers.
#pragma once

#include "kernels/gemv/row_panels.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace row_products {

using numbers::Bits, numbers::Reals, numbers::least, numbers::vector;
using row_panels::RowPanels, row_panels::most_by_values, row_panels::holds_values, row_panels::most_rows, row_panels::vectors_in_block;
using whole_pieces::piece;
using vectors::broadcast, vectors::multiply_add, vectors::read, vectors::write;

// Lines that share a piece of x while it is in the second cache, and lines that are decoded at once: a multiple of all blocks
// of lines below. Decoded lines stay in the nearest cache with few rows.
#if defined(__AVX512F__)
constexpr i64 lines_in_group = 48, lines_decoded = 24, lines_by_values = 4;
#else
constexpr i64 lines_in_group = 24, lines_decoded = 12, lines_by_values = 2;
#endif

// Values of a piece that pass all decoded lines before the next ones: those of a block of transposed rows stay in the nearest
// cache meanwhile.
constexpr i64 values_of_block = 128;

// Sums of so many registers at once: 24 of 32, or 12 of 16, besides operands.
#if defined(__AVX512F__)
constexpr i64 sums_in_registers = 24;
#else
constexpr i64 sums_in_registers = 12;
#endif

// The sums of a line: a register for each of few rows, or a lane for each of many.
constexpr i64 floats_of_line = most_by_values * vector > most_rows ? most_by_values * vector : most_rows;

// Up to 48 KiB of weights, half of it again as bfloat16, and the sums.
struct alignas(64) RowBuffers {
    float w[lines_decoded][piece];
    u16 narrow[lines_decoded][piece];
    float sums[lines_in_group][floats_of_line];
};

// What is multiplied: float32, pairs of bfloat16 by the instruction for them, or such pairs as float32, where that
// instruction would take a product for zero.
enum class Factors : i32 { floats, pairs, pairs_as_floats };

namespace {  // of this file alone

// ---- lanes hold neighbours of a row

// Lane i of each as a float32: the even and the odd values of pairs of bfloat16.
inline Reals even_value(Bits pairs) { return (Reals)(pairs << 16); }
inline Reals odd_value(Bits pairs) { return (Reals)(pairs & static_cast<i32>(0xffff0000u)); }

// A vector of values of a row.
template <Factors factors>
inline Reals values_at(const u8* x, i64 i) {
    using Halves = u16 __attribute__((vector_size(2 * vector)));
    if constexpr (factors == Factors::floats) return read<Reals>(reinterpret_cast<const float*>(x) + i);
    return even_value(__builtin_convertvector(read<Halves>(reinterpret_cast<const u16*>(x) + i), Bits));
}

// A block of lines times `rows` rows: per vector of values a load for each line and each row, and a product for each pair.
template <Factors factors, i64 lines, i64 rows>
inline void add_values(const RowBuffers& t, const u8* x, i64 n, float (*sums)[floats_of_line]) {
    constexpr i64 step = factors == Factors::pairs ? 2 * vector : vector, row_bytes = piece * (factors == Factors::floats ? 4 : 2);
    Reals sum[lines][rows];
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l)
#pragma GCC unroll 6
        for (i64 r = 0; r < rows; ++r) sum[l][r] = read<Reals>(sums[l] + r * vector);
    for (i64 i = 0; i < n; i += step) {
        Reals of_lines[lines];
#pragma GCC unroll 4
        for (i64 l = 0; l < lines; ++l) of_lines[l] = factors == Factors::pairs ? read<Reals>(t.narrow[l] + i) : read<Reals>(t.w[l] + i);
#pragma GCC unroll 6
        for (i64 r = 0; r < rows; ++r) {
#if defined(__AVX512BF16__)
            if constexpr (factors == Factors::pairs) {
                const Reals of_row = read<Reals>(x + r * row_bytes + 2 * i);
#pragma GCC unroll 4
                for (i64 l = 0; l < lines; ++l)
                    sum[l][r] = (Reals)_mm512_dpbf16_ps((__m512)sum[l][r], (__m512bh)of_lines[l], (__m512bh)of_row);
                continue;
            }
#endif
            const Reals of_row = values_at<factors>(x + r * row_bytes, i);
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) sum[l][r] = multiply_add(of_lines[l], of_row, sum[l][r]);
        }
    }
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l)
#pragma GCC unroll 6
        for (i64 r = 0; r < rows; ++r) write(sums[l] + r * vector, sum[l][r]);
}

// A block of lines times up to six rows. The number of rows is known to the compiler: sums of rows that are not there would cost
// as much.
template <Factors factors>
inline void add_by_values(const RowBuffers& t, const u8* x, i64 rows, i64 n, float (*sums)[floats_of_line]) {
    constexpr i64 lines = lines_by_values;
    switch (rows) {
        case 1: return add_values<factors, lines, 1>(t, x, n, sums);
        case 2: return add_values<factors, lines, 2>(t, x, n, sums);
        case 3: return add_values<factors, lines, 3>(t, x, n, sums);
        case 4: return add_values<factors, lines, 4>(t, x, n, sums);
        case 5: return add_values<factors, lines, 5>(t, x, n, sums);
        default: return add_values<factors, lines, 6>(t, x, n, sums);
    }
}

// In blocks of nearly the same size: seven rows are four and three.
template <Factors factors>
inline void add_blocks_by_values(const RowBuffers& t, const RowPanels& r, const u8* panel, i64 n, float (*sums)[floats_of_line]) {
    const i64 blocks = count_of(r.rows, 6);
    for (i64 i = 0; i < blocks; ++i) {
        const i64 from = r.rows * i / blocks, to = r.rows * (i + 1) / blocks;
        add_by_values<factors>(t, panel + from * piece * (factors == Factors::floats ? 4 : 2), to - from, n,
                              reinterpret_cast<float(*)[floats_of_line]>(&sums[0][from * vector]));
    }
}

// ---- lanes hold the same value of neighbouring rows

// Adds values `start` to `end` of a block of lines times the rows of `vectors` registers. Per value, or pair, a load of each register of x, a broadcast
// for each line, and a product for each pair of these. The sum begins at zero: sums of few
// values are more exact.
template <Factors factors, i64 lines, i64 vectors>
inline void add_rows(const RowBuffers& t, i64 line, const u8* panel, i64 start, i64 end, float (*sums)[floats_of_line]) {
    Reals sum[lines][vectors];
#pragma GCC unroll 12
    for (i64 l = 0; l < lines; ++l)
#pragma GCC unroll 4
        for (i64 j = 0; j < vectors; ++j) sum[l][j] = broadcast(0.0f);
    constexpr i64 values = factors == Factors::floats ? 1 : 2;
    const i32* x = reinterpret_cast<const i32*>(panel) + start / values * vectors * vector;
    for (i64 i = start; i < end; i += values, x += vectors * vector) {
        Bits of_x[vectors];
#pragma GCC unroll 4
        for (i64 j = 0; j < vectors; ++j) of_x[j] = read<Bits>(x + j * vector);
#pragma GCC unroll 12
        for (i64 l = 0; l < lines; ++l) {
#if defined(__AVX512BF16__)
            if constexpr (factors == Factors::pairs) {
                i32 pair;
                __builtin_memcpy(&pair, &t.narrow[line + l][i], sizeof pair);
#pragma GCC unroll 4
                for (i64 j = 0; j < vectors; ++j)
                    sum[l][j] = (Reals)_mm512_dpbf16_ps((__m512)sum[l][j], (__m512bh)broadcast(pair), (__m512bh)of_x[j]);
                continue;
            }
#endif
#pragma GCC unroll 4
            for (i64 j = 0; j < vectors; ++j) {
                if constexpr (factors == Factors::floats) {
                    sum[l][j] = multiply_add(broadcast(t.w[line + l][i]), (Reals)of_x[j], sum[l][j]);
                } else {
                    sum[l][j] = multiply_add(broadcast(t.w[line + l][i]), even_value(of_x[j]), sum[l][j]);
                    sum[l][j] = multiply_add(broadcast(t.w[line + l][i + 1]), odd_value(of_x[j]), sum[l][j]);
                }
            }
        }
    }
#pragma GCC unroll 12
    for (i64 l = 0; l < lines; ++l)
#pragma GCC unroll 4
        for (i64 j = 0; j < vectors; ++j) {
            float* to = sums[l] + j * vector;
            write(to, read<Reals>(to) + sum[l][j]);
        }
}

template <Factors factors, i64 vectors>
inline void add_block_of_rows(const RowBuffers& t, i64 lines, const u8* panel, i64 n, float (*sums)[floats_of_line]) {
    constexpr i64 together = 12 * vectors <= sums_in_registers ? 12 : 6;
    for (i64 start = 0; start < n; start += values_of_block)
        for (i64 l = 0; l < lines; l += together)
            add_rows<factors, together, vectors>(t, l, panel, start, least(start + values_of_block, n), sums + l);
}

template <Factors factors>
inline void add_many_rows(const RowBuffers& t, const RowPanels& r, i64 lines, const u8* panel, i64 n, float (*sums)[floats_of_line]) {
    for (i64 v = 0; v < r.vectors; v += vectors_in_block) {
        const i64 vectors = least(vectors_in_block, r.vectors - v);
        const auto of_rows = reinterpret_cast<float(*)[floats_of_line]>(&sums[0][v * vector]);
        switch (vectors) {
            case 1: add_block_of_rows<factors, 1>(t, lines, panel, n, of_rows); break;
            case 2: add_block_of_rows<factors, 2>(t, lines, panel, n, of_rows); break;
#if defined(__AVX512F__)
            case 3: add_block_of_rows<factors, 3>(t, lines, panel, n, of_rows); break;
            default: add_block_of_rows<factors, 4>(t, lines, panel, n, of_rows); break;
#endif
        }
        panel += vectors * vector * piece * (factors == Factors::floats ? 4 : 2);
    }
}

}  // namespace

// How many lines are decoded before they are multiplied.
inline i64 lines_together(const RowPanels& r) { return holds_values(r.lanes) ? lines_by_values : lines_decoded; }

template <Factors factors>
inline void add_products(const RowBuffers& t, const RowPanels& r, i64 lines, const u8* panel, i64 n, float (*sums)[floats_of_line]) {
    if (holds_values(r.lanes)) add_blocks_by_values<factors>(t, r, panel, n, sums);
    else add_many_rows<factors>(t, r, lines, panel, n, sums);
}

// Adds the products of n decoded values of each line, a multiple of 32, with a piece of the rows to the sums of these lines.
// Lines that are not there have zeros or what was there before: their sums are not read.
inline void add_products(const RowBuffers& t, const RowPanels& r, [[maybe_unused]] Factors factors, i64 lines, const u8* panel, i64 n,
                         float (*sums)[floats_of_line]) {
#if defined(__AVX512BF16__)
    if (factors == Factors::pairs) return add_products<Factors::pairs>(t, r, lines, panel, n, sums);
    if (factors == Factors::pairs_as_floats) return add_products<Factors::pairs_as_floats>(t, r, lines, panel, n, sums);
#endif
    add_products<Factors::floats>(t, r, lines, panel, n, sums);
}

}  // namespace row_products
