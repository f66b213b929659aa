// The second pass of conjugate gradients on a stencil, r -= alpha q, and the storing of a new residual.
#pragma once

#include "kernels/stencil/cells.inc.hpp"
#include "kernels/stencil/sums.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace residual {

using cells::CellsF16, cells::CellsF32, cells::CellsF64, cells::CellsI16, cells::longest_row;
using sums::Sums;
using numbers::least, numbers::tile;

namespace {  // of this file alone

// One item is 64 rows; its sums do not depend on who runs it.
template <class Vectors>
void residual_rows_of(const ResidualUpdate& job, i64 first, i64 last) {
    using Number = typename Vectors::Number;
    // A tile of each vector in the nearest cache: both are read and r written once.
    alignas(64) Number r[tile], old[tile], q[tile];
    const Number alpha = static_cast<Number>(job.alpha);
    for (i64 item = first; item < last; ++item) {
        // Of the new r with itself, and with the old one.
        Sums<Number> now, mixed;
        now.clear();
        mixed.clear();
        // Rows lie one after the other without gaps, so that tiles need not end with them.
        const i64 end = least(job.rows, (item + 1) * residual_rows) * job.stride;
        for (i64 at = item * residual_rows * job.stride; at < end; at += tile) {
            const i64 n = least(tile, end - at);
            Vectors::load(job.r, at, n, old);
            Vectors::load(job.q, at, n, q);
            // A product and a difference, each rounded.
            for (i64 i = 0; i < n; ++i) r[i] = old[i] - alpha * q[i];
            // r becomes what was stored, of which the sums are taken.
            Vectors::store(job.r, job.r_scale, at, n, r);
            now.add(r, r, n);
            mixed.add(r, old, n);
        }
        job.sums[2 * item] = now.total();
        job.sums[2 * item + 1] = mixed.total();
    }
}

// Stores a residual given in double, row by row.
template <class Vectors>
void pack_rows_of(const Pack& job, i64 first, i64 last) {
    using Number = typename Vectors::Number;
    alignas(64) Number v[longest_row], p[longest_row];
    for (i64 item = first; item < last; ++item) {
        Sums<Number> now, mixed;
        now.clear();
        mixed.clear();
        const i64 end = least(job.rows, (item + 1) * residual_rows);
        for (i64 row = item * residual_rows; row < end; ++row) {
            const double* from = job.from + row * job.nx;
            for (i64 i = 0; i < job.nx; ++i) v[i] = static_cast<Number>(from[i]);
            // What lies beyond a row is zero, as its neighbours will read it.
            for (i64 i = job.nx; i < job.stride; ++i) v[i] = Number(0);
            Vectors::store(job.to, job.to.scale, row * job.stride, job.stride, v);
            Vectors::load(job.p, row * job.stride, job.stride, p);
            now.add(v, v, job.stride);
            mixed.add(v, p, job.stride);
        }
        job.sums[2 * item] = now.total();
        job.sums[2 * item + 1] = mixed.total();
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
