// c -= a b for matrices of float32 or float64 with rows one after the other, in tiles whose sums stay in registers.
//
// a and b are copied first: rows of a tile of a in pieces of lu_depth numbers, so that the tile's rows lie at constant
// distances whatever the matrix's are (a power of two would put all of them into one set of the nearest cache); columns
// of b in panels as wide as a tile. Per column of a and row of b a tile of AVX-512 takes 24 instructions of 16
// multiply-adds each (8 of float64), two loads of b and 12 numbers of a that are spread over a register by the load.
//
// Sums run over lu_depth products from zero, in the order of the columns of a, and are then subtracted from c: they do
// not depend on tiles, threads or the width of a register. Only the baseline, which has no fused multiply-add, rounds
// each product besides.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace products {

using numbers::Doubles, numbers::Reals, numbers::least, numbers::vector_bytes;
using vectors::broadcast, vectors::multiply_add, vectors::read, vectors::write;

// A register of either type, and how many numbers it holds.
template <class T>
struct VectorOf {
    using Type = Reals;
};
template <>
struct VectorOf<double> {
    using Type = Doubles;
};
template <class T>
using Vector = typename VectorOf<T>::Type;
template <class T>
constexpr i64 vector = vector_bytes / sizeof(T);

// Rows and vectors of a tile: 24 sums of 32 registers with AVX-512, 12 of 16 otherwise.
#if defined(__AVX512F__)
constexpr i64 tile_rows = 12;
#else
constexpr i64 tile_rows = 6;
#endif
constexpr i64 tile_vectors = 2;
template <class T>
constexpr i64 panel = tile_vectors * vector<T>;

// c - a b, likewise.
template <class V>
inline V multiply_subtract(V a, V b, V c) {
    return multiply_add(-a, b, c);
}

// Rows of a, `count` numbers of each, to rows of lu_depth numbers. Rows up to a whole tile stay as they are: what a
// tile computes of them is thrown away.
template <class T>
inline void pack_rows(const T* a, i64 row, i64 rows, i64 count, T* to) {
    for (i64 i = 0; i < rows; ++i) __builtin_memcpy(to + i * lu_depth, a + i * row, static_cast<u64>(count) * sizeof(T));
}

// A panel of b: for each row `width` numbers, then zeros.
template <class T>
inline void pack_panel(const T* b, i64 row, i64 rows, i64 width, T* to) {
    for (i64 i = 0; i < rows; ++i, b += row, to += panel<T>) {
        if (width == panel<T>) {
            for (i64 v = 0; v < panel<T>; v += vector<T>) write(to + v, read<Vector<T>>(b + v));
        } else {
            for (i64 j = 0; j < panel<T>; ++j) to[j] = j < width ? b[j] : T{0};
        }
    }
}

namespace {  // of this file alone

// c -= a b for one tile: a is tile_rows rows of lu_depth numbers, of which `count` are used, b as many rows of a panel.
template <class T>
__attribute__((noinline)) void subtract_tile(i64 count, const T* a, const T* b, T* c, i64 row) {
    using V = Vector<T>;
    V sums[tile_rows][tile_vectors];
#pragma GCC unroll 16
    for (i64 i = 0; i < tile_rows; ++i) {
        // The tile of c is fetched while its sums are formed.
        __builtin_prefetch(c + i * row, 1);
        __builtin_prefetch(c + i * row + panel<T> - 1, 1);
#pragma GCC unroll 2
        for (i64 j = 0; j < tile_vectors; ++j) sums[i][j] = V{};
    }
    for (i64 p = 0; p < count; ++p) {
        const V left = read<V>(b + p * panel<T>), right = read<V>(b + p * panel<T> + vector<T>);
#pragma GCC unroll 16
        for (i64 i = 0; i < tile_rows; ++i) {
            const V of_a = broadcast(a[i * lu_depth + p]);
            sums[i][0] = multiply_add(of_a, left, sums[i][0]);
            sums[i][1] = multiply_add(of_a, right, sums[i][1]);
        }
    }
#pragma GCC unroll 16
    for (i64 i = 0; i < tile_rows; ++i)
#pragma GCC unroll 2
        for (i64 j = 0; j < tile_vectors; ++j)
            write(c + i * row + j * vector<T>, read<V>(c + i * row + j * vector<T>) - sums[i][j]);
}

}  // namespace

// The same for a tile of which c has `height` rows and `width` columns.
template <class T>
inline void subtract_product(i64 count, const T* a, const T* b, T* c, i64 row, i64 height, i64 width) {
    if (height >= tile_rows && width >= panel<T>) return subtract_tile(count, a, b, c, row);
    alignas(64) T tile[tile_rows * panel<T>] = {};
    const i64 rows = least(height, tile_rows);
    const auto bytes = static_cast<u64>(least(width, panel<T>)) * sizeof(T);
    for (i64 i = 0; i < rows; ++i) __builtin_memcpy(tile + i * panel<T>, c + i * row, bytes);
    subtract_tile(count, a, b, tile, panel<T>);
    for (i64 i = 0; i < rows; ++i) __builtin_memcpy(c + i * row, tile + i * panel<T>, bytes);
}

}  // namespace products
