// Chosen lanes of a vector side by side.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace compaction {

using numbers::Bits, numbers::vector;
using vectors::broadcast, vectors::read, vectors::write;

// A bit for each lane, lane 0 the lowest.
#if defined(__AVX512F__)
inline u32 lanes_above(Bits a, Bits b) { return _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b); }
inline u32 lanes_equal(Bits a, Bits b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
#else
namespace {  // of this file alone

inline u32 lanes_where(Bits holds) {
#if defined(__AVX2__)
    return static_cast<u32>(_mm256_movemask_ps((__m256)holds));
#elif defined(__SSE2__)
    return static_cast<u32>(_mm_movemask_ps((__m128)holds));
#else
    u32 lanes = 0;
    for (i64 l = 0; l < vector; ++l) lanes |= (holds[l] ? 1u : 0u) << l;
    return lanes;
#endif
}

}  // namespace

inline u32 lanes_above(Bits a, Bits b) { return lanes_where(a > b); }
inline u32 lanes_equal(Bits a, Bits b) { return lanes_where(a == b); }
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
namespace {  // of this file alone

// Which lanes are taken, for each set of eight: AVX2 has no instruction that closes gaps, but one that permutes.
struct LanesTaken {
    alignas(8) u8 of[256][8];
};

constexpr LanesTaken lanes_taken() {
    LanesTaken t{};
    for (u32 chosen = 0; chosen < 256; ++chosen)
        for (u32 lane = 0, at = 0; lane < 8; ++lane)
            if (chosen >> lane & 1) t.of[chosen][at++] = static_cast<u8>(lane);
    return t;
}

constexpr LanesTaken taken = lanes_taken();

}  // namespace
#endif

// Writes those lanes of v that are chosen, one after the other, and then whatever up to the end of a vector: no branch
// depends on how many they are.
inline void write_chosen(Bits v, u32 chosen, i32* out) {
#if defined(__AVX512F__)
    // In a register and then to memory: the instruction that does both takes many times as long on some CPUs.
    write(out, (Bits)_mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen), (__m512i)v));
#elif defined(__AVX2__)
    const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(taken.of[chosen])));
    write(out, (Bits)_mm256_permutevar8x32_epi32((__m256i)v, lanes));
#else
    for (i64 l = 0; l < vector; ++l) {
        *out = v[l];
        out += chosen >> l & 1;
    }
#endif
}

inline i64 count_of_lanes(u32 chosen) { return __builtin_popcount(chosen); }

// The lowest `most` of the chosen lanes.
inline u32 first_lanes(u32 chosen, i64 most) {
    if (most == 0) return 0;
    while (count_of_lanes(chosen) > most) chosen ^= 0x80000000u >> __builtin_clz(chosen);
    return chosen;
}

}  // namespace compaction
