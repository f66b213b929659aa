// Initial values indexed by position; kernels/reference/values/counter_uniform.py is the definition.
#pragma once

#include <cstdint>

namespace fewbits {

// Initial values of the positions from `position` on; `out` is indexed from there.
struct CounterUniform {
    std::uint64_t seed;
    std::int64_t position;
    float unit;
    float* out;
};

}  // namespace fewbits
