// Systems of triangles in float32 or float64, solved in double precision. As numbers; the definition is
// kernels/reference/dense/triangles.py.
#pragma once

#include <cstdint>

namespace fewbits {

// T x = b, or its transpose's, for right-hand sides that x holds and solutions that it takes. Row i of T begins at
// values + i * row; what lies beyond the triangle is not read.
template <class T>
struct Triangle {
    std::int64_t n, row, sides;
    const T* values;
    bool upper, unit, transposed;  // `unit`: with ones for what lies on the diagonal
    double* x;                     // (sides, n)

    bool down() const { return upper == transposed; }  // from the first unknown to the last
};

// Unknowns `begin` to `end - 1` of it, which are solved together.
template <class T>
struct TriangleBlock : Triangle<T> {
    std::int64_t begin, end;
};

// The steps for numbers of one type; dispatch/parallel.cpp puts them together.
template <class T>
struct TriangleKernels {
    void (*substitute)(const TriangleBlock<T>&, std::int64_t first, std::int64_t last);       // items are right-hand sides
    void (*subtract_solved)(const TriangleBlock<T>&, std::int64_t first, std::int64_t last);  // items are rows or columns
};

}  // namespace fewbits
