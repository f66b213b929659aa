// Strips: lines side by side, whose values of one row lie close together in memory.
#pragma once

#include "kernels/values/lines.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace strips {

using lines::Line, lines::line_of;
using numbers::least;

// Whether lines are worked on side by side: their own values lie apart both in memory and in the result.
inline bool side_by_side(const Geometry& g) { return g.axes > 0 && g.step != 1 && g.place_step != 1; }

// Strips of up to `width` lines: one never goes on into the next row of the innermost axis.
inline i64 strips_in(const Geometry& g, i64 width) {
    const i64 across = g.extent[g.axes - 1];
    return across == 0 ? 0 : lines_in(g) / across * count_of(across, width);
}

// A strip: its first line, and how the others follow.
struct Strip {
    Line line;
    i64 count, stride, place_stride;
};

inline Strip strip_of(const Geometry& g, i64 number, i64 width) {
    const i64 across = g.extent[g.axes - 1], in_row = count_of(across, width);
    const i64 lane = number % in_row * width;
    return {line_of(g, number / in_row * across + lane), least(width, across - lane), g.stride[g.axes - 1],
            g.place_stride[g.axes - 1]};
}

}  // namespace strips
