// Products of panels. An item packs its rows of a, a stretch at a time, unless they are packed before the product; a part of y
// stays in registers while a stretch of one panel of a and one of b passes.
#pragma once

#include "kernels/gemm/pack.inc.hpp"
#include "kernels/gemm/panels.inc.hpp"
#include "kernels/gemm/tile_products.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace product {

using memory::at, memory::prefetch;
using numbers::Bits, numbers::Naturals, numbers::Reals, numbers::least, numbers::vector;
using pack::Range, pack::Values, pack::Window, pack::pack_rows, pack::range_of, pack::values_of, pack::window_bytes, pack::window_of, pack::window_values;
using panels::Ahead, panels::Part, panels::Span, panels::a_panels, panels::b_panels, panels::column_items, panels::float_rows, panels::float_vectors, panels::has_tiles, panels::is_wide,
    panels::integer_rows, panels::integer_vectors, panels::line_words, panels::panel_lines, panels::panels_of, panels::part_of,
    panels::piece_lanes, panels::piece_of, panels::piece_of_item, panels::piece_words, panels::pieces, panels::row_items, panels::span_of, panels::stretch,
    panels::sums_in_memory, panels::values_in_lane;
using vectors::multiply_add, vectors::read, vectors::write;

namespace {  // of this file alone

constexpr i64 rows_ahead = 8;  // of y, which are asked for

// Of products and sums apart the compiler makes trees, in memory, of all that it unrolls, unless it is kept from it: with
// AVX2, where loops of some lanes leave room for the instructions that count.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int lanes_unrolled = 16;
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr int lanes_unrolled = 4;
#else
constexpr int lanes_unrolled = 1;
#endif

// Sums of products of bytes, exact: each lane of `b` has four that are 128 too large, every lane of `a` the same four signed
// ones. Without an instruction for it bytes become numbers of 16 bits, whose products of two pairs it adds.
inline Bits add_products(Bits sum, Bits a, Bits b) {
#if defined(__AVX512VNNI__)
    return (Bits)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)b, (__m512i)a);
#elif defined(__AVXVNNI__)
    return (Bits)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)b, (__m256i)a);
#else
    const Naturals biased = (Naturals)b;
    // Bytes 0 to 3 of each lane; shifts of signed numbers keep the sign.
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum += (Bits)((biased >> static_cast<u32>(8 * i)) & 0xffu) * (a << (24 - 8 * i) >> 24);
    return sum;
#endif
}

// The same of pairs of 16 bits, both factors with their signs: a sum of two is below 2^19.
inline Bits add_pairs(Bits sum, Bits a, Bits b) {
#if defined(__AVX512VNNI__)
    return (Bits)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)b, (__m512i)a);
#elif defined(__AVXVNNI__)
    return (Bits)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)b, (__m256i)a);
#elif defined(__AVX512BW__)
    return sum + (Bits)_mm512_madd_epi16((__m512i)b, (__m512i)a);
#elif defined(__AVX2__)
    sum += (Bits)_mm256_madd_epi16((__m256i)b, (__m256i)a);
    asm("" : "+x"(sum));  // no instruction, but a sum that the compiler has to leave where it is
    return sum;
#else
    return sum + (b >> 16) * (a >> 16) + (b << 16 >> 16) * (a << 16 >> 16);
#endif
}

// Adds `count` blocks to a part of y, or begins it with them: each block's sum is exact, times a power of two exact, and
// rounded once when it is added. Sums of all blocks wait in registers, or where there are too few of those in y itself.
template <Unit unit, i64 block_values>
void add_blocks(i64 count, const u32* a, const u32* b, float* y, i64 row_step, bool begin, const u32* next) {
    constexpr i64 rows = integer_rows, vectors = integer_vectors, width = vectors * vector, lanes = block_values / values_in_lane(unit);
    // Lane l of sums[i][j] is row i, column j * vector + l; the loops are unrolled so that all of them are registers.
    Reals sums[rows][vectors];
#pragma GCC unroll 8
    for (i64 i = 0; i < rows; ++i)
#pragma GCC unroll 4
        for (i64 j = 0; j < vectors; ++j)
            // Sums in y begin at zero there: an item leaves in its buffer what the one before it had.
            if constexpr (!sums_in_memory)
                sums[i][j] = begin ? Reals{} : read<Reals>(y + i * row_step + j * vector);
            else if (begin)
                write(y + i * row_step + j * vector, Reals{});
    for (i64 block = 0; block < count; ++block) {
        const u32 *scales = a + rows * lanes, *bias = scales + rows;
        Bits inner[rows][vectors];
#pragma GCC unroll 8
        for (i64 i = 0; i < rows; ++i)
#pragma GCC unroll 4
            // Bytes of b are 128 too large: the product with a starts at minus 128 times the sum of a's; others at 0.
            for (i64 j = 0; j < vectors; ++j) inner[i][j] = unit == Unit::integers || !sums_in_memory ? Bits{} + static_cast<i32>(bias[i]) : Bits{};
#pragma GCC unroll lanes_unrolled
        for (i64 lane = 0; lane < lanes; ++lane, next += line_words) {
            __builtin_prefetch(next, 0, 2);
            Bits of_b[vectors];
#pragma GCC unroll 4
            for (i64 j = 0; j < vectors; ++j) of_b[j] = read<Bits>(b + lane * width + j * vector);
#pragma GCC unroll 8
            for (i64 i = 0; i < rows; ++i) {
                const Bits of_a = Bits{} + static_cast<i32>(a[i * lanes + lane]);
#pragma GCC unroll 4
                for (i64 j = 0; j < vectors; ++j) 
                    inner[i][j] = unit == Unit::integers ? add_products(inner[i][j], of_a, of_b[j]) : add_pairs(inner[i][j], of_a, of_b[j]);
            }
        }
        // The sum of a block is a float32; so is its product with both scales.
        Reals of_b[vectors];
#pragma GCC unroll 4
        for (i64 j = 0; j < vectors; ++j) of_b[j] = read<Reals>(b + lanes * width + j * vector);
#pragma GCC unroll 8
        for (i64 i = 0; i < rows; ++i) {
            const Reals of_a = (Reals)(Bits{} + static_cast<i32>(scales[i]));
#pragma GCC unroll 4
            for (i64 j = 0; j < vectors; ++j) {
                // One rounding, wherever the sums of all blocks wait; those in y were written a block ago, and are still in
                // the nearest cache.
                const Reals inner_sum = __builtin_convertvector(inner[i][j], Reals), scale = of_a * of_b[j];
                float* const place = y + i * row_step + j * vector;
                if constexpr (sums_in_memory)
                    write(place, multiply_add(inner_sum, scale, read<Reals>(place)));
                else
                    sums[i][j] = multiply_add(inner_sum, scale, sums[i][j]);
            }
        }
        a += rows * (lanes + 2);
        b += width * (lanes + 1);
    }
    // What waits in y is there already.
    if constexpr (sums_in_memory) return;
#pragma GCC unroll 8
    for (i64 i = 0; i < rows; ++i)
#pragma GCC unroll 4
        for (i64 j = 0; j < vectors; ++j) write(y + i * row_step + j * vector, sums[i][j]);
}

// Adds the products of `count` pieces of float32, or of pairs of bfloat16.
template <bool pairs>
void add_lanes(i64 count, const u32* a, const u32* b, float* y, i64 row_step, bool begin, const u32* next) {
    // Lane l of sums[i][j] as above: 24 of 32 registers, or 12 of 16.
    constexpr i64 rows = float_rows, vectors = float_vectors, lanes = 32 / values_in_lane(pairs ? Unit::bfloat16 : Unit::float32);
    Reals sums[rows][vectors];
#pragma GCC unroll 8
    for (i64 i = 0; i < rows; ++i)
#pragma GCC unroll 4
        for (i64 j = 0; j < vectors; ++j) sums[i][j] = begin ? Reals{} : read<Reals>(y + i * row_step + j * vector);
    for (i64 piece = 0; piece < count; ++piece, a += (rows - 1) * lanes) {
        // Lines of a are a constant apart: no instruction but the multiply-adds and what they read.
#pragma GCC unroll 2
        for (i64 lane = 0; lane < lanes; ++lane, ++a, b += vectors * vector, next += line_words) {
            __builtin_prefetch(next, 0, 2);
            Reals of_b[vectors];
#pragma GCC unroll 4
            for (i64 j = 0; j < vectors; ++j) of_b[j] = read<Reals>(b + j * vector);
#pragma GCC unroll 8
            for (i64 i = 0; i < rows; ++i) {
                const Reals of_a = (Reals)(Bits{} + static_cast<i32>(a[i * lanes]));
#pragma GCC unroll 4
                for (i64 j = 0; j < vectors; ++j) {
#if defined(__AVX512BF16__)
                    if constexpr (pairs) {
                        sums[i][j] = (Reals)_mm512_dpbf16_ps((__m512)sums[i][j], (__m512bh)of_a, (__m512bh)of_b[j]);
                        continue;
                    }
#endif
                    sums[i][j] = multiply_add(of_a, of_b[j], sums[i][j]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (i64 i = 0; i < rows; ++i)
#pragma GCC unroll 4
        for (i64 j = 0; j < vectors; ++j) write(y + i * row_step + j * vector, sums[i][j]);
}

// Adds pieces of whatever the unit is; two comparisons for some thousand instructions.
inline void add_pieces(const Product& p, i64 count, const u32* a, const u32* b, float* y, i64 row_step, bool begin, const Ahead& ahead) {
#if defined(FEWBITS_TILES)
    if (p.unit == Unit::bfloat16) return tile_products::add_pairs<false>(count, a, b, y, row_step, begin, ahead);
    if (p.unit == Unit::bfloat16x2) return tile_products::add_pairs<true>(count, a, b, y, row_step, begin, ahead);
#endif
    if (p.unit == Unit::bfloat16) return add_lanes<true>(count, a, b, y, row_step, begin, ahead.of_b.from);
    if (p.unit == Unit::float32) return add_lanes<false>(count, a, b, y, row_step, begin, ahead.of_b.from);
    const bool wide = p.unit == Unit::integers16;
    if (p.block == 32 && wide) return add_blocks<Unit::integers16, 32>(count, a, b, y, row_step, begin, ahead.of_b.from);
    if (p.block == 32) return add_blocks<Unit::integers, 32>(count, a, b, y, row_step, begin, ahead.of_b.from);
    if (wide) return add_blocks<Unit::integers16, 16>(count, a, b, y, row_step, begin, ahead.of_b.from);
    add_blocks<Unit::integers, 16>(count, a, b, y, row_step, begin, ahead.of_b.from);
}

// What an item works in: sums of whole panels, a stretch of its panels of a, and room to round them.
struct Workspace {
    float* sums;
    u32* panels;
    void* window;
};

inline i64 sums_of(const Product& p) { return a_panels(p) * b_panels(p) * panel_lines(p, false) * panel_lines(p, true); }
inline i64 words_of(const Product& p) { return count_of(a_panels(p) * stretch(p) * piece_words(p, false), 16) * 16; }

inline Workspace workspace_at(const Product& p, void* memory) {
    float* sums = static_cast<float*>(memory);
    u32* words = reinterpret_cast<u32*>(sums + sums_of(p));
    return {sums, words, words + words_of(p)};
}

// What panels r and c of an item ask for while they are multiplied: of the next panel of b, and with tiles of the next stretch of
// the item's panels of a, where these are packed. Other units ask for as many lines of b as they read lanes.
struct Extent {
    i64 rows, columns, pieces;
};
inline Ahead ahead_of(const Product& p, const u32* b, const u32* a, const Extent& item, i64 r, i64 c) {
    if (!has_tiles(p.unit)) return {{b + r * item.pieces * piece_lanes(p) * line_words, 0}, {}};
    const i64 panel = stretch(p) * piece_words(p, false);
    return {part_of(b, panel, item.pieces, item.rows, r),
            is_wide(p) ? part_of(a, item.rows * panel, item.pieces, item.rows * item.columns, c * item.rows + r) : Part{}};
}

// One item: the sums in a buffer of whole panels, then y in its own type. A stretch of each panel of b passes all panels of a of
// the item, which stay in the second cache.
void multiply_item(const Product& p, const Workspace& w, i64 matrix, i64 row_item, i64 column_item, Range& range) {
    const i64 height = panel_lines(p, false), width = panel_lines(p, true);
    const i64 first_row = row_item * a_panels(p), first_column = column_item * b_panels(p);
    const i64 rows = least(a_panels(p), panels_of(p, false) - first_row), columns = least(b_panels(p), panels_of(p, true) - first_column);
    const i64 top = first_row * height, left = first_column * width, lines = least(rows * height, p.a.lines - top);
    // The sums of two panels lie together: rows further apart, by a power of two, would share a few sets of the nearest cache.
    const auto sums_of_panels = [&](i64 r, i64 c) { return w.sums + (r * columns + c) * height * width; };
    // Sums begin with their first piece; of what has none zeros are the result.
    if (p.k == 0 || p.lower != Lower::none)
        for (i64 i = 0; i < rows * columns * height * width; ++i) w.sums[i] = 0.0f;
    const Values needed = values_of(p, p.a, span_of(p, top, top + lines, left));
    for (i64 start = needed.first / window_values * window_values; start < needed.last; start += window_values) {
        const i64 begin = start > needed.first ? start : needed.first, end = least(start + window_values, needed.last);
        const Window window = is_wide(p) ? Window{} : window_of(p.a, p, matrix, top, lines, begin, end, w.window);
        // One stretch, or two of float32; of a wide product all panels are there.
        for (i64 piece = start / p.block; piece * p.block < end; piece += stretch(p)) {
            const i64 count = least(stretch(p), pieces(p) - piece), first = begin > piece * p.block ? begin / p.block : piece;
            if (first >= piece + count) continue;
            u32* const panels = is_wide(p) ? piece_of(p, false, matrix, first_row, piece) : w.panels;
            if (!is_wide(p))
                pack_rows(p, window, first * p.block - begin, least((piece + count) * p.block, end) - begin,
                          piece_of_item(p, panels, 0, first - piece), range);
            const u32* const next_of_a = panels + panels_of(p, false) * stretch(p) * piece_words(p, false);
            for (i64 c = 0; c < columns; ++c) {
                const u32* const of_b = piece_of(p, true, matrix, first_column + c, piece);
                const u32* const next_of_b = of_b + stretch(p) * piece_words(p, true);
                for (i64 r = 0; r < rows; ++r) {
                    // Of this stretch, what the tile needs.
                    const Span span = span_of(p, top + r * height, top + least((r + 1) * height, lines), left + c * width);
                    const i64 from = span.first > piece ? span.first : piece, there = least(span.last, piece + count) - from;
                    if (there <= 0) continue;
                    const Ahead ahead = ahead_of(p, next_of_b, next_of_a, {rows, columns, count}, r, c);
                    add_pieces(p, there, piece_of_item(p, panels, r, from - piece), of_b + (from - piece) * piece_words(p, true),
                               sums_of_panels(r, c), width, from == span.first, ahead);
                }
            }
        }
    }
    // Rows and columns that y does not have stay behind.
    for (i64 i = 0; i < lines; ++i)
        for (i64 c = 0; c < columns; ++c) {
            const i64 count = least(width, p.b.lines - left - c * width);
            void* const to = at(p.y, p.y_type, (matrix * p.a.lines + top + i) * p.y_step + left + c * width);
            const float* const sums = sums_of_panels(i / height, c) + i % height * width;
            if (!p.subtracts) {
                memory::store(to, p.y_type, 1, count, sums);
                continue;
            }
            float* const y = static_cast<float*>(to);
            prefetch<memory::nearest, true>(y + rows_ahead * p.y_step, count * i64{sizeof(float)});
            for (i64 j = 0; j < count; ++j) y[j] -= sums[j];
        }
}

// Items first to last - 1, down the rows first: neighbours share panels of b.
BlockRange multiply_items(const Product& p, void* workspace, i64 first, i64 last) {
    Range range;
    for (i64 item = first; item < last; ++item) {
        const i64 in_matrix = row_items(p) * column_items(p), place = item % in_matrix;
        multiply_item(p, workspace_at(p, workspace), item / in_matrix, place % row_items(p), place / row_items(p), range);
    }
    return range_of(range);
}

}  // namespace

// Whether this instruction set has what makes a unit faster than float32, and than any unit that could take its place: tiles of
// bfloat16 multiply integers of 8 bits faster than the instruction for bytes.
bool has(Unit unit) {
    bool bytes = false, pairs = false, bfloat16 = false, two = false;
#if defined(FEWBITS_TILES)
    pairs = two = true;
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    bytes = pairs = true;
#elif defined(__AVX2__)
    pairs = true;  // an addition takes a port that float32 leaves free, and panels are half as large
#endif
#if defined(__AVX512BF16__)
    bfloat16 = true;
#endif
    if (is_integers(unit)) return unit == Unit::integers ? bytes : pairs;
    return unit == Unit::bfloat16 ? bfloat16 : unit == Unit::bfloat16x2 ? two : true;
}

i64 workspace(const Product& p) { return (sums_of(p) + words_of(p)) * i64{sizeof(float)} + window_bytes(p); }

i64 items(const Product& p) { return p.batch * row_items(p) * column_items(p); }

BlockRange multiply(const Product& p, void* workspace, i64 first, i64 last) {
#if defined(FEWBITS_TILES)
    if (is_bfloat16(p.unit)) {
        const tile_products::Configuration before = tile_products::configure();
        const BlockRange met = multiply_items(p, workspace, first, last);
        tile_products::restore(before);
        return met;
    }
#endif
    return multiply_items(p, workspace, first, last);
}

// What dispatch/ sees of an instruction set; isa/products/ gives each table its external name.
constexpr Products functions = {
    .has = has,
    .panel_bytes = panels::panel_bytes,
    .pack_workspace = pack::pack_workspace,
    .pack_items = pack::pack_items,
    .pack = pack::pack,
    .workspace = workspace,
    .items = items,
    .multiply = multiply,
};

}  // namespace product
