// What rounding did to the values of an array: sums and counts. kernels/reference/tally/tally.py is the definition.
#pragma once

#include <cstdint>

#include "jobs/conversion.hpp"
#include "jobs/format.hpp"
#include "jobs/layout.hpp"

namespace fewbits {

// Sums stand in so many lanes on every instruction set; lane l takes the values i of a line with i % tally_lanes == l.
constexpr std::int64_t tally_lanes = 8;
constexpr std::int64_t most_tallied_together = 2048;  // values of one item

// Of the values of one item, or of all.
struct ErrorSums {
    double signal, noise;               // of squares: of the values, of the errors
    double relative, largest_relative;  // errors over magnitudes, of values that are not zero
    std::int64_t nonzero, flushed;      // values that are not zero; those of them that became zero
    std::int64_t saturated;             // values beyond the largest that could be kept
    bool nonfinite;                     // a value is not finite: the rest means nothing
};

// Lines are cut into parts; an item is a part, or where a line is shorter the lines that fill one.
struct TallyItems {
    std::int64_t lines, n;  // n values in a line
    std::int64_t part;      // a multiple of the lanes, of most_tallied_together at most
};

// Rounds values, which are kept nowhere.
struct Tally {
    Format format;
    const void* in;  // lines one after the other
    Real in_type;
    TallyItems items;
    double element_max;
    float* largest;  // of each line, where its scale is chosen from that; else null
    ErrorSums* sums;  // of each item
};

// Values that were rounded before. What is not finite counts as zero.
struct PairTally {
    const void *x, *y;
    bool wide;            // doubles, else float32
    const double* limit;  // the largest magnitude that each value could have kept, or one for all
    bool one_limit;
    TallyItems items;
    ErrorSums* sums;
};

static inline std::int64_t padded_line(const TallyItems& t) { return count_of(t.n, tally_lanes) * tally_lanes; }
static inline std::int64_t parts_of_line(const TallyItems& t) { return count_of(t.n, t.part); }
static inline std::int64_t lines_of_item(const TallyItems& t) { return padded_line(t) < t.part ? t.part / padded_line(t) : 1; }
static inline std::int64_t items_of(const TallyItems& t) {
    return t.n == 0 ? 0 : padded_line(t) < t.part ? count_of(t.lines, lines_of_item(t)) : t.lines * parts_of_line(t);
}

}  // namespace fewbits
