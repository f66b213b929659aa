// Rounding with error feedback; kernels/reference/feedback/feedback.py is the definition.
#pragma once

#include "jobs/conversion.hpp"

namespace fewbits {

// The residual is one array: x is added to it, `quantize` reads it, and `dequantize`, which reads the same parts,
// subtracts from it.
struct Feedback {
    Quantize quantize;      // one line, to packed parts that stay in the caches
    Dequantize dequantize;  // combines by subtracting
    const void* x;          // null: it was added before
    Real x_type;
    float* residual;
};

}  // namespace fewbits
