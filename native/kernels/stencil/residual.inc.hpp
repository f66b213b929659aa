// The second pass of conjugate gradients on a stencil, r -= alpha q, and the storing of a new residual.
#pragma once

#include "kernels/stencil/cells.inc.hpp"
#include "kernels/stencil/sums.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace residual {

using cells::Block, cells::CellsF16, cells::CellsF32, cells::CellsF64, cells::CellsI16, cells::longest_row, cells::read_block;
using sums::Sums, sums::wide;
using numbers::least;

namespace {  // of this file alone

// Sums of a new vector with itself and with another one.
struct TwoSums {
    Sums now, mixed;
    template <class Vector>
    void add(const Block<Vector>& v, const Block<Vector>& other) {
        // Both in float64, where products of float32 are exact.
        for (i64 j = 0; j < sums::steps; ++j) {
            const auto of_v = wide(v, j);
            now.add(j, of_v * of_v);
            mixed.add(j, of_v * wide(other, j));
        }
    }
    void total(double* to) const {
        to[0] = now.total();
        to[1] = mixed.total();
    }
};

// One item is 64 rows; its sums do not depend on who runs it. Both vectors are read and r written once; rows lie one
// after the other without gaps.
template <class Vectors>
void residual_rows_of(const ResidualUpdate& job, i64 first, i64 last) {
    const auto alpha = static_cast<typename Vectors::Number>(job.alpha);
    // The same numbers with the unit of the new residual.
    Stored scaled_anew = job.r;
    scaled_anew.scale = job.r_scale;
    const Vectors of_q(job.q), of_old(job.r), of_r(scaled_anew);
    for (i64 item = first; item < last; ++item) {
        TwoSums found;
        const i64 end = least(job.rows, (item + 1) * residual_rows) * job.stride;
        for (i64 at = item * residual_rows * job.stride; at < end; at += site) {
            Block<typename Vectors::Vector> r, old;
            for (i64 k = 0; k < r.count; ++k) {
                // A product and a difference, each rounded.
                old.v[k] = of_old.load(at + k * r.lanes);
                r.v[k] = old.v[k] - alpha * of_q.load(at + k * r.lanes);
            }
            // r becomes what was stored, of which the sums are taken.
            of_r.store(at, r);
            found.add(r, old);
        }
        found.total(job.sums + 2 * item);
    }
}

// Stores a residual given in double, row by row.
template <class Vectors>
void pack_rows_of(const Pack& job, i64 first, i64 last) {
    using Number = typename Vectors::Number;
    using Vector = typename Vectors::Vector;
    alignas(64) Number row_of_v[longest_row];
    const Vectors of_v(job.to), of_p(job.p);
    for (i64 item = first; item < last; ++item) {
        TwoSums found;
        const i64 end = least(job.rows, (item + 1) * residual_rows);
        for (i64 row = item * residual_rows; row < end; ++row) {
            const double* from = job.from + row * job.nx;
            for (i64 i = 0; i < job.nx; ++i) row_of_v[i] = static_cast<Number>(from[i]);
            // What lies beyond a row is zero, as its neighbours will read it.
            for (i64 i = job.nx; i < job.stride; ++i) row_of_v[i] = Number(0);
            // Block by block: stored, and the sums taken of what was stored.
            for (i64 i = 0; i < job.stride; i += site) {
                const i64 at = row * job.stride + i;
                Block<Vector> v = read_block<Vector>(row_of_v + i), p;
                of_v.store(at, v);
                for (i64 k = 0; k < p.count; ++k) p.v[k] = of_p.load(at + k * p.lanes);
                found.add(v, p);
            }
        }
        found.total(job.sums + 2 * item);
    }
}

}  // namespace

// From the storage of the job to what the compiler knows.
void update_residual(const ResidualUpdate& job, i64 first, i64 last) {
    switch (job.r.storage) {
        case Storage::f64: return residual_rows_of<CellsF64>(job, first, last);
        case Storage::f32: return residual_rows_of<CellsF32>(job, first, last);
        case Storage::f16: return residual_rows_of<CellsF16>(job, first, last);
        case Storage::i16: return residual_rows_of<CellsI16>(job, first, last);
    }
}

// Items are the same rows as in update_residual.
void pack_rows(const Pack& job, i64 first, i64 last) {
    switch (job.to.storage) {
        case Storage::f64: return pack_rows_of<CellsF64>(job, first, last);
        case Storage::f32: return pack_rows_of<CellsF32>(job, first, last);
        case Storage::f16: return pack_rows_of<CellsF16>(job, first, last);
        case Storage::i16: return pack_rows_of<CellsI16>(job, first, last);
    }
}

}  // namespace residual
