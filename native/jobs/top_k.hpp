// The largest magnitudes of an array; kernels/reference/top_k/top_k.py is the definition.
#pragma once

#include <cstdint>

#include "jobs/conversion.hpp"

namespace fewbits {

constexpr std::int64_t most_ranked = (std::int64_t{1} << 31) - 1;  // values of an array: a place has 31 bits
constexpr std::int64_t ranked_together = 1024;                     // values of one item

struct TopK {
    const void* in;
    Real type;
    std::int64_t n, k;  // k of n values, 1 to n
};

// Magnitudes as bit patterns, and their places in the array, in rising order of places.
struct Candidates {
    std::int32_t *magnitudes, *places;
};

// How many candidates a thread needs room for that reads `values` values: they are thinned out to k when it is full, so that
// each magnitude is sorted out a few times at most. The last vector is written whole.
static inline std::int64_t room_of(const TopK& job, std::int64_t values) {
    const std::int64_t most = 4 * job.k + 16 * ranked_together;
    return (values < most ? values : most) + ranked_together;
}

}  // namespace fewbits
