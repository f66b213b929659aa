// The first pass of conjugate gradients on a 7-point stencil: a new direction and its image. Numbers of the vectors are
// decoded once in a pass, into rows of float32 (or float64) that stay in the caches; the order of every operation is that
// of kernels/reference/stencil/passes.py.
#pragma once

#include "kernels/stencil/cells.inc.hpp"
#include "kernels/stencil/sums.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace direction {

using cells::Block, cells::CellsF16, cells::CellsF32, cells::CellsF64, cells::CellsI16, cells::longest_row, cells::margin,
    cells::read_block, cells::write_block;
using memory::prefetch;
using sums::Sums, sums::wide;
using numbers::least;
using vectors::read, vectors::write;

namespace {  // of this file alone

// One item: the rows y0 <= y < y1 of the planes z0 <= z < z1.
// Planes pass through a piece from z0 - 1 to z1: three planes of the new direction, with one row more on each side, are
// kept as decoded numbers, and the image of a plane is computed when the one above it is there. Rows at the edge of a
// piece are computed by both neighbours, from vectors that are only read: no piece waits for another.
template <class Vectors, class Faces>
struct Piece {
    using Number = typename Vectors::Number;
    using Vector = typename Vectors::Vector;
    static constexpr i64 lanes = Block<Vector>::lanes;
    const DirectionUpdate& job;
    i64 y0, y1, z0, z1, line;  // line: numbers in a row with its margins
    Number *planes, *face_x, *spare_row;
    Sums pq, pp, qq;

    // Numbers of workspace: three planes, faces in x of one row, and one row more.
    static i64 numbers(const Stencil& a) {
        // Margins of zeros: the stencil reads one number before and after a row.
        const i64 line = a.stride + 2 * margin;
        return line * (3 * (rows_in_piece + 2) + 1 + 1);
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
        face_x = planes + 3 * (rows_in_piece + 2) * line + margin;
        spare_row = face_x + line - margin;
        for (i64 i = 0; i < numbers(job.a); ++i) workspace[i] = Number(0);
    }

    // Planes take turns in three places.
    Number* row(i64 y, i64 z) { return planes + (((z + 3) % 3) * (rows_in_piece + 2) + (y - y0 + 1)) * line + margin; }

    bool in_grid(i64 y, i64 z) const { return y >= 0 && y < job.a.ny && z >= 0 && z < job.a.nz; }

    // Number of the first cell of a row.
    i64 start(i64 y, i64 z) const { return (z * job.a.ny + y) * job.a.stride; }

    // The cache lines of a row that is wanted one plane later: the hardware prefetches up to the end of a page, and the
    // rows of a piece lie within few pages of each plane.
    template <class Cells>
    [[gnu::always_inline]] void prefetch_row(const Stored& s, i64 at) const {
        prefetch(static_cast<const char*>(s.values) + at * Cells::bytes, job.a.stride * Cells::bytes);
    }
    [[gnu::always_inline]] void prefetch_direction(i64 y, i64 z) const {
        if (!in_grid(y, z)) return;
        const i64 at = start(y, z);
        prefetch_row<Vectors>(job.r, at);
        if (job.x == nullptr) return;
        prefetch_row<Vectors>(job.p, at);
        prefetch_row<Vectors>(job.next, at);
        if (moves_x()) prefetch(static_cast<const Number*>(job.x) + at, job.a.stride * static_cast<i64>(sizeof(Number)));
    }
    [[gnu::always_inline]] void prefetch_image(i64 y, i64 z) const {
        if (!in_grid(y, z)) return;
        prefetch_row<Faces>(job.a.x, start(y, z));
        prefetch_row<Faces>(job.a.y, start(y, z) + (z + 1) * job.a.stride);
        prefetch_row<Faces>(job.a.z, start(y, z + 1));
        prefetch_row<Vectors>(job.q, start(y, z));
    }

    bool moves_x() const { return job.alpha != 0 || job.earlier != 0; }

    // The new direction in one row; only rows of this item are written back.
    void direction(i64 y, i64 z) {
        Number* __restrict to = row(y, z);
        const i64 n = job.a.stride, at = start(y, z);
        // Outside of the grid everything is zero.
        if (!in_grid(y, z)) {
            for (i64 i = 0; i < n; ++i) to[i] = Number(0);
            return;
        }
        prefetch_direction(y, z + 1);
        const Number gamma = static_cast<Number>(job.gamma), beta = static_cast<Number>(job.beta);
        const Vectors r(job.r), p(job.p), following(job.next);
        // Without x there is no old direction: q = gamma A r.
        if (job.x == nullptr) {
            for (i64 i = 0; i < n; i += lanes) write(to + i, gamma * r.load(at + i));
            return;
        }
        const bool mine = y >= y0 && y < y1 && z >= z0 && z < z1, moves = mine && moves_x();
        const Number alpha = static_cast<Number>(job.alpha), earlier = static_cast<Number>(job.earlier);
        Number* x = static_cast<Number*>(job.x) + at;
        // A row of a neighbour is rounded as its owner rounds it, and not written to the vector.
        float norms[longest_row / site];
        const Stored copy{
            .storage = job.next.storage,
            .values = spare_row,
            .norms = norms,
            .scale = job.next.scale,
        };
        const Vectors target(mine ? job.next : copy);
        const i64 target_at = mine ? at : 0;
        for (i64 i = 0; i < n; i += site) {
            Block<Vector> next;
            for (i64 k = 0; k < next.count; ++k) {
                // p' = gamma r + beta p, in this order; x takes its step from the same p while it is there. The cache
                // lines of `next` are fetched to be written in any case.
                const i64 here = i + k * lanes;
                const Vector old = p.load(at + here);
                next.v[k] = gamma * r.load(at + here) + beta * old;
                if (moves) write(x + here, read<Vector>(x + here) + (alpha * old + earlier * following.load(at + here)));
            }
            target.store(target_at + i, next);
            write_block(to + i, next);
        }
    }

    // q in one row: six differences times their faces, then the shift, in the order of the definition.
    void image(i64 y, i64 z) {
        const i64 n = job.a.stride, at = start(y, z);
        prefetch_image(y, z + 1);
        const Faces faces_x(job.a.x), faces_y(job.a.y), faces_z(job.a.z);
        const Vectors q(job.q);
        for (i64 i = 0; i < n; i += lanes) write(face_x + i, faces_x.load(at + i));
        // The face above the last cell is stored apart, so that rows of faces have the stride of cells.
        face_x[job.a.nx] = static_cast<Number>(job.a.high[z * job.a.ny + y]);
        // Planes of faces in y have one row more than those of cells. Faces between two rows or planes are decoded for
        // each: keeping them would cost as much.
        const i64 face_y = at + z * n, plane = job.a.ny * n;
        const Number *centre = row(y, z), *south = row(y - 1, z), *north = row(y + 1, z);
        const Number *below = row(y, z - 1), *above = row(y, z + 1);
        const Number shift = static_cast<Number>(job.a.shift);
        Sums new_pq = pq, new_pp = pp, new_qq = qq;  // in registers for a row
        for (i64 i = 0; i < n; i += site) {
            Block<Vector> p = read_block<Vector>(centre + i), image;
            for (i64 k = 0; k < p.count; ++k) {
                const i64 here = i + k * lanes;
                const Vector c = p.v[k];
                Vector sum = read<Vector>(face_x + here) * (c - read<Vector>(centre + here - 1)) +
                             read<Vector>(face_x + here + 1) * (c - read<Vector>(centre + here + 1));
                sum += faces_y.load(face_y + here) * (c - read<Vector>(south + here)) +
                       faces_y.load(face_y + n + here) * (c - read<Vector>(north + here));
                sum += faces_z.load(at + here) * (c - read<Vector>(below + here)) +
                       faces_z.load(at + plane + here) * (c - read<Vector>(above + here));
                image.v[k] = sum + shift * c;
            }
            // Beyond the row the stencil gave numbers that mean nothing.
            if (i + site > job.a.nx) keep(image, job.a.nx - i);
            q.store(at + i, image);
            for (i64 j = 0; j < sums::steps; ++j) {
                const auto of_p = wide(p, j), of_q = wide(image, j);
                new_pq.add(j, of_p * of_q);
                new_pp.add(j, of_p * of_p);
                new_qq.add(j, of_q * of_q);
            }
        }
        pq = new_pq;
        pp = new_pp;
        qq = new_qq;
    }

    // The first `count` numbers of a block; the others become zero.
    static void keep(Block<Vector>& b, i64 count) {
        alignas(64) Number v[site];
        write_block(v, b);
        for (i64 i = 0; i < site; ++i) v[i] = i < count ? v[i] : Number(0);
        b = read_block<Vector>(v);
    }

    void run(double* sums) {
        // The first two planes, then one more for each image.
        for (i64 z = z0 - 1; z < z0 + 1; ++z)
            for (i64 y = y0 - 1; y <= y1; ++y) direction(y, z);
        for (i64 z = z0; z < z1; ++z) {
            for (i64 y = y0 - 1; y <= y1; ++y) direction(y, z + 1);
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
