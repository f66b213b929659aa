// Products of a packed matrix with few vectors.
#pragma once

#include <cstdint>

#include "jobs/format.hpp"

namespace fewbits {

// y = x W^T for few rows of x, straight from the packed W: y[b, line] = sum over i of x[b, i] W[line, i].
struct Gemv {
    Format format;
    std::int64_t lines, n;  // W is (lines, n) with its blocks along n
    const std::uint8_t *codes, *scales, *shifts;
    const float* outer;
    const float* x;  // (batch, n)
    bool narrow;     // whether every value of x is a bfloat16 of 2^-119 or more, or zero
    // x rounded to integers in blocks of 32, and the scale of each block: then x has their products. Else null.
    const std::int8_t* x_codes;
    const float* x_scales;
    bool byte_products;  // whether the CPU has vpdpbusd of the width of the registers in use
    std::int64_t batch;
    std::uint8_t* panels;  // of several rows of x: room for gemv_panel_bytes, at a multiple of 64
    float* y;             // (batch, stride), of which `lines` are written
    std::int64_t stride;
};

}  // namespace fewbits
