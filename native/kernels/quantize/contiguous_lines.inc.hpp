// Conversion of lines one after the other, a tile at a time.
#pragma once

#include "kernels/quantize/block_magnitudes.inc.hpp"
#include "kernels/quantize/block_scales.inc.hpp"
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
#include "kernels/values/stochastic_draws.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace contiguous_lines {

using block_magnitudes::measure_blocks;
using block_scales::choose_scales, block_scales::gather_pairs, block_scales::shift_line;
using finite_vectors::Result, finite_vectors::RoundVectors, finite_vectors::Scaling, finite_vectors::VectorRounding,
    finite_vectors::fixed_quotients_for, finite_vectors::is_plain, finite_vectors::own, finite_vectors::unscaled_for, finite_vectors::values_beyond, finite_vectors::vectors_for, finite_vectors::whole;
using prepared::Buffers, prepared::PreparedQuantize, prepared::drawn_spinors;
using tiles::nontemporal, tiles::overwrite, tiles::replace_nonfinite, tiles::round_signs, tiles::round_tile,
    tiles::zero_nonfinite;
using blocks::fill, blocks::spread_blocks;
using lines::Line, lines::divisible, lines::line_of, lines::outer_of_each_line, lines::tile_of, lines::whole_of;
using memory::at, memory::load, memory::prefetch, memory::size_of, memory::store;
using numbers::Bits, numbers::Reals, numbers::bits_of, numbers::float_of, numbers::infinity_bits, numbers::least,
    numbers::long_tile, numbers::tile, numbers::vector, numbers::vector_bytes;
using packing::joined, packing::pack;
using rounding::is_fixed, rounding::pack_signs;
using scales::Measured, scales::Outer, scales::is_finite, scales::outer_of, scales::see;
using stochastic_draws::draw;
using vectors::larger, vectors::largest_lane, vectors::read, vectors::starts_vector, vectors::store_nontemporal, vectors::write;

namespace {  // of this file alone

// The part of a line that one item of work covers; all of it where a cut would share bytes or scales.
constexpr i64 tiles_in_item = 8;

// Values of a line, at most, that caches still hold when it is rounded after it was measured.
constexpr i64 kept_line = 16 * tile;

}  // namespace

// Values of a line in one item.
inline i64 values_in_item(const PreparedQuantize& p) {
    const Format& f = p.f;
    // A line cannot be cut where its outer scale has to be measured first, where a block is longer than a tile, or
    // where two items would write into one byte.
    const bool whole_line = outer_of_each_line(f) || (has_blocks(f) && f.block > p.tile) ||
                            (!p.values && !divisible(f, tile_of(f, p.tile)));
    return whole_line ? p.g.n : tiles_in_item * tile_of(f, p.tile);
}

inline i64 items_of_contiguous(const PreparedQuantize& p) {
    return p.g.n == 0 ? 0 : lines_in(p.g) * count_of(p.g.n, values_in_item(p));
}

// n values of the input from `index` on, read in place where that is possible.
inline const float* input(const PreparedQuantize& p, i64 index, i64 step, i64 n, float* buffer) {
    const void* from = at(p.job.in, p.job.in_type, index);
    const bool replace = p.f.nonfinite == Nonfinite::saturate;
    // The common case copies nothing: float32, side by side.
    if (p.job.in_type == Real::f32 && step == 1 && !replace) return static_cast<const float*>(from);
    load(from, p.job.in_type, step, n, buffer);
    if (replace) replace_nonfinite(buffer, n, p.job.in_type);
    return buffer;
}

namespace {  // of this file alone

// Asks for the beginning of the next line while one is measured, for which memory would else do nothing.
[[gnu::always_inline]] inline void ask_for_next(const PreparedQuantize& p, i64 in, i64 start, i64 n) {
    constexpr i64 part = 4;  // of it: asked for twice, a larger one would keep memory waiting while the line is rounded
    if (p.g.n <= kept_line) prefetch(at(p.job.in, p.job.in_type, in + p.g.n * p.g.step + start / part), n / part * size_of(p.job.in_type));
}

// A stretch of a line.
inline Measured measure(const PreparedQuantize& p, Buffers& t, i64 in, i64 n) {
    Measured m{0, false};
    for (i64 start = 0; start < n; start += tile) {
        const i64 count = least(tile, n - start);
        ask_for_next(p, in, start, count);
        see(m, input(p, in + start * p.g.step, p.g.step, count, t.x), count);
    }
    return m;
}

// The largest magnitudes of all blocks of a line, and its own, from which its outer scale is chosen. Returns false where they are
// too many, or something is not finite.
inline bool measure_line(const PreparedQuantize& p, Buffers& t, i64 in, i64 most_values, i32& largest) {
    const i64 size = p.f.block, n = p.g.n;
    if (count_of(n, size) > long_tile) return false;
    Bits top{};
    for (i64 start = 0; start < n; start += most_values) {
        const i64 count = least(most_values, n - start), blocks = count_of(count, size);
        const float* x = input(p, in + start * p.g.step, p.g.step, count, t.x);
        ask_for_next(p, in, start, count);
        if (!measure_blocks(t, x, count, size, blocks)) return false;
        // Whole vectors, which end in zeros.
        for (i64 j = 0; j < blocks; j += vector) {
            const Bits of_blocks = read<Bits>(t.largest + j);
            top = larger(top, of_blocks);
            write(t.of_line + start / size + j, of_blocks);
        }
    }
    largest = largest_lane(top);
    return true;
}

// The scales of the blocks of one tile, or of a longer block that goes on through many, beside each of its values.
inline void spread_scales(const PreparedQuantize& p, Buffers& t, bool tiled, i64 n) {
    spread_blocks(t.divisor, n, tiled ? p.f.block : n, t.a);
    spread_blocks(t.multiplier, n, tiled ? p.f.block : n, t.b);
}

// Where the results of a tile go.
struct Target {
    float* values;
    u8 *codes, *end, *shifts;  // packed: where the tile begins, and where the bytes of others begin; null if within a byte
};

// That of a tile at `start`, in a call that writes its line up to value `end`.
inline Target target_of(const PreparedQuantize& p, const Line& line, const LineBytes& bytes, i64 start, i64 end, float* values) {
    Target to{values, nullptr, nullptr, nullptr};
    const i32 bits = bits_of_element(p.f);
    if (p.values || start % 16) return to;
    to.codes = p.job.codes + line.number * bytes.codes + start / 8 * bits;
    to.end = p.job.codes + line.number * bytes.codes + end * bits / 8;
    if (p.f.scales == Scales::shifted) to.shifts = p.job.shifts + line.number * bytes.shifts + start / 16;
    return to;
}

// How far ahead memory is asked for; where lines of no great length are measured before they are rounded, a line.
inline i64 asked_ahead(const PreparedQuantize& p) {
    const bool by_line = outer_of_each_line(p.f) || (has_blocks(p.f) && p.f.block > p.tile);
    return by_line && p.g.n <= kept_line ? p.g.n : p.tile + values_beyond;
}

// Draws for a few values, then rounds them, and so on: what draws take and what memory takes then pass together, where
// all draws first would let memory wait. `per` values share a scale. Draws are indexed by the place of a value in the C order
// of the array, so that cutting changes none.
inline void round_in_pieces(const PreparedQuantize& p, Buffers& t, RoundVectors round, VectorRounding q, i64 place, i64 per) {
    const i64 piece = per == 24 ? drawn_spinors : 256;  // of whole blocks, and of all draws of their counters
    const i64 bits = bits_of_element(p.f), n = q.n;
    for (i64 at = 0; at < n; at += q.n) {
        // The last piece is longer, as too short a one could not be packed.
        q.n = n - at < 2 * piece ? n - at : piece;
        draw(p.f.seed, p.f.random_bits, place + at * p.g.place_step, p.g.place_step, q.n, t.draws, &q.draws);
        round(p.element, q);
        q.x += q.n, q.w += q.n, q.a += q.n / per, q.b += q.n / per;
        if (p.values) q.values += q.n;
        else q.packed += q.n * bits / 8;
        if (q.shifts) q.shifts += q.n / 16;
    }
}

// Rounds a tile in registers from its values to its results, packed codes too; returns false, with nothing done, where
// that is not possible.
inline bool round_in_registers(const PreparedQuantize& p, Buffers& t, const float* x, float outer, i64 place, const Target& to, i64 n,
                               i64 blocks, bool tiled) {
    const Format& f = p.f;
    // One bit says on which side of zero a value lies.
    if (p.by_sign && !p.stochastic && !tiled && to.codes && bits_of_element(f) == 1 && f.table.codes[0] == 1 && n % 32 == 0) {
        pack_signs(x, t.divisor[0], to.codes, asked_ahead(p), n);
        return true;
    }
    if (!p.in_vectors && !p.unscaled) return false;
    // Pairs share a shift of at most one of fixed-point elements: MX9, MX6 and MX4 of BDR.
    const bool pairs = f.scales == Scales::shifted;
    if (pairs && (f.sub_block != 2 || f.largest_shift != 1 || !tiled || !is_fixed(f.grid) || !is_plain(p.element))) return false;
    if (!p.values && (!p.joins || !to.codes || n < joined)) return false;
    // Whole blocks of a usual size have the scale of each in a register.
    const bool usual = tiled && n == blocks * f.block && (f.block == 32 || f.block == 16);
    if (n % 16 || (pairs && !usual)) return false;
    // Larger ones are several of 32 with the same scale; those of spinors, of fixed point, are three vectors of 8, or one and a half of 16.
    const bool whole_blocks = tiled && !usual && n == blocks * f.block, several = whole_blocks && f.block % 32 == 0;
    const bool spinors = vector >= 8 && whole_blocks && f.block == 24 && p.real && !p.two_level && is_fixed(f.grid) && !p.unscaled;
    const i64 per = several ? 32 : usual || spinors ? f.block : tiled ? 1 : n;
    if (several) {
        spread_blocks(t.divisor, n / 32, f.block / 32, t.a);
        spread_blocks(t.multiplier, n / 32, f.block / 32, t.b);
    } else if (per == 1) {
        spread_scales(p, t, tiled, n);
    }
    // Packed codes go past the caches by way of a buffer, a line of a cache at a time.
    const i64 bytes = n * bits_of_element(f) / 8;
    const bool streamed = p.job.nontemporal && to.codes && bytes % vector_bytes == 0 && starts_vector(to.codes);
    VectorRounding q{
        .x = x,
        .w = x,
        .a = f.scales == Scales::none ? t.ones : usual || spinors || !tiled ? t.divisor : t.a,
        .b = f.scales == Scales::none ? t.ones : usual || spinors || !tiled ? t.multiplier : t.b,
        .outer = outer,
        .draws = nullptr,
        .n = n,
        .ahead = asked_ahead(p),
        .values = to.values,
        .nontemporal = nontemporal(p, t, to.values),
        .codes = nullptr,
        .joining = &p.joining,
        .packed = streamed ? t.packed : to.codes,
        .end = streamed ? t.packed + sizeof t.packed : to.end,
        .shifts = to.shifts,
    };
    const Scaling scaling = !p.real ? Scaling::powers : p.two_level ? Scaling::two_levels : Scaling::quotients;
    const auto chosen = [&](auto values, auto packed) {
        return (p.values ? values : packed)(p.element, is_fixed(f.grid), scaling, p.stochastic, pairs);
    };
    const auto spinors_for = [&]() -> RoundVectors {
        if constexpr (vector >= 8) return (p.values ? fixed_quotients_for<24, Result::values> : fixed_quotients_for<24, Result::packed>)(p.element, p.stochastic);
        else return nullptr;
    };
    const auto round = p.unscaled ? (p.values ? unscaled_for<Result::values> : unscaled_for<Result::packed>)(p.element, p.same, p.stochastic)
                       : spinors  ? spinors_for()
                       : !tiled   ? chosen(vectors_for<whole, Result::values>, vectors_for<whole, Result::packed>)
                       : per == 1 ? chosen(vectors_for<own, Result::values>, vectors_for<own, Result::packed>)
                       : per == 32 ? chosen(vectors_for<32, Result::values>, vectors_for<32, Result::packed>)
                                   : chosen(vectors_for<16, Result::values>, vectors_for<16, Result::packed>);
    if (!p.stochastic) round(p.element, q);
    else round_in_pieces(p, t, round, q, place, per);
    if (streamed)
        for (i64 i = 0; i < bytes; i += vector_bytes) store_nontemporal(to.codes + i, read<Reals>(t.packed + i));
    return true;
}

// Rounds any tile.
inline void round_general(const PreparedQuantize& p, Buffers& t, const float* x, float outer, bool finite, bool tiled, i64 place, float* values, i64 n) {
    const Format& f = p.f;
    // What is rounded is |w| a, and b takes an element back; see Buffers.
    const float *w = x, *a = t.a, *b = t.b;
    if (p.by_sign && finite && !tiled) return round_signs<true>(p, t, x, t.divisor, t.multiplier, place, p.g.place_step, values, t.codes, asked_ahead(p), n);
    spread_scales(p, t, tiled, n);
    if (p.two_level) fill(t.outer, outer, n);
    if (f.scales == Scales::none) a = b = t.ones;
    if (f.scales == Scales::shifted) {
        if (!finite) x = zero_nonfinite(x, n, t.x);  // shifts follow the finite values of a block
        shift_line(f, t, x, n, !p.values);
        w = t.w;
        a = t.ones;
    }
    round_tile(p, t, x, w, a, b, finite, place, p.g.place_step, values, t.codes, n);
}

// The scale of a block that goes on through many tiles, chosen once.
inline void scale_long_block(const PreparedQuantize& p, Buffers& t, Measured m, const Outer& outer) {
    t.largest[0] = m.largest;
    t.bad[0] = m.bad;
    choose_scales(p, t, 1, &outer.gain, 0, false);
}

// Takes a tile from the buffers to where it belongs: stored as values, or packed. Values that were rounded in place are
// there already.
inline void emit(const PreparedQuantize& p, const Line& line, const LineBytes& bytes, const Buffers& t, i64 start, i64 n,
                 const float* values) {
    const Format& f = p.f;
    if (p.values) {
        // Where the first value of the tile lies in the result, which also numbers its draws.
        const i64 place = line.place + start * p.g.place_step;
        void* out = at(p.job.values, p.job.values_type, place);
        if (out != values) store(out, p.job.values_type, p.g.place_step, n, values);
        return;
    }
    pack(t.codes, n, bits_of_element(f), p.job.codes + line.number * bytes.codes, start);
    if (f.scales == Scales::shifted && f.shift_bits)
        pack(t.shifts, count_of(n, f.sub_block), f.shift_bits, p.job.shifts + line.number * bytes.shifts,
             start / f.sub_block);
}

}  // namespace

// What the whole array shares is written by whoever does the first item.
inline void write_shared(const PreparedQuantize& p, Buffers& t) {
    if (p.values || !p.f.whole_known) return;
    const Outer outer = outer_of(p.f, whole_of(p.f));
    if (p.two_level) {
        p.job.outer[0] = outer.scale;
    } else if (one_scale(p.f)) {
        scale_long_block(p, t, {bits_of(whole_of(p.f)), p.f.whole_bad}, outer);
        pack(t.scales, 1, p.f.scale_bits, p.job.scales, 0);
    }
}

namespace {  // of this file alone

// The values `from` to `to` of one line; returns whether all of them are finite.
inline bool quantize_line(const PreparedQuantize& p, Buffers& t, const Line& line, i64 from, i64 to) {
    const Format& f = p.f;
    const LineBytes bytes = line_bytes(f, p.g.n);
    // Tiles hold whole blocks, so that a block is measured and rounded while it is in the nearest cache.
    const i64 most_values = tile_of(f, p.tile);
    const bool blocks = has_blocks(f), tiled = blocks && f.block <= p.tile;
    const i64 most_blocks = tiled ? most_values / f.block : 1;
    Outer outer{1.0f, 1.0f};
    bool measured = false;  // all blocks of the line, before
    if (p.two_level) {
        // Where the largest magnitude of the line itself decides, this is a pass of its own.
        i32 largest;
        measured = tiled && outer_of_each_line(f) && measure_line(p, t, line.in, most_values, largest);
        outer = outer_of(f, f.whole_known ? whole_of(f) : float_of(measured ? largest : measure(p, t, line.in, p.g.n).largest));
        if (!p.values && !f.whole_known) p.job.outer[line.number] = outer.scale;
    }
    if (one_scale(f)) scale_long_block(p, t, {bits_of(whole_of(f)), f.whole_bad}, outer);
    // Results go straight to memory where they are float32 and side by side.
    const bool direct = p.values && p.job.values_type == Real::f32 && p.g.place_step == 1;
    bool all_finite = true;
    i64 end = tiled || !blocks ? to : from;  // of the long block that is worked on
    for (i64 start = from, n; start < to; start += n) {
        // A long block begins: measured to its end, which the next tiles then share.
        if (start == end) {
            end = least(to, start + f.block);
            scale_long_block(p, t, measure(p, t, line.in + start * p.g.step, end - start), outer);
        }
        n = least(most_values, end - start);
        const float* x = input(p, line.in + start * p.g.step, p.g.step, n, t.x);
        bool finite = true;
        const i64 in_tile = !tiled ? 1 : n == most_values ? most_blocks : count_of(n, f.block);  // a division takes long
        if (tiled) {
            // Blocks within a tile: maxima, then scales, all in registers and the nearest cache.
            if (measured) __builtin_memcpy(t.largest, t.of_line + start / f.block, static_cast<u64>(in_tile) * sizeof(i32));
            else finite = measure_blocks(t, x, n, f.block, in_tile);
            choose_scales(p, t, in_tile, &outer.gain, 0, finite);
        } else {
            // A long block was measured whole: where it is finite, its tiles are.
            finite = (blocks && !t.bad[0]) || is_finite(x, n);
        }
        const i64 place = line.place + start * p.g.place_step;
        float* values = direct ? static_cast<float*>(p.job.values) + place : t.values;
        // NaN makes NaN of all of a long block, of which this tile is a part.
        const bool nan = !tiled && f.nonfinite == Nonfinite::block_nan && f.scales != Scales::none && t.bad[0];
        const bool in_registers = finite && !nan &&
                                  round_in_registers(p, t, x, outer.scale, place, target_of(p, line, bytes, start, to, values), n, in_tile, tiled);
        if (!in_registers) round_general(p, t, x, outer.scale, finite, tiled, place, values, n);
        all_finite &= finite;
        // Blocks that hold a NaN become NaN as a whole, after rounding: they are rare.
        if (f.nonfinite == Nonfinite::block_nan) {
            if (tiled && !finite) {
                for (i64 j = 0; j * f.block < n; ++j)
                    if (t.bad[j])
                        overwrite(p, values + j * f.block, t.codes + j * f.block, least(f.block, n - j * f.block));
            } else if (nan) {
                overwrite(p, values, t.codes, n);
            }
        }
        if (p.values || !in_registers) emit(p, line, bytes, t, start, n, values);
        // The scales of a whole tile, or that of a long block when it begins.
        if (blocks && !p.values && (tiled || start % f.block == 0))
            pack(p.scale_joining, t.scales, in_tile, p.job.scales + line.number * bytes.scales, start / f.block);
    }
    return all_finite;
}

}  // namespace

inline bool quantize_contiguous(const PreparedQuantize& p, Buffers& t, i64 first, i64 last) {
    const i64 values = values_in_item(p), in_line = count_of(p.g.n, values);
    bool finite = true;
    for (i64 item = first; item < last;) {
        // Items of one line that follow each other are converted together: the line is set up once.
        const i64 number = item / in_line, part = item % in_line, parts = least(in_line - part, last - item);
        finite &= quantize_line(p, t, line_of(p.g, number), part * values, least(p.g.n, (part + parts) * values));
        item += parts;
    }
    return finite;
}

}  // namespace contiguous_lines
