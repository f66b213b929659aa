// The staggered operator on colour vectors and links that are kept narrow; the definition is
// kernels/reference/lattice/staggered.py.
//
// Per site and direction 9 complex multiply-adds apply the link; bytes per site with 12 numbers, each field moved once:
// 128 in 16 bits, 480 in double.
#pragma once

#include "kernels/lattice/links.inc.hpp"
#include "kernels/lattice/neighbours.inc.hpp"
#include "kernels/lattice/spinors.inc.hpp"

namespace staggered {

using links::Complex, links::conjugate_times, links::link_scale, links::load_link, links::times;
using neighbours::Neighbours;
using numbers::Reals;
using spinors::Spinors, spinors::flipped, spinors::load, spinors::number, spinors::part_of, spinors::raw, spinors::sites,
    spinors::spinors;
using vectors::read;

namespace {  // of this file alone

// Adds sign times the neighbour's colours, carried here by the link.
template <class K, int numbers, int mu, bool forward>
__attribute__((noinline)) void add_hop(const Lattice& job, i64 group, i64 from, bool crosses, i64 lane, typename K::Number sign,
                                       Complex<typename K::Vector> (&sum)[3]) {
    using Vector = typename K::Vector;
    const i64 there = crosses ? part_of<K, mu>(lane) : lane;
    const Spinors<K> in = spinors<K>(job.in);
    const typename K::Element* chi = in.values + from * K::reals * sites + there;
    Complex<Vector> h[3];
    for (int c = 0; c < 3; ++c) h[c] = {number<K>(raw<K>(chi + 2 * c * sites)), number<K>(raw<K>(chi + (2 * c + 1) * sites))};
    if constexpr (K::coded) {
        const Reals factor = read<Reals>(in.norms + from * sites + there) * link_scale<K, numbers>;
        for (auto& z : h) z = {z.re * factor, z.im * factor};
    }
    if (forward && crosses)
        for (auto& z : h) z = {flipped<mu>(z.re), flipped<mu>(z.im)};

    // The link belongs to the site from which its direction points up.
    const i64 owner = forward ? group : from, its_lane = forward ? lane : there;
    Complex<Vector> u[3][3];
    load_link<K, numbers>(static_cast<const typename K::Element*>(job.links) + (owner * 4 + mu) * numbers * sites + its_lane, u);
    for (int i = 0; i < 3; ++i) {
        const auto term = [&](int j) { return forward ? times(u[i][j], h[j]) : conjugate_times(u[j][i], h[j]); };
        const Complex<Vector> x = term(0), y = term(1), z = term(2);
        Complex<Vector> w = {x.re + y.re + z.re, x.im + y.im + z.im};
        if (!forward && crosses) w = {flipped<mu>(w.re), flipped<mu>(w.im)};
        sum[i] = {sum[i].re + sign * w.re, sum[i].im + sign * w.im};
    }
}

}  // namespace

// v = diagonal own - hopping sum over mu of eta_mu (U in above - U^+ in below), for the lanes from `lane` on of one group,
// which stands at `place`: x, y, z, t.
template <class K, int numbers>
inline void apply(const Lattice& job, i64 group, const i64* place, const Neighbours& n, i64 lane, typename K::Vector* v) {
    using Number = typename K::Number;
    // Half of each axis is an even number of sites: the phase is that of the group, the same in all lanes.
    Number eta[4];
    i64 before = 0;
    for (int mu = 0; mu < 4; ++mu) {
        eta[mu] = before & 1 ? Number(-1) : Number(1);
        before += place[mu];
    }
    Complex<typename K::Vector> sum[3] = {};
    // Always in this order: the definition adds the directions in it.
    add_hop<K, numbers, 0, true>(job, group, n.up[0], n.up_crosses[0], lane, eta[0], sum);
    add_hop<K, numbers, 0, false>(job, group, n.down[0], n.down_crosses[0], lane, -eta[0], sum);
    add_hop<K, numbers, 1, true>(job, group, n.up[1], n.up_crosses[1], lane, eta[1], sum);
    add_hop<K, numbers, 1, false>(job, group, n.down[1], n.down_crosses[1], lane, -eta[1], sum);
    add_hop<K, numbers, 2, true>(job, group, n.up[2], n.up_crosses[2], lane, eta[2], sum);
    add_hop<K, numbers, 2, false>(job, group, n.down[2], n.down_crosses[2], lane, -eta[2], sum);
    add_hop<K, numbers, 3, true>(job, group, n.up[3], n.up_crosses[3], lane, eta[3], sum);
    add_hop<K, numbers, 3, false>(job, group, n.down[3], n.down_crosses[3], lane, -eta[3], sum);
    const Number diagonal = static_cast<Number>(job.diagonal), hopping = static_cast<Number>(job.hopping);
    load(spinors<K>(job.own), group, lane, v);
    for (int i = 0; i < 3; ++i) {
        v[2 * i] = diagonal * v[2 * i] - hopping * sum[i].re;
        v[2 * i + 1] = diagonal * v[2 * i + 1] - hopping * sum[i].im;
    }
}

}  // namespace staggered
