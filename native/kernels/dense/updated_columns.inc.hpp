// What the columns that an LU factorization has done make of those on their right, in two steps; both read the upper rows
// in panels as wide as a tile of sums. dispatch/lu.cpp calls them.
//
// Every number is computed by the same operations in the same order for any number of threads, and on all instruction
// sets that have fused multiply-adds.
#pragma once

#include "kernels/dense/products.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace updated_columns {

using numbers::least;
using products::Vector, products::multiply_subtract, products::pack_panel, products::pack_rows, products::panel,
    products::subtract_product, products::tile_rows, products::tile_vectors, products::vector;
using vectors::broadcast, vectors::read, vectors::write;

namespace {  // of this file alone

// Rows solved at once, and those of a triangle: whole tiles of every instruction set.
constexpr i64 rows_at_once = 192, triangle = 48;
// Of a triangle: with two vectors each, as many independent sums as two multipliers of four cycles keep busy.
constexpr i64 rows_together = 4;
constexpr i64 exchanges_ahead = 4;  // whose rows are asked for: they lie anywhere in memory
// Two rows change places.
template <class T>
void exchange(T* x, T* y, i64 n) {
    for (i64 i = 0; i < n; ++i) {
        const T kept = x[i];
        x[i] = y[i];
        y[i] = kept;
    }
}

// Rows `first` to `first + count - 1` of a panel of solutions, from those above them from row `top` on: x -= l x.
template <i64 count, class T>
inline void solve_rows(const T* l, i64 row, i64 top, i64 first, T* x) {
    using V = Vector<T>;
    V own[count][tile_vectors];
    for (i64 u = 0; u < count; ++u)
        for (i64 v = 0; v < tile_vectors; ++v) own[u][v] = read<V>(x + (first + u) * panel<T> + v * vector<T>);
    for (i64 q = top; q < first; ++q)
        for (i64 u = 0; u < count; ++u)
            for (i64 v = 0; v < tile_vectors; ++v)
                own[u][v] = multiply_subtract(broadcast(l[(first + u) * row + q]), read<V>(x + q * panel<T> + v * vector<T>), own[u][v]);
    // The small triangle that these rows are themselves.
    for (i64 u = 0; u < count; ++u)
        for (i64 v = 0; v < tile_vectors; ++v) {
            for (i64 q = 0; q < u; ++q) own[u][v] = multiply_subtract(broadcast(l[(first + u) * row + first + q]), own[q][v], own[u][v]);
            write(x + (first + u) * panel<T> + v * vector<T>, own[u][v]);
        }
}

// Rows `top` to `top + height - 1` of X less the products of the triangle's columns `first` to `last - 1` with the rows
// of X of the same numbers.
template <class T>
void subtract_solved_rows(const LuUpdate<T>& job, i64 top, i64 height, i64 first, i64 last, T* x, i64 panels, T* room) {
    for (i64 start = first; start < last; start += lu_depth) {
        const i64 count = least(lu_depth, last - start);
        pack_rows(job.left + top * job.row + start, job.row, height, count, room);
        for (i64 p = 0; p < panels; ++p) {
            T* y = x + p * job.k * panel<T>;
            for (i64 i = 0; i < height; i += tile_rows)
                subtract_product(count, room + i * lu_depth, y + start * panel<T>, y + (top + i) * panel<T>, panel<T>, height - i, panel<T>);
        }
    }
}

// L X = B for `panels` panels of B, k rows each, in their place. What is left of a triangle is a product, which takes
// nearly all of the time: of many rows at once, so that a piece of a panel is read for all of them, then of few.
template <class T>
void solve_panels(const LuUpdate<T>& job, T* x, i64 panels, T* room) {
    for (i64 top = 0; top < job.k; top += rows_at_once) {
        const i64 bottom = least(job.k, top + rows_at_once);
        subtract_solved_rows(job, top, bottom - top, 0, top, x, panels, room);
        for (i64 own = top; own < bottom; own += triangle) {
            const i64 end = least(bottom, own + triangle);
            subtract_solved_rows(job, own, end - own, top, own, x, panels, room);
            for (i64 p = 0; p < panels; ++p) {
                T* y = x + p * job.k * panel<T>;
                i64 i = own;
                for (; i + rows_together <= end; i += rows_together) solve_rows<rows_together>(job.left, job.row, own, i, y);
                for (; i < end; ++i) solve_rows<1>(job.left, job.row, own, i, y);
            }
        }
    }
}

// Rows change places, in the order in which the pivots were found.
template <class T>
void exchange_rows(const LuUpdate<T>& job, i64 column, i64 width) {
    for (i64 i = 0; i < job.k; ++i) {
        const i64 later = least(i + exchanges_ahead, job.k - 1);
        memory::prefetch<memory::nearest, true>(job.right + later * job.row + column, width * i64{sizeof(T)});
        memory::prefetch<memory::nearest, true>(job.right + job.exchanges[later] * job.row + column, width * i64{sizeof(T)});
        if (job.exchanges[i] != i) exchange(job.right + i * job.row + column, job.right + job.exchanges[i] * job.row + column, width);
    }
}

}  // namespace

template <class T>
i64 columns_of_panel() {
    return panel<T>;
}

// First step of an update, an item being a few panels of the right columns: rows change places, then the triangle is
// solved in the panels that the second step reads.
template <class T>
void solve_upper_rows(const LuUpdate<T>& job, T* room, i64 first, i64 last) {
    const i64 all = count_of(job.n, panel<T>);
    for (i64 item = first; item < last; ++item) {
        const i64 begin = item * job.panels_in_item, end = least(all, begin + job.panels_in_item);
        const i64 column = begin * panel<T>, width = least(job.n, end * panel<T>) - column;
        exchange_rows(job, column, width);
        T* x = job.packed + begin * panel<T> * job.k;
        for (i64 p = begin; p < end; ++p)
            pack_panel(job.right + p * panel<T>, job.row, job.k, least(panel<T>, job.n - p * panel<T>), job.packed + p * panel<T> * job.k);
        solve_panels(job, x, end - begin, room);
        for (i64 p = begin; p < end; ++p) {
            const auto bytes = static_cast<u64>(least(panel<T>, job.n - p * panel<T>)) * sizeof(T);
            for (i64 i = 0; i < job.k; ++i) __builtin_memcpy(job.right + i * job.row + p * panel<T>, job.packed + (p * job.k + i) * panel<T>, bytes);
        }
    }
}

// Second step, an item being some of the lower rows: their piece of the left columns stays in the second cache while
// all panels pass, and a panel's piece in the nearest while all rows do.
template <class T>
void subtract_lower_rows(const LuUpdate<T>& job, T* room, i64 first, i64 last) {
    for (i64 item = first; item < last; ++item) {
        const i64 begin = job.k + item * job.rows_in_item, rows = least(job.rows_in_item, job.m - begin);
        for (i64 start = 0; start < job.k; start += lu_depth) {
            const i64 count = least(lu_depth, job.k - start);
            pack_rows(job.left + begin * job.row + start, job.row, rows, count, room);
            for (i64 column = 0; column < job.n; column += panel<T>) {
                const T* b = job.packed + column * job.k + start * panel<T>;
                for (i64 i = 0; i < rows; i += tile_rows)
                    subtract_product(count, room + i * lu_depth, b, job.right + (begin + i) * job.row + column, job.row, rows - i, job.n - column);
            }
        }
    }
}

}  // namespace updated_columns
