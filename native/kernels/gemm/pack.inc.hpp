// From a factor to its panels. A window of lines and values is rounded into a buffer in the second cache, or read where it
// is; then a vector of lines at a time, lane l being line l, goes to its places.
#pragma once

#include "kernels/gemm/panels.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace pack {

using memory::at, memory::load;
using numbers::Bits, numbers::Reals, numbers::bits_of, numbers::float_of, numbers::infinity_bits, numbers::least,
    numbers::magnitude_mask, numbers::nan_bits, numbers::vector;
using panels::factor, panels::is_integers, panels::panel_lines, panels::panels_of, panels::piece_lanes,
    panels::piece_of;
using vectors::larger, vectors::read, vectors::shuffled, vectors::smaller, vectors::write;

namespace {  // of this file alone

constexpr i64 window_lines = 128, window_values = 256;  // 128 KiB of float32

// Some lines, and a stretch of each. One of the steps is 1: along the lines or across them lies memory.
struct Window {
    const void* values;
    Real type;
    i64 lines, count;
    i64 line_step, step;
};

// ---- 16 lines by 16 values, or fewer with smaller registers

template <int d>
inline void exchange(Bits* v) {
    // Squares of d by d lanes change places across the diagonal.
#pragma GCC unroll 16
    for (i64 i = 0; i < vector; ++i) {
        if (i & d) continue;
        const Bits upper = v[i], lower = v[i + d];
        v[i] = shuffled(upper, lower, [](int lane) { return lane & d ? static_cast<int>(vector) + lane - d : lane; });
        v[i + d] = shuffled(upper, lower, [](int lane) { return lane & d ? static_cast<int>(vector) + lane : lane + d; });
    }
}

// Lane l of vector i becomes lane i of vector l.
inline void transpose(Bits* v) {
    exchange<1>(v);
    exchange<2>(v);
    if constexpr (vector > 4) exchange<4>(v);
    if constexpr (vector > 8) exchange<8>(v);
}

// `block` values of a vector of lines as float32, lane l of x[j] being value `start` + j of line `line` + l; zeros beyond
// the window.
template <i64 block>
inline void read_lines(const Window& w, i64 line, i64 start, Bits* x) {
    const i64 lines = least(vector, w.lines - line), count = least(block, w.count - start);
    if (lines <= 0) {  // of the last panel, none of the factor
        for (i64 j = 0; j < block; ++j) x[j] = Bits{};
        return;
    }
    const void* from = at(w.values, w.type, line * w.line_step + start * w.step);
    const bool whole = lines == vector && count == block;
    // Side by side: a row of the window is a vector already.
    if (w.step != 1) {
        for (i64 j = 0; j < block; ++j) {
            alignas(64) float row[vector] = {};
            const void* here = at(from, w.type, (j < count ? j : 0) * w.step);
            if (whole && w.type == Real::f32)
                x[j] = read<Bits>(static_cast<const float*>(here));
            else {
                if (j < count) load(here, w.type, 1, whole ? vector : lines, row);
                x[j] = read<Bits>(row);
            }
        }
        return;
    }
    // Along memory: rows are turned in registers.
    alignas(64) float rows[vector][block];
    for (i64 l = 0; l < vector; ++l) {
        const bool there = l < lines;
        if (there) load(at(from, w.type, l * w.line_step), w.type, 1, whole ? block : count, rows[l]);
        for (i64 j = there ? count : 0; j < block; ++j) rows[l][j] = 0.0f;
    }
    for (i64 j = 0; j < block; j += vector) {
        for (i64 l = 0; l < vector; ++l) x[j + l] = read<Bits>(rows[l] + j);
        transpose(x + j);
    }
}

// ---- integers

// Brings a block's values to integers of seven bits, and those back: powers of two from the largest magnitude, whose binade
// is that of 2^6. Both are normal numbers where 2^-120 is not above the largest; what else there is packs as zeros, and a
// block with a NaN has that for a scale.
struct BlockScale {
    Reals up, down;
    Bits counts;  // all ones where the values count
};

inline BlockScale block_scale(Bits top) {
    const Bits field = top & infinity_bits, counts = (field >= (7 << 23)) & (field < infinity_bits);
    // 260 does not fit a signed field, the difference does wherever it counts.
    return {(Reals)((Bits)((260u << 23) - (numbers::Naturals)field) & counts), (Reals)(((field - (6 << 23)) & counts) | ((top > infinity_bits) & nan_bits)), counts};
}

// What a thread has met so far, lane by lane: BlockRange in the end.
struct Range {
    Bits least, largest, wrong;
};

// Lanes of integers of a vector of lines, their scales, and the sum of each line.
template <i64 block>
inline void integers(const Bits* x, bool biased, Bits* words, Bits& scale, Bits& sum, Range& range) {
    Bits top{};
#pragma GCC unroll 32
    for (i64 j = 0; j < block; ++j) top = larger(top, x[j] & magnitude_mask);
    const BlockScale s = block_scale(top);
    const Bits bias = Bits{} + static_cast<i32>(biased ? 0x80808080u : 0);
    sum = Bits{};
    for (i64 j = 0; j < block; j += 4) {
        // Truncation is exact where the scaled value is whole; what it leaves behind is remembered, and nothing is packed wrongly
        // in silence.
        Bits word{};
#pragma GCC unroll 4
        for (i64 i = 0; i < 4; ++i) {
            const Reals scaled = (Reals)(x[j + i] & s.counts) * s.up;
            const Bits q = __builtin_convertvector(scaled, Bits);
            range.wrong |= (Bits)(scaled - __builtin_convertvector(q, Reals));
            sum += q;
            word |= (Bits)(((numbers::Naturals)q & 0xffu) << static_cast<u32>(8 * i));
        }
        // Two's complement with its highest bit turned is the number plus 128.
        words[j / 4] = word ^ bias;
    }
    scale = (Bits)s.down;
    const Bits met = (top != 0) & (top <= infinity_bits);
    range.least = smaller(range.least, met ? top : range.least);
    range.largest = larger(range.largest, met ? top : range.largest);
}

// ---- places

// Where the lanes of a vector of lines go.
struct Place {
    u32* out;  // the piece, at the first line of its panel
    i64 lines, lanes, row;
};

inline Place place_of(const Product& p, bool of_b, i64 matrix, i64 line, i64 piece) {
    const i64 lines = panel_lines(p, of_b);
    return {piece_of(p, of_b, matrix, line / lines, piece), lines, piece_lanes(p), line % lines};
}

// Lane by lane, whole vectors of columns.
inline void place_columns(const Place& to, const Bits* words, i64 count) {
    for (i64 j = 0; j < count; ++j) write(to.out + j * to.lines + to.row, words[j]);
}

// One piece of a vector of lines, from values to where it belongs in its panel or panels. `x` as read_lines leaves it.
template <i64 block, Unit unit>
inline void pack_vector(const Product& p, bool of_b, i64 matrix, i64 line, i64 piece, const Bits* x, Range& range) {
    constexpr i64 each = unit == Unit::integers ? 4 : unit == Unit::bfloat16 ? 2 : 1, lanes = block / each;
    Bits words[lanes], scale{}, sum{};
    if constexpr (unit == Unit::integers) {
        integers<block>(x, of_b, words, scale, sum, range);
    } else {
        // Nothing is rounded: the lower half of a float32 that is a bfloat16 is zero. The instructions take
        // subnormals for zero, whence the least magnitude counts.
        if constexpr (each == 2)
#pragma GCC unroll 32
            for (i64 j = 0; j < block; ++j) {
                const Bits magnitude = x[j] & magnitude_mask;
                range.wrong |= x[j] & 0xffff;
                range.least = smaller(range.least, magnitude != 0 ? magnitude : range.least);
            }
#pragma GCC unroll 32
        for (i64 j = 0; j < lanes; ++j)
            words[j] = each == 1 ? x[j] : (Bits)((numbers::Naturals)x[each * j] >> 16) | (x[each * j + 1] & static_cast<i32>(0xffff0000u));
    }
    if (of_b) {
        const Place to = place_of(p, true, matrix, line, piece);
        place_columns(to, words, lanes);
        if (unit == Unit::integers) write(to.out + lanes * to.lines + to.row, scale);
        return;
    }
    // Line by line: each has its lanes side by side, and its panel may be another. Through memory, as the transpose of a few
    // words of each line has no instruction.
    alignas(64) u32 by_lane[lanes + 2][vector];
    for (i64 j = 0; j < lanes; ++j) write(by_lane[j], words[j]);
    write(by_lane[lanes], scale);
    write(by_lane[lanes + 1], -128 * sum);
    const i64 all = panels_of(p, false) * panel_lines(p, false);
    for (i64 l = 0; l < vector && line + l < all; ++l) {
        const Place to = place_of(p, false, matrix, line + l, piece);
        for (i64 j = 0; j < lanes; ++j) to.out[to.row * lanes + j] = by_lane[j][l];
        if (unit != Unit::integers) continue;
        to.out[to.lines * lanes + to.row] = by_lane[lanes][l];
        to.out[to.lines * (lanes + 1) + to.row] = by_lane[lanes + 1][l];
    }
}

// All pieces of a window.
template <i64 block, Unit unit>
inline void pack_window(const Product& p, bool of_b, const Window& w, i64 matrix, i64 line, i64 start, Range& range) {
    // Along memory first: lines that follow each other, or values.
    const i64 vectors = count_of(window_lines, vector), count = count_of(w.count, block);
    const bool along = w.step == 1;
    for (i64 outer = 0; outer < (along ? vectors : count); ++outer)
        for (i64 inner = 0; inner < (along ? count : vectors); ++inner) {
            const i64 l = (along ? outer : inner) * vector, j = (along ? inner : outer) * block;
            if (line + l >= panels_of(p, of_b) * panel_lines(p, of_b)) continue;
            Bits x[block];
            read_lines<block>(w, l, j, x);
            pack_vector<block, unit>(p, of_b, matrix, line + l, (start + j) / block, x, range);
        }
}

// Rounds a window into a buffer, in the order of memory.
inline Window rounded(const Product& p, const Factor& f, const Window& w, float* buffer) {
    Quantize job{};
    job.format = *f.format;
    job.in = w.values;
    job.in_type = w.type;
    job.values = buffer;
    job.values_type = Real::f32;
    const bool along = w.step == 1;
    const Window result{buffer, Real::f32, w.lines, w.count, along ? w.count : 1, along ? 1 : w.lines};
    job.geometry.n = w.count;
    job.geometry.step = w.step;
    job.geometry.place_step = result.step;
    job.geometry.axes = 1;
    job.geometry.extent[0] = w.lines;
    job.geometry.stride[0] = w.line_step;
    job.geometry.place_stride[0] = result.line_step;
    p.kernels->quantize(job, 0, p.kernels->quantize_items(job));
    return result;
}

// Windows that cover all lines of all panels; the last may reach beyond the factor.
inline i64 window_rows(const Product& p, bool of_b) { return count_of(panels_of(p, of_b) * panel_lines(p, of_b), window_lines); }

template <i64 block>
inline void pack_by_unit(const Product& p, bool of_b, const Window& w, i64 matrix, i64 line, i64 start, Range& range) {
    if (p.unit == Unit::integers) return pack_window<block, Unit::integers>(p, of_b, w, matrix, line, start, range);
    if (p.unit == Unit::bfloat16) return pack_window<block, Unit::bfloat16>(p, of_b, w, matrix, line, start, range);
    pack_window<block, Unit::float32>(p, of_b, w, matrix, line, start, range);
}

}  // namespace

i64 pack_workspace(const Product&) { return window_lines * window_values * i64{sizeof(float)}; }

i64 pack_items(const Product& p, bool of_b) { return p.batch * window_rows(p, of_b) * count_of(p.k, window_values); }

// Items are windows, along the lines first.
BlockRange pack(const Product& p, bool of_b, void* workspace, i64 first, i64 last) {
    const Factor& f = factor(p, of_b);
    const i64 along = count_of(p.k, window_values), in_matrix = window_rows(p, of_b) * along;
    Range range{Bits{} + infinity_bits, Bits{}, Bits{}};
    for (i64 item = first; item < last; ++item) {
        const i64 matrix = item / in_matrix, line = item % in_matrix / along * window_lines, start = item % along * window_values;
        // The last panel may have no line of its own in this window: then all of it is zeros.
        const i64 lines = least(window_lines, f.lines > line ? f.lines - line : 0);
        Window w{at(f.values, f.type, matrix * f.batch_step + (lines ? line : 0) * f.line_step + start * f.step), f.type, lines,
                 least(window_values, p.k - start), f.line_step, f.step};
        if (f.format && lines) w = rounded(p, f, w, static_cast<float*>(workspace));
        p.block == 32 ? pack_by_unit<32>(p, of_b, w, matrix, line, start, range) : pack_by_unit<16>(p, of_b, w, matrix, line, start, range);
    }
    BlockRange met{infinity_bits, 0, true};
    for (i64 l = 0; l < vector; ++l) {
        met.least = range.least[l] < met.least ? range.least[l] : met.least;
        met.largest = range.largest[l] > met.largest ? range.largest[l] : met.largest;
        met.whole &= (range.wrong[l] & magnitude_mask) == 0;
    }
    return met;
}

}  // namespace pack
