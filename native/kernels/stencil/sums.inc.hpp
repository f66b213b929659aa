// Sums of products of blocks, in 16 parts on every instruction set.
#pragma once

#include "kernels/stencil/cells.inc.hpp"

namespace sums {

using cells::Block, cells::Doubles, cells::parts;
using numbers::Reals, numbers::vector_bytes;

constexpr i64 doubles = vector_bytes / 8;     // in a register
constexpr i64 registers = parts / doubles;    // of one sum
constexpr i64 steps = site / doubles;         // registers of float64 in a block

// Register j of a block in float64. float32 becomes float64 without an error, and so do products of two of them.
inline Doubles wide(const Block<Doubles>& b, i64 j) { return b.v[j]; }
inline Doubles wide(const Block<Reals>& b, i64 j) {
    const Reals v = b.v[j / 2];
#if defined(__AVX512F__)
    return (Doubles)_mm512_cvtps_pd(j % 2 ? _mm512_extractf32x8_ps((__m512)v, 1) : _mm512_castps512_ps256((__m512)v));
#elif defined(__AVX2__)
    return (Doubles)_mm256_cvtps_pd(j % 2 ? _mm256_extractf128_ps((__m256)v, 1) : _mm256_castps256_ps128((__m256)v));
#else
    Doubles half;
    for (i64 i = 0; i < doubles; ++i) half[i] = static_cast<double>(v[j % 2 * doubles + i]);
    return half;
#endif
}

// Sixteen sums, of the positions i with i % 16 == l: two registers of AVX-512, four of AVX2. They are the same on each.
struct Sums {
    Doubles part[registers] = {};

    // Products of register j of two blocks.
    void add(i64 j, Doubles products) { part[j % registers] += products; }

    // Added from the first lane to the last, in the same order on every instruction set; with sixteen numbers nothing
    // is lost by it.
    double total() const {
        double sum = 0.0;
        for (i64 l = 0; l < parts; ++l) sum += part[l / doubles][l % doubles];
        return sum;
    }
};

}  // namespace sums
