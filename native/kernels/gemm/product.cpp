// Products of matrices of bfloat16 by VDPBF16PS. Three steps: a and b are packed into panels, in which the pairs that
// one instruction multiplies lie side by side; then each item computes 192 rows by 256 columns of y from them. In the
// innermost loop 24 sums stay in registers: per pair four loads of b, six broadcasts of a and 24 instructions of 32
// products each.
#include "kernels/gemm/product.hpp"

#include <cstddef>

#include "jobs/integers.hpp"
#include "jobs/layout.hpp"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace fewbits {
namespace {

constexpr i64 rows = 6, columns = 64;       // of the part of y that stays in registers: 24 of 32 vectors
constexpr i64 pairs_together = 512;         // of one row of a and one column of b: their panels stay in the nearest caches
constexpr i64 panels_together = 4;          // of b, which stay in the second cache
constexpr i64 row_panels_in_item = 32;

// None of the standard library's templates: a weak symbol compiled here could be kept for files without these flags.
i64 least(i64 a, i64 b) { return a < b ? a : b; }
i64 pairs(i64 k) { return count_of(k, 2); }

}  // namespace

// A panel of a: for each pair along k that of every row; of b: for each pair that of every column. Zeros fill the last.
std::int64_t packed_a_size(std::int64_t m, std::int64_t k) { return count_of(m, rows) * rows * pairs(k); }
std::int64_t packed_b_size(std::int64_t k, std::int64_t n) { return count_of(n, columns) * columns * pairs(k); }

#if defined(__AVX512BF16__)

bool has_bfloat16_products() { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw"); }

namespace {

// The bit pattern of a float32.
u32 bits_of(float v) {
    u32 b;
    __builtin_memcpy(&b, &v, sizeof b);
    return b;
}

// Two float32 that are bfloat16 as one number of 32 bits, the first in the lower half: nothing is rounded.
u32 pair_of(float low, float high) { return bits_of(low) >> 16 | (bits_of(high) & 0xffff0000u); }

i64 items_of_a(const Product& p) { return count_of(p.m, rows); }

// Panels of six rows.
void pack_a(const Product& p, i64 first, i64 last) {
    const i64 all = pairs(p.k), full = p.k / 2;
    for (i64 panel = first; panel < last; ++panel) {
        u32* out = p.packed_a + panel * rows * all;
        for (i64 i = 0; i < rows; ++i) {
            const i64 row = panel * rows + i;
            // Rows beyond the matrix are zeros, so that the last panel is like the others.
            if (row >= p.m) {
                for (i64 j = 0; j < all; ++j) out[j * rows + i] = 0;
                continue;
            }
            const float* from = p.a + row * p.k;
            for (i64 j = 0; j < full; ++j) out[j * rows + i] = pair_of(from[2 * j], from[2 * j + 1]);
            if (full < all) out[full * rows + i] = pair_of(from[2 * full], 0.0f);
        }
    }
}

i64 items_of_b(const Product& p) { return count_of(p.n, columns); }

// Panels of 64 columns, read along the rows of b.
void pack_b(const Product& p, i64 first, i64 last) {
    const i64 all = pairs(p.k);
    for (i64 panel = first; panel < last; ++panel) {
        u32* out = p.packed_b + panel * columns * all;
        const i64 start = panel * columns, count = least(columns, p.n - start);
        for (i64 j = 0; j < all; ++j, out += columns) {
            // Rows 2 j and 2 j + 1 of b: the two halves of the pairs.
            const float* low = p.b + 2 * j * p.n + start;
            // An odd k ends with half a pair; its other half is zero.
            const bool both = 2 * j + 1 < p.k;
            for (i64 i = 0; i < count; ++i) out[i] = pair_of(low[i], both ? low[p.n + i] : 0.0f);
            for (i64 i = count; i < columns; ++i) out[i] = 0;
        }
    }
}

// Adds the products of `count` pairs to a part of y, or begins it with them.
void add_products(i64 count, const u32* a, const u32* b, float* y, i64 row_step, bool begin) {
    // Lane l of sums[i][j] is row i, column 16 j + l; the loops are unrolled so that all of them are registers.
    __m512 sums[rows][columns / 16];
#pragma GCC unroll 8
    for (i64 i = 0; i < rows; ++i)
#pragma GCC unroll 4
        for (i64 j = 0; j < columns / 16; ++j)
            sums[i][j] = begin ? _mm512_setzero_ps() : _mm512_loadu_ps(y + i * row_step + 16 * j);
    for (i64 p = 0; p < count; ++p, a += rows, b += columns) {
        __m512bh of_b[columns / 16];
#pragma GCC unroll 4
        for (i64 j = 0; j < columns / 16; ++j) of_b[j] = (__m512bh)_mm512_load_si512(b + 16 * j);
#pragma GCC unroll 8
        for (i64 i = 0; i < rows; ++i) {
            const __m512bh of_a = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[i]));
#pragma GCC unroll 4
            for (i64 j = 0; j < columns / 16; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], of_a, of_b[j]);
        }
    }
#pragma GCC unroll 8
    for (i64 i = 0; i < rows; ++i)
#pragma GCC unroll 4
        for (i64 j = 0; j < columns / 16; ++j) _mm512_storeu_ps(y + i * row_step + 16 * j, sums[i][j]);
}

// The same for a part that y has only in part.
void add_to_edge(i64 count, const u32* a, const u32* b, float* y, i64 row_step, bool begin, i64 height, i64 width) {
    alignas(64) float block[rows * columns] = {};
    const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
    for (i64 i = 0; i < height && !begin; ++i) __builtin_memcpy(block + i * columns, y + i * row_step, bytes);
    add_products(count, a, b, block, columns, begin);
    for (i64 i = 0; i < height; ++i) __builtin_memcpy(y + i * row_step, block + i * columns, bytes);
}

// Items of y are rectangles of panels: their part of b stays in the second cache while all their rows pass.
i64 row_items(const Product& p) { return count_of(count_of(p.m, rows), row_panels_in_item); }

i64 items_of_y(const Product& p) { return row_items(p) * count_of(count_of(p.n, columns), panels_together); }

void multiply_item(const Product& p, i64 row_item, i64 column_item) {
    const i64 all = pairs(p.k);
    const i64 row_end = least((row_item + 1) * row_panels_in_item, count_of(p.m, rows));
    const i64 column_end = least((column_item + 1) * panels_together, count_of(p.n, columns));
    // Along k in pieces whose panels stay in the nearest caches; y is read and written once for each piece.
    i64 start = 0;
    do {  // without any pair y is zero
        const i64 count = least(pairs_together, all - start);
        for (i64 r = row_item * row_panels_in_item; r < row_end; ++r) {
            const u32* a = p.packed_a + (r * all + start) * rows;
            for (i64 c = column_item * panels_together; c < column_end; ++c) {
                const u32* b = p.packed_b + (c * all + start) * columns;
                float* y = p.y + r * rows * p.n + c * columns;
                const i64 height = least(rows, p.m - r * rows), width = least(columns, p.n - c * columns);
                if (height == rows && width == columns)
                    add_products(count, a, b, y, p.n, start == 0);
                else
                    add_to_edge(count, a, b, y, p.n, start == 0, height, width);
            }
        }
        start += pairs_together;
    } while (start < all);
}

// Items first to last - 1, down the rows first: neighbours share panels of b.
void multiply(const Product& p, i64 first, i64 last) {
    for (i64 item = first; item < last; ++item) multiply_item(p, item % row_items(p), item / row_items(p));
}

}  // namespace

const Step product_steps[3] = {{items_of_a, pack_a}, {items_of_b, pack_b}, {items_of_y, multiply}};

#else

bool has_bfloat16_products() { return false; }
const Step product_steps[3] = {};

#endif

}  // namespace fewbits
