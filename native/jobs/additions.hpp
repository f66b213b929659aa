// Products of dense matrices by sums of bit patterns; kernels/reference/gemm/additions.py is the definition.
#pragma once

#include <cstdint>

namespace fewbits {

// y = a b for dense matrices, multiplied by sums of bit patterns.
struct Additions {
    const float *a, *b;  // (m, k) and (k, n)
    float* y;            // (m, n)
    std::int64_t m, n, k;
};

}  // namespace fewbits
