// The steps of an LU factorization of float32 or float64 with partial pivoting, as numbers; dispatch/lu.cpp puts them together.
#pragma once

#include <cstdint>

namespace fewbits {

// Row i of a matrix begins at a + i * row. exchanges[i] is the row, i or below, that changed places with row i before
// column i was eliminated.

// A few columns, factorized in their place.
template <class T>
struct LuColumns {
    T* a;
    std::int64_t m, n, row;   // (m, n), n at most lu_columns and m
    std::int64_t* exchanges;  // (n)
    T* room;                  // for n * lu_stride(m) numbers
};

// What the factors of the columns on the left, (m, k), make of the columns on the right, (m, n): rows change places, the
// upper k rows are solved with the unit lower triangle, and the product of what is below that triangle with them is
// subtracted from the lower m - k rows.
template <class T>
struct LuUpdate {
    std::int64_t m, k, n, row;
    const T* left;
    T* right;
    const std::int64_t* exchanges;  // (k)
    T* packed;                      // the upper rows once more, in panels; room for lu_packed numbers
    std::int64_t panels_in_item;    // of the right columns: an item of the first step
    std::int64_t rows_in_item;      // of the lower rows: an item of the second, at most lu_most_rows
};

// From one column to the next where they are factorized: not a power of two, whose multiples share a few sets of a cache.
static inline std::int64_t lu_stride(std::int64_t m) { return (m / 32 * 2 + 3) * 16; }

constexpr std::int64_t lu_columns = 32;
template <class T>
constexpr std::int64_t lu_most_rows = 1536 / sizeof(T);  // a piece of them stays in the second cache
constexpr std::int64_t lu_depth = 256;  // products of so many columns and rows are summed, then subtracted
template <class T>
constexpr std::int64_t lu_room = (lu_most_rows<T> + 32) * lu_depth;  // numbers that each thread needs for an update
constexpr std::int64_t lu_widest_panel = 32;  // of any instruction set

// The steps for numbers of one type.
template <class T>
struct LuKernels {
    std::int64_t (*panel)();  // its columns
    void (*factorize_columns)(const LuColumns<T>&);
    // Items are panels_in_item panels, then rows_in_item rows; each thread has its own room.
    void (*solve_upper_rows)(const LuUpdate<T>&, T* room, std::int64_t first, std::int64_t last);
    void (*subtract_lower_rows)(const LuUpdate<T>&, T* room, std::int64_t first, std::int64_t last);
};

}  // namespace fewbits
