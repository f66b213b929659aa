// Products of groups of four in registers.
#pragma once

#include "kernels/gemv/group_tables.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace group_products {

#if defined(__AVX512F__)
using group_tables::Groups, group_tables::Kind;

namespace {  // of this file alone

// 16 lanes of two 16-bit floats: the lower ones as float32. bfloat16 are the upper half of a float32.
template <Kind kind>
inline __m512 low_values(__m512i pairs) {
    if (kind == Kind::bfloat16) return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
}

// And the upper ones.
template <Kind kind>
inline __m512 high_values(__m512i pairs) {
    if (kind == Kind::bfloat16) return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<i32>(0xffff0000u))));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
}

}  // namespace

// 64 values of 16 bits.
template <Kind kind>
inline __m512 gemv_words(const u8* codes, const float* x, __m512 sum) {
    __m512 w[4];
    // Even lanes have positions 0 and 1 of a group, odd lanes 2 and 3. Two permutations part them.
    const __m512i a = _mm512_loadu_si512(codes), b = _mm512_loadu_si512(codes + 64);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i first = _mm512_permutex2var_epi32(a, even, b);
    const __m512i second = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
    w[0] = low_values<kind>(first);
    w[1] = high_values<kind>(first);
    w[2] = low_values<kind>(second);
    w[3] = high_values<kind>(second);
    // One product for each position, in the order of the values.
#pragma GCC unroll 4
    for (i64 p = 0; p < 4; ++p) sum = _mm512_fmadd_ps(w[p], _mm512_loadu_ps(x + 16 * p), sum);
    return sum;
}

#if defined(__AVX512BF16__)

namespace {  // of this file alone

// The bfloat16 of the low and of the high bytes of 32 pairs of codes.
inline void look_up_bytes(const Groups& q, __m512i codes, __m512i* low, __m512i* high) {
    // Bytes of magnitudes from the tables; VPERMI2B ignores the eighth bit, which is the sign.
    const __m512i magnitude = _mm512_mask_abs_epi8(codes, q.absolute, codes), of_low = _mm512_set1_epi16(0x00ff);
    const __m512i signs = _mm512_set1_epi8(-128);
    const __mmask64 lowest = _mm512_mask_cmpeq_epi8_mask(q.absolute, codes, signs);
    const __m512i lows = _mm512_mask_mov_epi8(_mm512_permutex2var_epi8(q.table[0], magnitude, q.table[1]), lowest, q.lowest[0]);
    const __m512i highs = _mm512_mask_mov_epi8(_mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(q.table[2], magnitude, q.table[3]), codes,
                                                                         signs, 0xf8),  // with the sign
                                               lowest, q.lowest[1]);
    *low = _mm512_ternarylogic_epi32(_mm512_slli_epi16(highs, 8), lows, of_low, 0xf8);  // a | (b & c)
    *high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(lows, 8), highs, of_low, 0xf4);  // a | (b & ~c)
}

}  // namespace

// 128 values of 8 bits, each position of 32 groups as bfloat16.
inline __m512 gemv_narrow(const Groups& q, const u8* codes, const __m512i* x) {
    __m512i w[4];
    const __m512i a = _mm512_loadu_si512(codes), b = _mm512_loadu_si512(codes + 64);
    look_up_bytes(q, _mm512_permutex2var_epi16(a, q.even, b), w, w + 1);
    look_up_bytes(q, _mm512_permutex2var_epi16(a, _mm512_add_epi16(q.even, _mm512_set1_epi16(1)), b), w + 2, w + 3);
    __m512 sum = _mm512_setzero_ps();
    // Each instruction multiplies one position of 32 groups, two groups in each lane.
#pragma GCC unroll 4
    for (i64 p = 0; p < 4; ++p) sum = _mm512_dpbf16_ps(sum, (__m512bh)w[p], (__m512bh)x[p]);
    return sum;
}

#endif

#endif

}  // namespace group_products
