// Products of matrices whose numbers are multiplied by one integer sum of their bit patterns, as in
// kernels/reference/gemm/additions.py. Each result is summed in the order of the reduction axis: the same bits on every CPU.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace additions {

using numbers::binade, numbers::bits_of, numbers::float_of, numbers::infinity_bits, numbers::largest_bits,
    numbers::least, numbers::magnitude_mask, numbers::one_bits;

namespace {  // of this file alone

constexpr i64 rows_added = 4, columns_added = 512;  // worked on at once: they stay in the nearest cache

// y[j] += a * b[j] for n values; what is not finite is multiplied as floats are. Magnitudes add as unsigned numbers: two
// large ones exceed 2^31, and no two 2^32.
inline void add_times(float a, const float* __restrict b, float* __restrict y, i64 n) {
    const u32 x = static_cast<u32>(bits_of(a)), one = static_cast<u32>(one_bits), mask = static_cast<u32>(magnitude_mask);
    if ((x & mask) >= static_cast<u32>(infinity_bits)) {
        for (i64 j = 0; j < n; ++j) y[j] += a * b[j];
        return;
    }
    for (i64 j = 0; j < n; ++j) {
        const u32 w = static_cast<u32>(bits_of(b[j])), sum = (x & mask) + (w & mask);
        const u32 magnitude = sum - one < static_cast<u32>(largest_bits) ? sum - one : static_cast<u32>(largest_bits);
        // Below the smallest normal number, or with a zero factor, the product is zero; above the largest it is the
        // largest.
        const bool there = sum >= one + static_cast<u32>(binade) && (x & mask) != 0 && (w & mask) != 0;
        const float finite = float_of(static_cast<i32>(there ? magnitude | ((x ^ w) & ~mask) : 0));
        y[j] += (w & mask) < static_cast<u32>(infinity_bits) ? finite : a * b[j];
    }
}

}  // namespace

// Four rows by 512 columns: 8 KiB of y, and each row of b is read for four rows of a.
void additions(const Additions& job, i64 first, i64 last) {
    for (i64 row = first; row < last; row += rows_added)
        for (i64 column = 0; column < job.n; column += columns_added) {
            const i64 n = least(columns_added, job.n - column), rows = least(rows_added, last - row);
            for (i64 r = 0; r < rows; ++r)
                for (i64 j = 0; j < n; ++j) job.y[(row + r) * job.n + column + j] = 0.0f;
            for (i64 i = 0; i < job.k; ++i)
                for (i64 r = 0; r < rows; ++r)
                    add_times(job.a[(row + r) * job.k + i], job.b + i * job.n + column, job.y + (row + r) * job.n + column, n);
        }
}

}  // namespace additions
