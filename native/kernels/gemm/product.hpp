// y = a b for float32 matrices whose values are all bfloat16, by instructions that multiply pairs of those and add to
// float32. PyTorch's own products with them round their results to bfloat16, or need tiles of the CPU.
#pragma once

#include <cstdint>

namespace fewbits {

struct Product {
    const float *a, *b;  // (m, k) and (k, n), rows one after the other
    float* y;            // (m, n)
    std::int64_t m, n, k;
    std::uint32_t *packed_a, *packed_b;  // room for packed_a_size() and packed_b_size(), at a multiple of 64 bytes
};

// Whether this build and this CPU have the instructions.
bool has_bfloat16_products();

std::int64_t packed_a_size(std::int64_t m, std::int64_t k);
std::int64_t packed_b_size(std::int64_t k, std::int64_t n);

// Three steps, each of items in any division; all of a step come before the next.
struct Step {
    std::int64_t (*items)(const Product&);
    void (*run)(const Product&, std::int64_t first, std::int64_t last);
};

extern const Step product_steps[3];

}  // namespace fewbits
