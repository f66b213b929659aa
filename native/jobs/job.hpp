// What one conversion is, as plain numbers: the interface between Python, the dispatcher and the kernels.
#pragma once

#include <cstdint>

#include "jobs/lattice.hpp"

namespace fewbits {

enum class Real : std::int32_t { f32, bf16, f16 };  // what a value in memory is

enum class Rounding : std::int32_t { nearest_even, nearest_away, toward_zero, up, down, stochastic };

// How codes of a grid say the sign.
enum class Sign : std::int32_t { none, bit, twos_complement };

enum class Overflow : std::int32_t { saturate, inf, nan };

// What NaN and infinity in the input become. `saturate`: zero and the largest value of the input's own type.
// `element`: the element's own. `block_nan`: the block becomes NaN. `raise`: the caller refuses them.
enum class Nonfinite : std::int32_t { element, block_nan, saturate, raise };

// A float or fixed-point format. In the binade of exponent e its values are multiples of 2^(e-m), below the binade of
// emin they stay multiples of 2^(emin-m); a magnitude is coded as ((e - emin) << m) + its count of such steps. The
// values of fixed point all lie in or below one binade, emin.
struct Grid {
    std::int32_t bits, m, emin;  // m from 0 to 23, emin from -126
    std::int32_t limit_above, limit_below;  // codes of the largest magnitudes above and below zero
    std::int32_t nan, inf;                  // codes; 0 where there is none
    Sign sign;
    bool signed_zero;
    bool has_nan;
    bool quick;  // whether rounding by one addition stays within float32's range; see round_to_nearest
};

// A format given by its values in rising order: posit, lookup, and powers of two. keys[i] is the first float32, as an
// ordered integer, that is rounded to value i + 1 or beyond; base[k] counts the keys at or below the first float32
// whose ordered upper half is k, and at most 2^steps - 1 keys lie in any one such range.
struct Table {
    std::int32_t bits, count, steps;
    const std::int32_t* keys;   // count - 1
    const std::int32_t* base;   // 2^16
    const std::int32_t* codes;  // count
    const double* values;       // count
    const double* by_code;      // 2^bits, NaN for a code that is no number
    std::int32_t nan;              // code of NaN
    bool has_nan, infinity_is_nan, negative_is_nan;
};

enum class Scales : std::int32_t {
    none,          // every value stands alone
    power_of_two,  // elements times one power of two for each block
    shifted,       // BDR: besides, a shift towards finer steps for each sub-block
    real,          // elements times one number for each block
    two_level,     // elements times one number for each block times one for each line or for the whole array
};

struct Format {
    bool tabled;  // the element is the table, else the grid
    Grid grid;
    Table table;
    Rounding rounding;
    Overflow overflow;
    Nonfinite nonfinite;
    std::uint64_t seed;  // of stochastic rounding

    Scales scales;
    std::int64_t block;      // values in a block; the last one of a line may be shorter
    std::int64_t sub_block;  // shifted: values that share a shift; divides block
    std::int32_t scale_bits, shift_bits;

    // A power of two. The rule: the exponent of the largest magnitude minus emax, plus rule_plus, plus one if its
    // fraction, in units of 2^-23, is rule_first or more.
    std::int32_t rule_first, rule_plus, emax;
    float element_max;
    std::int32_t scale_emin, scale_emax, scale_bias, scale_zero;  // exponents; scale_zero is that of a block of zeros
    std::int32_t scale_nan;                                       // code; -1 where the scale cannot be NaN
    std::int32_t largest_shift;

    // A real scale is coded on this grid. Codes of the smallest scale and of the scale of a block of zeros.
    Grid scale_grid;
    std::int32_t scale_smallest, scale_of_zeros;
    float fill;        // two_level: largest scale times largest element
    bool whole_known;  // one scale, or with two_level one outer scale, serves the whole array
    double whole;      // the largest magnitude that it is chosen from; a double, which no thread's mode flushes
    bool whole_bad;    // whether that scale is NaN, because a value of the array is not finite

    // Structured sparsity: of each `group` values `keep` are stored, the rest have the code `zero`; layout.hpp. Products
    // with few vectors read it. 0: every value is stored.
    std::int32_t keep, group, zero;
};

constexpr int most_axes = 8;

// Where the values lie, counted in values. A line runs along the block axis; `extent` lists the other axes, the outer
// first. `place` is the place of a value in the C order of the array; fake quantization writes there.
struct Geometry {
    std::int64_t n;  // values in a line
    std::int64_t step, place_step;
    std::int32_t axes;
    std::int64_t extent[most_axes], stride[most_axes], place_stride[most_axes];
};

struct Job {
    Format format;
    Geometry geometry;
    const void* in;
    Real in_type;
    // One of the two: values, or packed parts. Every line of a part starts on a byte.
    void* values;
    Real values_type;
    std::uint8_t *codes, *scales, *shifts;
    float* outer;
    bool nontemporal;  // values go to memory past the caches
};

// From packed parts to values.
struct Restore {
    Format format;
    Geometry geometry;  // step is not used
    const std::uint8_t *codes, *scales, *shifts;
    const float* outer;
    void* values;
    Real values_type;
    bool nontemporal;
};

// y = x W^T for few rows of x, straight from the packed W: y[b, line] = sum over i of x[b, i] W[line, i].
struct Gemv {
    Format format;
    std::int64_t lines, n;  // W is (lines, n) with its blocks along n
    const std::uint8_t *codes, *scales, *shifts;
    const float* outer;
    const float* x;         // (batch, n)
    bool narrow;            // whether every value of x is a normal bfloat16, or zero
    const float* permuted;  // for one vector: of every 128 values, those 8 i + j at 16 j + i; may be null
    std::int64_t batch;
    float* y;             // (batch, stride), of which `lines` are written
    std::int64_t stride;
};

// Lines of packed codes and the streams of the same values; kernels/reference/sparse_stream.py.
struct SparseLines {
    std::int64_t lines, n;
    std::int32_t bits, keep, group, zero, minus_zero;
    const std::uint8_t* in;
    std::uint8_t* out;
};

// y = a b for dense matrices, multiplied by sums of bit patterns.
struct Additions {
    const float *a, *b;  // (m, k) and (k, n)
    float* y;            // (m, n)
    std::int64_t m, n, k;
};

// Initial values of the positions from `position` on; `out` is indexed from there.
struct CounterUniform {
    std::uint64_t seed;
    std::int64_t position;
    float unit;
    float* out;
};

struct Outcome {
    const char* isa;  // the instruction set that the kernel was compiled for, as the compiler saw it
    bool nonfinite;   // whether an input was NaN or infinite
};

struct Magnitudes {
    double largest;   // of what is finite; a double, as Format::whole
    double smallest;  // of what is not zero; infinity where there is nothing
    bool nonfinite;   // whether an input was NaN or infinite
};

struct DirectionUpdate;  // stencil.hpp
struct ResidualUpdate;
struct Pack;
struct SparseRows;  // rows.hpp
struct Residuals;  // residuals.hpp
struct Triangle;   // triangles.hpp
struct Extents;
struct NmPermutation;  // swaps.hpp

// Each does the items first to last - 1 of a job, of `items` in all; any division of the items gives the same result.
struct Kernels {
    std::int64_t (*items)(const Job&);
    Outcome (*convert)(const Job&, std::int64_t first, std::int64_t last);
    std::int64_t (*restore_items)(const Restore&);
    void (*restore)(const Restore&, std::int64_t first, std::int64_t last);
    std::int64_t (*gemv_workspace)(const Gemv&);  // bytes that each thread needs
    void (*gemv)(const Gemv&, std::uint8_t* room, std::int64_t first, std::int64_t last);  // items are lines
    // Each returns the first line that is not of the pattern, or -1.
    std::int64_t (*compress)(const SparseLines&, std::int64_t first, std::int64_t last);
    std::int64_t (*expand)(const SparseLines&, std::int64_t first, std::int64_t last);
    std::int64_t (*measure_items)(const Geometry&);
    Magnitudes (*measure)(const void* in, Real type, const Geometry&, std::int64_t first, std::int64_t last);
    void (*additions)(const Additions&, std::int64_t first, std::int64_t last);  // items are rows
    void (*lattice)(const Lattice&, std::int64_t first, std::int64_t last);  // items: items_of
    std::int64_t (*direction_workspace)(const DirectionUpdate&);  // bytes that each thread needs
    void (*update_direction)(const DirectionUpdate&, void* room, std::int64_t first, std::int64_t last);
    void (*update_residual)(const ResidualUpdate&, std::int64_t first, std::int64_t last);
    void (*pack)(const Pack&, std::int64_t first, std::int64_t last);
    void (*multiply_rows)(const SparseRows&, const float* x, float* y, std::int64_t first, std::int64_t last);
    void (*residuals)(const Residuals&, std::int64_t first, std::int64_t last);  // items are rows
    void (*extents)(const Extents&, double* columns, std::int64_t first, std::int64_t last);
    void (*substitute)(const Triangle&, std::int64_t first, std::int64_t last);  // items are right-hand sides
    void (*settle)(const NmPermutation&, std::int64_t first, std::int64_t last);  // items are groups
    // One after the other: each swap that is made changes what the next ones gain.
    std::int64_t (*anneal)(const NmPermutation&, const std::int32_t* pairs, const std::int64_t* allowances, std::int64_t* gains, std::int64_t n);
    void (*counter_uniform)(const CounterUniform&, std::int64_t first, std::int64_t last);
};

}  // namespace fewbits
