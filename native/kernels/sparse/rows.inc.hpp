// y = A x for compressed rows. Each row is summed in float32 in the order of its columns, on every instruction set.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace rows {

using numbers::from_f16;

namespace {  // of this file alone

// How values are stored: one number decoded, and sixteen of them in a register. Conversions to float32 are exact; the
// unit of a row multiplies its sum once.
struct SingleValues {
    using Element = float;
    static float decode(float v) { return v; }
#if defined(__AVX512F__)
    static __m512 sixteen(const float* v) { return _mm512_loadu_ps(v); }
#endif
};

struct HalfValues {
    using Element = u16;
    static float decode(u16 v) { return from_f16(v); }
#if defined(__AVX512F__)
    static __m512 sixteen(const u16* v) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v))); }
#endif
};

struct IntegerValues {
    using Element = std::int16_t;
    static float decode(std::int16_t v) { return static_cast<float>(v); }
#if defined(__AVX512F__)
    static __m512 sixteen(const std::int16_t* v) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v))));
    }
#endif
};

#if defined(__AVX512F__)
// Sixteen columns as 32-bit indices of a gather.
inline __m512i sixteen_columns(const u16* c) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(c)));
}
inline __m512i sixteen_columns(const i32* c) { return _mm512_loadu_si512(c); }
#endif

// A slice is 16 rows, one in each lane; entry k of all lanes lies side by side, so that values and columns load as
// vectors.
template <class Values, class Column>
void multiply_slices(const SparseRows& a, const float* __restrict x, float* __restrict y, i64 first, i64 last) {
    const auto* values = static_cast<const typename Values::Element*>(a.values);
    const auto* columns = static_cast<const Column*>(a.columns);
    for (i64 s = first; s < last; ++s) {
        alignas(64) float sum[slice];
#if defined(__AVX512F__)
        __m512 sums = _mm512_setzero_ps();
        for (i64 segment = a.first[s]; segment < a.first[s + 1]; ++segment) {
            // Columns count from the base of their segment, which keeps them in 16 bits.
            const float* from = x + a.base[segment];
            for (i64 k = a.start[segment]; k < a.start[segment + 1]; ++k) {
                // Where the lanes need neighbours, one load replaces a gather of 16 elements.
                const __m512 there = a.runs[k] >= 0 ? _mm512_loadu_ps(from + a.runs[k])
                                                    : _mm512_i32gather_ps(sixteen_columns(columns + slice * k), from, 4);
                // A product and a sum, each rounded: not fused, so that every instruction set has the same bits.
                sums = sums + Values::sixteen(values + slice * k) * there;
            }
        }
        _mm512_store_ps(sum, sums * _mm512_loadu_ps(a.unit + slice * s));
#else
        // Without AVX-512 the same lanes in arrays: compilers make vectors of the inner loops.
        for (i64 l = 0; l < slice; ++l) sum[l] = 0.0f;
        for (i64 segment = a.first[s]; segment < a.first[s + 1]; ++segment) {
            const float* from = x + a.base[segment];
            for (i64 k = a.start[segment]; k < a.start[segment + 1]; ++k) {
                alignas(64) float there[slice];
                if (a.runs[k] >= 0)
                    for (i64 l = 0; l < slice; ++l) there[l] = from[a.runs[k] + l];
                else
                    for (i64 l = 0; l < slice; ++l) there[l] = from[columns[slice * k + l]];
                for (i64 l = 0; l < slice; ++l) sum[l] += Values::decode(values[slice * k + l]) * there[l];
            }
        }
        for (i64 l = 0; l < slice; ++l) sum[l] *= a.unit[slice * s + l];
#endif
        for (i64 l = 0; l < slice; ++l)
            // Rows may lie in another order than in y: `place` says which one a lane holds, -1 that it is empty.
            if (a.place[slice * s + l] >= 0) y[a.place[slice * s + l]] = sum[l];
    }
}

// From what is known when the job runs to what the compiler knows: the width of columns, then the storage of values.
template <class Values>
void multiply_columns(const SparseRows& a, const float* x, float* y, i64 first, i64 last) {
    if (a.wide) return multiply_slices<Values, i32>(a, x, y, first, last);
    multiply_slices<Values, u16>(a, x, y, first, last);
}

}  // namespace

// Slices first to last - 1 of y = A x.
void multiply_rows(const SparseRows& a, const float* x, float* y, i64 first, i64 last) {
    switch (a.storage) {
        case Storage::f16: return multiply_columns<HalfValues>(a, x, y, first, last);
        case Storage::i16: return multiply_columns<IntegerValues>(a, x, y, first, last);
        default: return multiply_columns<SingleValues>(a, x, y, first, last);
    }
}

}  // namespace rows
