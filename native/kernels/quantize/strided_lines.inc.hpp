// Conversion of lines side by side, where the values of one line lie far apart in memory and those of neighbouring
// lines close together: a strip of lines advances row by row, each lane of a vector in a line of its own.
#pragma once

#include "kernels/quantize/block_scales.inc.hpp"
#include "kernels/quantize/contiguous_lines.inc.hpp"
#include "kernels/quantize/finite_vectors.inc.hpp"
#include "kernels/quantize/prepared.inc.hpp"
#include "kernels/quantize/tiles.inc.hpp"
#include "kernels/values/blocks.inc.hpp"
#include "kernels/values/lines.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/packing.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/scales.inc.hpp"
#include "kernels/values/strips.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace strided_lines {

using block_scales::choose_scales;
using contiguous_lines::input;
using finite_vectors::is_plain, finite_vectors::round_pairs_of_rows;
using prepared::Buffers, prepared::PreparedQuantize;
using tiles::overwrite, tiles::round_tile;
using blocks::fill;
using lines::divisible, lines::outer_of_each_line, lines::whole_of;
using memory::at, memory::prefetch, memory::size_of, memory::store;
using numbers::Bits, numbers::bits_of, numbers::clamp, numbers::exponent_mask, numbers::float_of,
    numbers::Naturals, numbers::infinity_bits, numbers::larger, numbers::least, numbers::magnitude_mask, numbers::one_bits,
    numbers::tile, numbers::vector;
using packing::pack, packing::pack_each;
using rounding::is_fixed;
using scales::Outer, scales::outer_of;
using strips::Strip, strips::strip_of, strips::strips_in;
using vectors::larger, vectors::read, vectors::write;

namespace {  // of this file alone

// Lines in one strip. A lane is a line, so scales, shifts and flags have one place for each lane in the same buffers
// that hold one for each block elsewhere.
constexpr i64 lanes = tile;
constexpr i64 rows_together = 8;  // eight codes fill whole bytes, whatever their width
constexpr i64 rows_in_item = 64;
constexpr i64 staged_bytes = 64;  // of each lane, a line of the cache
constexpr i64 lines_ahead = 16;   // of the packed part

// Rows of a strip that one item covers.
inline i64 rows_of_item(const PreparedQuantize& p) {
    const Format& f = p.f;
    i64 rows = has_blocks(f) ? f.block : rows_in_item;
    // Codes of as many blocks as fill a line of the cache.
    if (!p.values && rows * bits_of_element(f) < staged_bytes * 8) rows *= staged_bytes * 8 / (rows * bits_of_element(f));
    // A part goes out eight codes at a time, so an item has to begin at such a place in each of them.
    const i64 codes = f.scales == Scales::shifted ? rows / f.sub_block : rows;
    const bool cut = !outer_of_each_line(f) && (p.values || (codes % rows_together == 0 && divisible(f, rows)));
    return cut ? rows : p.g.n;
}

}  // namespace

inline i64 items_of_strided(const PreparedQuantize& p) {
    return p.g.n == 0 ? 0 : strips_in(p.g, lanes) * count_of(p.g.n, rows_of_item(p));
}

namespace {  // of this file alone

// Row r of a strip: value r of each of its lines, as float32.
inline const float* row(const PreparedQuantize& p, const Strip& s, i64 r, float* buffer) {
    return input(p, s.line.in + r * p.g.step, s.stride, s.count, buffer);
}

// Largest finite magnitudes of the rows `from` to `to`, and which lanes hold something that is not finite; returns whether none
// does.
inline bool measure_lanes(const PreparedQuantize& p, Buffers& t, const Strip& s, i64 from, i64 to) {
    for (i64 i = 0; i < s.count; ++i) t.largest[i] = 0;
    for (i64 r = from; r < to; ++r) {
        const float* x = row(p, s, r, t.x);
        // No processor foresees a row: the next one is asked for, and the room for the results of this one.
        const void* next = at(p.job.in, p.job.in_type, s.line.in + (r + 1) * p.g.step);
        const void* results = p.values ? at(p.job.values, p.job.values_type, s.line.place + r * p.g.place_step) : next;
        // Two prefetches and a maximum for each vector; the loop is bound by memory.
        const auto *ask = static_cast<const char*>(next), *ask_results = static_cast<const char*>(results);
        const i64 step = vector * size_of(p.job.in_type), step_of_results = vector * size_of(p.values ? p.job.values_type : p.job.in_type);
        i64 i = 0;
        for (; i + vector <= s.count; i += vector, ask += step, ask_results += step_of_results) {
            prefetch(ask, 1);
            __builtin_prefetch(ask_results, 1);
            write(t.largest + i, larger(read<Bits>(t.largest + i), read<Bits>(x + i) & magnitude_mask));
        }
        for (; i < s.count; ++i) t.largest[i] = larger(t.largest[i], bits_of(x[i]) & magnitude_mask);
    }
    // An exponent field of all ones anywhere makes a second pass over the finite values.
    i32 top = 0;
    for (i64 i = 0; i < s.count; ++i) top = larger(top, t.largest[i]);
    for (i64 i = 0; i < s.count; ++i) t.bad[i] = t.largest[i] >= infinity_bits;
    if (top < infinity_bits) return true;
    for (i64 i = 0; i < s.count; ++i) t.largest[i] = 0;
    for (i64 r = from; r < to; ++r) {
        const float* x = row(p, s, r, t.x);
        for (i64 i = 0; i < s.count; ++i) {
            const i32 magnitude = bits_of(x[i]) & magnitude_mask;
            t.largest[i] = larger(t.largest[i], magnitude < infinity_bits ? magnitude : 0);
        }
    }
    return false;
}

// Codes of eight rows, lane beside lane, that wait until they fill whole bytes; these wait in their turn for a line of the
// cache. Lines of the packed part may lie a power of two apart, so that a store to each of them evicts the one before.
struct Waiting {
    i32 rows[rows_together][lanes];
    u8 staged[lanes][staged_bytes + sizeof(u64)];
    i64 bytes;  // staged of each lane
};

// Copies what is staged to `out`, of the first lane.
inline void write_staged(Waiting& waiting, u8* out, i64 count, i64 line_bytes) {
    // A known size is one store, and the lines of later ones are asked for: no processor foresees them.
    if (waiting.bytes == staged_bytes)
        for (i64 i = 0; i < count; ++i) {
            __builtin_prefetch(out + least(i + lines_ahead, count - 1) * line_bytes, 1);
            __builtin_memcpy(out + i * line_bytes, waiting.staged[i], staged_bytes);
        }
    else
        for (i64 i = 0; i < count; ++i) __builtin_memcpy(out + i * line_bytes, waiting.staged[i], static_cast<u64>(waiting.bytes));
    waiting.bytes = 0;
}

// Adds row r of a line; the bytes go out where a line of the cache is full and after the last row.
inline void add_row(Waiting& waiting, const i32* codes, const Strip& s, i64 r, bool last, i32 bits, u8* part,
                    i64 line_bytes) {
    // Rows wait transposed: eight codes of one lane lie in eight rows at the same place.
    i32* kept = waiting.rows[r % rows_together];
    for (i64 i = 0; i < s.count; ++i) kept[i] = codes[i];
    const i64 n = r % rows_together + 1;
    if (n < rows_together && !last) return;
    u8* out = part + s.line.number * line_bytes + r / rows_together * bits;
    if (n == rows_together && bits <= 8) {
        // Eight codes of a lane in one word, least bits first, as the packed part has them. A word is staged whole: what lies
        // above its `bits` bytes the next one overwrites. Lanes beyond the strip have room, and codes of no meaning.
        for (i64 i = 0; i < s.count; i += vector) {
            Naturals halves[2]{};
#pragma GCC unroll 4
            for (i64 j = 0; j < rows_together / 2; ++j)
                for (i64 h = 0; h < 2; ++h) halves[h] |= read<Naturals>(waiting.rows[j + h * rows_together / 2] + i) << static_cast<u32>(j * bits);
            alignas(64) u32 low[vector], high[vector];
            write(low, halves[0]);
            write(high, halves[1]);
            for (i64 l = 0; l < vector; ++l) {
                const u64 word = low[l] | static_cast<u64>(high[l]) << (4 * bits);
                __builtin_memcpy(waiting.staged[i + l] + waiting.bytes, &word, sizeof word);
            }
        }
        waiting.bytes += bits;
        const i64 before = waiting.bytes - bits;
        if (last || waiting.bytes + bits > staged_bytes) write_staged(waiting, out - before, s.count, line_bytes);
        return;
    }
    if (waiting.bytes) write_staged(waiting, out - waiting.bytes, s.count, line_bytes);
    for (i64 i = 0; i < s.count; ++i) {
        // Wider codes, or the last rows of a line: lane by lane.
        i32 line[rows_together];
        for (i64 j = 0; j < n; ++j) line[j] = waiting.rows[j][i];
        pack_each(line, n, bits, out + i * line_bytes, 0);
    }
}

// What a block keeps for each lane while its rows pass.
struct alignas(64) ColumnBuffers {
    float divisor[lanes], multiplier[lanes], gain[lanes];
    Waiting codes, shifts;
};

// One over the finest step that the rows of a sub-block share in each lane: t.a and t.b as shift_line leaves them.
inline void shift_lanes(const PreparedQuantize& p, Buffers& t, const ColumnBuffers& c, const Strip& s, i64 from, i64 to) {
    // A shift is kept in the place of an exponent field, so that adding it to the bits of 1.0 makes a power of two.
    const i32 most_shift = p.f.largest_shift << 23;
    for (i64 i = 0; i < s.count; ++i) t.largest[i] = 0;
    for (i64 r = from; r < to; ++r) {
        const float* x = row(p, s, r, t.x);
        for (i64 i = 0; i < s.count; ++i) {
            const i32 magnitude = bits_of(x[i]) & magnitude_mask;
            const float finite = float_of(magnitude < infinity_bits ? magnitude : 0);
            t.largest[i] = larger(t.largest[i], bits_of(finite * c.divisor[i]));
        }
    }
    for (i64 i = 0; i < s.count; ++i) {
        const i32 shift = clamp(one_bits - (t.largest[i] & exponent_mask), 0, most_shift);
        t.a[i] = float_of(one_bits + shift);
        t.b[i] = c.multiplier[i] * float_of(one_bits - shift);
        t.shifts[i] = shift >> 23;
    }
}

// Where row r of the results is rounded to: in place, or in a buffer that emit_row stores.
inline float* row_of_values(const PreparedQuantize& p, const Strip& s, i64 r, float* buffer) {
    const bool direct = p.job.values_type == Real::f32 && s.place_stride == 1;
    return direct ? static_cast<float*>(p.job.values) + s.line.place + r * p.g.place_step : buffer;
}

// Stores a row that was rounded in a buffer.
inline void emit_row(const PreparedQuantize& p, const Strip& s, i64 r, const float* values, const float* buffer) {
    if (values == buffer)
        store(at(p.job.values, p.job.values_type, s.line.place + r * p.g.place_step), p.job.values_type, s.place_stride,
              s.count, values);
}

// Rounds one row: each lane with the scale of its line in t.a and t.b.
inline void round_row(const PreparedQuantize& p, Buffers& t, ColumnBuffers& c, const Strip& s, i64 r, bool finite) {
    const Format& f = p.f;
    const float* x = row(p, s, r, t.x);
    const float *w = x, *a = t.a, *b = t.b;
    if (f.scales == Scales::shifted) {
        for (i64 i = 0; i < s.count; ++i) {
            const i32 magnitude = bits_of(x[i]) & magnitude_mask, u = bits_of(float_of(magnitude) * c.divisor[i]);
            // What is too small for float32 but not zero becomes the smallest: directed rounding has to see it.
            t.w[i] = float_of(u == 0 ? magnitude != 0 : u);
        }
        w = t.w;
    } else if (f.scales == Scales::none) {
        a = b = t.ones;
    }
    const i64 place = s.line.place + r * p.g.place_step;
    float* values = p.values ? row_of_values(p, s, r, t.values) : t.values;
    round_tile(p, t, x, w, a, b, finite, place, s.place_stride, values, t.codes, s.count);
    // Lanes of bad blocks are overwritten after rounding, one by one.
    if (f.scales != Scales::none && f.nonfinite == Nonfinite::block_nan && (!finite || f.whole_bad))
        for (i64 i = 0; i < s.count; ++i)
            if (t.bad[i]) overwrite(p, values + i, t.codes + i, 1);
    if (p.values) emit_row(p, s, r, values, t.values);
}

// Two rows whose values are pairs with a shift of their own, in one pass; returns false, with nothing done, for others.
inline bool round_pair(const PreparedQuantize& p, Buffers& t, const ColumnBuffers& c, const Strip& s, i64 r, i64 rows, bool finite) {
    // To values, to nearest, both rows there, fixed-point elements, whole vectors.
    const bool fits = p.in_vectors && finite && p.values && !p.stochastic && rows == 2 && is_fixed(p.f.grid) && s.count % vector == 0;
    if (!fits) return false;
    const float* x[2] = {row(p, s, r, t.x), row(p, s, r + 1, t.w)};
    float* values[2] = {row_of_values(p, s, r, t.values), row_of_values(p, s, r + 1, t.b)};
    const auto round = is_plain(p.element) ? round_pairs_of_rows<true> : round_pairs_of_rows<false>;
    round(p.element, x, c.divisor, c.multiplier, p.f.largest_shift << 23, values, s.count);
    emit_row(p, s, r, values[0], t.values);
    emit_row(p, s, r + 1, values[1], t.b);
    return true;
}

// The rows `from` to `to` of a strip; returns whether all values are finite.
inline bool quantize_strip(const PreparedQuantize& p, Buffers& t, const Strip& s, i64 from, i64 to) {
    const Format& f = p.f;
    const LineBytes bytes = line_bytes(f, p.g.n);
    const i64 size = has_blocks(f) ? f.block : rows_in_item, sub = f.scales == Scales::shifted ? f.sub_block : size;
    ColumnBuffers c;
    c.codes.bytes = c.shifts.bytes = 0;
    bool all_finite = true;
    // Without a second level the outer gain is one.
    fill(c.gain, 1.0f, lanes);
    if (p.two_level) {
        if (!f.whole_known) measure_lanes(p, t, s, 0, p.g.n);
        for (i64 i = 0; i < s.count; ++i) {
            const Outer outer = outer_of(f, f.whole_known ? whole_of(f) : float_of(t.largest[i]));
            c.gain[i] = outer.gain;
            t.outer[i] = outer.scale;
            if (!p.values && !f.whole_known) p.job.outer[s.line.number + i] = outer.scale;
        }
    }
    for (i64 start = from; start < to; start += size) {
        const i64 end = least(to, start + size);
        // Down the rows of the block once for its maxima, then again to round them: with blocks of a usual size a strip
        // of 1,024 lanes stays in the second cache between both.
        const bool finite = measure_lanes(p, t, s, start, end);
        all_finite &= finite;
        // One scale for the array: every lane takes the maximum that was measured before.
        if (one_scale(f)) {
            for (i64 i = 0; i < s.count; ++i) t.largest[i] = bits_of(whole_of(f));
            for (i64 i = 0; i < s.count; ++i) t.bad[i] = f.whole_bad;
        }
        if (f.scales != Scales::none) {
            choose_scales(p, t, s.count, c.gain, 1, false);
            for (i64 i = 0; i < s.count; ++i) {
                // Kept in c besides: shifts overwrite t.a and t.b.
                t.a[i] = c.divisor[i] = t.divisor[i];
                t.b[i] = c.multiplier[i] = t.multiplier[i];
            }
            if (has_blocks(f) && !p.values && f.scale_bits == 8)
                for (i64 i = 0; i < s.count; ++i)
                    p.job.scales[(s.line.number + i) * bytes.scales + start / size] = static_cast<u8>(t.scales[i]);
            else if (has_blocks(f) && !p.values)
                for (i64 i = 0; i < s.count; ++i)
                    pack(t.scales + i, 1, f.scale_bits, p.job.scales + (s.line.number + i) * bytes.scales, start / size);
        }
        // Sub-blocks share a shift, rows within one are rounded alike; without shifts a block is one of them.
        for (i64 part = start; part < end; part += sub) {
            const i64 part_end = least(end, part + sub);
            if (f.scales == Scales::shifted) {
                // Two rows in one pass: each value is read once and nothing is stored between.
                if (round_pair(p, t, c, s, part, part_end - part, finite)) continue;
                shift_lanes(p, t, c, s, part, part_end);
                if (!p.values && f.shift_bits)
                    add_row(c.shifts, t.shifts, s, part / sub, part_end == to, f.shift_bits, p.job.shifts,
                            bytes.shifts);
            }
            for (i64 r = part; r < part_end; ++r) {
                round_row(p, t, c, s, r, finite);
                if (!p.values)
                    add_row(c.codes, t.codes, s, r, r + 1 == to, bits_of_element(f), p.job.codes, bytes.codes);
            }
        }
    }
    return all_finite;
}

}  // namespace

// Items first to last - 1; returns whether all values were finite.
inline bool quantize_strided(const PreparedQuantize& p, Buffers& t, i64 first, i64 last) {
    const i64 rows = rows_of_item(p), in_strip = count_of(p.g.n, rows);
    bool finite = true;
    for (i64 item = first; item < last; ++item) {
        const i64 from = item % in_strip * rows;
        finite &= quantize_strip(p, t, strip_of(p.g, item / in_strip, lanes), from, least(p.g.n, from + rows));
    }
    return finite;
}

}  // namespace strided_lines
