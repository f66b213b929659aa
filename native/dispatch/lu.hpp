// An LU factorization with partial pivoting, of any shape that is not wider than tall.
#pragma once

#include <cstdint>

#include "jobs/systems.hpp"

namespace fewbits {

// Row i of the matrix, (m, n), m >= n, begins at a + i * row. Its factors take its place: below the diagonal L, without
// the ones on its own, and U.
template <class T>
struct Lu {
    T* a;
    std::int64_t row, m, n;
    std::int64_t* exchanges;  // (n)
};

void factorize_lu(const Systems& systems, const Lu<float>& lu, int threads);
void factorize_lu(const Systems& systems, const Lu<double>& lu, int threads);

// Row i of (m, n) and row exchanges[i] change places, for i from 0 to count - 1.
void exchange_rows(float* a, std::int64_t row, std::int64_t n, const std::int64_t* exchanges, std::int64_t count, int threads);

}  // namespace fewbits
