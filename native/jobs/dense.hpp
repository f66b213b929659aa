// Dense matrices of double precision: how large their entries are, and what a solution leaves. As numbers; the
// definitions are kernels/reference/dense/residuals.py.
#pragma once

#include <cstdint>

namespace fewbits {

// A is (m, n); its row i begins at a + i * row, and the values of a row follow each other.
struct DenseRows {
    std::int64_t m, n, row;
    const double* a;
};

// b - A x for k right-hand sides, and |A| |x| + |b|.
struct Residuals {
    DenseRows a;
    std::int64_t k;
    const double *x, *high, *low;  // (k, n); x = high + low, each of at most 27 bits
    const double* b;               // (k, m)
    double *r, *sizes;             // (k, m)
};

// Of the rows and columns of A, or of R A C with powers of two on the diagonals of R and C.
struct Extents {
    DenseRows a;
    const double *left, *right;  // (m) and (n), R and C; null: none
    double *largest, *sums;      // (m): of the magnitudes of a row
    float* single;               // (m, n): the values rounded, or null
};

}  // namespace fewbits
