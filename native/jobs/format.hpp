// A format and how values are rounded to it, as plain numbers: fewbits.formats and the options of one call, resolved.
#pragma once

#include <cstdint>

namespace fewbits {

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
    bool rounds_by_addition;  // whether rounding by one addition stays within float32's range; see round_to_nearest
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
    std::int32_t random_bits;  // 16 or 32 for each value

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

}  // namespace fewbits
