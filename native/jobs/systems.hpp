// The functions of one instruction set that solve linear systems.
#pragma once

#include <cstdint>

#include "jobs/dense.hpp"
#include "jobs/lattice.hpp"
#include "jobs/lu.hpp"
#include "jobs/sparse_rows.hpp"
#include "jobs/stencil.hpp"
#include "jobs/triangles.hpp"

namespace fewbits {

// Each does the items first to last - 1 of a job, of `items` in all; any division of the items gives the same result.
struct Systems {
    void (*lattice)(const Lattice&, std::int64_t first, std::int64_t last);  // items: items_of
    std::int64_t (*direction_workspace)(const DirectionUpdate&);  // bytes that each thread needs
    void (*update_direction)(const DirectionUpdate&, void* workspace, std::int64_t first, std::int64_t last);
    void (*update_residual)(const ResidualUpdate&, std::int64_t first, std::int64_t last);
    void (*pack)(const Pack&, std::int64_t first, std::int64_t last);
    void (*multiply_rows)(const SparseRows&, const float* x, float* y, std::int64_t first, std::int64_t last);
    void (*residuals)(const Residuals&, std::int64_t first, std::int64_t last);  // items are rows
    void (*extents)(const Extents&, double* columns, std::int64_t first, std::int64_t last);
    TriangleKernels<float> triangles;
    TriangleKernels<double> triangles_double;
    LuKernels<float> lu;
    LuKernels<double> lu_double;
};

}  // namespace fewbits
