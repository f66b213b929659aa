// How many lines, blocks and bytes a job has. Internal linkage: each kernel file compiles its own.
#pragma once

#include <cstdint>

#include "jobs/format.hpp"
#include "jobs/geometry.hpp"

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

// The stream of a structured sparse line: for each block of values a mask, then the codes that are kept.
constexpr std::int64_t least_nm_block = 512;

static inline std::int64_t nm_block(std::int64_t group) { return count_of(least_nm_block, 8 * group) * 8 * group; }

static inline std::int64_t nm_block_bytes(std::int64_t n, std::int32_t bits, std::int64_t keep, std::int64_t group) {
    return bytes_for(n, 1) + bytes_for(n / group * keep, bits);
}

static inline std::int64_t nm_stream_bytes(std::int64_t n, std::int32_t bits, std::int64_t keep, std::int64_t group) {
    const std::int64_t block = nm_block(group);
    return n / block * nm_block_bytes(block, bits, keep, group) + nm_block_bytes(n % block, bits, keep, group);
}

// Bytes of one line of each part.
struct LineBytes {
    std::int64_t codes, scales, shifts;
};

static inline LineBytes line_bytes(const Format& f, std::int64_t n) {
    const std::int32_t bits = bits_of_element(f);
    LineBytes bytes{f.keep ? nm_stream_bytes(n, bits, f.keep, f.group) : bytes_for(n, bits), 0, 0};
    if (has_blocks(f)) bytes.scales = bytes_for(count_of(n, f.block), f.scale_bits);
    if (f.scales == Scales::shifted) bytes.shifts = bytes_for(count_of(n, f.sub_block), f.shift_bits);
    return bytes;
}

}  // namespace fewbits
