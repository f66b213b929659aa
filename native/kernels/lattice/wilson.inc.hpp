// The Wilson operator on spinors and links that are kept narrow; the definition is kernels/reference/lattice/wilson.py.
//
// Per site and direction 6 complex sums project a spinor to two spins, 18 complex multiply-adds apply the link, and 12
// complex sums gather; with 12 numbers the third row takes 6 complex multiplications more. Bytes per site with 12
// numbers, each field moved once: 200 in 16 bits, 768 in double.
#pragma once

#include "kernels/lattice/clover.inc.hpp"
#include "kernels/lattice/links.inc.hpp"
#include "kernels/lattice/neighbours.inc.hpp"
#include "kernels/lattice/spinors.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace wilson {

using links::Complex, links::conjugate_times, links::link_scale, links::load_link, links::times;
using neighbours::Neighbours;
using spinors::Spinors, spinors::flipped, spinors::load, spinors::number, spinors::part_of, spinors::raw, spinors::sites,
    spinors::spinors;
using numbers::Reals;
using vectors::read;

namespace {  // of this file alone

// gamma_mu = [[0, S], [S^+, 0]] in the chiral basis. S has one number in each row s, i^phase in column s ^ swaps.
struct Gamma {
    int swaps, phase[2];
};
constexpr Gamma gammas[4] = {{1, {1, 1}}, {1, {2, 0}}, {0, {1, 3}}, {0, {0, 0}}};

// a + i^phase b
template <int phase, class V>
inline Complex<V> add_turned(const Complex<V>& a, const Complex<V>& b) {
    if constexpr ((phase & 3) == 0) return {a.re + b.re, a.im + b.im};
    if constexpr ((phase & 3) == 1) return {a.re - b.im, a.im + b.re};
    if constexpr ((phase & 3) == 2) return {a.re - b.re, a.im - b.im};
    if constexpr ((phase & 3) == 3) return {a.re + b.im, a.im - b.re};
}

// Two spins of three colours, what a direction has left after its projection; and the sums of all four spins.
template <class K>
using Half = Complex<typename K::Vector>[2][3];
template <class K>
using Sum = Complex<typename K::Vector>[4][3];

// Spin s of (1 - gamma_mu) psi, or of (1 + gamma_mu) psi, times its norm and the scale of the link.
template <class K, int mu, bool forward, int s, class Factor>
inline void project(const typename K::Element* psi, const Factor& factor, Complex<typename K::Vector>* h) {
    // 1 -+ gamma_mu has rank two: spin s and one other give the upper half, the lower follows from it.
    constexpr int other = 2 + (s ^ gammas[mu].swaps), phase = gammas[mu].phase[s] + (forward ? 2 : 0);
    for (int c = 0; c < 3; ++c) {
        // Sums of codes stay integers: one conversion, and one product with the norm, for two spins.
        const auto at = [&](int spin) {
            const typename K::Element* z = psi + (spin * 3 + c) * 2 * sites;
            return Complex<typename K::Raw>{raw<K>(z), raw<K>(z + sites)};
        };
        const Complex<typename K::Raw> sum = add_turned<phase>(at(s), at(other));
        h[c] = {number<K>(sum.re), number<K>(sum.im)};
        if constexpr (K::coded) h[c] = {h[c].re * factor, h[c].im * factor};
    }
}

// Adds one direction's term to the sums of the lanes from `lane` on; `from` is the neighbour's group, and `crosses`
// whether it lies in the next part of the lattice.
template <class K, int numbers, int mu, bool forward>
__attribute__((noinline)) void add_hop(const Lattice& job, i64 group, i64 from, bool crosses, i64 lane, Sum<K>& sum) {
    using Vector = typename K::Vector;
    const i64 there = crosses ? part_of<K, mu>(lane) : lane;
    const Spinors<K> in = spinors<K>(job.in);
    const typename K::Element* psi = in.values + from * K::reals * sites + there;
    Vector factor = {};
    if constexpr (K::coded) factor = read<Reals>(in.norms + from * sites + there) * link_scale<K, numbers>;
    Half<K> h;
    project<K, mu, forward, 0>(psi, factor, h[0]);
    project<K, mu, forward, 1>(psi, factor, h[1]);
    // Past the edge of a part the neighbour is in the lane with one bit flipped; what lies in other registers is
    // handled by `there`.
    const auto flip = [&h] {
        for (auto& spin : h)
            for (auto& z : spin) z = {flipped<mu>(z.re), flipped<mu>(z.im)};
    };
    if (forward && crosses) flip();

    // The link belongs to the site from which its direction points up.
    const i64 owner = forward ? group : from, its_lane = forward ? lane : there;
    Complex<Vector> u[3][3];
    load_link<K, numbers>(static_cast<const typename K::Element*>(job.links) + (owner * 4 + mu) * numbers * sites + its_lane, u);
    // w = U h forwards, w = U^+ h backwards: the link of the site below, conjugated, column by column.
    Half<K> w;
    for (int s = 0; s < 2; ++s)
        for (int i = 0; i < 3; ++i) {
            const Complex<Vector>*a = forward ? u[i] : &u[0][i];
            if constexpr (forward) {
                const Complex<Vector> x = times(a[0], h[s][0]), y = times(a[1], h[s][1]), z = times(a[2], h[s][2]);
                w[s][i] = {x.re + y.re + z.re, x.im + y.im + z.im};
            } else {
                const Complex<Vector> x = conjugate_times(a[0], h[s][0]), y = conjugate_times(a[3], h[s][1]),
                                      z = conjugate_times(a[6], h[s][2]);
                w[s][i] = {x.re + y.re + z.re, x.im + y.im + z.im};
            }
        }
    if (!forward && crosses) {
        for (auto& spin : w)
            for (auto& z : spin) z = {flipped<mu>(z.re), flipped<mu>(z.im)};
    }
    // The lower spins are the upper ones times a power of i, which costs no multiplication.
    constexpr Gamma g = gammas[mu];
    constexpr int sign = forward ? 2 : 0;  // the lower spins are -+ S^+ times the upper ones
    for (int i = 0; i < 3; ++i) {
        sum[0][i] = add_turned<0>(sum[0][i], w[0][i]);
        sum[1][i] = add_turned<0>(sum[1][i], w[1][i]);
        sum[2][i] = add_turned<4 - g.phase[g.swaps] + sign>(sum[2][i], w[g.swaps][i]);
        sum[3][i] = add_turned<4 - g.phase[1 ^ g.swaps] + sign>(sum[3][i], w[1 ^ g.swaps][i]);
    }
}

}  // namespace

// v = diagonal own - hopping (neighbours in), times gamma5 if the job is chiral, for the lanes from `lane` on of one group.
template <class K, int numbers>
inline void apply(const Lattice& job, i64 group, const Neighbours& n, i64 lane, typename K::Vector* v) {
    using Number = typename K::Number;
    Sum<K> sum = {};
    // Always in this order: the definition adds the directions in it.
    add_hop<K, numbers, 0, true>(job, group, n.up[0], n.up_crosses[0], lane, sum);
    add_hop<K, numbers, 0, false>(job, group, n.down[0], n.down_crosses[0], lane, sum);
    add_hop<K, numbers, 1, true>(job, group, n.up[1], n.up_crosses[1], lane, sum);
    add_hop<K, numbers, 1, false>(job, group, n.down[1], n.down_crosses[1], lane, sum);
    add_hop<K, numbers, 2, true>(job, group, n.up[2], n.up_crosses[2], lane, sum);
    add_hop<K, numbers, 2, false>(job, group, n.down[2], n.down_crosses[2], lane, sum);
    add_hop<K, numbers, 3, true>(job, group, n.up[3], n.up_crosses[3], lane, sum);
    add_hop<K, numbers, 3, false>(job, group, n.down[3], n.down_crosses[3], lane, sum);
    const Number diagonal = static_cast<Number>(job.diagonal), half = static_cast<Number>(job.hopping);
    const Number lower = job.chiral ? Number(-1) : Number(1);
    load(spinors<K>(job.own), group, lane, v);
    if (job.blocks.values && !job.blocks.on_result) clover::multiply<K>(job.blocks, group, lane, v);
    // gamma5 changes the sign of the lower two spins.
    for (int i = 0; i < 12; ++i) {
        const Complex<typename K::Vector>& z = sum[i / 3][i % 3];
        const Number d = i < 6 ? diagonal : lower * diagonal, h = i < 6 ? half : lower * half;
        v[2 * i] = d * v[2 * i] - h * z.re;
        v[2 * i + 1] = d * v[2 * i + 1] - h * z.im;
    }
    if (job.blocks.values && job.blocks.on_result) clover::multiply<K>(job.blocks, group, lane, v);
}

}  // namespace wilson
