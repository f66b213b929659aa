// Products of weights of one or two bits with integers of few bits; kernels/reference/gemv/planes.py is the definition.
#pragma once

#include <cstdint>

namespace fewbits {

// y[b, line] = sum over i of x[b, i] W[line, i], a whole number, times the scales of the line and of the row of x.
struct Planes {
    const std::uint8_t* codes;  // (lines, bytes of a line)
    std::int64_t lines, n;
    std::int32_t weight_bits;  // 2: two's complement; 1: code 0 is one, code 1 is minus one
    const std::uint8_t* x;     // (batch, n), one integer in each byte
    std::int32_t bits;         // of an integer of x, 1 to 8
    bool is_signed;            // whether x is in two's complement
    std::int64_t batch;
    const float* scales;      // of line i: scales[i * scale_step]; null for ones
    std::int64_t scale_step;  // 0 where one scale serves all lines
    const float* x_scales;    // (batch)
    bool by_bytes;            // multiply bytes, else count bits of planes; weights of two bits only
    bool byte_products;       // whether the CPU has vpdpbusd of the width of the registers in use
    std::uint8_t* panels;     // room for planes_panel_bytes, at a multiple of 64
    float* y;                 // (batch, lines)
};

// Beyond this many values in a line, sums of bytes could leave 32 bits: a quarter of them times 192 x 128, in one register.
constexpr std::int64_t most_by_bytes = std::int64_t{1} << 18;

}  // namespace fewbits
