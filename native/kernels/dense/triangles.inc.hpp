// Triangular systems of float32 factors, solved in double precision: the factors are read once, in the order of
// their rows. Lanes of sums stand side by side on every instruction set, so that all of them add in the same order.
#pragma once

#include "kernels/dense/residuals.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace triangles {

using residuals::Lanes, residuals::Singles, residuals::lane_count, residuals::lanes_at, residuals::put_lanes;
using vectors::read;

namespace {  // of this file alone

constexpr i64 side_by_side_dots = 16, vectors_of_dots = side_by_side_dots / lane_count;
// Right-hand sides for which a row is read once: as many as their sums find registers.
constexpr i64 sides_together = lane_count / 2;

inline Lanes widened_at(const float* t) { return __builtin_convertvector(read<Singles>(t), Lanes); }

// results[c] = the sum of t[j] x[c * stride + j]; `next`, as many values of the row that comes next, is asked for
// meanwhile.
template <i64 sides>
inline void dots(const float* t, const double* x, i64 stride, i64 n, const float* next, double* results) {
    Lanes sums[sides][vectors_of_dots] = {};
    const i64 in_lanes = n - n % side_by_side_dots;
    for (i64 j = 0; j < in_lanes; j += side_by_side_dots) {
        __builtin_prefetch(next + j);
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
inline void subtract(double* x, const float* t, double times, i64 n, const float* next) {
    const i64 in_lanes = n - n % lane_count;
    for (i64 j = 0; j < in_lanes; j += lane_count) {
        __builtin_prefetch(next + j);
        put_lanes(x + j, lanes_at(x + j) - widened_at(t + j) * times);
    }
    for (i64 j = in_lanes; j < n; ++j) x[j] -= static_cast<double>(t[j]) * times;
}

// The unknown i of `sides` right-hand sides from those before it, or what it takes from those after it.
template <i64 sides>
inline void unknown(const Triangle& t, i64 i, const float* next, double* x) {
    // What lies beside the diagonal in row i: columns 0 to i - 1 of a lower triangle, i + 1 to n - 1 of an upper one.
    const i64 from = t.upper ? i + 1 : 0, count = t.upper ? t.n - 1 - i : i;
    const float* row = t.values + i * t.row;
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

}  // namespace

void substitute(const Triangle& t, i64 first, i64 last) {
    const bool down = t.upper == t.transposed;  // from the first unknown to the last
    for (i64 step = 0; step < t.n; ++step) {
        const i64 i = down ? step : t.n - 1 - step;
        const float* next = t.values + (step + 1 == t.n ? i : down ? i + 1 : i - 1) * t.row;
        i64 c = first;
        // Right-hand sides share each load of the row; what they do with it is the same whatever stands beside them.
        for (; c + sides_together <= last; c += sides_together) unknown<sides_together>(t, i, next, t.x + c * t.n);
        for (; c < last; ++c) unknown<1>(t, i, next, t.x + c * t.n);
    }
}

}  // namespace triangles
