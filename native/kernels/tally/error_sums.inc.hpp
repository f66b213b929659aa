// Sums and counts of rounding errors, in double precision and in eight lanes.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace error_sums {

using numbers::vector_bytes;
using vectors::read, vectors::write;

// Eight lanes are one register of AVX-512, two of AVX2, four of SSE2: every instruction set adds in the same order.
using Lanes = double __attribute__((vector_size(vector_bytes)));
using Singles = float __attribute__((vector_size(vector_bytes / 2)));
using Flags = i64 __attribute__((vector_size(vector_bytes)));  // all ones or zero, and counts
constexpr i64 lane_count = vector_bytes / 8, registers = tally_lanes / lane_count;

// Of the values that were added so far.
struct LaneSums {
    Lanes signal[registers], noise[registers], relative[registers], largest[registers];
    // Three counts of at most 2^20 in one number, 20 bits apart: it saves registers, which AVX2 lacks.
    Flags counts[registers];
};

namespace {  // of this file alone

constexpr i64 one_nonzero = 1, one_flushed = i64{1} << 20, one_saturated = i64{1} << 40, count_mask = one_flushed - 1;

// A real scale is rounded to float32, so the block's own largest value may lie an ulp beyond the limit.
constexpr double beyond_rounding = 1.0 - 0x1p-20;

inline Lanes lanes_at(const float* x) { return __builtin_convertvector(read<Singles>(x), Lanes); }
inline Lanes lanes_at(const double* x) { return read<Lanes>(x); }
inline Lanes magnitude_of(Lanes v) { return (Lanes)((Flags)v & 0x7fffffffffffffff); }
inline Lanes where(Flags chosen, Lanes v) { return (Lanes)((Flags)v & chosen); }

// One register of values: what they were, what they became, and the largest magnitudes that they could have kept.
inline void add_lanes(LaneSums& s, i64 r, Lanes x, Lanes y, Lanes limit) {
    const Lanes size = magnitude_of(x), error = magnitude_of(y - x);
    s.signal[r] += size * size;
    s.noise[r] += error * error;
    const Flags nonzero = size > 0.0, flushed = nonzero & (y == 0.0), saturated = size * beyond_rounding > limit;
    // Zeros divide by one; what a format without zero makes of them counts as noise only.
    const Lanes relative = where(nonzero, error / (nonzero ? size : Lanes{} + 1.0));
    s.relative[r] += relative;
    s.largest[r] = relative > s.largest[r] ? relative : s.largest[r];
    s.counts[r] += (nonzero & one_nonzero) + (flushed & one_flushed) + (saturated & one_saturated);
}

}  // namespace

// n values that are finite, n a multiple of the lanes. `unit` is what the element of each was multiplied by: its limit is
// element_max times that and times `outer`, in the order of the definition.
inline void add_rounded(LaneSums& sums, const float* x, const float* y, const float* unit, double outer, double element_max, i64 n) {
    LaneSums s = sums;  // a copy, which stays in registers
    for (i64 i = 0; i < n; i += tally_lanes)
        for (i64 r = 0, at = i; r < registers; ++r, at += lane_count)
            add_lanes(s, r, lanes_at(x + at), lanes_at(y + at), element_max * (lanes_at(unit + at) * outer));
    sums = s;
}

// n values of either type, n a multiple of the lanes. Those that are not finite count as zeros.
template <class Number>
inline void add_pairs(LaneSums& sums, const Number* x, const Number* y, const double* limit, bool one_limit, i64 n) {
    LaneSums s = sums;
    const Lanes shared = Lanes{} + limit[0];
    for (i64 i = 0; i < n; i += tally_lanes)
        for (i64 r = 0, at = i; r < registers; ++r, at += lane_count) {
            const Lanes given = lanes_at(x + at);
            const Flags finite = magnitude_of(given) < __builtin_inf();
            add_lanes(s, r, where(finite, given), where(finite, lanes_at(y + at)), one_limit ? shared : lanes_at(limit + at));
        }
    sums = s;
}

namespace {  // of this file alone

// The lanes added by halves: 0 to 4, 1 to 5 and so on, then these by halves again.
inline double total_of(const Lanes* lanes) {
    double v[tally_lanes];
    for (i64 r = 0; r < registers; ++r) write(v + r * lane_count, lanes[r]);
    for (i64 half = tally_lanes / 2; half > 0; half /= 2)
        for (i64 l = 0; l < half; ++l) v[l] += v[l + half];
    return v[0];
}

}  // namespace

// What all lanes hold together.
inline ErrorSums total_of(const LaneSums& s) {
    ErrorSums all{total_of(s.signal), total_of(s.noise), total_of(s.relative), 0.0, 0, 0, 0, false};
    for (i64 r = 0; r < registers; ++r)
        for (i64 l = 0; l < lane_count; ++l) {
            all.largest_relative = s.largest[r][l] > all.largest_relative ? s.largest[r][l] : all.largest_relative;
            all.nonzero += s.counts[r][l] & count_mask;
            all.flushed += s.counts[r][l] / one_flushed & count_mask;
            all.saturated += s.counts[r][l] / one_saturated;
        }
    return all;
}

}  // namespace error_sums
