// Sixteen packed codes at a time, decoded in registers. AVX-512 only: elsewhere the loops of dequantize.inc.hpp do it.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace decode_sixteen {

using numbers::nan_bits, numbers::power_of_two, numbers::smaller;
using rounding::constants_of, rounding::decode_all, rounding::is_fixed;

#if defined(__AVX512F__)

// How 16 codes become 16 floats.
enum class Decoder : i32 {
    table,   // up to four bits: the codes select from one register
    half,    // sign and magnitude: the code's bits, put in the right places, are a float16, which the CPU converts
    integer  // two's complement
};

// What decoding needs besides the codes: registers that are set up once for each job. Lane i of 16 is code i.
struct CodeDecoder {
    Decoder decoder;
    i32 bits;
    __m512i bytes, shifts;  // table: which four bytes hold code i, and how far in
    __m512 table;
    __m256i two_bytes, to_top;  // others: which two bytes hold code i, and how far from the top of them it ends
    __m256i places;             // half: sign and magnitude of a float16 that a code fills
    __m128i down;               // from the top to those places, or to an integer
    __m256i largest, nan;       // half: above the first, or equal to the second, is NaN
    __m512 unit;                // what one is worth
    bool has_nan;
};

namespace {  // of this file alone

// Bits of the exponent of an element with a sign bit; fixed point has none.
inline i32 exponent_bits(const Grid& g) { return is_fixed(g) ? 0 : g.bits - 1 - g.m; }

// Two's complement of up to eight bits is an integer; a table of four bits serves every format.
inline Decoder decoder_of(const Grid& g) {
    return g.bits <= 4 ? Decoder::table : g.sign == Sign::bit ? Decoder::half : Decoder::integer;
}

}  // namespace

inline bool decodes_in_registers(const Grid& g) {
    if (g.bits <= 4 || g.sign == Sign::twos_complement) return g.bits <= 8;
    // A float16 has five bits of exponent, and nothing but infinity and NaN with the highest.
    const i32 bits = exponent_bits(g);
    const bool half = bits < 5 ? g.inf == 0 : bits == 5 && g.limit_above < 31 << g.m;
    return g.bits <= 8 && g.sign == Sign::bit && half;
}

inline CodeDecoder code_decoder_of(const Grid& g) {
    CodeDecoder s{};
    s.bits = g.bits;
    s.has_nan = g.has_nan;
    s.decoder = decoder_of(g);
    alignas(64) u8 bytes[64], two_bytes[32];
    alignas(64) i32 shifts[16], codes[16];
    alignas(64) u16 to_top[16];
    alignas(64) float table[16], ones[16];
    for (i32 i = 0; i < 16; ++i) {
        // Code i begins in byte i bits / 8, at bit i bits % 8 of it; with at most eight bits it ends in the next byte
        // at the latest.
        const i32 byte = i * g.bits / 8, bit = i * g.bits % 8;
        for (i32 j = 0; j < 4; ++j) bytes[4 * i + j] = static_cast<u8>(smaller(byte + j, 7));
        for (i32 j = 0; j < 2; ++j) two_bytes[2 * i + j] = static_cast<u8>(smaller(byte + j, 15) % 16);
        shifts[i] = bit;
        to_top[i] = static_cast<u16>(16 - g.bits - bit);
        codes[i] = i & ((1 << smaller(g.bits, 4)) - 1);
        ones[i] = 1.0f;
    }
    s.bytes = _mm512_load_si512(bytes);
    s.shifts = _mm512_load_si512(shifts);
    s.two_bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(two_bytes));
    s.to_top = _mm256_load_si256(reinterpret_cast<const __m256i*>(to_top));
    // The table comes from the same function that decodes everything else.
    if (s.decoder == Decoder::table) decode_all(constants_of(g, Overflow::saturate), g.has_nan, codes, ones, table, 16);
    s.table = _mm512_load_ps(table);
    // Fixed point becomes a subnormal float16, a multiple of 2^-24; a float keeps its exponent field and m bits of 10.
    const i32 low = is_fixed(g) ? 0 : 10 - g.m;
    s.down = _mm_cvtsi32_si128(s.decoder == Decoder::half ? 16 - g.bits - low : 16 - g.bits);
    const i32 magnitude = (1 << (g.bits - 1)) - 1;
    s.places = _mm256_set1_epi16(static_cast<short>(magnitude << low | 0x8000));
    s.largest = _mm256_set1_epi16(static_cast<short>((g.inf != 0 ? g.inf & magnitude : g.limit_above) << low));
    s.nan = _mm256_set1_epi16(static_cast<short>((g.nan & magnitude) << low | (g.nan > magnitude ? 0x8000 : 0)));
    // The exponent of what one is worth: a float16 has bias 15 where a float of the format has its own.
    const i32 step = g.emin - g.m;
    s.unit = _mm512_set1_ps(power_of_two(s.decoder == Decoder::integer ? step : is_fixed(g) ? step + 24 : g.emin + 14));
    return s;
}

namespace {  // of this file alone

// 16 bytes, or the `have` of them that there are.
template <bool in_bounds>
inline __m128i load_codes(const u8* in, i64 have) {
    return in_bounds ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(in))
                 : _mm_maskz_loadu_epi8(static_cast<__mmask16>(have >= 16 ? 0xffff : (1 << have) - 1), in);
}

}  // namespace

// 16 values of a line, without their scale, from the codes that start at `in`.
template <Decoder decoder, bool in_bounds>
inline __m512 decode_sixteen(const CodeDecoder& s, const u8* in, i64 have) {
    if (decoder == Decoder::table) {
        __m512i loaded;
        if (in_bounds) {  // 16 codes of at most four bits: a broadcast from memory costs no shuffle
            i64 eight;
            __builtin_memcpy(&eight, in, sizeof eight);
            loaded = _mm512_set1_epi64(eight);
        } else {
            loaded = _mm512_broadcast_i32x4(load_codes<in_bounds>(in, have));
        }
        // A permutation looks at four bits of each index; narrower codes repeat in the table by their low bits.
        return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_shuffle_epi8(loaded, s.bytes), s.shifts), s.table);
    }
    // Sixteen lanes of 16 bits: a byte shuffle brings two bytes that hold the code, a shift to the left drops the codes
    // above it, an arithmetic shift to the right those below, and repeats the sign.
    const __m256i loaded = _mm256_broadcastsi128_si256(load_codes<in_bounds>(in, have));
    const __m256i top = _mm256_sllv_epi16(_mm256_shuffle_epi8(loaded, s.two_bytes), s.to_top);
    const __m256i down = _mm256_sra_epi16(top, s.down);
    if (decoder == Decoder::integer) return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(down)) * s.unit;
    const __m256i half = _mm256_and_si256(down, s.places);
    // float16 to float32 is exact, and so is the product with a power of two.
    const __m512 value = _mm512_cvtph_ps(half) * s.unit;
    if (!s.has_nan) return value;
    const __mmask16 nan = _mm256_cmpgt_epi16_mask(_mm256_and_si256(half, _mm256_set1_epi16(0x7fff)), s.largest) |
                          _mm256_cmpeq_epi16_mask(half, s.nan);
    return _mm512_mask_mov_ps(value, nan, _mm512_castsi512_ps(_mm512_set1_epi32(nan_bits)));
}

// n codes of a byte each; `out` has room for whole vectors.
inline void decode_bytes(const CodeDecoder& given, const u8* in, i64 n, float* out) {
    const CodeDecoder s = given;
    for (i64 i = 0; i < n; i += 16) _mm512_storeu_ps(out + i, decode_sixteen<Decoder::half, false>(s, in + i, n - i));
}

#else

struct CodeDecoder {};
inline bool decodes_in_registers(const Grid&) { return false; }
inline CodeDecoder code_decoder_of(const Grid&) { return {}; }
inline void decode_bytes(const CodeDecoder&, const u8*, i64, float*) {}

#endif

}  // namespace decode_sixteen
