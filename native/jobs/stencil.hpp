// Conjugate gradients on a 7-point stencil: two passes over vectors that are stored narrow. As numbers; the definition
// is kernels/reference/stencil/passes.py.
#pragma once

#include <cstdint>

namespace fewbits {

// Integers share a float32 norm, a block of 32 in each row.
enum class Storage : std::int32_t { f64, f32, f16, i16 };

constexpr std::int64_t site = 32;

// Numbers on the grid, rows of `stride` numbers; what lies beyond nx in a row is zero.
struct Stored {
    Storage storage;
    void* values;
    float* norms;  // i16: stride / site for each row
    double scale;  // f16: a power of two that every value is worth that many times
};

// y = sum over the six faces of face * (x here - x there) + shift * x, zero outside.
struct Stencil {
    std::int64_t nx, ny, nz, stride;  // stride: a multiple of `site`
    Stored x, y, z;      // faces below each cell: (nz, ny), (nz, ny + 1), (nz + 1, ny) rows
    const double* high;  // (nz, ny): the faces above the last cells in x
    double shift;
};

// x += alpha p + earlier p'; p' = gamma r + beta p; q = A p'. Without x, p and `next` are not touched: q = gamma A r.
struct DirectionUpdate {
    Stencil a;
    Stored r, p, next, q;
    void* x;  // float32; float64 where the vectors are; may be null
    double alpha, earlier, gamma, beta;
    double* sums;  // three for each item: p'.q, p'.p', q.q
};

// r -= alpha q.
struct ResidualUpdate {
    std::int64_t stride, rows;
    Stored r, q;
    double r_scale;  // of the new r
    double alpha;
    double* sums;  // two for each item: r.r and r.r before
};

// to = from, stored.
struct Pack {
    const double* from;  // (rows, nx)
    std::int64_t nx, stride, rows;
    Stored to, p;
    double* sums;  // two for each item: to.to and to.p
};

// Rows in one item of each; those of Pack are those of ResidualUpdate.
constexpr std::int64_t rows_in_piece = 32, planes_in_piece = 64, residual_rows = 64;

static inline std::int64_t direction_items(const Stencil& a) {
    return (a.ny + rows_in_piece - 1) / rows_in_piece * ((a.nz + planes_in_piece - 1) / planes_in_piece);
}

static inline std::int64_t residual_items(std::int64_t rows) { return (rows + residual_rows - 1) / residual_rows; }

// Whether there are kernels for vectors and faces that are stored so.
static inline bool serves(Storage vectors, Storage faces) {
    const bool mixed = vectors == Storage::f16 && faces == Storage::i16;
    return vectors == faces || mixed || (faces == Storage::f32 && vectors != Storage::f64);
}

}  // namespace fewbits
