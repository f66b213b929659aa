// c -= a b for float32 matrices with rows one after the other, in tiles whose sums stay in registers.
//
// a and b are copied first: rows of a tile of a in pieces of lu_depth numbers, so that the tile's rows lie at constant
// distances whatever the matrix's are (a power of two would put all of them into one set of the nearest cache); columns
// of b in panels as wide as a tile. Per column of a and row of b a tile of AVX-512 takes 24 instructions of 16
// multiply-adds each, two loads of b and 12 numbers of a that are spread over a register by the load.
//
// Sums run over lu_depth products from zero, in the order of the columns of a, and are then subtracted from c: they do
// not depend on tiles, threads or the width of a register. Only the baseline, which has no fused multiply-add, rounds
// each product besides.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace products {

using numbers::Reals, numbers::least, numbers::vector;
using vectors::broadcast, vectors::multiply_add, vectors::read, vectors::write;

// Rows and vectors of a tile: 24 sums of 32 registers with AVX-512, 12 of 16 otherwise.
#if defined(__AVX512F__)
constexpr i64 tile_rows = 12;
#else
constexpr i64 tile_rows = 6;
#endif
constexpr i64 tile_vectors = 2, panel = tile_vectors * vector;

// c - a b, likewise.
inline Reals multiply_subtract(Reals a, Reals b, Reals c) { return multiply_add(-a, b, c); }

// Rows of a, `count` numbers of each, to rows of lu_depth numbers. Rows up to a whole tile stay as they are: what a
// tile computes of them is thrown away.
inline void pack_rows(const float* a, i64 row, i64 rows, i64 count, float* to) {
    for (i64 i = 0; i < rows; ++i) __builtin_memcpy(to + i * lu_depth, a + i * row, static_cast<std::size_t>(count) * sizeof(float));
}

// A panel of b: for each row `width` numbers, then zeros.
inline void pack_panel(const float* b, i64 row, i64 rows, i64 width, float* to) {
    for (i64 i = 0; i < rows; ++i, b += row, to += panel) {
        if (width == panel) {
            for (i64 v = 0; v < panel; v += vector) write(to + v, read<Reals>(b + v));
        } else {
            for (i64 j = 0; j < panel; ++j) to[j] = j < width ? b[j] : 0.0f;
        }
    }
}

namespace {  // of this file alone

// c -= a b for one tile: a is tile_rows rows of lu_depth numbers, of which `count` are used, b as many rows of a panel.
__attribute__((noinline)) void subtract_tile(i64 count, const float* a, const float* b, float* c, i64 row) {
    Reals sums[tile_rows][tile_vectors];
#pragma GCC unroll 16
    for (i64 i = 0; i < tile_rows; ++i) {
        // The tile of c is fetched while its sums are formed.
        __builtin_prefetch(c + i * row, 1);
        __builtin_prefetch(c + i * row + panel - 1, 1);
#pragma GCC unroll 2
        for (i64 j = 0; j < tile_vectors; ++j) sums[i][j] = Reals{};
    }
    for (i64 p = 0; p < count; ++p) {
        const Reals left = read<Reals>(b + p * panel), right = read<Reals>(b + p * panel + vector);
#pragma GCC unroll 16
        for (i64 i = 0; i < tile_rows; ++i) {
            const Reals of_a = broadcast(a[i * lu_depth + p]);
            sums[i][0] = multiply_add(of_a, left, sums[i][0]);
            sums[i][1] = multiply_add(of_a, right, sums[i][1]);
        }
    }
#pragma GCC unroll 16
    for (i64 i = 0; i < tile_rows; ++i)
#pragma GCC unroll 2
        for (i64 j = 0; j < tile_vectors; ++j)
            write(c + i * row + j * vector, read<Reals>(c + i * row + j * vector) - sums[i][j]);
}

}  // namespace

// The same for a tile of which c has `height` rows and `width` columns.
inline void subtract_product(i64 count, const float* a, const float* b, float* c, i64 row, i64 height, i64 width) {
    if (height >= tile_rows && width >= panel) return subtract_tile(count, a, b, c, row);
    alignas(64) float tile[tile_rows * panel] = {};
    const i64 rows = least(height, tile_rows);
    const auto bytes = static_cast<std::size_t>(least(width, panel)) * sizeof(float);
    for (i64 i = 0; i < rows; ++i) __builtin_memcpy(tile + i * panel, c + i * row, bytes);
    subtract_tile(count, a, b, tile, panel);
    for (i64 i = 0; i < rows; ++i) __builtin_memcpy(c + i * row, tile + i * panel, bytes);
}

}  // namespace products
