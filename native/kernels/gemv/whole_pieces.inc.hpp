// Whole pieces of lines in few instructions: codes that are integers of a byte, and with units for bfloat16 codes of four bits
// too, in blocks of 32 with a power of two each. The values are those of kernels/dequantize, bit for bit.
#pragma once

#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace whole_pieces {

using packed::PreparedDequantize;
using numbers::Reals, numbers::bits_of, numbers::float_of, numbers::magnitude_mask, numbers::power_of_two, numbers::vector;
using rounding::constants_of, rounding::decode_all;
using vectors::broadcast, vectors::read, vectors::write;

using i8 = std::int8_t;

// Values of a line that are decoded at once, and how many of them share a scale.
constexpr i64 piece = 512, block = 32, scales_in_piece = piece / block;

enum class Way : i32 { none, nibbles, bytes };

// What the pieces of a job share. Exponents of the least magnitude of an element, zero aside, and of the largest.
struct PieceDecoder {
    Way way;
    i32 least, largest;
    u16 table[32];  // nibbles: the values of the 16 codes as bfloat16, twice
};

namespace {  // of this file alone

// Four-bit codes whose values are all bfloat16: a permutation of words looks at five bits of each, of which the table ignores
// the highest.
inline void set_table(const Format& f, PieceDecoder& d) {
    alignas(64) i32 codes[16];
    alignas(64) float ones[16], values[16];
    for (i32 i = 0; i < 16; ++i) {
        codes[i] = i;
        ones[i] = 1.0f;
    }
    // The table comes from the same function that decodes everything else.
    decode_all(constants_of(f.grid, Overflow::saturate), f.grid.has_nan, codes, ones, values, 16);
    d.least = 127;
    d.largest = -126;
    for (i32 i = 0; i < 32; ++i) {
        const i32 bits = bits_of(values[i % 16]), exponent = ((bits & magnitude_mask) >> 23) - 127;
        d.table[i] = static_cast<u16>(static_cast<u32>(bits) >> 16);
        if ((bits & magnitude_mask) == 0) continue;
        d.least = numbers::smaller(d.least, exponent);
        d.largest = numbers::larger(d.largest, exponent);
    }
}

}  // namespace

// Whether nibbles are decoded here, or bytes, or neither. Scales of other formats are no exponents that could be added, or
// serve other numbers of values.
inline PieceDecoder piece_decoder_of(const Format& f) {
    PieceDecoder d{};
    const bool e8m0 = f.scales == Scales::power_of_two && f.block == block && f.scale_bits == 8 && f.scale_bias == 127 && f.scale_nan == 255;
    if (f.tabled || !e8m0 || f.grid.has_nan) return d;
    const Grid& g = f.grid;
    if (g.bits == 8 && g.sign == Sign::twos_complement) {
        d.way = Way::bytes;
        d.least = g.emin - g.m;
        d.largest = d.least + 7;
    }
#if defined(__AVX512BF16__)
    if (g.bits == 4) {
        d.way = Way::nibbles;
        set_table(f, d);
    }
#endif
    return d;
}

namespace {  // of this file alone

// The exponent, with its bias, of the least magnitude of a piece; 0 where a value may lie outside of the normal numbers: an
// exponent would leave its field, and a product with a scale of 2^-127 be rounded.
inline i32 least_exponent(const PieceDecoder& d, const u8* scales) {
    i32 smallest = 255, greatest = 0;
    for (i64 i = 0; i < scales_in_piece; ++i) {
        smallest = numbers::smaller(smallest, scales[i]);
        greatest = numbers::larger(greatest, scales[i]);
    }
    return greatest + d.largest > 254 || smallest + d.least < 1 ? 0 : smallest + d.least;
}

inline const u8* scales_at(const PreparedDequantize& p, i64 line, i64 start) { return p.job.scales + line * p.bytes.scales + start / block; }

// The powers of two of a piece times what one is worth: with the exponents above no product is rounded.
inline void scales_of_bytes(const PieceDecoder& d, const u8* scales, float* out) {
    const float unit = power_of_two(d.least);
    for (i64 i = 0; i < scales_in_piece; ++i) out[i] = float_of(scales[i] << 23) * unit;
}

// Lanes hold neighbours, as they lie in memory. A vector of bytes as float32; GCC would convert them one by one.
inline Reals values_of_bytes(const u8* codes) {
#if defined(__AVX512F__)
    return (Reals)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
#elif defined(__AVX2__)
    return (Reals)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
#else
    Reals values;
    for (i64 i = 0; i < vector; ++i) values[i] = static_cast<i8>(codes[i]);
    return values;
#endif
}

}  // namespace

// The piece of a line from `start` on, whose codes are bytes, four instructions for a vector; false where numbers are too small or too large for that.
inline bool decode_bytes(const PreparedDequantize& p, const PieceDecoder& d, i64 line, i64 start, float* out) {
    const u8 *codes = p.job.codes + line * p.bytes.codes + start, *scales = scales_at(p, line, start);
    if (least_exponent(d, scales) == 0) return false;
    float of_blocks[scales_in_piece];
    scales_of_bytes(d, scales, of_blocks);
    for (i64 i = 0; i < scales_in_piece; ++i)
#pragma GCC unroll 8
        for (i64 j = 0; j < block; j += vector) write(out + i * block + j, values_of_bytes(codes + i * block + j) * broadcast(of_blocks[i]));
    return true;
}

#if defined(__AVX512BF16__)

// Nibble k of each of 32 words: in this order a piece comes apart, 128 values at a time.
constexpr i64 nibbles_at_once = 128;
inline i64 place_of_nibble(i64 value) {
    const i64 in_group = value % nibbles_at_once;
    return value - in_group + 32 * (in_group % 4) + in_group / 4;
}

namespace {  // of this file alone

// 24 instructions for 128 values. A lane of 128 bits has eight words, which are one block: its power of two is added to the
// exponents of all values but zero.
inline void decode_nibbles(const PieceDecoder& d, const u8* codes, const u8* scales, u16* out) {
    const __m512i table = _mm512_loadu_si512(d.table);
    const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    const __m256i exponents = _mm256_slli_epi16(_mm256_sub_epi16(bytes, _mm256_set1_epi16(127)), 7);
    const __m512i of_blocks = _mm512_broadcast_i64x4(exponents);
    __m512i pick = _mm512_set_epi64(0x3000300030003, 0x3000300030003, 0x2000200020002, 0x2000200020002, 0x1000100010001, 0x1000100010001, 0, 0);
    for (i64 g = 0; g < piece; g += nibbles_at_once) {
        const __m512i c = _mm512_loadu_si512(codes + g / 2), scale = _mm512_permutexvar_epi16(pick, of_blocks);
        pick = _mm512_add_epi16(pick, _mm512_set1_epi16(4));
#pragma GCC unroll 4
        for (u32 k = 0; k < 4; ++k) {
            const __m512i v = _mm512_permutexvar_epi16(_mm512_srli_epi16(c, 4 * k), table);
            const __mmask32 counts = _mm512_test_epi16_mask(v, _mm512_set1_epi16(0x7fff));
            _mm512_storeu_si512(out + g + 32 * k, _mm512_maskz_add_epi16(counts, v, scale));
        }
    }
}

// Eight instructions for 32 values, which are integers of eight bits: none is rounded.
inline void narrow_bytes(const PieceDecoder& d, const u8* codes, const u8* scales, u16* out) {
    float of_blocks[scales_in_piece];
    scales_of_bytes(d, scales, of_blocks);
    for (i64 i = 0; i < scales_in_piece; ++i) {
        const Reals scale = broadcast(of_blocks[i]);
        const Reals low = values_of_bytes(codes + i * block) * scale, high = values_of_bytes(codes + i * block + vector) * scale;
        _mm512_storeu_si512(out + i * block, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
    }
}

}  // namespace

// The piece of a line from `start` on as bfloat16, nibbles at the places above; returns the bits of a float32 that no magnitude
// but zero lies below, or 0 where numbers are too small or too large for that.
inline i32 decode_narrow(const PreparedDequantize& p, const PieceDecoder& d, i64 line, i64 start, u16* out) {
    const u8 *codes = p.job.codes + line * p.bytes.codes + start * p.f.grid.bits / 8, *scales = scales_at(p, line, start);
    const i32 least = least_exponent(d, scales);
    if (least == 0) return 0;
    if (d.way == Way::nibbles) decode_nibbles(d, codes, scales, out);
    else narrow_bytes(d, codes, scales, out);
    return least << 23;
}

#endif

}  // namespace whole_pieces
