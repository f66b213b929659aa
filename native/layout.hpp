// How many lines, blocks and bytes a job has. Internal linkage: each kernel file compiles its own.
#pragma once

#include "job.hpp"

namespace fewbits {

static inline std::int64_t lines_in(const Geometry& g) {
    std::int64_t lines = 1;
    for (int i = 0; i < g.axes; ++i) lines *= g.extent[i];
    return lines;
}

static inline std::int64_t bytes_for(std::int64_t count, std::int32_t bits) { return (count * bits + 7) / 8; }
static inline std::int64_t count_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }
static inline std::int32_t bits_of_element(const Format& f) { return f.tabled ? f.table.bits : f.grid.bits; }

// One scale for the whole array is a block that never ends.
static inline bool one_scale(const Format& f) {
    return f.whole_known && f.scales != Scales::none && f.scales != Scales::two_level;
}
static inline bool has_blocks(const Format& f) { return f.scales != Scales::none && !one_scale(f); }

// Bytes of one line of each part.
struct LineBytes {
    std::int64_t codes, scales, shifts;
};

static inline LineBytes line_bytes(const Format& f, std::int64_t n) {
    LineBytes bytes{bytes_for(n, bits_of_element(f)), 0, 0};
    if (has_blocks(f)) bytes.scales = bytes_for(count_of(n, f.block), f.scale_bits);
    if (f.scales == Scales::shifted) bytes.shifts = bytes_for(count_of(n, f.sub_block), f.shift_bits);
    return bytes;
}

}  // namespace fewbits
