// A few columns of an LU factorization of float32 or float64 with partial pivoting.
//
// Every number is computed by the same operations in the same order on every instruction set: a multiple is rounded,
// then what is left of the number that it is subtracted from.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace eliminated_columns {

using numbers::bits_of, numbers::least, numbers::magnitude_mask;

namespace {  // of this file alone

template <class T>
constexpr i64 transposed_together = 64 / sizeof(T);  // rows: of each column a cache line
constexpr i64 eliminated_together = 4;   // columns
constexpr i64 searched_together = 256;   // numbers

// Magnitudes as integers of the same order.
inline i32 magnitude_of(float v) { return bits_of(v) & magnitude_mask; }
inline i64 magnitude_of(double v) {
    i64 b;
    __builtin_memcpy(&b, &v, sizeof b);
    return b & 0x7fffffffffffffff;
}

// The first number of the largest magnitude. Bit patterns of magnitudes are ordered as they are, and NaN is above all:
// it becomes the pivot, and the factors show it.
template <class T>
i64 place_of_largest(const T* x, i64 first, i64 last) {
    using Magnitude = decltype(magnitude_of(T{}));
    // A maximum over a few hundred numbers becomes vectors; only where it is a new one is its place looked for.
    Magnitude most = -1;
    i64 place = first;
    for (i64 start = first; start < last; start += searched_together) {
        const i64 end = least(last, start + searched_together);
        Magnitude here = 0;
        for (i64 i = start; i < end; ++i) {
            const Magnitude size = magnitude_of(x[i]);
            here = size > here ? size : here;
        }
        if (here <= most) continue;
        most = here;
        place = start;
        while (magnitude_of(x[place]) != most) ++place;
    }
    return place;
}

// Subtracts from a column the multiples of `count` columns that are eliminated with rows j to j + count - 1.
template <i64 count, class T>
void eliminate(const T* columns, i64 stride, i64 j, i64 m, T* __restrict other) {
    T times[count];
    for (i64 q = 0; q < count; ++q) {
        times[q] = other[j + q];
        for (i64 u = q + 1; u < count; ++u) other[j + u] -= columns[q * stride + j + u] * times[q];
    }
    for (i64 i = j + count; i < m; ++i) {
        T left = other[i];
        for (i64 q = 0; q < count; ++q) left -= columns[q * stride + i] * times[q];
        other[i] = left;
    }
}

// Columns of a, side by side in memory, and back.
template <class T>
void columns_from_rows(const LuColumns<T>& job, i64 stride) {
    for (i64 start = 0; start < job.m; start += transposed_together<T>)
        for (i64 j = 0; j < job.n; ++j)
            for (i64 i = start; i < least(job.m, start + transposed_together<T>); ++i) job.room[j * stride + i] = job.a[i * job.row + j];
}

template <class T>
void rows_from_columns(const LuColumns<T>& job, i64 stride) {
    for (i64 start = 0; start < job.m; start += transposed_together<T>)
        for (i64 j = 0; j < job.n; ++j)
            for (i64 i = start; i < least(job.m, start + transposed_together<T>); ++i) job.a[i * job.row + j] = job.room[j * stride + i];
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
// over contiguous memory, as vectors. Four columns stay in the nearest cache while their multiples are subtracted from
// the others, which come from the second cache once for all four.
template <class T>
void factorize_columns(const LuColumns<T>& job) {
    const i64 m = job.m, n = job.n, stride = lu_stride(m);
    columns_from_rows(job, stride);
    for (i64 begin = 0; begin < n; begin += eliminated_together) {
        const i64 end = least(n, begin + eliminated_together);
        T* first = job.room + begin * stride;
        for (i64 j = begin; j < end; ++j) {
            exchange_for_pivot(job, stride, j);
            T* column = job.room + j * stride;
            const T pivot = column[j];
            // A column of zeros has no multiples to subtract; the caller finds its pivot on the diagonal.
            if (pivot != 0)
                for (i64 i = j + 1; i < m; ++i) column[i] /= pivot;
            for (i64 c = j + 1; c < end; ++c) eliminate<1>(column, stride, j, m, job.room + c * stride);
        }
        for (i64 c = end; c < n; ++c) eliminate<eliminated_together>(first, stride, begin, m, job.room + c * stride);
    }
    rows_from_columns(job, stride);
}

}  // namespace eliminated_columns
