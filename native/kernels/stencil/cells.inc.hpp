// Numbers of a grid in the four ways in which they are stored: loading and storing rows.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace cells {

using numbers::bits_of, numbers::float_of, numbers::from_f16, numbers::larger, numbers::magnitude_mask,
    numbers::to_f16;

constexpr i64 parts = 16;         // sums run in as many parts on every instruction set
constexpr i64 margin = parts;     // before and after a row: its neighbours, zeros
constexpr float to_integer = 0x1.8p23f;  // added to a float, leaves it rounded to an integer
constexpr float largest_integer = 32767.0f, smallest_norm = 0x1p-100f;
constexpr float largest_half = 65504.0f;
constexpr i64 longest_row = 4096;  // of what lies on the stack: bind/stencil.cpp refuses longer ones

// Each way loads n numbers from number `at` on into the arithmetic's type, and stores them; a store leaves in v what a
// load would give, so that every sum is of stored numbers. n is a multiple of 32.
template <class T>
struct CellsPlain {  // stored as the arithmetic has them
    using Number = T;
    static void load(const Stored& s, i64 at, i64 n, T* __restrict to) {
        const T* from = static_cast<const T*>(s.values) + at;
        for (i64 i = 0; i < n; ++i) to[i] = from[i];
    }
    static void store(const Stored& s, double, i64 at, i64 n, T* __restrict v) {
        T* to = static_cast<T*>(s.values) + at;
        for (i64 i = 0; i < n; ++i) to[i] = v[i];
    }
};
using CellsF64 = CellsPlain<double>;
using CellsF32 = CellsPlain<float>;

struct CellsF16 {
    using Number = float;
    // float16 times a power of two, the unit of the whole array.
    static void load(const Stored& s, i64 at, i64 n, float* __restrict to) {
        const u16* from = static_cast<const u16*>(s.values) + at;
        const float unit = static_cast<float>(s.scale);
#if defined(__AVX512F__)
        for (i64 i = 0; i < n; i += parts) {
            const __m512 v = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
            _mm512_storeu_ps(to + i, v * _mm512_set1_ps(unit));
        }
#else
        for (i64 i = 0; i < n; ++i) to[i] = from_f16(from[i]) * unit;
#endif
    }
    // v becomes what load() gives back.
    static void store(const Stored& s, double scale, i64 at, i64 n, float* __restrict v) {
        // Scaled by the inverse of a power of two, which is exact; beyond the range of float16 its largest number is
        // stored.
        u16* to = static_cast<u16*>(s.values) + at;
        const float unit = static_cast<float>(scale), over = 1.0f / unit;
#if defined(__AVX512F__)
        const __m512 largest = _mm512_set1_ps(largest_half);
        for (i64 i = 0; i < n; i += parts) {
            // Sixteen at a time: scaled, kept within the finite range, converted to nearest even, and back.
            const __m512 scaled = _mm512_loadu_ps(v + i) * _mm512_set1_ps(over);
            const __m512 within = _mm512_max_ps(_mm512_min_ps(scaled, largest), -largest);
            const __m256i bits = _mm512_cvtps_ph(within, _MM_FROUND_TO_NEAREST_INT);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), bits);
            _mm512_storeu_ps(v + i, _mm512_cvtph_ps(bits) * _mm512_set1_ps(unit));
        }
#else
        for (i64 i = 0; i < n; ++i) {
            const float scaled = v[i] * over;
            to[i] = to_f16(scaled > largest_half ? largest_half : scaled < -largest_half ? -largest_half : scaled);
            v[i] = from_f16(to[i]) * unit;
        }
#endif
    }
};

// 16-bit integers, 32 of which share a norm: the largest magnitude becomes 32767.
struct CellsI16 {
    using Number = float;
#if defined(__AVX512F__)
    // Sixteen codes of a block, and the numbers that they stand for.
    static void store_sixteen(__m512 v, float over, float norm, std::int16_t* to, float* back) {
        const __m512i integers = _mm512_cvtps_epi32(v * _mm512_set1_ps(over));  // to nearest even
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(integers));
        _mm512_storeu_ps(back, _mm512_cvtepi32_ps(integers) * _mm512_set1_ps(norm));
    }
#endif
    static void load(const Stored& s, i64 at, i64 n, float* __restrict to) {
        // Block by block: the norm of one is at its number, counted through all rows.
        for (i64 block = 0; block < n; block += site) {
            // An integer of 16 bits is exact in float32; the product with the norm rounds once.
            const std::int16_t* from = static_cast<const std::int16_t*>(s.values) + at + block;
            const float norm = s.norms[(at + block) / site];
            for (i64 i = 0; i < site; ++i) to[block + i] = static_cast<float>(from[i]) * norm;
        }
    }
    static void store(const Stored& s, double, i64 at, i64 n, float* __restrict v) {
        for (i64 block = 0; block < n; block += site) {
            float* __restrict x = v + block;
            std::int16_t* __restrict to = static_cast<std::int16_t*>(s.values) + at + block;
#if defined(__AVX512F__)
            // Both halves of a block stay in registers from the maximum to the codes. Bit patterns of magnitudes
            // compare as integers.
            const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + parts);
            const __m512i sizes = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(low)), _mm512_castps_si512(_mm512_abs_ps(high)));
            const float largest = float_of(_mm512_reduce_max_epi32(sizes));
#else
            i32 bits = 0;
            for (i64 i = 0; i < site; ++i) bits = larger(bits, bits_of(x[i]) & magnitude_mask);
            const float largest = float_of(bits);
#endif
            // Blocks below 2^-100 are stored as zeros: 32767 over such a number could overflow.
            const bool small = !(largest >= smallest_norm);
            const float norm = small ? 0.0f : largest / largest_integer, over = small ? 0.0f : largest_integer / largest;
            s.norms[(at + block) / site] = norm;
#if defined(__AVX512F__)
            store_sixteen(low, over, norm, to, x);
            store_sixteen(high, over, norm, to + parts, x + parts);
#else
            for (i64 i = 0; i < site; ++i) {
                // The sum with 1.5 times 2^23 rounds to nearest even, as the conversion above does.
                const float integers = (x[i] * over + to_integer) - to_integer;
                to[i] = static_cast<std::int16_t>(static_cast<i32>(integers));
                x[i] = integers * norm;
            }
#endif
        }
    }
};

}  // namespace cells
