// Lines of N:M structured sparse codes, with every code and as streams of those that are kept.
#pragma once

#include <cstdint>

namespace fewbits {

// Lines of packed codes and the streams of the same values; kernels/reference/nm/stream.py.
struct NmLines {
    std::int64_t lines, n;
    std::int32_t bits, keep, group, zero, minus_zero;
    const std::uint8_t* in;
    std::uint8_t* out;
};

}  // namespace fewbits
