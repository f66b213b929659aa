// What one fake quantization is, as plain numbers: the interface between Python, the dispatcher and the kernels.
#pragma once

#include <cstdint>

namespace fewbits {

enum class Kind : std::int32_t {
    scalar,  // every value stands alone
    block,   // elements times one power of two for each block
    bdr,     // a power of two for each block, a shift towards finer steps for each sub-block
};

// How the exponent of a block's scale follows from its largest magnitude.
enum class ScaleRule : std::int32_t { floor, ceil, rceil, even, one_seventy_five, midmax, oas, double_floor };

// Exponents are unbiased powers of two. The element is the format of one value before its scale is applied.
struct FakeQuantize {
    Kind kind;
    std::int64_t rows, cols;  // contiguous float32, blocks along the columns
    std::int64_t block;       // values in a block; the last one of a row may be shorter
    std::int64_t sub_block;   // bdr: values that share a shift; divides block

    std::int32_t mantissa_bits;  // m: values in the binade of exponent e are multiples of 2^(e-m); 0 to 22
    std::int32_t emin;           // below this binade they stay multiples of 2^(emin-m)
    std::int32_t emax;           // exponent of the element's largest value
    float max, min;              // the largest value, and the magnitude of the most negative one
    bool signed_zero;            // whether the element can hold minus zero

    // Scalar formats only; blocks always saturate. What a magnitude becomes that rounds beyond max or min, infinity
    // included: that limit, or else `overflow`, an infinity or NaN.
    bool saturate;
    float overflow;

    ScaleRule scale_rule;                 // block, bdr
    float oas_factor;                     // rule oas: 2 (2 - 2^-m) / (2 - 2^-(m+1))
    std::int32_t scale_emin, scale_emax;  // block, bdr: exponents that the scale can hold, within [-127, 127]
    std::int32_t largest_shift;           // bdr: beta = 2^d2 - 1
};

// Static, like everything that a file of isa/ sees: an inline function would be a weak symbol there.
static inline std::int64_t blocks_per_row(const FakeQuantize& p) { return (p.cols + p.block - 1) / p.block; }

struct Outcome {
    const char* isa;  // the instruction set that the kernel was compiled for, as the compiler saw it
    bool nonfinite;   // whether an input was NaN or infinite
};

// Quantizes blocks first to last-1, counted row by row over the whole array. A scalar format has blocks too,
// of any size, so that work can be divided. `in` and `out` do not overlap.
using FakeQuantizeKernel = Outcome (*)(const FakeQuantize& p, const float* in, float* out, std::int64_t first,
                                       std::int64_t last);

}  // namespace fewbits
