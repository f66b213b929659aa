// Vectors of a register's width: to and from memory, past the caches, and lane by lane.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace {

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

inline bool starts_vector(const float* p) { return reinterpret_cast<std::uintptr_t>(p) % sizeof(Reals) == 0; }

// To memory past the caches; `to` starts a vector. Other threads see it after finish_nontemporal_stores.
inline void store_nontemporal(float* to, Reals v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, (__m512)v);
#elif defined(__AVX2__)
    _mm256_stream_ps(to, (__m256)v);
#elif defined(__SSE2__)
    _mm_stream_ps(to, (__m128)v);
#else
    write(to, v);
#endif
}

inline void finish_nontemporal_stores() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// One number in every lane.
inline Bits broadcast(i32 v) { return Bits{} + v; }
inline Reals broadcast(float v) { return v - Reals{}; }  // and not plus: minus zero would become zero

inline Bits larger(Bits a, Bits b) { return a > b ? a : b; }
inline Bits smaller(Bits a, Bits b) { return a < b ? a : b; }

}  // namespace
