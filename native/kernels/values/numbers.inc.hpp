// Numbers as bits.
//
// Every file here is included by each file of isa/ into an unnamed namespace of its own, and compiled there with that
// file's flags. Nothing of the standard library's templates is used and everything has internal linkage: a weak symbol
// would let the linker keep one copy, perhaps the AVX-512 one, for every instruction set.
//
// The definition that all of it equals bit for bit is src/fewbits/kernels/reference.
#pragma once

namespace numbers {

// Fields of a float32: sign, eight bits of exponent, 23 of fraction. Bit patterns of magnitudes are ordered as the
// magnitudes are, which is what most kernels compare.
constexpr i32 magnitude_mask = 0x7fffffff;
constexpr i32 exponent_mask = 0x7f800000;
constexpr i32 infinity_bits = 0x7f800000;
constexpr i32 nan_bits = 0x7fc00000;
constexpr i32 one_bits = 0x3f800000;
constexpr i32 largest_bits = 0x7f7fffff;
constexpr i32 sign_bit = static_cast<i32>(0x80000000u);
constexpr i32 binade = 1 << 23;  // one step of the exponent field

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif
constexpr i64 vector = vector_bytes / 4;  // numbers of 32 bits in one
// A vector of floats and the same as bits.
using Reals = float __attribute__((vector_size(vector_bytes)));
using Bits = i32 __attribute__((vector_size(vector_bytes)));
using Naturals = u32 __attribute__((vector_size(vector_bytes)));
using Doubles = double __attribute__((vector_size(vector_bytes)));

constexpr i64 tile = 1024;  // values worked on at once: all buffers together stay within the nearest cache
// Where few buffers are in use and AVX-512 is done with a tile so soon that going from one to the next counts.
constexpr i64 long_tile = vector_bytes == 64 ? 2 * tile : tile;

inline i32 bits_of(float v) {
    i32 b;
    __builtin_memcpy(&b, &v, sizeof b);
    return b;
}

inline float float_of(i32 b) {
    float v;
    __builtin_memcpy(&v, &b, sizeof v);
    return v;
}

inline i32 larger(i32 a, i32 b) { return a > b ? a : b; }
inline i32 smaller(i32 a, i32 b) { return a < b ? a : b; }
inline i32 clamp(i32 v, i32 low, i32 high) { return smaller(larger(v, low), high); }
inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

inline bool is_power_of_two(i64 n) { return n > 0 && (n & (n - 1)) == 0; }

inline i64 log2_of(i64 n) {
    i64 log = 0;
    while (i64{1} << (log + 1) <= n) ++log;
    return log;
}

// 2^e for e in [-149, 127]; the second shift is kept in range where it is not used, and may be a vector of shifts.
inline float power_of_two(i32 e) { return float_of(e > -127 ? (e + 127) << 23 : 1 << (smaller(e, -127) + 149)); }

// A float32 as an integer of the same order; both zeros are 0.
inline i32 ordered(float v) {
    const i32 b = bits_of(v);
    return (b & magnitude_mask) == 0 ? 0 : b < 0 ? sign_bit - b : b;
}

// bfloat16 and float16 as float32; both conversions are exact.
inline float from_bf16(u16 h) { return float_of(static_cast<i32>(static_cast<u32>(h) << 16)); }

inline float from_f16(u16 h) {
    const i32 magnitude = (h & 0x7fff) << 13, sign = static_cast<i32>(static_cast<u32>(h & 0x8000) << 16);
    // The product normalizes subnormals; infinity and NaN have the exponent field 31.
    const i32 finite = bits_of(float_of(magnitude) * 0x1p112f);
    return float_of(sign | (magnitude >= 31 << 23 ? magnitude | exponent_mask : finite));
}

// float32 rounded to nearest even; NaN becomes the positive quiet one.
inline u16 to_bf16(float v) {
    const u32 b = static_cast<u32>(bits_of(v));
    const u32 rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;
    return static_cast<u16>((b & magnitude_mask) > static_cast<u32>(infinity_bits) ? 0x7fc0 : rounded);
}

inline u16 to_f16(float v) {
    const i32 b = bits_of(v), magnitude = b & magnitude_mask;
    // From 2^-14 on: round the low 13 bits away. Below: one addition leaves multiples of 2^-24 in the low bits.
    const i32 normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const i32 small = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    const i32 finite = magnitude < 113 << 23 ? small : smaller(normal, 0x7c00);
    return static_cast<u16>(magnitude > infinity_bits ? 0x7e00 : finite | static_cast<i32>(static_cast<u32>(b) >> 16 & 0x8000));
}

}  // namespace numbers
