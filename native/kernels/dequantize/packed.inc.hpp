// What is needed to read packed codes and scales.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace packed {

using decode_sixteen::CodeDecoder, decode_sixteen::code_decoder_of, decode_sixteen::decodes_in_registers;
using memory::unpack;
using numbers::binade, numbers::bits_of, numbers::float_of, numbers::infinity_bits, numbers::magnitude_mask,
    numbers::nan_bits, numbers::power_of_two, numbers::tile;
using rounding::Constants, rounding::constants_of, rounding::decode_all;

// What one thread decodes in, a tile of each. `b` is what elements are multiplied by.
struct alignas(64) DecodeBuffers {
    i32 codes[tile], scales[tile], shifts[tile];
    float b[tile], ones[tile], scale[tile], values[tile];
    float eights[tile + 16];  // a scale beside each eight values, written four at a time
};

// A job to read packed parts, with everything that its tiles share.
struct PreparedDequantize {
    const Dequantize& job;
    const Format& f;
    const Geometry& g;
    LineBytes bytes;
    const u8* end;  // of the codes of all lines
    Constants element, scale;
    bool real;
    bool float32_scales;
    bool scales_in_registers;  // by the next
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
        .end = nullptr,
        .element = {},
        .scale = {},
        .real = f.scales == Scales::real || f.scales == Scales::two_level,
        .float32_scales = false,
        .scales_in_registers = false,
        .scale_decoder = {},
    };
    p.end = job.codes + lines_in(p.g) * p.bytes.codes;
    if (!f.tabled) p.element = constants_of(f.grid, Overflow::saturate);
    if (p.real) p.scale = constants_of(f.scale_grid, Overflow::saturate);
    // Scales of at most eight bits: 16 of them are decoded by the registers that decode elements.
    const Grid& g = f.scale_grid;
    p.float32_scales = p.real && f.scale_bits == 32 && g.m == 23 && g.emin == -126 && g.inf == infinity_bits;
    p.scales_in_registers = p.real && f.scale_bits <= 8 && g.sign != Sign::twos_complement && decodes_in_registers(g);
    if (p.scales_in_registers) p.scale_decoder = code_decoder_of(g);
    return p;
}

// The outer scale of a line; one where the format has none.
inline float outer_scale(const PreparedDequantize& p, i64 line) {
    return p.f.scales == Scales::two_level ? p.job.outer[p.f.whole_known ? 0 : line] : 1.0f;
}

namespace {  // of this file alone

// 2^(code - 127) for the codes of E8M0: their bits in the exponent field, but for the smallest, which is subnormal, and for
// NaN. Both want the same bit besides; where there are none, as nearly always, one look at all codes says so.
inline void powers_of_two(const u8* __restrict codes, i64 n, float* __restrict out) {
    // As bytes a whole register of codes is looked at with two instructions.
    u8 largest = 0, smallest = 255;
    for (i64 j = 0; j < n; ++j) {
        largest = largest > codes[j] ? largest : codes[j];
        smallest = smallest < codes[j] ? smallest : codes[j];
    }
    for (i64 j = 0; j < n; ++j) out[j] = float_of(codes[j] << 23);
    if (smallest != 0 && largest != 255) return;
    for (i64 j = 0; j < n; ++j)
        if (codes[j] == 0 || codes[j] == 255) out[j] = float_of(codes[j] << 23 | binade / 2);
}

// Numbers that are float32 already; every NaN becomes the same.
inline void copy_floats(const u8* __restrict in, i64 n, float* __restrict out) {
    __builtin_memcpy(out, in, static_cast<u64>(n) * sizeof(float));
    for (i64 j = 0; j < n; ++j) out[j] = (bits_of(out[j]) & magnitude_mask) > infinity_bits ? float_of(nan_bits) : out[j];
}

}  // namespace

// Scales of n blocks of a line, from block number `first` on; `out` has room for whole vectors. Called once for thousands of values;
// inlined, it would be most of the code of every product.
__attribute__((noinline)) inline void decode_scales(const PreparedDequantize& p, DecodeBuffers& t, i64 line, i64 first, i64 n, float* out) {
    const Format& f = p.f;
    // Four ways, the usual ones first: the bits of E8M0 moved in place; float32 copied; up to eight bits through
    // registers; any width by loops.
    const i64 bytes = one_scale(f) ? bytes_for(1, f.scale_bits) : p.bytes.scales, bit = first * f.scale_bits;
    const u8* part = p.job.scales + line * p.bytes.scales;
    if (!p.real && f.scale_bits == 8 && f.scale_bias == 127 && f.scale_nan == 255) return powers_of_two(part + first, n, out);
    if (p.float32_scales) return copy_floats(part + 4 * first, n, out);
    if (p.scales_in_registers && bit % 8 == 0)
        return decode_sixteen::decode_scales(p.scale_decoder, part + bit / 8, part + bytes, n, out);
    unpack(part, first, f.scale_bits, n, t.scales, part + bytes);
    if (p.real) return decode_all(p.scale, f.scale_grid.has_nan, t.scales, t.ones, out, n);
    const i32 nan = f.scale_nan, bias = f.scale_bias;
    for (i64 j = 0; j < n; ++j) {
        const i32 code = t.scales[j];
        out[j] = code == nan ? float_of(nan_bits) : power_of_two(code - bias);
    }
}

}  // namespace packed
