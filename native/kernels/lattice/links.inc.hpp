// Rows of a link from the 18, 12 or 8 numbers that are kept of it, as in kernels/reference/lattice/wilson.py.
#pragma once

#include "kernels/lattice/spinors.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace links {

using spinors::Doubles, spinors::number, spinors::raw, spinors::sites;
using numbers::Reals;

// Real and imaginary parts in two vectors: a lane is a site.
template <class V>
struct Complex {
    V re, im;
};

template <class V>
inline Complex<V> times(const Complex<V>& a, const Complex<V>& b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// conj(a) b
template <class V>
inline Complex<V> conjugate_times(const Complex<V>& a, const Complex<V>& b) {
    return {a.re * b.re + a.im * b.im, a.re * b.im - a.im * b.re};
}

namespace {  // of this file alone

// conj(a b - c d)
template <class V>
inline Complex<V> conjugate_minor(const Complex<V>& a, const Complex<V>& b, const Complex<V>& c, const Complex<V>& d) {
    return {(a.re * b.re - a.im * b.im) - (c.re * d.re - c.im * d.im), (c.re * d.im + c.im * d.re) - (a.re * b.im + a.im * b.re)};
}

// The third row of a matrix of SU(3).
template <class V>
inline void third_row(const Complex<V>* a, const Complex<V>* b, Complex<V>* c) {
    for (int i = 0; i < 3; ++i) c[i] = conjugate_minor(a[(i + 1) % 3], b[(i + 2) % 3], a[(i + 2) % 3], b[(i + 1) % 3]);
}

inline float root(float v) { return __builtin_sqrtf(v); }
inline double root(double v) { return __builtin_sqrt(v); }

// The root of what is above zero, else zero.
template <class V>
inline V root_above_zero(const V& v) {
    constexpr int n = static_cast<int>(sizeof(V) / sizeof(v[0]));
    V y;
    for (int l = 0; l < n; ++l) y[l] = root(v[l] > 0 ? v[l] : 0);
    return y;
}

// Adding and taking off 1.5 times 2^23 (2^52 for double) leaves the nearest integer: the first sum rounds, the second
// is exact.
inline Reals to_nearest(const Reals& v) { return (v + 12582912.0f) - 12582912.0f; }
inline Doubles to_nearest(const Doubles& v) { return (v + 6755399441055744.0) - 6755399441055744.0; }

// size (cos + i sin) of pi t, for t from -1 to 1: Taylor series on an eighth of the circle, exact to its last bit.
template <class V>
inline Complex<V> turned(const V& size, const V& t) {
    constexpr int terms = sizeof(t[0]) == 8 ? 9 : 6;
    using Number = decltype(t[0] + 0);
    constexpr double pi = 3.14159265358979323846;
    // The angle in quarter turns, rounded: the rest, r, is within an eighth of a turn, where the series converge fast.
    const V quarter = to_nearest(t + t), one = V{} + 1;
    const V r = (t - quarter * static_cast<Number>(0.5)) * static_cast<Number>(pi), square = r * r;
    V sine = one, cosine = one;
    for (int k = terms; k > 0; --k) {
        sine = one - square * sine * static_cast<Number>(1.0 / (2 * k * (2 * k + 1)));
        cosine = one - square * cosine * static_cast<Number>(1.0 / (2 * k * (2 * k - 1)));
    }
    sine *= r;
    // Odd quarters exchange sine and cosine; signs follow from the quarter.
    const auto odd = quarter * quarter == one, half = quarter * quarter > one;
    const V c = odd ? sine : cosine, s = odd ? cosine : sine;
    return {size * ((half | (quarter == one)) ? -c : c), size * ((half | (quarter == -one)) ? -s : s)};
}

// Rows from 8 numbers: a2, a3 and b1 as real and imaginary parts, the angles of a1 and c1 over pi; a, b and c are the
// second row, the first and minus the third.
template <class V>
inline void rows_from_8(const V* p, Complex<V> (&u)[3][3]) {
    Complex<V>*a = u[1], *b = u[0], *c = u[2];
    a[1] = {p[0], p[1]};
    a[2] = {p[2], p[3]};
    b[0] = {p[4], p[5]};
    // The second row and the first column have length one: that leaves the sizes of a1 and of c1.
    const V n = (a[1].re * a[1].re + a[1].im * a[1].im) + (a[2].re * a[2].re + a[2].im * a[2].im);
    const V of_b = b[0].re * b[0].re + b[0].im * b[0].im, least = V{} + static_cast<decltype(n[0] + 0)>(1e-30);
    a[0] = turned(root_above_zero<V>(1 - n), p[6]);
    const Complex<V> c1 = turned(root_above_zero<V>(n - of_b), p[7]), ab = conjugate_times(a[0], b[0]);
    const V inverse = 1 / (n > least ? n : least);
    const Complex<V> x = times(a[1], ab), y = times(a[2], c1), z = times(a[2], ab), w = times(a[1], c1);
    b[1] = {-(x.re + y.re) * inverse, (y.im - x.im) * inverse};
    b[2] = {(w.re - z.re) * inverse, -(w.im + z.im) * inverse};
    c[0] = {-c1.re, -c1.im};
    c[1] = conjugate_minor(a[0], b[2], a[2], b[0]);
    c[2] = conjugate_minor(a[1], b[0], a[0], b[1]);
}

}  // namespace

// The rows of the link whose numbers start at `from`; codes of 18 and 12 numbers times K::top, which link_scale takes
// back.
template <class K, int numbers>
inline void load_link(const typename K::Element* from, Complex<typename K::Vector> (&u)[3][3]) {
    using Vector = typename K::Vector;
    const auto real = [from](int i) { return number<K>(raw<K>(from + i * sites)); };
    if constexpr (numbers == 8) {
        Vector p[8];
        for (int i = 0; i < 8; ++i) p[i] = K::coded ? real(i) / K::top : real(i);
        rows_from_8(p, u);
    } else {
        for (int i = 0; i < numbers / 2; ++i) u[i / 3][i % 3] = {real(2 * i), real(2 * i + 1)};
        if constexpr (numbers == 12) {
            third_row(u[0], u[1], u[2]);
            if constexpr (K::coded)
                for (auto& z : u[2]) z = {z.re * (1 / K::top), z.im * (1 / K::top)};
        }
    }
}

template <class K, int numbers>
constexpr typename K::Number link_scale = numbers == 8 ? 1 : 1 / K::top;

}  // namespace links
