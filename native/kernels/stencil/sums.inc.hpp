// Sums of products of two rows, in 16 parts on every instruction set.
#pragma once

#include "kernels/stencil/cells.inc.hpp"

namespace sums {

using cells::parts;

namespace {  // of this file alone

#if defined(__AVX512F__)
// Sixteen products, each rounded to float32, added to sixteen sums in double: lanes 0 to 7 and 8 to 15.
inline void add_sixteen(const float* u, const float* v, __m512d& low, __m512d& high) {
    const __m512 product = _mm512_loadu_ps(u) * _mm512_loadu_ps(v);
    low = low + _mm512_cvtps_pd(_mm512_castps512_ps256(product));
    high = high + _mm512_cvtps_pd(_mm512_extractf32x8_ps(product, 1));
}
inline void add_sixteen(const double* u, const double* v, __m512d& low, __m512d& high) {
    low = low + _mm512_loadu_pd(u) * _mm512_loadu_pd(v);
    high = high + _mm512_loadu_pd(u + 8) * _mm512_loadu_pd(v + 8);
}
#endif

}  // namespace

// Sixteen sums, of the positions i with i % 16 == l: two registers of AVX-512, four of AVX2. They are the same on each.
template <class Number>
struct Sums {
    alignas(64) double part[parts];
    // Before the first row.
    void clear() {
        for (i64 l = 0; l < parts; ++l) part[l] = 0.0;
    }
    // Products in Number, sums in double; those stay in registers for a row.
    void add(const Number* u, const Number* v, i64 n) {
#if defined(__AVX512F__)
        __m512d low = _mm512_load_pd(part), high = _mm512_load_pd(part + 8);
        for (i64 i = 0; i < n; i += parts) add_sixteen(u + i, v + i, low, high);
        _mm512_store_pd(part, low);
        _mm512_store_pd(part + 8, high);
#else
        for (i64 i = 0; i < n; i += parts)
            for (i64 l = 0; l < parts; ++l) part[l] += static_cast<double>(u[i + l] * v[i + l]);
#endif
    }
    // Added from the first lane to the last, in the same order on every instruction set; with sixteen numbers nothing
    // is lost by it.
    double total() const {
        double sum = 0.0;
        for (i64 l = 0; l < parts; ++l) sum += part[l];
        return sum;
    }
};

}  // namespace sums
