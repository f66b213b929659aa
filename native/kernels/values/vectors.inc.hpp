// Vectors of a register's width: to and from memory, past the caches, and lane by lane.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace vectors {

using numbers::Bits, numbers::Doubles, numbers::Reals, numbers::larger, numbers::smaller, numbers::vector;

// Memory of any alignment: memcpy of a known size is one unaligned load or store, and no aliasing rule is broken.
template <class Vector, class Number>
inline Vector read(const Number* from) {
    Vector v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

template <class Vector, class Number>
inline void write(Number* to, Vector v) {
    __builtin_memcpy(to, &v, sizeof v);
}

// Nontemporal stores fault on other addresses.
inline bool starts_vector(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % sizeof(Reals) == 0; }

// To memory past the caches; `to` starts a vector. Other threads see it after finish_nontemporal_stores.
inline void store_nontemporal(void* to, Reals v) {
#if defined(__AVX512F__)
    _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)v);
#elif defined(__AVX2__)
    _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)v);
#elif defined(__SSE2__)
    _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)v);
#else
    write(static_cast<u8*>(to), v);
#endif
}

// Nontemporal stores are weakly ordered: without the fence another thread could see the pool report the end of the work
// before it sees the values.
inline void finish_nontemporal_stores() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// One number in every lane.
inline Bits broadcast(i32 v) { return Bits{} + v; }
inline Reals broadcast(float v) { return v - Reals{}; }  // and not plus: minus zero would become zero
inline Doubles broadcast(double v) { return v - Doubles{}; }

// Whether a comparison holds in some lane.
inline bool any(Bits holds) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)holds) != 0;
#else
    i32 all = 0;
    for (int i = 0; i < numbers::vector; ++i) all |= holds[i];
    return all != 0;
#endif
}

// The largest lane, by halves: each step compares lane i with lane i plus half of those that are left.
inline i32 largest_lane(Bits v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v);
#elif defined(__AVX2__)
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
#else
    i32 largest = v[0];
    for (int i = 1; i < numbers::vector; ++i) largest = larger(largest, v[i]);
    return largest;
#endif
}

// The sign bits of all lanes, that of lane 0 lowest.
inline u32 signs_of(Bits v) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask((__m512i)v);
#elif defined(__AVX2__)
    return static_cast<u32>(_mm256_movemask_ps((__m256)v));
#else
    u32 signs = 0;
    for (int i = 0; i < numbers::vector; ++i) signs |= static_cast<u32>(v[i] < 0) << i;
    return signs;
#endif
}

// a b + c, rounded once where there is an instruction for it.
inline Reals multiply_add(Reals a, Reals b, Reals c) {
#if defined(__AVX512F__)
    return (Reals)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Reals)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
    return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

// ---- lanes in another order

namespace {  // of this file alone

// Lists of lane numbers as types: std::integer_sequence is a template of the standard library, which kernels do not
// use.
template <int... lane>
struct LaneList {};
template <int n, int... lane>
struct LanesBelow {
    using Type = typename LanesBelow<n - 1, n - 1, lane...>::Type;
};
template <int... lane>
struct LanesBelow<0, lane...> {
    using Type = LaneList<lane...>;
};

}  // namespace

template <class Vector, class Place, int... lane>
inline Vector shuffled(Vector a, Vector b, Place place, LaneList<lane...>) {
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, place(lane)...);
#else  // GCC before 12
    constexpr int n = static_cast<int>(sizeof...(lane));
    Vector v{};
    for (int i = 0; i < n; ++i) v[i] = place(i) < n ? a[place(i)] : b[place(i) - n];
    return v;
#endif
}

// Lane i becomes lane place(i) of a and b one after the other. `place` knows its results when it is compiled, so that
// this is one instruction; it captures nothing.
template <class Vector, class Place>
inline Vector shuffled(Vector a, Vector b, Place place) {
    return shuffled(a, b, place, typename LanesBelow<static_cast<int>(sizeof(Vector) / sizeof(a[0]))>::Type{});
}

namespace {  // of this file alone

template <int d, class Vector>
inline void exchange(Vector* v) {
    constexpr int lanes = static_cast<int>(sizeof(Vector) / sizeof(v[0][0]));
    // Squares of d by d lanes change places across the diagonal.
#pragma GCC unroll 16
    for (i64 i = 0; i < lanes; ++i) {
        if (i & d) continue;
        const Vector upper = v[i], lower = v[i + d];
        v[i] = shuffled(upper, lower, [](int lane) { return lane & d ? lanes + lane - d : lane; });
        v[i + d] = shuffled(upper, lower, [](int lane) { return lane & d ? lanes + lane : lane + d; });
    }
}

}  // namespace

// Lane l of vector i becomes lane i of vector l.
template <class Vector>
inline void transpose(Vector* v) {
    constexpr int lanes = static_cast<int>(sizeof(Vector) / sizeof(v[0][0]));
    if constexpr (lanes > 1) exchange<1>(v);
    if constexpr (lanes > 2) exchange<2>(v);
    if constexpr (lanes > 4) exchange<4>(v);
    if constexpr (lanes > 8) exchange<8>(v);
}

inline Bits larger(Bits a, Bits b) { return a > b ? a : b; }
inline Bits smaller(Bits a, Bits b) { return a < b ? a : b; }

}  // namespace vectors
