// Lines of an N:M stream that are expanded to dense codes, and what then describes them.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace expanded_lines {

// The packed parts from `line` on, whose dense codes lie at `codes`.
inline Dequantize lines_from(const Gemv& job, const u8* codes, i64 line) {
    const Format& f = job.format;
    const LineBytes bytes = line_bytes(f, job.n);
    Dequantize r{
        .format = f,
        .geometry = {},
        .codes = codes,
        .scales = job.scales,
        .shifts = job.shifts,
        .outer = job.outer,
        .values = nullptr,
        .values_type = Real::f32,
        .combine = Combine::replace,
        .nontemporal = false,
    };
    // Every value is stored now. Scales lie where they were: streams leave out codes alone.
    r.format.keep = 0;
    r.geometry.n = job.n;
    // Scales of blocks and shifts are those of the line; one scale for the whole array stays.
    if (has_blocks(f)) r.scales += line * bytes.scales;
    if (f.scales == Scales::shifted && f.shift_bits) r.shifts += line * bytes.shifts;
    if (f.scales == Scales::two_level && !f.whole_known) r.outer += line;
    return r;
}

// One line of N:M codes; expand_line is told where it lies.
// Both zeros of a sign bit are the same to it.
inline NmLines line_shape(const Format& f, i64 n) {
    return {
        .lines = 1,
        .n = n,
        .bits = bits_of_element(f),
        .keep = f.keep,
        .group = f.group,
        .zero = f.zero,
        .minus_zero = f.zero,
        .in = nullptr,
        .out = nullptr,
    };
}

}  // namespace expanded_lines
