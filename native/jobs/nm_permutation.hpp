// The search for an order of columns under which N:M keeps more, as numbers: kernels/reference/nm/permutation.py defines it.
#pragma once

#include <cstdint>

namespace fewbits {

constexpr std::int64_t largest_group = 64;         // of a pattern
constexpr std::int64_t largest_sum = 1 << 30;      // of `rows` times the largest magnitude: sums of a row have 32 bits

// Position p belongs to group p / group and holds column order[p]. Were it to hold x, its group would keep
// bases[p] + sum over rows of max(edges[p][row], x[row]): the values that the others keep beside any, and the one that
// x has to exceed.
struct NmPermutation {
    std::int64_t columns, rows, group, keep;
    const std::int32_t* magnitudes;  // (columns, rows)
    std::int32_t* order;             // (columns)
    std::int32_t* edges;             // (columns, rows)
    std::int64_t* bases;             // (columns)
    std::int64_t* scores;            // (columns / group): what each group keeps
};

}  // namespace fewbits
