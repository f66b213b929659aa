// From a factor to panels: all of b before the product, and of a what an item is about to multiply, or all of it before the
// product where several items need the same rows. A window of lines and values is rounded into a buffer in the second cache, or
// read where it is. Where the values of a line lie side by side its words are made line by line, else lane by lane for a vector
// of lines; only if the panel wants the other order are words turned, which are fewer than the values.
#pragma once

#include "kernels/gemm/panels.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace pack {

using memory::at, memory::load, memory::prefetch, memory::size_of;
using numbers::Bits, numbers::Naturals, numbers::Reals, numbers::infinity_bits, numbers::least, numbers::magnitude_mask,
    numbers::nan_bits, numbers::vector;
using panels::is_wide, panels::panel_lines, panels::panels_of, panels::piece_of, panels::piece_of_item, panels::piece_words,
    panels::rows_in_item, panels::stretch, panels::values_in_lane, panels::values_together;
using vectors::larger, vectors::read, vectors::shuffled, vectors::smaller, vectors::transpose, vectors::write;

constexpr i64 window_values = values_together;

// Some lines, and a stretch of each. One of the steps is 1: along the lines or across them lies memory.
struct Window {
    const void* values;
    Real type;
    i64 lines, count;
    i64 line_step, step;
};

// What a thread has met so far, lane by lane: BlockRange in the end.
struct Range {
    Bits least = Bits{} + infinity_bits, largest{}, wrong{}, top{};  // of `top` all magnitudes, NaN too
};

namespace {  // of this file alone

constexpr i64 window_lines = 128;  // of b, and up to a whole panel: 128 KiB of float32, or a little more

// As many 16-bit numbers, and bytes, as a vector has lanes.
using Halves = u16 __attribute__((vector_size(vector * 2)));
using Bytes = std::int8_t __attribute__((vector_size(vector)));

// The first `count` of n values that lie side by side, as float32; zeros for the rest.
template <i64 n>
inline void read_values(const void* from, Real type, i64 count, Bits* x) {
    const bool whole = count == n;
    // A bfloat16 is the upper half of its float32.
    if (whole && type == Real::bf16) {
#pragma GCC unroll 8
        for (i64 i = 0; i < n / vector; ++i)
            x[i] = (Bits)(__builtin_convertvector(read<Halves>(static_cast<const u16*>(from) + i * vector), Naturals) << 16u);
        return;
    }
    alignas(64) float values[n];
    const float* row = values;
    if (whole && type == Real::f32) {
        row = static_cast<const float*>(from);
    } else {
        if (count > 0) load(from, type, 1, count, values);
        for (i64 i = count; i < n; ++i) values[i] = 0.0f;
    }
#pragma GCC unroll 8
    for (i64 i = 0; i < n / vector; ++i) x[i] = read<Bits>(row + i * vector);
}

// ---- lines to lanes

// `rows` by `columns` words to `columns` by `rows`; squares of a vector's width in registers.
template <i64 rows, i64 columns>
inline void turn(const u32* from, u32* to) {
    if constexpr (rows % vector == 0 && columns % vector == 0) {
        for (i64 i = 0; i < rows; i += vector)
            for (i64 j = 0; j < columns; j += vector) {
                Bits square[vector];
#pragma GCC unroll 16
                for (i64 l = 0; l < vector; ++l) square[l] = read<Bits>(from + (i + l) * columns + j);
                transpose(square);
#pragma GCC unroll 16
                for (i64 l = 0; l < vector; ++l) write(to + (j + l) * rows + i, square[l]);
            }
    } else {  // bytes: a quarter as many words as values
        for (i64 i = 0; i < rows; ++i)
            for (i64 j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
    }
}

// ---- values to words

// Brings a block's values to integers, and those back: powers of two from the largest magnitude, whose binade is that of 2^6,
// or 2^8. Both are normal numbers where 2^-120, or 2^-118, is not above the largest; what else there is packs as zeros, and
// a block with a NaN has that for a scale.
struct BlockScale {
    Reals up, down;
    Bits counts;  // all ones where the values count
};

// Each lane of `top` has the largest magnitude of a block.
template <Unit unit>
inline BlockScale block_scale(Bits top, Range& range) {
    constexpr i32 up = top_exponent(unit);
    const Bits met = (top != 0) & (top <= infinity_bits);
    range.top = larger(range.top, top);
    range.least = smaller(range.least, met ? top : range.least);
    range.largest = larger(range.largest, met ? top : range.largest);
    const Bits field = top & infinity_bits, counts = (field >= ((up + 1) << 23)) & (field < infinity_bits);
    // The bias twice does not fit a signed field, the difference does wherever it counts.
    return {(Reals)((Bits)(((254u + up) << 23) - (numbers::Naturals)field) & counts),
            (Reals)(((field - (up << 23)) & counts) | ((top > infinity_bits) & nan_bits)), counts};
}

// Truncation is exact where the scaled value is whole; what it leaves behind is remembered, and nothing is packed wrongly in
// silence.
inline Bits integers_of(Bits x, const BlockScale& s, Range& range) {
    const Reals scaled = (Reals)(x & s.counts) * s.up;
    const Bits q = __builtin_convertvector(scaled, Bits);
    range.wrong |= (Bits)(scaled - __builtin_convertvector(q, Reals));
    return q;
}

// Bytes of b are 128 too large, since the instruction for bytes takes one of its factors without a sign; that for 16 bits takes
// both with theirs.
constexpr i32 bias_of(Unit unit) { return unit == Unit::integers ? 128 : 0; }

// Nothing is rounded: the lower half of a float32 that is a bfloat16 is zero. The instructions take subnormals for zero,
// whence the least magnitude counts.
inline void note_bfloat16(Bits x, Range& range) {
    const Bits magnitude = x & magnitude_mask;
    range.top = larger(range.top, magnitude);
    range.wrong |= x & 0xffff;
    range.least = smaller(range.least, magnitude != 0 ? magnitude : range.least);
}

// Two bfloat16, the first in the lower half.
inline Bits pair_of(Bits first, Bits second) { return (Bits)((Naturals)first >> 16u) | (second & static_cast<i32>(0xffff0000u)); }

// The bfloat16 nearest to a float32, of two the one with an even last bit, and the one nearest to what that leaves. The sum
// would carry some NaN into the sign.
struct Terms {
    Bits first, second;
};
inline Bits nearest_bfloat16(Bits x) {
    x = (x & magnitude_mask) > infinity_bits ? Bits{} + nan_bits : x;
    return (Bits)(((Naturals)x + 0x7fffu + ((Naturals)x >> 16u & 1u)) & 0xffff0000u);
}
inline Terms terms_of(Bits x) {
    const Bits first = nearest_bfloat16(x);
    return {first, nearest_bfloat16((Bits)((Reals)x - (Reals)first))};
}

// The nearest bfloat16 of two vectors: pairs of one value of each, or all of the first, then all of the second. The instruction
// takes subnormal values for zeros, as those that multiply do.
inline Bits rounded_pair(Bits first, Bits second) { return pair_of(nearest_bfloat16(first), nearest_bfloat16(second)); }
inline Bits rounded_in_order(Bits first, Bits second) {
#if defined(__AVX512BF16__)
    return (Bits)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
    const Bits even = shuffled(first, second, [](int lane) { return 2 * lane; });
    const Bits odd = shuffled(first, second, [](int lane) { return 2 * lane + 1; });
    return rounded_pair(even, odd);
#endif
}

// What is left of values whose bfloat16 are those in `rounded` from `place` on.
inline Bits rest_of(Bits x, Bits rounded, i64 place) {
    u16 halves[2 * vector];
    write(halves, rounded);
    return (Bits)((Reals)x - (Reals)(__builtin_convertvector(read<Halves>(halves + place), Naturals) << 16u));
}

// Each lane becomes what `join` makes of all lanes.
template <class Join>
inline Bits reduced(Bits v, Join join) {
    if constexpr (vector > 8) v = join(v, shuffled(v, v, [](int lane) { return lane ^ 8; }));
    if constexpr (vector > 4) v = join(v, shuffled(v, v, [](int lane) { return lane ^ 4; }));
    v = join(v, shuffled(v, v, [](int lane) { return lane ^ 2; }));
    return join(v, shuffled(v, v, [](int lane) { return lane ^ 1; }));
}

// The words of one block of a line, `x` being its values side by side; with integers its scale, and what undoes the bias of b.
template <i64 block, Unit unit>
inline void words_of_line(const Bits* x, bool of_b, bool rounds, u32* words, u32& scale, u32& sum, Range& range) {
    constexpr i64 parts = block / vector;
    if constexpr (unit == Unit::float32) {
#pragma GCC unroll 8
        for (i64 i = 0; i < parts; ++i) {
            range.top = larger(range.top, x[i] & magnitude_mask);
            write(words + i * vector, x[i]);
        }
    } else if constexpr (unit == Unit::bfloat16x2) {
#pragma GCC unroll 4
        for (i64 i = 0; i < parts; i += 2) {
            const Bits first = rounded_in_order(x[i], x[i + 1]);
            write(words + i / 2 * vector, first);
            write(words + block / 2 + i / 2 * vector, rounded_in_order(rest_of(x[i], first, 0), rest_of(x[i + 1], first, vector)));
        }
    } else if constexpr (unit == Unit::bfloat16) {
        if (rounds) {
#pragma GCC unroll 4
            for (i64 i = 0; i < parts; i += 2) write(words + i / 2 * vector, rounded_in_order(x[i], x[i + 1]));
            return;
        }
#pragma GCC unroll 8
        for (i64 i = 0; i < parts; ++i) note_bfloat16(x[i], range);
        // Even and odd values of two vectors are the halves of one.
#pragma GCC unroll 4
        for (i64 i = 0; i < parts; i += 2) {
            const Bits even = shuffled(x[i], x[i + 1], [](int lane) { return 2 * lane; });
            const Bits odd = shuffled(x[i], x[i + 1], [](int lane) { return 2 * lane + 1; });
            write(words + i / 2 * vector, pair_of(even, odd));
        }
    } else {
        Bits top{}, all{};
#pragma GCC unroll 8
        for (i64 i = 0; i < parts; ++i) top = larger(top, x[i] & magnitude_mask);
        const BlockScale s = block_scale<unit>(reduced(top, [](Bits a, Bits b) { return larger(a, b); }), range);
        // Numbers in the order of the values are words of four, or of two.
#pragma GCC unroll 8
        for (i64 i = 0; i < parts; ++i) {
            const Bits q = integers_of(x[i], s, range);
            all += q;
            const Bits biased = q + (of_b ? bias_of(unit) : 0);
            if constexpr (unit == Unit::integers)
                write(words + i * vector / 4, __builtin_convertvector(biased, Bytes));
            else
                write(words + i * vector / 2, __builtin_convertvector(biased, Halves));
        }
        scale = static_cast<u32>(((Bits)s.down)[0]);
        if (!of_b) sum = static_cast<u32>(-bias_of(unit) * reduced(all, [](Bits a, Bits b) { return a + b; })[0]);
    }
}

// The same for a vector of lines: lane l of x[j] is value j of line l, and lane l of words[j] word j.
template <i64 block, Unit unit>
inline void words_of_lanes(const Bits* x, bool of_b, bool rounds, Bits* words, Bits& scale, Bits& sum, Range& range) {
    if constexpr (unit == Unit::float32) {
        for (i64 j = 0; j < block; ++j) {
            range.top = larger(range.top, x[j] & magnitude_mask);
            words[j] = x[j];
        }
    } else if constexpr (unit == Unit::bfloat16x2) {
#pragma GCC unroll 16
        for (i64 j = 0; j < block; j += 2) {
            const Terms even = terms_of(x[j]), odd = terms_of(x[j + 1]);
            words[j / 2] = pair_of(even.first, odd.first);
            words[(block + j) / 2] = pair_of(even.second, odd.second);
        }
    } else if constexpr (unit == Unit::bfloat16) {
        if (rounds) {
#pragma GCC unroll 16
            for (i64 j = 0; j < block; j += 2) words[j / 2] = rounded_pair(x[j], x[j + 1]);
            return;
        }
#pragma GCC unroll 32
        for (i64 j = 0; j < block; ++j) note_bfloat16(x[j], range);
#pragma GCC unroll 16
        for (i64 j = 0; j < block; j += 2) words[j / 2] = pair_of(x[j], x[j + 1]);
    } else {
        Bits top{};
        sum = Bits{};
#pragma GCC unroll 32
        for (i64 j = 0; j < block; ++j) top = larger(top, x[j] & magnitude_mask);
        const BlockScale s = block_scale<unit>(top, range);
        constexpr i64 together = values_in_lane(unit), bits = 32 / together;
        for (i64 j = 0; j < block; j += together) {
            Naturals word{};
#pragma GCC unroll 4
            for (i64 i = 0; i < together; ++i) {
                const Bits q = integers_of(x[j + i], s, range);
                sum += q;
                const Bits biased = q + (of_b ? bias_of(unit) : 0);
                word |= ((Naturals)biased & ((1u << bits) - 1)) << static_cast<u32>(bits * i);
            }
            words[j / together] = (Bits)word;
        }
        scale = (Bits)s.down;
        sum *= -bias_of(unit);
    }
}

// ---- words to places

// Where a window goes: to panels of b from a line and a piece of a matrix on, or to an item's panels of a.
struct Place {
    i64 matrix, line, piece;
    u32* of_item;
};

// Words of a block of a line, of which `count` values are there, with its scale and sum.
template <i64 block, Unit unit>
inline void pack_line(const Product& p, const void* from, Real type, i64 count, bool of_b, u32* words, u32& scale, u32& sum, Range& range) {
    Bits x[block / vector];
    read_values<block>(from, type, count, x);
    words_of_line<block, unit>(x, of_b, p.subtracts, words, scale, sum, range);
}

// One piece of a vector of lines, from value `start` of line `line` of the window.
template <i64 block, Unit unit, bool of_b>
inline void pack_vector(const Product& p, const Window& w, const Place& to, i64 line, i64 start, Range& range) {
    constexpr i64 lanes = block / values_in_lane(unit), lines = panel_lines(unit, of_b);
    alignas(64) u32 by_line[vector][lanes], by_lane[lanes][vector], scales[vector], sums[vector];
    const i64 count = least(block, w.count - start), there = w.lines - line;
    const void* from = at(w.values, w.type, line * w.line_step + start * w.step);
    const i64 place = to.line + line, piece = to.piece + start / block;
    u32* out = of_b ? piece_of(p, true, to.matrix, place / lines, piece) : piece_of_item(p, to.of_item, place / lines, piece);
    i64 row = place % lines;
    // A line beyond the factor has zeros, and so has every value beyond the window.
    const auto line_at = [&](i64 l) { return there > 0 ? at(from, w.type, l < there ? l * w.line_step : 0) : nullptr; };
    const auto count_at = [&](i64 l) { return l < there ? count : 0; };
    if (w.step == 1) {
        if (of_b) {
            for (i64 l = 0; l < vector; ++l) pack_line<block, unit>(p, line_at(l), w.type, count_at(l), true, by_line[l], scales[l], sums[l], range);
            turn<vector, lanes>(by_line[0], by_lane[0]);
        }
    } else {
        Bits x[block], words[lanes], scale{}, sum{};
        for (i64 j = 0; j < block; ++j)
            read_values<vector>(there > 0 ? at(from, w.type, (j < count ? j : 0) * w.step) : nullptr, w.type,
                                j < count && there > 0 ? least(vector, there) : 0, x + j);
        words_of_lanes<block, unit>(x, of_b, p.subtracts, words, scale, sum, range);
        for (i64 j = 0; j < lanes; ++j) write(by_lane[j], words[j]);
        write(scales, scale);
        write(sums, sum);
        if (!of_b) turn<lanes, vector>(by_lane[0], by_line[0]);
    }
    if constexpr (of_b) {
        // Lane by lane, whole vectors of columns; a panel has whole vectors.
        for (i64 j = 0; j < lanes; ++j) write(out + j * lines + row, read<Bits>(by_lane[j]));
        if (is_integers(unit)) write(out + lanes * lines + row, read<Bits>(scales));
        return;
    }
    // Line by line: each has its lanes side by side, and the next may begin the next panel.
    const i64 all = count_of(w.lines, lines) * lines, next = stretch(p) * piece_words(p, false);
    for (i64 l = 0; l < vector && line + l < all; ++l) {
        if (w.step == 1)
            pack_line<block, unit>(p, line_at(l), w.type, count_at(l), false, out + row * lanes, scales[l], sums[l], range);
        else
            __builtin_memcpy(out + row * lanes, by_line[l], lanes * sizeof(u32));
        if (is_integers(unit)) {
            out[lines * lanes + row] = scales[l];
            out[lines * (lanes + 1) + row] = sums[l];
        }
        if (++row < lines) continue;
        row = 0;
        out += next;
    }
}

// All pieces of a window; `all` lines are to be filled.
template <i64 block, Unit unit, bool of_b>
inline void pack_window(const Product& p, const Window& w, const Place& to, i64 all, Range& range) {
    // Along memory first: lines that follow each other, or values.
    const i64 vectors = count_of(all, vector), count = count_of(w.count, block);
    const bool along = w.step == 1;
    // Lines or values that lie apart in memory are asked for before they are needed, as where they are rounded.
    const i64 apart = along ? w.line_step : w.step, together = along ? vector : block, in_run = along ? w.count : w.lines;
    for (i64 outer = 0; outer < (along ? vectors : count); ++outer) {
        for (i64 i = (outer + 1) * together; apart != in_run && i < least((outer + 2) * together, along ? w.lines : w.count); ++i)
            prefetch<memory::nearest>(at(w.values, w.type, i * apart), in_run * size_of(w.type));
        for (i64 inner = 0; inner < (along ? count : vectors); ++inner)
            pack_vector<block, unit, of_b>(p, w, to, (along ? outer : inner) * vector, (along ? inner : outer) * block, range);
    }
}

// From what is known when the product runs to what the compiler knows. Blocks of 16 are of integers alone.
template <bool of_b>
inline void pack_by_unit(const Product& p, const Window& w, const Place& to, i64 all, Range& range) {
    if (p.unit == Unit::bfloat16) return pack_window<32, Unit::bfloat16, of_b>(p, w, to, all, range);
    if (p.unit == Unit::float32) return pack_window<32, Unit::float32, of_b>(p, w, to, all, range);
#if defined(FEWBITS_TILES)
    if (p.unit == Unit::bfloat16x2) return pack_window<32, Unit::bfloat16x2, of_b>(p, w, to, all, range);
#endif
    const bool wide = p.unit == Unit::integers16;
    if (p.block == 32 && wide) return pack_window<32, Unit::integers16, of_b>(p, w, to, all, range);
    if (p.block == 32) return pack_window<32, Unit::integers, of_b>(p, w, to, all, range);
    if (wide) return pack_window<16, Unit::integers16, of_b>(p, w, to, all, range);
    pack_window<16, Unit::integers, of_b>(p, w, to, all, range);
}

}  // namespace

// The lines of a window, or its values, lie apart in memory: some are rounded at a time, values in whole blocks, and the next
// ones asked for meanwhile, since the CPU does not see them coming. A seventh of a product of rows that were in no cache.
constexpr i64 lines_at_once = 8, values_at_once = 32;

// Rounds a window into a buffer, in the order of memory.
inline Window rounded(const Product& p, const Factor& f, const Window& w, float* buffer) {
    Quantize job{};
    job.format = *f.format;
    job.in_type = w.type;
    job.values_type = Real::f32;
    const bool along = w.step == 1;
    const Window result{buffer, Real::f32, w.lines, w.count, along ? w.count : 1, along ? 1 : w.lines};
    job.geometry.step = w.step;
    job.geometry.place_step = result.step;
    job.geometry.axes = 1;
    job.geometry.stride[0] = w.line_step;
    job.geometry.place_stride[0] = result.line_step;
    const i64 runs = along ? w.lines : w.count, in_run = along ? w.count : w.lines, apart = along ? w.line_step : w.step;
    const i64 block = has_blocks(*f.format) ? f.format->block : 1;
    const i64 together = along ? lines_at_once : block > values_at_once ? block : values_at_once;
    for (i64 run = 0; run < runs; run += together) {
        const i64 count = least(together, runs - run), next = run + count;
        for (i64 i = next; i < least(next + together, runs); ++i) prefetch<memory::nearest>(at(w.values, w.type, i * apart), in_run * size_of(w.type));
        job.geometry.n = along ? w.count : count;
        job.geometry.extent[0] = along ? count : w.lines;
        job.in = at(w.values, w.type, run * apart);
        job.values = buffer + run * in_run;
        p.kernels->quantize(job, 0, p.kernels->quantize_items(job));
    }
    return result;
}

// The lines `line` to `line + lines` of a factor, values `start` to `end - 1`: rounded in `buffer` if they are to be rounded.
inline Window window_of(const Factor& f, const Product& p, i64 matrix, i64 line, i64 lines, i64 start, i64 end, void* buffer) {
    const i64 first = matrix * f.batch_step + (lines ? line : 0) * f.line_step + start * f.step;
    const Window w{at(f.values, f.type, first), f.type, lines, end - start, f.line_step, f.step};
    return f.format && lines ? rounded(p, f, w, static_cast<float*>(buffer)) : w;
}

// Values `start` to `end - 1` of a window of a, of one stretch, to the panels of an item.
inline void pack_rows(const Product& p, const Window& w, i64 start, i64 end, u32* panels, Range& range) {
    const Window part{at(w.values, w.type, start * w.step), w.type, w.lines, end - start, w.line_step, w.step};
    const i64 height = panel_lines(p, false);
    pack_by_unit<false>(p, part, {0, 0, 0, panels}, count_of(w.lines, height) * height, range);
}

// The values of a span that are packed, in whole blocks of a format that they are rounded to.
struct Values {
    i64 first, last;
};
inline Values values_of(const Product& p, const Factor& f, panels::Span span) {
    const i64 together = f.format && has_blocks(*f.format) && f.format->block > p.block ? f.format->block : p.block;
    return {span.first * p.block / together * together, least(count_of(span.last * p.block, together) * together, p.k)};
}

// Bytes that a window takes which is rounded.
inline i64 window_bytes(const Product& p) { return rows_in_item(p.unit) * window_values * i64{sizeof(float)}; }
static_assert(window_lines + panel_lines(Unit::integers, true) <= rows_in_item(Unit::integers));
static_assert(window_lines + panel_lines(Unit::float32, true) <= rows_in_item(Unit::float32));

inline BlockRange range_of(const Range& range) {
    BlockRange met{infinity_bits, 0, true, true};
    for (i64 l = 0; l < vector; ++l) {
        met.least = range.least[l] < met.least ? range.least[l] : met.least;
        met.largest = range.largest[l] > met.largest ? range.largest[l] : met.largest;
        met.whole &= (range.wrong[l] & magnitude_mask) == 0;
        met.finite &= range.top[l] < infinity_bits;
    }
    return met;
}

namespace {  // of this file alone

// Windows that cover all lines of all panels of a factor; the last may reach beyond it.
inline i64 lines_in_panels(const Product& p, bool of_b) { return panels_of(p, of_b) * panel_lines(p, of_b); }
inline i64 lines_in_window(const Product& p, bool of_b) {
    const i64 width = panel_lines(p, true);
    return of_b ? count_of(window_lines, width) * width : rows_in_item(p.unit);
}

}  // namespace

i64 pack_workspace(const Product& p) { return window_bytes(p); }

i64 pack_items(const Product& p, bool of_b) {
    if (!of_b && !is_wide(p)) return 0;
    return p.batch * count_of(lines_in_panels(p, of_b), lines_in_window(p, of_b)) * count_of(p.k, window_values);
}

// Items are windows of a factor, along the lines first.
BlockRange pack(const Product& p, bool of_b, void* workspace, i64 first, i64 last) {
    const i64 all = lines_in_panels(p, of_b), high = lines_in_window(p, of_b);
    const i64 along = count_of(p.k, window_values), in_matrix = count_of(all, high) * along;
    const Factor& f = of_b ? p.b : p.a;
    Range range;
    for (i64 item = first; item < last; ++item) {
        const i64 matrix = item / in_matrix, line = item % in_matrix / along * high, place = item % along * window_values;
        // Beyond the diagonal of b nothing is read, but what any line of a panel needs: none is in two windows. a is packed here for
        // several items, which need all of it.
        const i64 needed = of_b ? values_of(p, f, panels::span_of(p, 0, p.a.lines, line)).first : 0;
        const i64 start = needed > place ? needed : place, end = least(place + window_values, p.k);
        if (start >= end) continue;
        // The last panel may have no line of its own in this window: then all of it is zeros.
        const i64 lines = least(high, f.lines > line ? f.lines - line : 0);
        const Window w = window_of(f, p, matrix, line, lines, start, end, workspace);
        if (of_b) pack_by_unit<true>(p, w, {matrix, line, start / p.block, nullptr}, least(high, all - line), range);
        for (i64 from = 0; !of_b && from < w.count; from += stretch(p) * p.block)
            pack_rows(p, w, from, least(from + stretch(p) * p.block, w.count), piece_of(p, false, matrix, line / panel_lines(p, false), (start + from) / p.block), range);
    }
    return range_of(range);
}

}  // namespace pack
