// A few columns of an LU factorization of float32 or float64 with partial pivoting.
//
// Every number is computed by the same operations in the same order on every instruction set: a multiple is rounded,
// then what is left of the number that it is subtracted from.
#pragma once

#include "kernels/dense/products.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace eliminated_columns {

using numbers::Bits, numbers::least, numbers::magnitude_mask, numbers::vector_bytes;
using products::Vector, products::vector;
using vectors::broadcast, vectors::read, vectors::transpose, vectors::write;

namespace {  // of this file alone

constexpr i64 eliminated_together = 4;  // columns
// Columns that multiples are subtracted from at once: their factors stay in registers.
#if defined(__AVX512F__)
constexpr i64 columns_together = 4;
#else
constexpr i64 columns_together = 2;
#endif
template <class T>
constexpr i64 rows_together = 4096 / sizeof(T);  // whose pieces of four columns stay in the nearest cache
constexpr i64 searched_together = 256;           // numbers
constexpr i64 maxima = 4;                        // side by side: each waits for the comparison before

// Magnitudes as integers, which have the same order.
template <class T>
struct MagnitudesOf {
    using One = i32;
    using Type = Bits;
    static constexpr One mask = magnitude_mask;
};
template <>
struct MagnitudesOf<double> {
    using One = i64;
    using Type = i64 __attribute__((vector_size(vector_bytes)));
    static constexpr One mask = 0x7fffffffffffffff;
};

// The first number of the largest magnitude. NaN is above all: it becomes the pivot, and the factors show it.
template <class T>
i64 place_of_largest(const T* x, i64 first, i64 last) {
    using Of = MagnitudesOf<T>;
    using Magnitude = typename Of::One;
    using Magnitudes = typename Of::Type;
    const auto magnitude_of = [x](i64 i) {
        Magnitude bits;
        __builtin_memcpy(&bits, x + i, sizeof bits);
        return bits & Of::mask;
    };
    // A maximum over a few hundred numbers; only where it is a new one is its place looked for.
    Magnitude most = -1;
    i64 place = first;
    for (i64 start = first; start < last; start += searched_together) {
        const i64 end = least(last, start + searched_together);
        Magnitudes largest[maxima] = {};
        i64 i = start;
        // Integers, because a maximum of floats must not reorder NaN.
        for (; i + maxima * vector<T> <= end; i += maxima * vector<T>)
#pragma GCC unroll 4
            for (i64 u = 0; u < maxima; ++u) {
                const Magnitudes sizes = read<Magnitudes>(x + i + u * vector<T>) & Of::mask;
                largest[u] = sizes > largest[u] ? sizes : largest[u];
            }
        Magnitude here = 0;
        for (const Magnitudes& sizes : largest)
            for (i64 l = 0; l < vector<T>; ++l) here = sizes[l] > here ? sizes[l] : here;
        for (; i < end; ++i) here = magnitude_of(i) > here ? magnitude_of(i) : here;
        if (here <= most) continue;
        most = here;
        place = start;
        while (magnitude_of(place) != most) ++place;
    }
    return place;
}

// The multiples of `count` columns, eliminated with rows j to j + count - 1, that are subtracted from a column: what is
// left in those rows.
template <class T>
void find_multiples(const T* columns, i64 stride, i64 j, i64 count, T* other) {
    for (i64 q = 0; q < count; ++q)
        for (i64 u = q + 1; u < count; ++u) other[j + u] -= columns[q * stride + j + u] * other[j + q];
}

// Subtracts them, which lie from row j on, from `others` columns in rows `first` to `last - 1`. Eliminated columns are read once
// for all of these: with one at a time loads took longer than the arithmetic.
template <i64 count, i64 others, class T>
void subtract_multiples(const T* columns, i64 stride, i64 j, i64 first, i64 last, T* other) {
    using V = Vector<T>;
    V times[others][count];
    for (i64 o = 0; o < others; ++o)
        for (i64 q = 0; q < count; ++q) times[o][q] = broadcast(other[o * stride + j + q]);
    i64 i = first;
    for (; i + vector<T> <= last; i += vector<T>) {
        V eliminated[count];
        for (i64 q = 0; q < count; ++q) eliminated[q] = read<V>(columns + q * stride + i);
        for (i64 o = 0; o < others; ++o) {
            V left = read<V>(other + o * stride + i);
            for (i64 q = 0; q < count; ++q) left -= eliminated[q] * times[o][q];
            write(other + o * stride + i, left);
        }
    }
    // Rows that fill no register, by the same operations.
    for (; i < last; ++i)
        for (i64 o = 0; o < others; ++o)
            for (i64 q = 0; q < count; ++q) other[o * stride + i] -= columns[q * stride + i] * times[o][q][0];
}

// What the columns from `begin` on, which are eliminated, leave of column j, fewer than eliminated_together further.
template <class T>
void subtract_from_column(T* room, i64 stride, i64 begin, i64 j, i64 m) {
    const T* first = room + begin * stride;
    T* column = room + j * stride;
    find_multiples(first, stride, begin, j - begin, column);
    if (j - begin == 1) subtract_multiples<1, 1>(first, stride, begin, j, m, column);
    if (j - begin == 2) subtract_multiples<2, 1>(first, stride, begin, j, m, column);
    if (j - begin == 3) subtract_multiples<3, 1>(first, stride, begin, j, m, column);
}

// What eliminated_together columns from `begin` on leave of all that follow: some rows after the others.
template <class T>
void subtract_from_rest(T* room, i64 stride, i64 begin, i64 m, i64 n) {
    const T* first = room + begin * stride;
    const i64 end = begin + eliminated_together;
    // Rows of the multiples first: what follows reads them, and nothing else of a column is needed for them.
    for (i64 c = end; c < n; ++c) find_multiples(first, stride, begin, eliminated_together, room + c * stride);
    for (i64 i = end; i < m; i += rows_together<T>) {
        const i64 last = least(m, i + rows_together<T>);
        i64 c = end;
        for (; c + columns_together <= n; c += columns_together)
            subtract_multiples<eliminated_together, columns_together>(first, stride, begin, i, last, room + c * stride);
        for (; c < n; ++c) subtract_multiples<eliminated_together, 1>(first, stride, begin, i, last, room + c * stride);
    }
}

// Row i of a becomes number i of each column, or is made of those again. Squares of a register's width are transposed in
// registers; numbers one by one take several times as long, and what no square holds is little.
template <bool back, class T>
void turn(const LuColumns<T>& job, i64 stride) {
    constexpr i64 side = vector<T>;
    for (i64 i = 0; i < job.m; i += side)
        for (i64 j = 0; j < job.n; j += side) {
            if (i + side <= job.m && j + side <= job.n) {
                Vector<T> square[side];
                for (i64 u = 0; u < side; ++u) square[u] = read<Vector<T>>(back ? job.room + (j + u) * stride + i : job.a + (i + u) * job.row + j);
                transpose(square);
                for (i64 u = 0; u < side; ++u) write(back ? job.a + (i + u) * job.row + j : job.room + (j + u) * stride + i, square[u]);
                continue;
            }
            for (i64 c = j; c < least(job.n, j + side); ++c)
                for (i64 r = i; r < least(job.m, i + side); ++r)
                    if (back) job.a[r * job.row + c] = job.room[c * stride + r];
                    else job.room[c * stride + r] = job.a[r * job.row + c];
        }
}

// The largest of what is left of column j becomes its pivot: two rows change places in all columns.
template <class T>
void exchange_for_pivot(const LuColumns<T>& job, i64 stride, i64 j) {
    const i64 place = place_of_largest(job.room + j * stride, j, job.m);
    job.exchanges[j] = place;
    for (i64 c = 0; c < job.n; ++c) {
        T* column = job.room + c * stride;
        const T kept = column[j];
        column[j] = column[place];
        column[place] = kept;
    }
}

}  // namespace

// Each column's numbers lie side by side: the search for a pivot, the division and the multiples that are subtracted go
// over contiguous memory, as vectors. A column takes its turn when those of its group before it are done, all others when
// the whole group is.
template <class T>
void factorize_columns(const LuColumns<T>& job) {
    const i64 m = job.m, n = job.n, stride = lu_stride(m);
    turn<false>(job, stride);
    for (i64 begin = 0; begin < n; begin += eliminated_together) {
        const i64 end = least(n, begin + eliminated_together);
        for (i64 j = begin; j < end; ++j) {
            subtract_from_column(job.room, stride, begin, j, m);
            exchange_for_pivot(job, stride, j);
            T* column = job.room + j * stride;
            const T pivot = column[j];
            // A column of zeros has no multiples to subtract; the caller finds its pivot on the diagonal.
            if (pivot != 0)
                for (i64 i = j + 1; i < m; ++i) column[i] /= pivot;
        }
        if (end < n) subtract_from_rest(job.room, stride, begin, m, n);
    }
    turn<true>(job, stride);
}

}  // namespace eliminated_columns
