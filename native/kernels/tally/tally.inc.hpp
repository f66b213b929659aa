// What rounding does to the values of an array, in one pass that keeps no rounded value: the entry of this folder.
#pragma once

#include "kernels/quantize/prepared.inc.hpp"
#include "kernels/quantize/quantize.inc.hpp"
#include "kernels/tally/element_units.inc.hpp"
#include "kernels/tally/error_sums.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/scales.inc.hpp"

namespace tally {

using element_units::outer_of_all, element_units::units_of;
using error_sums::LaneSums, error_sums::add_pairs, error_sums::add_rounded, error_sums::total_of;
using prepared::Buffers, prepared::prepare_quantize;
using quantize::quantize_items;
using memory::at, memory::load;
using numbers::float_of, numbers::infinity_bits, numbers::least, numbers::tile;
using scales::Measured, scales::largest_of, scales::see;

namespace {  // of this file alone

// What one thread works in: the values of an item, what they become, and what their elements are multiplied by. Together
// with the buffers of quantize/ they stay in the second-level cache.
struct alignas(64) TallyBuffers {
    float x[most_tallied_together], y[most_tallied_together], unit[most_tallied_together];
    Buffers t;
};

// Where the part of a line lies that belongs to an item, and how many values it has.
struct Stretch {
    i64 line, start, count;
};

// The stretch of line `k` of an item; count is zero beyond the last line.
inline Stretch stretch_of(const TallyItems& items, i64 item, i64 k) {
    // Short lines: several are one item, each from its beginning to its end.
    if (lines_of_item(items) > 1) {
        const i64 line = item * lines_of_item(items) + k;
        return {line, 0, line < items.lines ? items.n : 0};
    }
    // Long lines: one part of one of them.
    const i64 parts = parts_of_line(items), start = item % parts * items.part;
    return {item / parts, start, least(items.part, items.n - start)};
}

// Zeros behind the last value, to whole lanes: they change no sum and no count.
template <class Number>
inline void pad(Number* x, i64 n) {
    for (; n % tally_lanes; ++n) x[n] = 0;
}

// A stretch of a line: loaded, rounded by quantize/ as an array of its own, and counted. Returns whether it is finite.
bool add_stretch(const Tally& job, TallyBuffers& b, LaneSums& sums, const Stretch& s) {
    load(at(job.in, job.in_type, s.line * job.items.n + s.start), job.in_type, 1, s.count, b.x);
    if (largest_of<0>(b.x, s.count) >= infinity_bits) return false;
    // What quantize/ does to values in memory it does here to those in the cache: the same functions, so the same bits.
    Quantize q{
        .format = job.format,
        .geometry = {.n = s.count, .step = 1, .place_step = 1, .axes = 0, .extent = {}, .stride = {}, .place_stride = {}},
        .in = b.x,
        .in_type = Real::f32,
        .values = b.y,
        .values_type = Real::f32,
        .codes = nullptr,
        .scales = nullptr,
        .shifts = nullptr,
        .outer = nullptr,
        .nontemporal = false,
    };
    // A part of a line does not know its largest magnitude, from which the scale of the line follows: it was measured.
    if (job.largest != nullptr) {
        q.format.whole_known = true;
        q.format.whole = static_cast<double>(job.largest[s.line]);
    }
    quantize::quantize(q, 0, quantize_items(q));
    // Whole lanes from here on: what is behind the last value changes nothing.
    const auto p = prepare_quantize(q);
    units_of(p, b.t, b.x, s.count, b.unit);
    pad(b.x, s.count);
    pad(b.y, s.count);
    pad(b.unit, s.count);
    add_rounded(sums, b.x, b.y, b.unit, static_cast<double>(outer_of_all(p).scale), job.element_max,
                count_of(s.count, tally_lanes) * tally_lanes);
    return true;
}

}  // namespace

// The largest magnitude of each line, for formats whose scale belongs to a line; items are lines.
void largest_of_lines(const Tally& job, i64 first, i64 last) {
    alignas(64) float buffer[tile];
    // A pass of its own, as the first part of a line is rounded by what may stand in the last.
    for (i64 line = first; line < last; ++line) {
        Measured m{0, false};
        for (i64 start = 0; start < job.items.n; start += tile) {
            const i64 n = least(tile, job.items.n - start);
            load(at(job.in, job.in_type, line * job.items.n + start), job.in_type, 1, n, buffer);
            see(m, buffer, n);
        }
        job.largest[line] = float_of(m.largest);
    }
}

// Each item has sums of its own: whoever adds them in order gets the same, however items are divided.
void tally(const Tally& job, i64 first, i64 last) {
    TallyBuffers b;
    for (i64 item = first; item < last; ++item) {
        LaneSums sums{};
        bool finite = true;
        for (i64 k = 0; k < lines_of_item(job.items); ++k) {
            const Stretch s = stretch_of(job.items, item, k);
            if (s.count > 0) finite &= add_stretch(job, b, sums, s);
        }
        job.sums[item] = total_of(sums);
        job.sums[item].nonfinite = !finite;
    }
}

namespace {  // of this file alone

// Whole lanes are read where they lie. The values behind them, which are fewer than the lanes, go through copies filled
// with zeros, so that nothing beyond the arrays is read.
template <class Number>
void add_stretch_of_pairs(const PairTally& job, LaneSums& sums, i64 from, i64 n) {
    const Number *x = static_cast<const Number*>(job.x) + from, *y = static_cast<const Number*>(job.y) + from;
    const double* limit = job.one_limit ? job.limit : job.limit + from;
    const i64 rest = n % tally_lanes, whole = n - rest;
    add_pairs(sums, x, y, limit, job.one_limit, whole);
    if (rest == 0) return;
    Number last_x[tally_lanes] = {}, last_y[tally_lanes] = {};
    double last_limit[tally_lanes] = {};
    for (i64 i = 0; i < rest; ++i) {
        last_x[i] = x[whole + i];
        last_y[i] = y[whole + i];
        last_limit[i] = limit[job.one_limit ? 0 : whole + i];
    }
    add_pairs(sums, last_x, last_y, last_limit, false, tally_lanes);
}

}  // namespace

// The same for values that were rounded before, by whatever means: their array is one line.
void tally_pairs(const PairTally& job, i64 first, i64 last) {
    for (i64 item = first; item < last; ++item) {
        LaneSums sums{};
        for (i64 k = 0; k < lines_of_item(job.items); ++k) {
            const Stretch s = stretch_of(job.items, item, k);
            const auto add = job.wide ? add_stretch_of_pairs<double> : add_stretch_of_pairs<float>;
            if (s.count > 0) add(job, sums, s.line * job.items.n + s.start, s.count);
        }
        job.sums[item] = total_of(sums);
    }
}

}  // namespace tally
