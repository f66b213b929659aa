// b - A x as if in twice the precision (Ogita, Rump and Oishi, Accurate Sum and Dot Product, 2005, algorithm 5.3), and
// the magnitudes of a matrix. Both read A once. Lanes sums stand side by side on every instruction set, so that all
// of them add in the same order.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace residuals {

using numbers::vector_bytes;
using Lanes = numbers::Doubles;
using vectors::broadcast, vectors::read, vectors::write;

// Sums in eight lanes: one register of AVX-512, two of AVX2, four of SSE2. Lane l takes the columns j with j % 8 == l.
constexpr i64 side_by_side_sums = 8;
constexpr i64 values_ahead = 1024;  // which are asked for early: the hardware's own prefetching stops at each page
using Singles = float __attribute__((vector_size(vector_bytes / 2)));
constexpr i64 lane_count = vector_bytes / 8, vectors_of_sums = side_by_side_sums / lane_count;

// Rows of a matrix may begin at any multiple of 8 bytes. Clang takes no alignment below that of a register from the type
// of a vector, and faults; memcpy is one unaligned instruction with both compilers.
inline Lanes lanes_at(const double* x) { return read<Lanes>(x); }
inline void put_lanes(double* x, Lanes v) { write(x, v); }
using LaneBits = std::int64_t __attribute__((vector_size(vector_bytes)));
// Clears the sign.
inline Lanes magnitude_of(Lanes v) { return (Lanes)((LaneBits)v & 0x7fffffffffffffff); }

namespace {  // of this file alone

// What a + b rounds off (Knuth).
template <class T>
inline T rounded_off(T a, T b, T sum) {
    // Exact for any a and b whose sum is finite: six operations, no comparison.
    const T of_b = sum - a;
    return (a - (sum - of_b)) + (b - of_b);
}

// What a * x rounds off: 17 operations without fused multiply-adds (Dekker), the same value with them.
inline Lanes rounded_off_product(Lanes a, [[maybe_unused]] Lanes x, [[maybe_unused]] Lanes high, [[maybe_unused]] Lanes low, Lanes product) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_fmsub_pd((__m512d)a, (__m512d)x, (__m512d)product);
#elif defined(__FMA__)
    return (Lanes)_mm256_fmsub_pd((__m256d)a, (__m256d)x, (__m256d)product);
#else
    // 2^27 + 1 splits a in two halves of at most 26 bits, whose products with the halves of x are exact; the caller
    // split x.
    const Lanes far = a * 134217729.0, above = far - (far - a), below = a - above;
    return ((above * high - product) + above * low + below * high) + below * low;
#endif
}

// For eight lanes: the sum of products, the sum of what was rounded off, and the sum of magnitudes.
struct RowSums {
    Lanes high[vectors_of_sums], low[vectors_of_sums], sizes[vectors_of_sums];
};

// Eight columns. The sum and every product are taken apart into a rounded number and its error; only errors are added
// in plain double precision, so that what is lost is of second order.
inline void add_products(RowSums& s, const double* a, const double* x, const double* high, const double* low) {
    for (i64 v = 0; v < vectors_of_sums; ++v) {
        const i64 at = v * lane_count;
        const Lanes here = lanes_at(a + at), there = lanes_at(x + at), product = here * there;
        const Lanes sum = s.high[v] + product;
        s.low[v] += rounded_off(s.high[v], product, sum) +
                    rounded_off_product(here, there, lanes_at(high + at), lanes_at(low + at), product);
        s.high[v] = sum;
        s.sizes[v] += magnitude_of(product);
    }
}

void residual_of_row(const Residuals& job, i64 i, i64 c) {
    const double *a = job.a.a + i * job.a.row, *x = job.x + c * job.a.n, *high = job.high + c * job.a.n, *low = job.low + c * job.a.n;
    RowSums s = {};
    const i64 n = job.a.n, in_lanes = n - n % side_by_side_sums;
    for (i64 j = 0; j < in_lanes; j += side_by_side_sums) {
        __builtin_prefetch(a + j + values_ahead);
        add_products(s, a + j, x + j, high + j, low + j);
    }
    // The last columns go through a copy filled with zeros: zeros add nothing, and no lane reads beyond the row.
    if (in_lanes < n) {
        double last[4][side_by_side_sums] = {};
        const double* from[4] = {a, x, high, low};
        for (i64 part = 0; part < 4; ++part)
            for (i64 j = in_lanes; j < n; ++j) last[part][j - in_lanes] = from[part][j];
        add_products(s, last[0], last[1], last[2], last[3]);
    }
    double sums[side_by_side_sums], rest[side_by_side_sums], sizes[side_by_side_sums];
    for (i64 v = 0; v < vectors_of_sums; ++v) {
        put_lanes(sums + v * lane_count, s.high[v]);
        put_lanes(rest + v * lane_count, s.low[v]);
        put_lanes(sizes + v * lane_count, s.sizes[v]);
    }
    const double b = job.b[c * job.a.m + i];
    // b minus the lanes, one after the other from lane 0, again with the error of each step.
    double total = b, off = 0, size = b < 0 ? -b : b;
    for (i64 l = 0; l < side_by_side_sums; ++l) {
        const double sum = total - sums[l];
        off += rounded_off(total, -sums[l], sum) - rest[l];
        total = sum;
        size += sizes[l];
    }
    job.r[c * job.a.m + i] = total + off;
    job.sizes[c * job.a.m + i] = size;
}

}  // namespace

// Row by row for all right-hand sides: a row of A is read from memory once.
void residuals(const Residuals& job, i64 first, i64 last) {
    for (i64 i = first; i < last; ++i)
        for (i64 c = 0; c < job.k; ++c) residual_of_row(job, i, c);
}

namespace {

// `columns` are the largest of the rows before, (n); a NaN is no maximum, but shows in the sum of its row.
template <bool scaled>
void extents_of_rows(const Extents& job, double* columns, i64 first, i64 last) {
    const i64 n = job.a.n, in_lanes = n - n % side_by_side_sums;
    // The product of two powers of two is exact, and so is what it makes of a value.
    const auto lanes_of = [&](const double* a, i64 i, i64 j) {
        const Lanes value = lanes_at(a + j);
        if constexpr (scaled) return value * (broadcast(job.left[i]) * lanes_at(job.right + j));
        return value;
    };
    for (i64 i = first; i < last; ++i) {
        const double* a = job.a.a + i * job.a.row;
        float* single = job.single == nullptr ? nullptr : job.single + i * n;
        Lanes most[vectors_of_sums] = {}, sums[vectors_of_sums] = {};
        for (i64 j = 0; j < in_lanes; j += side_by_side_sums)
            for (i64 v = 0; v < vectors_of_sums; ++v) {
                double* column = columns + j + v * lane_count;
                __builtin_prefetch(a + j + v * lane_count + values_ahead);
                // One read of A gives the row's maximum and sum, the columns' maxima, and its values as float32.
                const Lanes value = lanes_of(a, i, j + v * lane_count), size = magnitude_of(value), before = lanes_at(column);
                if (single != nullptr) write(single + j + v * lane_count, __builtin_convertvector(value, Singles));
                put_lanes(column, size > before ? size : before);
                most[v] = size > most[v] ? size : most[v];
                sums[v] += size;
            }
        double largest[side_by_side_sums], summed[side_by_side_sums];
        for (i64 v = 0; v < vectors_of_sums; ++v) {
            put_lanes(largest + v * lane_count, most[v]);
            put_lanes(summed + v * lane_count, sums[v]);
        }
        double top = 0, sum = 0;
        for (i64 l = 0; l < side_by_side_sums; ++l) {
            top = largest[l] > top ? largest[l] : top;
            sum += summed[l];
        }
        for (i64 j = in_lanes; j < n; ++j) {
            const double value = scaled ? a[j] * (job.left[i] * job.right[j]) : a[j], size = value < 0 ? -value : value;
            if (single != nullptr) single[j] = static_cast<float>(value);
            columns[j] = size > columns[j] ? size : columns[j];
            top = size > top ? size : top;
            sum += size;
        }
        job.largest[i] = top;
        job.sums[i] = sum;
    }
}

}  // namespace

void extents(const Extents& job, double* columns, i64 first, i64 last) {
    if (job.left == nullptr) return extents_of_rows<false>(job, columns, first, last);
    extents_of_rows<true>(job, columns, first, last);
}

}  // namespace residuals
