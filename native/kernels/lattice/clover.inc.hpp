// The Hermitian blocks of a clover term times a spinor; the definition is kernels/reference/lattice/clover.py.
//
// Per site 72 real numbers, 152 bytes in 16 bits with their two norms, and 72 complex multiply-adds: a third of what the
// hops of Wilson's operator take.
#pragma once

#include "kernels/lattice/links.inc.hpp"
#include "kernels/lattice/spinors.inc.hpp"

namespace clover {

using links::Complex, links::conjugate_times, links::times;
using numbers::Reals;
using spinors::number, spinors::raw, spinors::sites;
using vectors::read;

// v becomes A v for these lanes of a group.
template <class K>
inline void multiply(const Blocks& blocks, i64 group, i64 lane, typename K::Vector* v) {
    using Vector = typename K::Vector;
    for (i64 chirality = 0; chirality < 2; ++chirality) {
        const i64 block = 2 * group + chirality;
        const auto* numbers = static_cast<const typename K::Element*>(blocks.values) + block * block_reals * sites + lane;
        const auto at = [numbers](int i) { return number<K>(raw<K>(numbers + i * sites)); };
        Complex<Vector> x[6], y[6];
        for (int i = 0; i < 6; ++i) x[i] = {v[12 * chirality + 2 * i], v[12 * chirality + 2 * i + 1]};
        for (int i = 0; i < 6; ++i) {
            const Vector diagonal = at(i);
            y[i] = {diagonal * x[i].re, diagonal * x[i].im};
        }
        // Each number below the diagonal is read once, and serves for its mirror image too. Unrolled, so that x and y
        // stay in registers.
        int next = 6;
#pragma GCC unroll 6
        for (int i = 1; i < 6; ++i)
#pragma GCC unroll 6
            for (int j = 0; j < i; ++j, next += 2) {
                const Complex<Vector> a{at(next), at(next + 1)}, below = times(a, x[j]), above = conjugate_times(a, x[i]);
                y[i] = {y[i].re + below.re, y[i].im + below.im};
                y[j] = {y[j].re + above.re, y[j].im + above.im};
            }
        if constexpr (K::coded) {
            const Reals norm = read<Reals>(blocks.norms + block * sites + lane);
            for (auto& z : y) z = {z.re * norm, z.im * norm};
        }
        for (int i = 0; i < 6; ++i) {
            v[12 * chirality + 2 * i] = y[i].re;
            v[12 * chirality + 2 * i + 1] = y[i].im;
        }
    }
}

}  // namespace clover
