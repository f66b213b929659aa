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

template <class Work>
inline void with_rows(i64 count, Work work) {
    switch (count) {
        case 1: return work(Known<1>{});
        case 2: return work(Known<2>{});
        case 3: return work(Known<3>{});
        default: return work(Known<4>{});
    }
}

}  // namespace few_rows
