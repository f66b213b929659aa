// The two passes of conjugate gradients on a 7-point stencil. Each number is decoded once in a pass, into rows of
// float32 (or float64) that stay in the caches; the order of every operation is that of kernels/reference/stencil/passes.py.
#pragma once

#include "kernels/stencil/cells.inc.hpp"
#include "kernels/stencil/sums.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace direction {

using cells::CellsF16, cells::CellsF32, cells::CellsF64, cells::CellsI16, cells::longest_row, cells::margin;
using sums::Sums;
using numbers::least;

namespace {  // of this file alone

// One item: the rows y0 <= y < y1 of the planes z0 <= z < z1.
// Planes pass through a piece from z0 - 1 to z1: three planes of the new direction, with one row more on each side, are
// kept as decoded numbers, and the image of a plane is computed when the one above it is there. Rows at the edge of a
// piece are computed by both neighbours, from vectors that are only read: no piece waits for another.
template <class Vectors, class Faces>
struct Piece {
    using Number = typename Vectors::Number;
    const DirectionUpdate& job;
    i64 y0, y1, z0, z1, line;  // line: numbers in a row with its margins
    Number *planes, *face_z, *face_y, *face_x, *scratch, *q, *spare_row;
    Sums<Number> pq, pp, qq;

    // Numbers of workspace: planes, faces in z of two planes, in y of two rows, in x of one, and three rows more.
    static i64 numbers(const Stencil& a) {
        // Margins of zeros: the stencil reads one number before and after a row.
        const i64 line = a.stride + 2 * margin;
        return line * (3 * (rows_in_piece + 2) + 2 * rows_in_piece + 2 + 1 + 1 + 1 + 1);
    }

    Piece(const DirectionUpdate& update, i64 item, Number* workspace) : job(update) {
        // Items run along y first.
        const i64 across = count_of(job.a.ny, rows_in_piece);
        y0 = item % across * rows_in_piece;
        y1 = least(job.a.ny, y0 + rows_in_piece);
        z0 = item / across * planes_in_piece;
        z1 = least(job.a.nz, z0 + planes_in_piece);
        line = job.a.stride + 2 * margin;
        planes = workspace;
        face_z = planes + 3 * (rows_in_piece + 2) * line;
        face_y = face_z + 2 * rows_in_piece * line;
        face_x = face_y + 2 * line;
        scratch = face_x + line;
        q = scratch + line;
        spare_row = q + line;
        for (i64 i = 0; i < numbers(job.a); ++i) workspace[i] = Number(0);
    }

    // Planes take turns in three places, faces in z in two.
    Number* row(i64 y, i64 z) { return planes + (((z + 3) % 3) * (rows_in_piece + 2) + (y - y0 + 1)) * line + margin; }
    Number* faces(i64 y, i64 z) { return face_z + ((z & 1) * rows_in_piece + (y - y0)) * line + margin; }

    // The new direction in one row; only rows of this item are written back.
    void direction(i64 y, i64 z) {
        Number* __restrict to = row(y, z);
        // Outside of the grid everything is zero.
        if (y < 0 || y >= job.a.ny || z < 0 || z >= job.a.nz) {
            for (i64 i = 0; i < job.a.stride; ++i) to[i] = Number(0);
            return;
        }
        const i64 n = job.a.stride, at = (z * job.a.ny + y) * n;
        const bool mine = y >= y0 && y < y1 && z >= z0 && z < z1;
        const Number gamma = static_cast<Number>(job.gamma), beta = static_cast<Number>(job.beta);
        // p' = gamma r + beta p, in this order; x takes its step from the same p while it is there.
        Number* __restrict old = scratch + margin;
        Vectors::load(job.r, at, n, to);
        // Without x there is no old direction: q = gamma A r.
        if (job.x == nullptr) {
            for (i64 i = 0; i < n; ++i) to[i] *= gamma;
            return;
        }
        Vectors::load(job.p, at, n, old);
        for (i64 i = 0; i < n; ++i) to[i] = gamma * to[i] + beta * old[i];
        if (mine) {
            // x follows only where this item owns the row.
            if (job.alpha != 0 || job.earlier != 0) {
                const Number alpha = static_cast<Number>(job.alpha), earlier = static_cast<Number>(job.earlier);
                Number* __restrict x = static_cast<Number*>(job.x) + at;
                Number* __restrict before = spare_row;
                Vectors::load(job.next, at, n, before);  // its cache lines are fetched to be written in any case
                for (i64 i = 0; i < n; ++i) x[i] += alpha * old[i] + earlier * before[i];
            }
            Vectors::store(job.next, job.next.scale, at, n, to);
        } else {
            // A row of a neighbour: rounded as its owner rounds it, and not written.
            float norms[longest_row / site];
            const Stored copy{
                .storage = job.next.storage,
                .values = spare_row,
                .norms = norms,
                .scale = job.next.scale,
            };
            Vectors::store(copy, job.next.scale, 0, n, to);
        }
    }

    // Faces below plane z, for the rows of the piece.
    void load_z(i64 z) {
        for (i64 y = y0; y < y1; ++y) Faces::load(job.a.z, (z * job.a.ny + y) * job.a.stride, job.a.stride, faces(y, z));
    }

    // Faces below row y of plane z.
    void load_y(i64 y, i64 z) {
        Faces::load(job.a.y, (z * (job.a.ny + 1) + y) * job.a.stride, job.a.stride, face_y + (y & 1) * line + margin);
    }

    // q in one row: six differences times their faces, then the shift, in the order of the definition.
    void image(i64 y, i64 z) {
        const i64 n = job.a.stride, at = (z * job.a.ny + y) * n;
        Number* fx = face_x + margin;
        Faces::load(job.a.x, at, n, fx);
        // The face above the last cell is stored apart, so that rows of faces have the stride of cells.
        fx[job.a.nx] = static_cast<Number>(job.a.high[z * job.a.ny + y]);
        load_y(y + 1, z);
        const Number* __restrict c = row(y, z);
        const Number *__restrict south = row(y - 1, z), *__restrict north = row(y + 1, z);
        const Number *__restrict below = row(y, z - 1), *__restrict above = row(y, z + 1);
        const Number *__restrict fs = face_y + (y & 1) * line + margin, *__restrict fn = face_y + (~y & 1) * line + margin;
        const Number *__restrict fb = faces(y, z), *__restrict fa = faces(y, z + 1);
        const Number* __restrict f = fx;
        Number* __restrict to = q + margin;
        const Number shift = static_cast<Number>(job.a.shift);
        for (i64 i = 0; i < n; ++i) {
            const Number here = c[i];
            Number sum = f[i] * (here - c[i - 1]) + f[i + 1] * (here - c[i + 1]);
            sum += fs[i] * (here - south[i]) + fn[i] * (here - north[i]);
            sum += fb[i] * (here - below[i]) + fa[i] * (here - above[i]);
            to[i] = sum + shift * here;
        }
        // Beyond the row the stencil gave numbers that mean nothing.
        for (i64 i = job.a.nx; i < n; ++i) to[i] = Number(0);
        Vectors::store(job.q, job.q.scale, at, n, to);
        pq.add(c, to, n);
        pp.add(c, c, n);
        qq.add(to, to, n);
    }

    void run(double* sums) {
        pq.clear();
        pp.clear();
        qq.clear();
        // The first two planes, then one more for each image.
        for (i64 z = z0 - 1; z < z0 + 1; ++z)
            for (i64 y = y0 - 1; y <= y1; ++y) direction(y, z);
        load_z(z0);
        for (i64 z = z0; z < z1; ++z) {
            for (i64 y = y0 - 1; y <= y1; ++y) direction(y, z + 1);
            load_z(z + 1);
            load_y(y0, z);
            for (i64 y = y0; y < y1; ++y) image(y, z);
        }
        sums[0] = pq.total();
        sums[1] = pp.total();
        sums[2] = qq.total();
    }
};

template <class Vectors, class Faces>
void direction_pieces(const DirectionUpdate& job, void* workspace, i64 first, i64 last) {
    for (i64 item = first; item < last; ++item)
        Piece<Vectors, Faces>(job, item, static_cast<typename Vectors::Number*>(workspace)).run(job.sums + 3 * item);
}

}  // namespace

// Bytes of workspace for each thread.
i64 direction_workspace(const DirectionUpdate& job) {
    const i64 numbers = Piece<CellsF32, CellsF32>::numbers(job.a);
    return numbers * (job.r.storage == Storage::f64 ? 8 : 4);
}

void update_direction(const DirectionUpdate& job, void* workspace, i64 first, i64 last) {
    const bool wide_faces = job.a.x.storage == Storage::f32;
    switch (job.r.storage) {
        case Storage::f64: return direction_pieces<CellsF64, CellsF64>(job, workspace, first, last);
        case Storage::f32: return direction_pieces<CellsF32, CellsF32>(job, workspace, first, last);
        case Storage::f16:
            if (job.a.x.storage == Storage::i16) return direction_pieces<CellsF16, CellsI16>(job, workspace, first, last);
            return wide_faces ? direction_pieces<CellsF16, CellsF32>(job, workspace, first, last) : direction_pieces<CellsF16, CellsF16>(job, workspace, first, last);
        case Storage::i16:
            return wide_faces ? direction_pieces<CellsI16, CellsF32>(job, workspace, first, last)
                              : direction_pieces<CellsI16, CellsI16>(job, workspace, first, last);
    }
}

}  // namespace direction
