// Triangular systems of float32 or float64 factors, solved in double precision: the factors are read once, in the order of
// their rows. Lanes of sums stand side by side on every instruction set, so that all of them add in the same order.
#pragma once

#include "kernels/dense/residuals.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace triangles {

using residuals::Lanes, residuals::Singles, residuals::lane_count, residuals::lanes_at, residuals::put_lanes;
using vectors::read;

namespace {  // of this file alone

constexpr i64 side_by_side_dots = 16, vectors_of_dots = side_by_side_dots / lane_count;
// Right-hand sides for which a row is read once: as many as their sums find registers.
constexpr i64 sides_together = lane_count / 2;

inline Lanes widened_at(const float* t) { return __builtin_convertvector(read<Singles>(t), Lanes); }
inline Lanes widened_at(const double* t) { return lanes_at(t); }

// results[c] = the sum of t[j] x[c * stride + j]; `next`, as many values of the row that comes next, is asked for
// meanwhile.
template <i64 sides, class T>
inline void dots(const T* t, const double* x, i64 stride, i64 n, const T* next, double* results) {
    Lanes sums[sides][vectors_of_dots] = {};
    const i64 in_lanes = n - n % side_by_side_dots;
    for (i64 j = 0; j < in_lanes; j += side_by_side_dots) {
        memory::prefetch<memory::nearest>(next + j, side_by_side_dots * i64{sizeof(T)});
        for (i64 v = 0; v < vectors_of_dots; ++v) {
            // float32 to double is exact; a product rounds once, its sum once more.
            const Lanes here = widened_at(t + j + v * lane_count);
            for (i64 c = 0; c < sides; ++c) sums[c][v] += here * lanes_at(x + c * stride + j + v * lane_count);
        }
    }
    for (i64 c = 0; c < sides; ++c) {
        double lanes[side_by_side_dots];
        for (i64 v = 0; v < vectors_of_dots; ++v) put_lanes(lanes + v * lane_count, sums[c][v]);
        // The last values go to the lanes that they would have had, then 16 lanes halve four times.
        for (i64 j = in_lanes; j < n; ++j) lanes[j - in_lanes] += static_cast<double>(t[j]) * x[c * stride + j];
        for (i64 half = side_by_side_dots / 2; half > 0; half /= 2)
            for (i64 l = 0; l < half; ++l) lanes[l] += lanes[l + half];
        results[c] = lanes[0];
    }
}

// x -= t times.
template <class T>
inline void subtract(double* x, const T* t, double times, i64 n, const T* next) {
    const i64 in_lanes = n - n % lane_count;
    for (i64 j = 0; j < in_lanes; j += lane_count) {
        __builtin_prefetch(next + j);
        put_lanes(x + j, lanes_at(x + j) - widened_at(t + j) * times);
    }
    for (i64 j = in_lanes; j < n; ++j) x[j] -= static_cast<double>(t[j]) * times;
}

// The unknown i of `sides` right-hand sides from those of the block before it, or what it takes from those after it.
template <i64 sides, class T>
inline void unknown(const TriangleBlock<T>& t, i64 i, const T* next, double* x) {
    // What lies beside the diagonal: columns before i of a lower triangle, after i of an upper one.
    const i64 from = t.upper ? i + 1 : t.begin, count = t.upper ? t.end - 1 - i : i - t.begin;
    const T* row = t.values + i * t.row;
    const double pivot = t.unit ? 1.0 : static_cast<double>(row[i]);
    if (t.transposed) {
        for (i64 c = 0; c < sides; ++c) {
            x[c * t.n + i] /= pivot;
            subtract(x + c * t.n + from, row + from, x[c * t.n + i], count, next + from);
        }
    } else {
        double products[sides];
        dots<sides>(row + from, x + from, t.n, count, next + from, products);
        for (i64 c = 0; c < sides; ++c) x[c * t.n + i] = (x[c * t.n + i] - products[c]) / pivot;
    }
}

// Row i of the block less its products with the unknowns that are solved.
template <i64 sides, class T>
inline void row_of_rest(const TriangleBlock<T>& t, i64 i, const T* next, double* x) {
    const i64 from = t.upper ? t.end : 0, count = t.upper ? t.n - t.end : t.begin;
    double products[sides];
    dots<sides>(t.values + i * t.row + from, x + from, t.n, count, next + from, products);
    for (i64 c = 0; c < sides; ++c) x[c * t.n + i] -= products[c];
}

// Calls step(Sides<count>, x) for right-hand sides `first` to `last - 1`. They share each load of a row; what they do with
// it is the same whatever stands beside them.
template <i64 n>
struct Sides {
    static constexpr i64 count = n;
};
template <class T, class Step>
inline void for_sides(const TriangleBlock<T>& t, i64 first, i64 last, Step step) {
    i64 c = first;
    for (; c + sides_together <= last; c += sides_together) step(Sides<sides_together>{}, t.x + c * t.n);
    if constexpr (sides_together > 3)
        if (last - c == 3) return step(Sides<3>{}, t.x + c * t.n);
    if constexpr (sides_together > 2)
        if (last - c == 2) return step(Sides<2>{}, t.x + c * t.n);
    for (; c < last; ++c) step(Sides<1>{}, t.x + c * t.n);
}

}  // namespace

// The unknowns of a block from each other; items are right-hand sides.
template <class T>
void substitute(const TriangleBlock<T>& t, i64 first, i64 last) {
    const i64 count = t.end - t.begin;
    for (i64 step = 0; step < count; ++step) {
        const i64 i = t.down() ? t.begin + step : t.end - 1 - step;
        const T* next = t.values + (step + 1 == count ? i : t.down() ? i + 1 : i - 1) * t.row;
        for_sides(t, first, last, [&](auto sides, double* x) { unknown<decltype(sides)::count>(t, i, next, x); });
    }
}

// What solved unknowns take from others. Of the system itself items are rows of the block, which come before it is solved
// and take from all columns that are; of its transpose items are the columns that still wait, from which the rows of the
// block, once it is solved, are subtracted one after the other.
template <class T>
void subtract_solved(const TriangleBlock<T>& t, i64 first, i64 last) {
    const i64 count = t.end - t.begin;
    if (!t.transposed) {
        for (i64 i = t.begin + first; i < t.begin + last; ++i) {
            const T* next = t.values + (i + 1 < t.begin + last ? i + 1 : i) * t.row;
            for_sides(t, 0, t.sides, [&](auto sides, double* x) { row_of_rest<decltype(sides)::count>(t, i, next, x); });
        }
        return;
    }
    const i64 from = (t.upper ? t.end : 0) + first;
    for (i64 step = 0; step < count; ++step) {
        const i64 i = t.down() ? t.begin + step : t.end - 1 - step;
        const T* row = t.values + i * t.row + from;
        const T* next = step + 1 == count ? row : row + (t.down() ? t.row : -t.row);
        for (i64 c = 0; c < t.sides; ++c) subtract(t.x + c * t.n + from, row, t.x[c * t.n + i], last - first, next);
    }
}

}  // namespace triangles
