// All passes over a lattice: hops of Wilson or staggered fermions, and what no site of which sees another one.
#pragma once

#include "kernels/lattice/neighbours.inc.hpp"
#include "kernels/lattice/spinors.inc.hpp"
#include "kernels/lattice/staggered.inc.hpp"
#include "kernels/lattice/wilson.inc.hpp"
#include "kernels/values/memory.inc.hpp"

namespace passes {

using memory::prefetch;
using neighbours::Neighbours;
using spinors::AsDouble, spinors::AsFloat, spinors::AsHalf, spinors::AsQuarter, spinors::OneSpin, spinors::SiteSums,
    spinors::Spinors, spinors::at_once, spinors::load, spinors::pass_over, spinors::sites, spinors::spinors, spinors::store,
    spinors::write_products;

namespace {  // of this file alone

// Asks for what the next group reads and no group before it: its links and, mostly, its neighbour up along T. Gives a
// tenth of the time with codes, whose arithmetic leaves the memory idle, and nothing with floats, which wait for it.
template <class K, int numbers>
[[gnu::always_inline]] inline void prefetch_after(const Lattice& job, i64 group, const Neighbours& n) {
    constexpr i64 size = sizeof(typename K::Element) * sites;
    const auto* links = static_cast<const typename K::Element*>(job.links);
    const i64 step = job.parity < 0 ? 1 : 2;  // of one parity every second group along X is visited
    prefetch(links + (group + step) * 4 * numbers * sites, 4 * numbers * size);
    prefetch(spinors<K>(job.in).values + (n.up[3] + step) * K::reals * sites, K::reals * size);
    if (job.parity < 0) return;
    // The links that lead here belong to sites of the other parity, which no visit before has read.
    for (i64 mu = 0; mu < 4; ++mu) prefetch(links + ((n.down[mu] + step) * 4 + mu) * numbers * sites, numbers * size);
}

// The neighbours' sum of each site of some items, written or taken from what is there; a group of sites at a time.
template <class K, int numbers>
void hop(const Lattice& job, i64 first, i64 last) {
    using Vector = typename K::Vector;
    const Spinors<K> out = spinors<K>(job.out);
    const typename K::Number alpha = static_cast<typename K::Number>(job.alpha);
    const i64* extent = job.extent;
    for (i64 item = first; item < last; ++item) {
        SiteSums sums{job};
        i64 group = item * groups_in_item(job);
        for (i64 y = 0; y < extent[2]; ++y)
            for (i64 x = 0; x < extent[3]; ++x, ++group) {
                if (!visits(job, item, y, x)) continue;
                // An item is one layer of T and Z; its groups run over Y and X.
                const i64 place[4] = {x, y, item % extent[1], item / extent[1]};
                Neighbours n;
                neighbours::find(job, group, place, n);
                if constexpr (K::coded) prefetch_after<K, numbers>(job, group, n);
                // Sixteen lanes are one register of AVX-512 in float32, or up to eight in double on SSE2.
                for (i64 lane = 0; lane < sites; lane += at_once<K>) {
                    Vector v[K::reals], old[K::reals];
                    if constexpr (K::reals == spinor_reals)
                        wilson::apply<K, numbers>(job, group, n, lane, v);
                    else
                        staggered::apply<K, numbers>(job, group, place, n, lane, v);
                    if (job.pass == Pass::update) {
                        load(out, group, lane, old);
                        for (i64 c = 0; c < K::reals; ++c) v[c] = old[c] - alpha * v[c];
                    }
                    // Rounded to the storage, and summed as it was stored.
                    store(out, group, lane, v);
                    write_products<K>(v, v, sums.lengths(lane));
                    if (job.pass == Pass::update) write_products<K>(old, v, sums.products(lane));
                }
                sums.filled += sites;
            }
        sums.finish(item, job.pass == Pass::update);
    }
}

// One way to store fields: links have 18 numbers, or 12 or 8 from which the others follow.
template <class K>
void stored(const Lattice& job, i64 first, i64 last) {
    if (job.pass != Pass::hop && job.pass != Pass::update) return pass_over<K>(job, first, last);
    if (job.numbers == 18) return hop<K, 18>(job, first, last);
    if (job.numbers == 12) return hop<K, 12>(job, first, last);
    return hop<K, 8>(job, first, last);
}

// A site holds four spins, or one where fermions are staggered.
template <class K>
void of_fermions(const Lattice& job, i64 first, i64 last) {
    if (job.reals == spinor_reals) return stored<K>(job, first, last);
    return stored<OneSpin<K>>(job, first, last);
}

}  // namespace

// Items first to last - 1 of any pass.
void lattice(const Lattice& job, i64 first, i64 last) {
    if (job.storage == FieldStorage::f64) return of_fermions<AsDouble>(job, first, last);
    if (job.storage == FieldStorage::f32) return of_fermions<AsFloat>(job, first, last);
    if (job.storage == FieldStorage::i16) return of_fermions<AsHalf>(job, first, last);
    return of_fermions<AsQuarter>(job, first, last);
}

}  // namespace passes
