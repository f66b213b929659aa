// From values to values of a format or to packed parts, back from parts to values, and how large values are.
#pragma once

#include <cstdint>

#include "jobs/format.hpp"
#include "jobs/geometry.hpp"

namespace fewbits {

enum class Real : std::int32_t { f32, bf16, f16 };  // what a value in memory is

struct Quantize {
    Format format;
    Geometry geometry;
    const void* in;
    Real in_type;
    // One of the two: values, or packed parts. Every line of a part starts on a byte.
    void* values;
    Real values_type;
    std::uint8_t *codes, *scales, *shifts;
    float* outer;
    bool nontemporal;  // results go to memory past the caches
};

// What is done with values that were decoded.
enum class Combine : std::int32_t {
    replace,
    add,       // to the float32 that are there
    subtract,  // from those; what is not finite then becomes zero
};

// From packed parts to values.
struct Dequantize {
    Format format;
    Geometry geometry;  // step is not used
    const std::uint8_t *codes, *scales, *shifts;
    const float* outer;
    void* values;
    Real values_type;
    Combine combine;  // other than `replace` on float32 without gaps alone
    bool nontemporal;
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

}  // namespace fewbits
