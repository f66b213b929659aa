// Systems of triangles in float32, solved in double precision. As numbers; the definition is
// kernels/reference/dense/triangles.py.
#pragma once

#include <cstdint>

namespace fewbits {

// T x = b, or its transpose's, for right-hand sides that x holds and solutions that it takes. Row i of T begins at
// values + i * row; what lies beyond the triangle is not read.
struct Triangle {
    std::int64_t n, row, sides;
    const float* values;
    bool upper, unit, transposed;  // `unit`: with ones for what lies on the diagonal
    double* x;                     // (sides, n)

    bool down() const { return upper == transposed; }  // from the first unknown to the last
};

// Unknowns `begin` to `end - 1` of it, which are solved together.
struct TriangleBlock : Triangle {
    std::int64_t begin, end;
};

}  // namespace fewbits
