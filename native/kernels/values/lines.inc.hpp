// Where things lie: lines of values, and the bytes of each line of a packed part.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace lines {

using numbers::tile, numbers::vector;

// Where a line begins: in the input, in the C order of the array, and among the lines.
struct Line {
    i64 in, place, number;
};

inline Line line_of(const Geometry& g, i64 number) {
    Line line{0, 0, number};
    for (i32 i = g.axes - 1; i >= 0; --i) {
        const i64 index = number % g.extent[i];
        number /= g.extent[i];
        line.in += index * g.stride[i];
        line.place += index * g.place_stride[i];
    }
    return line;
}

inline float whole_of(const Format& f) { return static_cast<float>(f.whole); }

// Values of a line that are worked on at once, not more than `most`: whole blocks where so many values hold one, a vector of blocks or
// eight where they hold those, since vectors of blocks are measured together; of a longer block whole sub-blocks, which share a shift.
inline i64 tile_of(const Format& f, i64 most = tile) {
    if (!has_blocks(f)) return most;
    if (f.block > most) return f.scales == Scales::shifted ? most / f.sub_block * f.sub_block : most;
    const i64 eight = 8 * f.block, many = vector > 8 ? vector * f.block : eight;
    if (many <= most) return most / many * many;
    return eight <= most ? most / eight * eight : most / f.block * f.block;
}

// Whether a line of packed parts can be cut after every `values` values: whole blocks and whole bytes of every part.
inline bool divisible(const Format& f, i64 values) {
    if (values * bits_of_element(f) % 8) return false;
    if (!has_blocks(f)) return true;
    if (values % f.block || values / f.block * f.scale_bits % 8) return false;
    return f.scales != Scales::shifted || values / f.sub_block * f.shift_bits % 8 == 0;
}

// Whether the outer scale is that of each line, for which the line must be measured first.
inline bool outer_of_each_line(const Format& f) { return f.scales == Scales::two_level && !f.whole_known; }

}  // namespace lines
