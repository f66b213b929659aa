// A product of two matrices, or of two stacks of them, by panels; kernels/reference/gemm/product.py defines the sums of
// integers.
#pragma once

#include <cstdint>

#include "jobs/conversion.hpp"
#include "jobs/kernels.hpp"

namespace fewbits {

// What a panel holds of a value, and so what multiplies. `integers`: a signed byte, and the power of two that a block of
// values shares; the sum within a block is exact. `integers16`: likewise, of 16 bits. The others add to float32 from one
// value to the next. `bfloat16x2` takes any float32 for the sum of two bfloat16, and leaves out the product of the second ones.
enum class Unit : std::int32_t { integers, integers16, bfloat16, bfloat16x2, float32 };

static constexpr bool is_integers(Unit unit) { return unit == Unit::integers || unit == Unit::integers16; }
static constexpr bool is_bfloat16(Unit unit) { return unit == Unit::bfloat16 || unit == Unit::bfloat16x2; }

// A block's largest magnitude lies in the binade of two to this, the others are integers beside it: 127 at most, or 511. So 32
// products of two are below 2^19 or 2^23 together, exact in 32 bits and in float32.
static constexpr int top_exponent(Unit unit) { return unit == Unit::integers ? 6 : 8; }
static constexpr int exponent_of_sum(Unit unit) { return unit == Unit::integers ? 19 : 23; }

// One factor. A line is a row of the left one or a column of the right one, and runs along the axis of the sum; one of
// line_step and step is 1.
struct Factor {
    const void* values;
    Real type;
    std::int64_t lines;
    std::int64_t line_step, step, batch_step;  // in values: between lines, along a line, between matrices
    const Format* format;                      // to which values are rounded first; null where they are taken as they are
};

// Which matrix of a product is lower triangular, as in causal attention: column j of row i is beyond the diagonal where j > i. Of
// a result what lies there is not wanted; of a factor, or of the left factor's transpose, zeros do, which no sum needs. Whole
// tiles are left out.
enum class Lower : std::int32_t { none, result, left, left_transposed, right };

struct Product {
    Unit unit;
    Factor a, b;
    std::int64_t batch, k;
    std::int64_t block;  // 32 values, or 16 integers: they share a scale
    void* y;             // (batch, lines of a, lines of b), the last axis side by side
    Real y_type;
    std::int64_t y_step;  // in values: between rows, also from the last of a matrix to the first of the next
    bool subtracts;       // from what is in y, float32, values rounded to bfloat16; subnormal values and products count as zeros
    Lower lower;
    const Kernels* kernels;  // which round
    std::uint8_t *panels, *left_panels;  // room for panel_bytes() of b and of a, each at a multiple of 64 bytes
    std::int64_t threads;    // among which items are divided; no sum depends on it
};

// What packing met, zeros aside, as bit patterns. Of integers the least and the largest of the largest magnitudes of blocks,
// and whether the values of each are multiples of 2^-6, or 2^-8, times the binade of its largest; of bfloat16 the least magnitude, and
// whether all are such numbers. Of all units whether there was neither infinity nor NaN.
struct BlockRange {
    std::int32_t least, largest;
    bool whole, finite;
};

// The functions of one instruction set. Items are independent of each other; b is packed before the product, a before it or in
// it: then there is nothing of it to pack before. Each says what it met of its factor.
struct Products {
    bool (*has)(Unit);
    std::int64_t (*panel_bytes)(const Product&, bool of_b);
    std::int64_t (*pack_workspace)(const Product&);  // bytes that each thread needs to pack, at a multiple of 64
    std::int64_t (*pack_items)(const Product&, bool of_b);
    BlockRange (*pack)(const Product&, bool of_b, void* workspace, std::int64_t first, std::int64_t last);
    std::int64_t (*workspace)(const Product&);  // the same to multiply
    std::int64_t (*items)(const Product&);
    BlockRange (*multiply)(const Product&, void* workspace, std::int64_t first, std::int64_t last);
};

}  // namespace fewbits
