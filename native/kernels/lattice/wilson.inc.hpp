// The Wilson operator on spinors and links that are kept narrow; the definition is kernels/reference/lattice/wilson.py.
//
// Per site and direction 6 complex sums project a spinor to two spins, 18 complex multiply-adds apply the link, and 12
// complex sums gather; with 12 numbers the third row takes 6 complex multiplications more. Bytes per site with 12
// numbers, each field moved once: 200 in 16 bits, 768 in double.
#pragma once

#include "kernels/lattice/links.inc.hpp"
#include "kernels/lattice/spinors.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace wilson {

using links::Complex, links::conjugate_times, links::link_scale, links::load_link, links::times;
using spinors::AsDouble, spinors::AsFloat, spinors::AsHalf, spinors::AsQuarter, spinors::Spinors,
    spinors::add_products, spinors::at_once, spinors::flipped, spinors::load, spinors::number, spinors::part_of,
    spinors::pass_over, spinors::raw, spinors::sites, spinors::spinors, spinors::store, spinors::total;
using memory::prefetch;
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
    const typename K::Element* psi = in.values + from * spinor_reals * sites + there;
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

struct Neighbours {
    i64 up[4], down[4];  // groups, directions x, y, z, t
    bool up_crosses[4], down_crosses[4];
};

inline void find_neighbours(const i64* extent, i64 group, const i64* place, Neighbours& n) {
    // Groups along an axis are `step` apart; the last one's neighbour is the first, in the next part.
    i64 step = 1;
    for (int mu = 0; mu < 4; ++mu) {
        const i64 size = extent[3 - mu], at = place[mu];
        n.up_crosses[mu] = at == size - 1;
        n.down_crosses[mu] = at == 0;
        n.up[mu] = group + (n.up_crosses[mu] ? 1 - size : 1) * step;
        n.down[mu] = group + (n.down_crosses[mu] ? size - 1 : -1) * step;
        step *= size;
    }
}

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
    // gamma5 changes the sign of the lower two spins.
    for (int i = 0; i < 12; ++i) {
        const Complex<typename K::Vector>& z = sum[i / 3][i % 3];
        const Number d = i < 6 ? diagonal : lower * diagonal, h = i < 6 ? half : lower * half;
        v[2 * i] = d * v[2 * i] - h * z.re;
        v[2 * i + 1] = d * v[2 * i + 1] - h * z.im;
    }
}

// Asks for what the next group reads and no group before it: its links and, mostly, its neighbour up along T. Gives a
// tenth of the time with codes, whose arithmetic leaves the memory idle, and nothing with floats, which wait for it.
template <class K, int numbers>
[[gnu::always_inline]] inline void prefetch_after(const Lattice& job, i64 group, const Neighbours& n) {
    constexpr i64 size = sizeof(typename K::Element) * sites;
    const auto* links = static_cast<const typename K::Element*>(job.links);
    const i64 step = job.parity < 0 ? 1 : 2;  // of one parity every second group along X is visited
    prefetch(links + (group + step) * 4 * numbers * sites, 4 * numbers * size);
    prefetch(spinors<K>(job.in).values + (n.up[3] + step) * spinor_reals * sites, spinor_reals * size);
    if (job.parity < 0) return;
    // The links that lead here belong to sites of the other parity, which no visit before has read.
    for (i64 mu = 0; mu < 4; ++mu) prefetch(links + ((n.down[mu] + step) * 4 + mu) * numbers * sites, numbers * size);
}

template <class K, int numbers>
void hop(const Lattice& job, i64 first, i64 last) {
    using Vector = typename K::Vector;
    const Spinors<K> out = spinors<K>(job.out);
    const typename K::Number alpha = static_cast<typename K::Number>(job.alpha);
    const i64* extent = job.extent;
    for (i64 item = first; item < last; ++item) {
        double lengths[sites] = {}, products[sites] = {};
        i64 group = item * groups_in_item(job);
        for (i64 y = 0; y < extent[2]; ++y)
            for (i64 x = 0; x < extent[3]; ++x, ++group) {
                if (!visits(job, item, y, x)) continue;
                // An item is one layer of T and Z; its groups run over Y and X.
                const i64 place[4] = {x, y, item % extent[1], item / extent[1]};
                Neighbours n;
                find_neighbours(extent, group, place, n);
                if constexpr (K::coded) prefetch_after<K, numbers>(job, group, n);
                // Sixteen lanes are one register of AVX-512 in float32, or up to eight in double on SSE2.
                for (i64 lane = 0; lane < sites; lane += at_once<K>) {
                    Vector v[spinor_reals], old[spinor_reals];
                    apply<K, numbers>(job, group, n, lane, v);
                    if (job.pass == Pass::update) {
                        load(out, group, lane, old);
                        for (i64 c = 0; c < spinor_reals; ++c) v[c] = old[c] - alpha * v[c];
                    }
                    // Rounded to the storage, and summed as it was stored.
                    store(out, group, lane, v);
                    add_products(v, v, lengths + lane);
                    if (job.pass == Pass::update) add_products(old, v, products + lane);
                }
            }
        job.sums[2 * item] = total(lengths);
        job.sums[2 * item + 1] = total(products);
    }
}

template <class K>
void lattice_stored(const Lattice& job, i64 first, i64 last) {
    if (job.pass != Pass::hop && job.pass != Pass::update) return pass_over<K>(job, first, last);
    if (job.numbers == 18) return hop<K, 18>(job, first, last);
    if (job.numbers == 12) return hop<K, 12>(job, first, last);
    return hop<K, 8>(job, first, last);
}

}  // namespace

// Items first to last - 1 of any pass.
void lattice(const Lattice& job, i64 first, i64 last) {
    if (job.storage == FieldStorage::f64) return lattice_stored<AsDouble>(job, first, last);
    if (job.storage == FieldStorage::f32) return lattice_stored<AsFloat>(job, first, last);
    if (job.storage == FieldStorage::i16) return lattice_stored<AsHalf>(job, first, last);
    return lattice_stored<AsQuarter>(job, first, last);
}

}  // namespace wilson
