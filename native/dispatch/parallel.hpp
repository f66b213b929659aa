// Divides the items of a job among threads.
#pragma once

#include <utility>

#include "jobs/job.hpp"
#include "kernels/gemm/product.hpp"
#include "jobs/dense.hpp"
#include "jobs/sparse_rows.hpp"
#include "jobs/stencil.hpp"
#include "jobs/nm_permutation.hpp"
#include "jobs/triangles.hpp"

namespace fewbits {

// Each runs a whole job with at most `threads` threads. Results do not depend on their number.
Outcome convert(const Kernels& kernels, const Job& job, int threads);
void restore(const Kernels& kernels, const Restore& job, int threads);
void gemv(const Kernels& kernels, const Gemv& job, int threads);
// Runs Kernels::compress or Kernels::expand; returns the first line that is not of the pattern, or -1.
std::int64_t change(std::int64_t (*run)(const SparseLines&, std::int64_t, std::int64_t), const SparseLines& job, int threads);
void multiply(const Product& product, int threads);
void add(const Kernels& kernels, const Additions& job, int threads);
// `room` lies at a multiple of 64 bytes and holds direction_workspace bytes for each thread.
void update_direction(const Kernels& kernels, const DirectionUpdate& job, void* room, int threads);
void update_residual(const Kernels& kernels, const ResidualUpdate& job, int threads);
void multiply(const Kernels& kernels, const SparseRows& a, const float* x, float* y, int threads);
void settle(const Kernels& kernels, const NmPermutation& swaps, int threads);
void residuals(const Kernels& kernels, const Residuals& job, int threads);
// Writes the largest magnitude of each column too.
void extents(const Kernels& kernels, const Extents& job, double* columns, int threads);
void substitute(const Kernels& kernels, const Triangle& job, std::int64_t sides, int threads);
void counter_uniform(const Kernels& kernels, const CounterUniform& job, std::int64_t n, int threads);
void pack(const Kernels& kernels, const Pack& job, int threads);
std::pair<double, double> pass(const Kernels& kernels, Lattice job, int threads);
Magnitudes measure(const Kernels& kernels, const void* in, Real type, const Geometry& geometry, int threads);

}  // namespace fewbits
