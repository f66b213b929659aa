// Divides the items of a job among threads.
#pragma once

#include <array>
#include <utility>

#include "jobs/kernels.hpp"
#include "jobs/product.hpp"
#include "jobs/systems.hpp"

namespace fewbits {

// Each runs a whole job with at most `threads` threads. Results do not depend on their number.
Outcome quantize(const Kernels& kernels, const Quantize& job, int threads);
void dequantize(const Kernels& kernels, const Dequantize& job, int threads);
// `x` and `y`, of one type, are what the job's own are made of and become; bfloat16 says by itself whether it is narrow. With
// an `activation`, of int8 and a float32 for each 32 values, x is rounded to that first.
void gemv(const Kernels& kernels, Gemv job, const void* x, void* y, Real type, const Format* activation, int threads);
// Fills in the panels.
void multiply(const Kernels& kernels, Planes job, int threads);
// Runs Kernels::compress or Kernels::expand; returns the first line that is not of the pattern, or -1.
std::int64_t transcode(std::int64_t (*run)(const NmLines&, std::int64_t, std::int64_t), const NmLines& job, int threads);
// Fills in the panels and what rounds. Returns false, with no meaning in y, where the values are not what the unit can multiply.
bool multiply(const Kernels& kernels, const Products& products, Product product, int threads);
void additions(const Kernels& kernels, const Additions& job, int threads);
// `workspace` lies at a multiple of 64 bytes and holds direction_workspace bytes for each thread.
void update_direction(const Systems& systems, const DirectionUpdate& job, void* workspace, int threads);
void update_residual(const Systems& systems, const ResidualUpdate& job, int threads);
void multiply(const Systems& systems, const SparseRows& a, const float* x, float* y, int threads);
void evaluate_groups(const Kernels& kernels, const NmPermutation& swaps, int threads);
void residuals(const Systems& systems, const Residuals& job, int threads);
// Writes the largest magnitude of each column too.
void extents(const Systems& systems, const Extents& job, double* columns, int threads);
void substitute(const Systems& systems, const Triangle<float>& job, int threads);
void substitute(const Systems& systems, const Triangle<double>& job, int threads);
void counter_uniform(const Kernels& kernels, const CounterUniform& job, std::int64_t n, int threads);
void pack(const Systems& systems, const Pack& job, int threads);
// The two sums of a pass, each as three doubles without overlap: they are the sum over all sites to more than 150 bits, so
// that those of several processes add up to what one process has.
using LatticeSums = std::pair<std::array<double, 3>, std::array<double, 3>>;
LatticeSums pass(const Systems& systems, Lattice job, int threads);
// `scale_of_line`: the largest magnitude of each line is measured first.
ErrorSums tally(const Kernels& kernels, Tally job, bool scale_of_line, int threads);
ErrorSums tally(const Kernels& kernels, const PairTally& job, int threads);
bool feedback(const Kernels& kernels, const Feedback& job, int threads);  // whether a value is not finite
// Writes the k places in rising order.
void top_k(const Kernels& kernels, const TopK& job, std::int64_t* places, int threads);
Magnitudes measure(const Kernels& kernels, const void* in, Real type, const Geometry& geometry, int threads);

}  // namespace fewbits
