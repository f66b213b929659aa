// Sixteen packed codes at a time, decoded in registers. AVX2 and AVX-512; elsewhere the loops of dequantize.inc.hpp do it.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace decode_sixteen {

#if defined(__AVX2__)

using numbers::Bits, numbers::Naturals, numbers::Reals, numbers::binade, numbers::infinity_bits, numbers::magnitude_mask,
    numbers::nan_bits, numbers::power_of_two, numbers::sign_bit, numbers::smaller, numbers::vector;
using rounding::constants_of, rounding::decode_all;
using vectors::broadcast, vectors::read, vectors::smaller, vectors::write;

// How 16 codes become 16 floats: chosen once for a job, and known to the compiler in each loop.
enum class Decoder : i32 {
    table,          // up to four bits: the codes select from registers
    integer,        // two's complement
    number,         // sign and magnitude: the code's bits, put in the right places, are nearly a float32
    number_or_nan,  // the same with codes that are infinity or NaN
    half,           // the same of at most seven bits that fit the fields of a float16, which the CPU widens
    // of eight bits:
    byte_integer,
    byte_half,
    byte_half_or_nan,
    // of 16 bits, all others of at most eight:
    wide_integer,
    wide_number,
    bfloat  // nothing but zeros is missing of a float32
};

inline constexpr bool is_wide(Decoder d) { return d >= Decoder::wide_integer; }
inline constexpr bool is_integer(Decoder d) { return d == Decoder::integer || d == Decoder::wide_integer; }
inline constexpr bool is_half(Decoder d) { return d == Decoder::half || d == Decoder::byte_half || d == Decoder::byte_half_or_nan; }

// Sixteen codes are one register or two.
constexpr i64 parts = 16 / vector;

using Words = u16 __attribute__((vector_size(32)));

// What decoding needs besides the codes: registers that are set up once for each job. Lane i of part h is code
// h vector + i.
struct CodeDecoder {
    Decoder decoder;
    i32 bits;
    bool minus_zero_is_nan;
    Bits bytes[parts];    // which bytes of 16 hold each code
    Bits shifts[parts];   // table: where a code begins in them; else how far it is from the top of its lane
    Reals table;          // the first `vector` values, repeated where there are fewer codes
    Reals above;          // AVX2: the values of codes from eight on
    i32 magnitude, sign;  // the bits of a code at the top of a lane
    i32 down, bias;       // number: from there to the fraction of a float32, and from the code's exponents to float32's
    float emin_value;
    i32 limit, infinity;  // magnitudes above the first are NaN, but for the second
    float unit;           // what the last bit of an integer's lane is worth, or a half besides its own value
    Words pairs, up;      // half: which bytes of 16 hold each code, and what takes it to the top of its word
    i32 shift, fields;    // halves: from there, or from the code as a word with its sign, to the fields of a float16
    i32 limit_of_halves;  // magnitudes above are NaN
};

namespace {  // of this file alone

inline i32 sign_bits(const Grid& g) { return g.sign == Sign::bit ? 1 : 0; }
inline i32 exponent_bits(const Grid& g) { return g.bits - sign_bits(g) - g.m; }

inline bool is_bfloat(const Grid& g) { return g.bits == 16 && g.sign == Sign::bit && g.m == 7 && g.emin == -126; }

inline bool nan_is_minus_zero(const Grid& g) { return g.has_nan && g.sign == Sign::bit && g.nan == 1 << (g.bits - 1); }

}  // namespace

// Whether magnitudes are those of a float16 times a power of two: a fraction of at most ten bits, exponents of at most five, of
// which infinity and NaN alone have the largest; no NaN in the place of minus zero.
inline bool fits_half(const Grid& g) {
    const i32 bits = exponent_bits(g), infinity = g.inf & ((1 << (g.bits - sign_bits(g))) - 1);
    const bool below = bits < 5 || (bits == 5 && g.has_nan && g.limit_above >> g.m < 31);
    return g.sign != Sign::twos_complement && !nan_is_minus_zero(g) && g.m <= 10 && g.emin <= 100 && below && (g.inf == 0 || (g.has_nan && infinity == 31 << g.m));
}

namespace {  // of this file alone

inline Decoder decoder_of(const Grid& g) {
    const bool integer = g.sign == Sign::twos_complement;
    if (g.bits <= 4) return Decoder::table;
    if (g.bits == 8 && integer) return Decoder::byte_integer;
    if (g.bits < 8 && !g.has_nan && fits_half(g)) return Decoder::half;
    if (g.bits == 8 && fits_half(g)) return g.has_nan ? Decoder::byte_half_or_nan : Decoder::byte_half;
    if (g.bits <= 8) return integer ? Decoder::integer : g.has_nan ? Decoder::number_or_nan : Decoder::number;
    return integer ? Decoder::wide_integer : is_bfloat(g) ? Decoder::bfloat : Decoder::wide_number;
}

}  // namespace

inline bool decodes_in_registers(const Grid& g) {
    if (g.bits <= 4) return true;
    if (g.bits > 8 && g.bits != 16) return false;
    // What a lane's last bit is worth must be a normal float32, and so must the binade below emin.
    if (g.sign == Sign::twos_complement) return g.emin - g.m + g.bits - 32 > -126;
    const bool zeros = g.sign == Sign::none || g.signed_zero || nan_is_minus_zero(g);
    return zeros && (is_bfloat(g) || (g.emin > -126 && exponent_bits(g) < 8));
}

// What turns codes into float16, which have their exponents from -14 on and a fraction of ten bits.
inline void set_halves(const Grid& g, CodeDecoder& s) {
    s.unit = power_of_two(g.emin + 14);
    alignas(32) u8 pairs[32];
    for (i32 i = 0; i < 16; ++i) {
        const i32 byte = i * g.bits / 8, bit = i * g.bits % 8;
        pairs[2 * i] = static_cast<u8>(byte);
        pairs[2 * i + 1] = static_cast<u8>(smaller(byte + 1, 15));
        s.up[i] = static_cast<u16>(1 << (16 - g.bits - (g.bits < 8 ? bit : 0)));
    }
    s.pairs = read<Words>(pairs);
    s.shift = g.bits < 8 ? 6 - g.bits + g.m : 10 - g.m;
    s.fields = (g.sign == Sign::bit ? 0x8000 : 0) | ((1 << (g.bits - sign_bits(g))) - 1) << (10 - g.m);
    s.limit_of_halves = g.inf != 0 ? 31 << 10 : g.limit_above << (10 - g.m);
}

// Whether the values of a table are selected from registers: at most sixteen, all of them float32.
inline bool decodes_in_registers(const Table& t) {
    if (t.bits > 4) return false;
    bool floats = true;
    for (i32 i = 0; i < 1 << t.bits; ++i) floats &= static_cast<double>(static_cast<float>(t.by_code[i])) == t.by_code[i];
    return floats;
}

inline CodeDecoder code_decoder_of(const Grid& g) {
    CodeDecoder s{};
    s.bits = g.bits;
    s.decoder = decoder_of(g);
    s.minus_zero_is_nan = nan_is_minus_zero(g);
    alignas(64) u8 bytes[64];
    alignas(64) i32 shifts[16], codes[16];
    alignas(64) float table[16], ones[16];
    for (i32 i = 0; i < 16; ++i) {
        // Code i begins in byte i bits / 8, at bit i bits % 8 of it; with at most eight bits it ends in the next byte
        // at the latest. Codes of 16 bits come in the lower halves of their lanes.
        const i32 byte = i * g.bits / 8, bit = g.bits == 16 ? 0 : i * g.bits % 8;
        for (i32 j = 0; j < 4; ++j) bytes[4 * i + j] = static_cast<u8>(smaller(byte + j, 15));
        shifts[i] = s.decoder == Decoder::table ? bit : 32 - g.bits - bit;
        codes[i] = i & ((1 << smaller(g.bits, 4)) - 1);
        ones[i] = 1.0f;
    }
    for (i64 h = 0; h < parts; ++h) {
        s.bytes[h] = read<Bits>(bytes + 4 * vector * h);
        s.shifts[h] = read<Bits>(shifts + vector * h);
    }
    // The table comes from the same function that decodes everything else.
    if (s.decoder == Decoder::table) decode_all(constants_of(g, Overflow::saturate), g.has_nan, codes, ones, table, 16);
    s.table = read<Reals>(table);
    s.above = read<Reals>(table + 16 - vector);
    s.sign = g.sign == Sign::bit ? sign_bit : 0;
    s.magnitude = static_cast<i32>(~0u << (32 - g.bits)) & ~s.sign;
    s.down = 9 + g.m - g.bits;
    s.bias = (g.emin + 126) * binade;
    s.emin_value = power_of_two(g.emin);
    // Magnitudes are compared where their fraction is a float32's; none is -1, and none is above the largest integer.
    const i32 mask = static_cast<i32>((1u << (g.bits - sign_bits(g))) - 1), drop = 23 - g.m;
    s.limit = g.has_nan ? g.limit_above << drop : magnitude_mask;
    s.infinity = g.inf != 0 ? (g.inf & mask) << drop : -1;
    s.unit = is_integer(s.decoder) ? power_of_two(g.emin - g.m + g.bits - 32) : 1.0f;
    if (s.decoder == Decoder::byte_integer) s.unit = power_of_two(g.emin - g.m);
    if (is_half(s.decoder)) set_halves(g, s);
    return s;
}

// That of a table: where codes lie depends on their bits only.
inline CodeDecoder code_decoder_of(const Table& t) {
    Grid g{};
    g.bits = t.bits;
    CodeDecoder s = code_decoder_of(g);
    alignas(64) float table[16];
    for (i32 i = 0; i < 16; ++i) table[i] = static_cast<float>(t.by_code[i & ((1 << t.bits) - 1)]);
    s.table = read<Reals>(table);
    s.above = read<Reals>(table + 16 - vector);
    return s;
}

// That of the elements of a format.
inline CodeDecoder code_decoder_of(const Format& f) { return f.tabled ? code_decoder_of(f.table) : code_decoder_of(f.grid); }

namespace {  // of this file alone

// The codes of part `h` of 16 in the lanes of a register: from their first bit on at s.shifts[h], other codes around
// them. `in` has 16 bytes, or 32 for wide codes.
template <Decoder decoder>
inline Bits codes_in_lanes(const CodeDecoder& s, const u8* in, i64 h) {
#if defined(__AVX512F__)
    if (is_wide(decoder)) return (Bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
    // A broadcast from memory costs no shuffle; then a shuffle of bytes within each 16.
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
    return (Bits)_mm512_shuffle_epi8(all, (__m512i)s.bytes[h]);
#else
    if (is_wide(decoder)) return (Bits)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 16 * h)));
    const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
    return (Bits)_mm256_shuffle_epi8(all, (__m256i)s.bytes[h]);
#endif
}

inline Reals select_from_table(const CodeDecoder& s, Bits codes) {
#if defined(__AVX512F__)
    // A permutation looks at four bits of each index; narrower codes repeat in the table by their low bits.
    return (Reals)_mm512_permutexvar_ps((__m512i)codes, (__m512)s.table);
#else
    // Eight lanes: three bits select from each half of the table, the fourth, at the top of the lane, between both.
    const __m256 low = _mm256_permutevar8x32_ps((__m256)s.table, (__m256i)codes);
    const __m256 high = _mm256_permutevar8x32_ps((__m256)s.above, (__m256i)codes);
    return (Reals)_mm256_blendv_ps(low, high, (__m256)(codes << 28));
#endif
}

// The lesser of both; an instruction, where a comparison and a selection are two.
inline Reals lesser(Reals a, Reals b) {
#if defined(__AVX512F__)
    return (Reals)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return (Reals)_mm256_min_ps((__m256)a, (__m256)b);
#endif
}

// Whether any lane holds more than the limit.
inline bool any_above(Bits lanes, i32 limit) {
#if defined(__AVX512F__)
    return _mm512_cmpgt_epi32_mask((__m512i)lanes, _mm512_set1_epi32(limit)) != 0;
#else
    return _mm256_movemask_ps((__m256)(lanes > limit)) != 0;
#endif
}

}  // namespace

// Sign and magnitude, at the top of each lane; of other codes below some bits may be left.
template <Decoder decoder>
inline Reals number_of(const CodeDecoder& s, Bits top) {
    const Bits sign = top & s.sign, magnitude = (Bits)((Naturals)(top & s.magnitude) >> static_cast<u32>(s.down));
    // As if there were no subnormals: those then lie between 2^emin and the binade below, half as dense as they should.
    // The line 2 v - 2^emin takes them where they belong, exactly, and lies above v in all binades from emin on. No step
    // meets a subnormal of float32, which would take some CPUs a hundred cycles.
    const Reals normal = (Reals)(magnitude + s.bias);
    const Reals v = decoder == Decoder::bfloat ? (Reals)magnitude : lesser(normal + normal - s.emin_value, normal);
    const Bits number = (Bits)v | sign;
    if (decoder == Decoder::number) return (Reals)number;
    if (s.minus_zero_is_nan) return (Reals)(number == sign_bit ? broadcast(nan_bits) : number);
    if (!any_above(magnitude, s.limit)) return (Reals)number;
    const Bits beyond = magnitude == s.infinity ? sign | infinity_bits : broadcast(nan_bits);
    return (Reals)(magnitude > s.limit ? beyond : number);
}

// Sixteen codes in the fields of float16: three instructions for bytes, five for other widths. The word of a byte has its sign
// in all upper bits; a code at the top of a word, moved down, likewise.
template <Decoder decoder>
inline __m256i halves_of(const CodeDecoder& s, const u8* in) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in)), shift = _mm_cvtsi32_si128(s.shift);
    __m256i words;
    if (decoder == Decoder::half) {
        const __m256i both = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), (__m256i)s.pairs);
        words = _mm256_sra_epi16(_mm256_mullo_epi16(both, (__m256i)s.up), shift);
    } else {
        words = _mm256_sll_epi16(_mm256_cvtepi8_epi16(sixteen), shift);
    }
    words = _mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(s.fields)));
    if (decoder != Decoder::byte_half_or_nan) return words;
    // Every NaN becomes the same: its bits are those of float32's below, ten and sixteen zeros.
    const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7fff));
    const __m256i nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(static_cast<short>(s.limit_of_halves)));
    return _mm256_blendv_epi8(words, _mm256_set1_epi16(0x7e00), nan);
}

// Part `h` of 16 float16 as float32; subnormals too are exact, and no CPU takes longer for them.
inline Reals widened(__m256i halves, [[maybe_unused]] i64 h) {
#if defined(__AVX512F__)
    return (Reals)_mm512_cvtph_ps(halves);
#else
    return (Reals)_mm256_cvtph_ps(h == 0 ? _mm256_castsi256_si128(halves) : _mm256_extracti128_si256(halves, 1));
#endif
}

// Part `h` of 16 integers of a byte, without their unit.
inline Reals bytes_of(const u8* in, [[maybe_unused]] i64 h) {
#if defined(__AVX512F__)
    return (Reals)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
#else
    return (Reals)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + 8 * h))));
#endif
}

// Part `h` of 16 values of a line, without their scale, from the codes that start at `in`: 16 bytes are read, or 32 of wide
// codes.
template <Decoder decoder>
inline Reals decode_part(const CodeDecoder& s, const u8* in, i64 h) {
    if (decoder == Decoder::byte_integer) return bytes_of(in, h) * s.unit;
    if (is_half(decoder)) return widened(halves_of<decoder>(s, in), h) * s.unit;
    const Bits codes = codes_in_lanes<decoder>(s, in, h);
    if (decoder == Decoder::table) return select_from_table(s, (Bits)((Naturals)codes >> (Naturals)s.shifts[h]));
    // To the top of the lane: the codes above are gone.
    const Bits top = codes << s.shifts[h];
    // At most 16 bits of the lane are left: its conversion is exact, and so is the product with a power of two.
    if (is_integer(decoder)) return __builtin_convertvector(top & s.magnitude, Reals) * s.unit;
    return number_of<decoder>(s, top);
}

// Bytes that are read for 16 codes.
inline i64 bytes_of_sixteen(const CodeDecoder& s) { return s.bits == 16 ? 32 : 16; }

namespace {  // of this file alone

template <Decoder decoder>
inline void decode_scales_by(const CodeDecoder& given, const u8* in, const u8* end, i64 n, float* out) {
    const CodeDecoder s = given;
    u8 last[16] = {};
    for (i64 i = 0; i < n; i += 16, in += 2 * s.bits) {
        const u8* from = end - in >= 16 ? in : static_cast<u8*>(__builtin_memcpy(last, in, static_cast<u64>(end - in)));
        Reals values[parts];
        for (i64 h = 0; h < parts; ++h) values[h] = decode_part<decoder>(s, from, h);
        for (i64 h = 0; h < parts; ++h) write(out + i + h * vector, values[h]);
    }
}

}  // namespace

// n codes of at most eight bits, from the first bit of `in` on; `out` has room for whole vectors, and bytes end at `end`.
inline void decode_scales(const CodeDecoder& s, const u8* in, const u8* end, i64 n, float* out) {
    if (s.decoder == Decoder::table) return decode_scales_by<Decoder::table>(s, in, end, n, out);
    if (s.decoder == Decoder::number) return decode_scales_by<Decoder::number>(s, in, end, n, out);
    if (s.decoder == Decoder::half) return decode_scales_by<Decoder::half>(s, in, end, n, out);
    if (s.decoder == Decoder::byte_half) return decode_scales_by<Decoder::byte_half>(s, in, end, n, out);
    if (s.decoder == Decoder::byte_half_or_nan) return decode_scales_by<Decoder::byte_half_or_nan>(s, in, end, n, out);
    decode_scales_by<Decoder::number_or_nan>(s, in, end, n, out);
}

#else

struct CodeDecoder {};
inline bool decodes_in_registers(const Grid&) { return false; }
inline CodeDecoder code_decoder_of(const Grid&) { return {}; }
inline bool decodes_in_registers(const Table&) { return false; }
inline CodeDecoder code_decoder_of(const Table&) { return {}; }
inline CodeDecoder code_decoder_of(const Format&) { return {}; }
inline void decode_scales(const CodeDecoder&, const u8*, const u8*, i64, float*) {}

#endif

}  // namespace decode_sixteen
