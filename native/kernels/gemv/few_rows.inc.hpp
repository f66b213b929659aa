// Few rows of x, in the order of a way that decodes lines in registers: what is decoded is multiplied with all of them.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace few_rows {

// Rows whose sums stand beside each other in registers.
constexpr i64 rows_together = 4;

// One to four rows of x from row `first` on. What a way decodes at once comes together: a group of each row, then the next groups.
struct FewRows {
    const float* values;  // or twice as many of bfloat16
    i64 first, count;
    i64 step;  // rows between a group and the next one of a row
};

// One of them alone; `floats` is what a group takes.
inline FewRows one_of(const FewRows& x, i64 row, i64 floats) { return {x.values + row * floats, x.first + row, 1, x.step}; }

// Numbers that the compiler knows.
template <i64 n>
struct Known {
    constexpr i64 operator()() const { return n; }
};

// Calls `work` with the number of rows.
template <class Work>
inline void with_rows(i64 count, Work work) {
    switch (count) {
        case 1: return work(Known<1>{});
        case 2: return work(Known<2>{});
        case 3: return work(Known<3>{});
        default: return work(Known<4>{});
    }
}

// Calls `work` with numbers of lines and rows, the rows, and a line: four lines at a time, which share what is read of x; the last
// ones go alone, and there each row. A line has the same sum either way.
template <class Work>
inline void with_lines(const FewRows& x, i64 floats, i64 first, i64 last, Work work) {
    i64 line = first;
    with_rows(x.count, [&](auto rows) {
        for (; line + 4 <= last; line += 4) work(Known<4>{}, rows, x, line);
    });
    for (; line < last; ++line)
        for (i64 row = 0; row < x.count; ++row) work(Known<1>{}, Known<1>{}, one_of(x, row, floats), line);
}

}  // namespace few_rows
