// Panels: what a product reads of its factors, in the order in which it reads them. A panel is a few rows of a or columns of
// b, its lines; along them come pieces of 16 or 32 values, in which as many values as one instruction adds up fill a lane of
// 32 bits. A piece of a has all lanes of its first line, then those of the next; one of b has the first lane of all lines,
// then the next, so that a vector holds neighbouring columns. Integers have the scale of each line after the lanes.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace panels {

using numbers::least, numbers::vector;

// The part of y that stays in registers, rows times vectors. With integers each number of y has two sums, that of the block
// and that of all blocks. AVX-512 has 32 registers, the others 16. AVX2 multiplies pairs and adds them by two instructions, so
// that a part of twice the size, which reads less for each, gains more than the sums of all blocks lose in the nearest cache:
// they are added to once in 16 pairs.
#if defined(__AVX512F__)
constexpr i64 integer_rows = 4, integer_vectors = 3, float_rows = 6, float_vectors = 4;
constexpr bool sums_in_memory = false;
#elif defined(__AVX2__) && !defined(__AVXVNNI__)
constexpr i64 integer_rows = 6, integer_vectors = 2, float_rows = 6, float_vectors = 2;
constexpr bool sums_in_memory = true;
#else
constexpr i64 integer_rows = 3, integer_vectors = 2, float_rows = 6, float_vectors = 2;
constexpr bool sums_in_memory = false;
#endif

// Tiles are as large as they are: two by two of 16 rows and columns. Whoever compiles for a CPU without them may emulate them.
#if defined(__AMX_BF16__) || defined(__AMXBF16__) || defined(FEWBITS_EMULATE_TILES)  // the second: Clang 14
#define FEWBITS_TILES
constexpr i64 tile_lines = 32;
constexpr bool has_tiles(Unit unit) { return is_bfloat16(unit); }
#else
constexpr bool has_tiles(Unit) { return false; }
#endif

// Of two bfloat16 for each value, the first ones of a piece fill half of its lanes and the second ones the other half.
constexpr i64 values_in_lane(Unit unit) {
    return unit == Unit::integers ? 4 : unit == Unit::float32 || unit == Unit::bfloat16x2 ? 1 : 2;
}

constexpr i64 panel_lines(Unit unit, bool of_b) {
#if defined(FEWBITS_TILES)
    if (is_bfloat16(unit)) return tile_lines;
#endif
    if (of_b) return vector * (is_integers(unit) ? integer_vectors : float_vectors);
    return is_integers(unit) ? integer_rows : float_rows;
}
inline i64 panel_lines(const Product& p, bool of_b) { return panel_lines(p.unit, of_b); }

inline i64 piece_lanes(const Product& p) { return p.block / values_in_lane(p.unit); }

// In words of 32 bits. Beside its scale each line of a has what undoes the bias of b.
inline i64 piece_words(const Product& p, bool of_b) {
    return panel_lines(p, of_b) * (piece_lanes(p) + (is_integers(p.unit) ? (of_b ? 1 : 2) : 0));
}

inline i64 pieces(const Product& p) { return count_of(p.k, p.block); }

// Of the axis of the sum the pieces that rows `top` to `bottom - 1` and columns from `left` on need: from one on, up to before
// another. Whoever asks for many lines gets what any of them needs.
struct Span {
    i64 first, last;
};
inline Span span_of(const Product& p, i64 top, i64 bottom, i64 left) {
    const i64 all = pieces(p);
    if (p.lower == Lower::result) return {0, bottom > left ? all : 0};
    if (p.lower == Lower::left) return {0, least(count_of(bottom, p.block), all)};
    if (p.lower == Lower::left_transposed) return {least(top / p.block, all), all};
    if (p.lower == Lower::right) return {least(left / p.block, all), all};
    return {0, all};
}
inline const Factor& factor(const Product& p, bool of_b) { return of_b ? p.b : p.a; }
inline i64 panels_of(const Product& p, bool of_b) { return count_of(factor(p, of_b).lines, panel_lines(p, of_b)); }

// Panels are cut into stretches, and the stretches of all panels follow each other before the next ones: what an item reads at
// a time lies in one place. A stretch of one panel of b stays in the nearest cache.
constexpr i64 lanes_together = 128, values_together = 256;
inline i64 stretch(const Product& p) {
    return least(least(lanes_together / piece_lanes(p), values_together / p.block), pieces(p));
}

// Rows and columns of an item, in panels. Where an item has all columns, a row is packed once, and the item's share of y and a
// stretch of its rows of a stay in the second cache. Of wider products a is packed before, since several items need the same
// rows. Threads without an item would wait. Tiles multiply so fast that smaller items would wait for memory: the sums of
// theirs take 512 KiB of the two megabytes that their CPUs have.
constexpr i64 all_columns = 1536, some_columns = 512;
constexpr i64 rows_in_item(Unit unit) { return has_tiles(unit) ? 256 : 192; }
constexpr i64 sums_in_item(Unit unit) { return has_tiles(unit) ? 131072 : 98304; }
inline bool is_wide(const Product& p) { return p.b.lines > all_columns; }
inline i64 b_panels(const Product& p) {
    return least(panels_of(p, true), (is_wide(p) ? some_columns : all_columns) / panel_lines(p, true));
}
inline i64 column_items(const Product& p) { return count_of(panels_of(p, true), b_panels(p)); }
inline i64 a_panels(const Product& p) {
    const i64 high = least(rows_in_item(p.unit), sums_in_item(p.unit) / (b_panels(p) * panel_lines(p, true))) / panel_lines(p, false);
    const i64 parts = p.threads > 1 ? 4 * p.threads : 1;
    const i64 shared = least(high, count_of(p.batch * panels_of(p, false) * column_items(p), parts));
    // Of items one below the other the last is as high as the others.
    return shared ? count_of(panels_of(p, false), count_of(panels_of(p, false), shared)) : 0;
}
inline i64 row_items(const Product& p) { return count_of(panels_of(p, false), a_panels(p)); }

// Of all of b, or of a where that is packed before the product too.
i64 panel_bytes(const Product& p, bool of_b) {
    if (p.k == 0 || !(of_b || is_wide(p))) return 0;
    return p.batch * panels_of(p, of_b) * count_of(pieces(p), stretch(p)) * stretch(p) * piece_words(p, of_b) * i64{sizeof(u32)};
}

// A piece of a panel that is packed before.
inline u32* piece_of(const Product& p, bool of_b, i64 matrix, i64 panel, i64 piece) {
    const i64 together = stretch(p), stretches = count_of(pieces(p), together);
    const i64 at = ((matrix * stretches + piece / together) * panels_of(p, of_b) + panel) * together + piece % together;
    return reinterpret_cast<u32*>(of_b ? p.panels : p.left_panels) + at * piece_words(p, of_b);
}

// The same of panels of a of which a stretch lies at `panels`: those that an item packs for itself, or some of all.
inline u32* piece_of_item(const Product& p, u32* panels, i64 panel, i64 piece) {
    return panels + (panel * stretch(p) + piece) * piece_words(p, false);
}

// Of some memory that is needed next, what one of several calls asks for: so many lines of the cache with each of its pieces.
constexpr i64 line_words = 64 / sizeof(u32);
struct Part {
    const u32* from;
    i64 lines;
};
inline Part part_of(const u32* from, i64 words, i64 count, i64 calls, i64 call) {
    const i64 lines = count_of(words / line_words, calls * count);
    return {from + call * count * lines * line_words, lines};
}
struct Ahead {
    Part of_b, of_a;
};

}  // namespace panels
