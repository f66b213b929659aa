// What is needed to read packed codes and scales.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace packed {

using decode_sixteen::CodeDecoder, decode_sixteen::code_decoder_of, decode_sixteen::decode_bytes,
    decode_sixteen::decodes_in_registers;
using memory::unpack;
using numbers::binade, numbers::float_of, numbers::nan_bits, numbers::power_of_two, numbers::tile;
using rounding::Constants, rounding::constants_of, rounding::decode_all;

// What one thread decodes in, a tile of each. `b` is what elements are multiplied by.
struct alignas(64) DecodeBuffers {
    i32 codes[tile], scales[tile], shifts[tile];
    float b[tile], ones[tile], scale[tile], values[tile];
};

// A job to read packed parts, with everything that its tiles share.
struct PreparedDequantize {
    const Dequantize& job;
    const Format& f;
    const Geometry& g;
    LineBytes bytes;
    Constants element, scale;
    bool real;
    bool scale_bytes;  // scales are floats of a byte each, decoded by the next
    CodeDecoder scale_decoder;
};

// Once for each thread.
inline PreparedDequantize prepare_dequantize(const Dequantize& job) {
    const Format& f = job.format;
    PreparedDequantize p{
        .job = job,
        .f = f,
        .g = job.geometry,
        .bytes = line_bytes(f, job.geometry.n),
        .element = {},
        .scale = {},
        .real = f.scales == Scales::real || f.scales == Scales::two_level,
        .scale_bytes = false,
        .scale_decoder = {},
    };
    if (!f.tabled) p.element = constants_of(f.grid, Overflow::saturate);
    if (p.real) p.scale = constants_of(f.scale_grid, Overflow::saturate);
    // Scales of E4M3 and the like: 16 of them are decoded by the registers that decode elements.
    p.scale_bytes = p.real && f.scale_bits == 8 && f.scale_grid.sign == Sign::bit && decodes_in_registers(f.scale_grid);
    if (p.scale_bytes) p.scale_decoder = code_decoder_of(f.scale_grid);
    return p;
}

// The outer scale of a line; one where the format has none.
inline float outer_scale(const PreparedDequantize& p, i64 line) {
    return p.f.scales == Scales::two_level ? p.job.outer[p.f.whole_known ? 0 : line] : 1.0f;
}

namespace {  // of this file alone

// 2^(code - 127) for the codes of E8M0: their bits in the exponent field, but for the smallest, which is subnormal, and for
// NaN. Both want the same bit besides.
inline void powers_of_two(const u8* __restrict codes, i64 n, float* __restrict out) {
    for (i64 j = 0; j < n; ++j) {
        const i32 code = codes[j];
        out[j] = float_of(code << 23 | (((code + 1) & 0xfe) == 0 ? binade / 2 : 0));
    }
}

}  // namespace

// Scales of n blocks of a line, from block number `first` on; `out` has room for whole vectors.
inline void decode_scales(const PreparedDequantize& p, DecodeBuffers& t, i64 line, i64 first, i64 n, float* out) {
    const Format& f = p.f;
    // Three ways, the usual ones first: the bits of E8M0 moved in place; a byte each through registers; any width by
    // loops.
    const u8* part = p.job.scales + line * p.bytes.scales;
    if (!p.real && f.scale_bits == 8 && f.scale_bias == 127 && f.scale_nan == 255) return powers_of_two(part + first, n, out);
    if (p.scale_bytes) return decode_bytes(p.scale_decoder, part + first, n, out);
    unpack(part, first, f.scale_bits, n, t.scales, part + (one_scale(f) ? bytes_for(1, f.scale_bits) : p.bytes.scales));
    if (p.real) return decode_all(p.scale, f.scale_grid.has_nan, t.scales, t.ones, out, n);
    const i32 nan = f.scale_nan, bias = f.scale_bias;
    for (i64 j = 0; j < n; ++j) {
        const i32 code = t.scales[j];
        out[j] = code == nan ? float_of(nan_bits) : power_of_two(code - bias);
    }
}

}  // namespace packed
