// Sparse matrices by rows, compressed: slices of 16 rows side by side, 16-bit columns counted from the base of a
// segment. As numbers; the definition is kernels/reference/sparse/rows.py.
#pragma once

#include <cstdint>

#include "jobs/stencil.hpp"

namespace fewbits {

constexpr std::int64_t slice = 16;  // rows side by side

// Entry k of a segment of lane l is at 16 (start + k) + l.
struct SparseRows {
    std::int64_t rows, slices;
    const std::int64_t* first;   // (slices + 1): the segments of each slice
    const std::int64_t* start;   // (segments + 1)
    const std::int64_t* base;    // (segments)
    Storage storage;             // f32, f16 or i16
    bool wide;                   // columns have 32 bits
    const void *values, *columns;
    const std::int32_t* runs;    // (entries): the column of lane 0 where those of the lanes follow each other, else -1
    const float* unit;           // (16 slices): what one is worth in a row
    const std::int32_t* place;   // (16 slices): the row of y, or -1
};

}  // namespace fewbits
