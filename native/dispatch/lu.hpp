// An LU factorization of float32 with partial pivoting, of any shape that is not wider than tall.
#pragma once

#include <cstdint>

#include "jobs/kernels.hpp"

namespace fewbits {

// Numbers of workspace for a matrix (m, n).
std::int64_t lu_workspace(std::int64_t m, std::int64_t n, int threads);

// Puts the factors of a, (m, n), m >= n, in its place: below the diagonal L, without the ones on its own, and U.
// `workspace` begins at a multiple of 64 bytes.
void factorize_lu(const Kernels& kernels, float* a, std::int64_t row, std::int64_t m, std::int64_t n, std::int64_t* exchanges,
                  float* workspace, int threads);

}  // namespace fewbits
