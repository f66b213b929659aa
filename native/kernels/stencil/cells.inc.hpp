// Numbers of a grid in the four ways in which they are stored: to registers, and blocks of 32 from registers to memory.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace cells {

using numbers::Bits, numbers::Reals, numbers::bits_of, numbers::float_of, numbers::from_f16,
    numbers::magnitude_mask, numbers::to_f16, numbers::vector_bytes;
using vectors::broadcast, vectors::largest_lane, vectors::read, vectors::write;

constexpr i64 parts = 16;         // sums run in as many parts on every instruction set
constexpr i64 margin = parts;     // before and after a row: its neighbours, zeros
constexpr float to_integer = 0x1.8p23f;  // added to a float, leaves it rounded to an integer
constexpr float largest_integer = 32767.0f, smallest_norm = 0x1p-100f;
constexpr float largest_half = 65504.0f;
constexpr i64 longest_row = 4096;  // of what lies on the stack: bind/stencil.cpp refuses longer ones

using Doubles = double __attribute__((vector_size(vector_bytes)));
using Shorts = std::int16_t __attribute__((vector_size(vector_bytes / 2)));  // as many as Reals has lanes

// 32 numbers of a row in registers: two of AVX-512, four of AVX2, eight of SSE2, and twice as many of float64.
template <class Vector>
struct Block {
    static constexpr i64 lanes = sizeof(Vector) / sizeof(Vector{}[0]), count = site / lanes;
    Vector v[count];
};

// From consecutive numbers of any alignment, and back: rows of a grid start where its width puts them, so loads are
// unaligned.
template <class Vector, class Number>
inline Block<Vector> read_block(const Number* from) {
    Block<Vector> b;
    for (i64 k = 0; k < b.count; ++k) b.v[k] = read<Vector>(from + k * b.lanes);
    return b;
}

template <class Vector, class Number>
inline void write_block(Number* to, const Block<Vector>& b) {
    for (i64 k = 0; k < b.count; ++k) write(to + k * b.lanes, b.v[k]);
}

// Each way loads a register of numbers from number `at` on, and stores a block; a store leaves in the block what a load
// would give, so that every sum is of stored numbers. A block starts at a multiple of 32.
template <class T, class OfRegister>
struct CellsPlain {  // stored as the arithmetic has them
    using Number = T;
    using Vector = OfRegister;
    static constexpr i64 bytes = sizeof(T);
    T* values;
    explicit CellsPlain(const Stored& s) : values(static_cast<T*>(s.values)) {}
    Vector load(i64 at) const { return read<Vector>(values + at); }
    void store(i64 at, Block<Vector>& b) const { write_block(values + at, b); }
};
using CellsF64 = CellsPlain<double, Doubles>;
using CellsF32 = CellsPlain<float, Reals>;

// float16 times a power of two, the unit of the whole array.
struct CellsF16 {
    using Number = float;
    using Vector = Reals;
    static constexpr i64 bytes = 2;
    u16* values;
    float unit, over;  // the inverse of a power of two is exact
    explicit CellsF16(const Stored& s) : values(static_cast<u16*>(s.values)), unit(static_cast<float>(s.scale)), over(1.0f / unit) {}

    // A register of float32 from float16.
    static Reals widened(const u16* from) {
#if defined(__AVX512F__)
        return (Reals)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
        return (Reals)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
        Reals v;
        for (i64 i = 0; i < numbers::vector; ++i) v[i] = from_f16(from[i]);
        return v;
#endif
    }
    // To float16, to nearest even; beyond its range its largest number is stored. Of a NaN and a bound, a minimum is its
    // second operand.
    static void narrowed(Reals v, u16* to) {
#if defined(__AVX512F__)
        const __m512 largest = _mm512_set1_ps(largest_half);
        const __m512 within = _mm512_max_ps(-largest, _mm512_min_ps(largest, (__m512)v));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(within, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
        const __m256 largest = _mm256_set1_ps(largest_half);
        const __m256 within = _mm256_max_ps(-largest, _mm256_min_ps(largest, (__m256)v));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(within, _MM_FROUND_TO_NEAREST_INT));
#else
        for (i64 i = 0; i < numbers::vector; ++i)
            to[i] = to_f16(v[i] > largest_half ? largest_half : v[i] < -largest_half ? -largest_half : v[i]);
#endif
    }

    // Neither product rounds.
    Reals load(i64 at) const { return widened(values + at) * unit; }
    void store(i64 at, Block<Reals>& b) const {
        for (i64 k = 0; k < b.count; ++k) {
            u16* to = values + at + k * b.lanes;
            narrowed(b.v[k] * over, to);
            b.v[k] = widened(to) * unit;
        }
    }
};

// 16-bit integers, 32 of which share a norm: the largest magnitude becomes 32767.
struct CellsI16 {
    using Number = float;
    using Vector = Reals;
    static constexpr i64 bytes = 2;
    std::int16_t* values;
    float* norms;  // of blocks, counted through all rows
    explicit CellsI16(const Stored& s) : values(static_cast<std::int16_t*>(s.values)), norms(s.norms) {}

    // An integer of 16 bits is exact in float32; the product with the norm rounds once.
    Reals load(i64 at) const {
        return __builtin_convertvector(__builtin_convertvector(read<Shorts>(values + at), Bits), Reals) * norms[at / site];
    }
    void store(i64 at, Block<Reals>& b) const {
        // Bit patterns of magnitudes compare as integers; a block stays in registers from its maximum to its codes.
        Bits sizes = (Bits)b.v[0] & magnitude_mask;
        for (i64 k = 1; k < b.count; ++k) sizes = vectors::larger(sizes, (Bits)b.v[k] & magnitude_mask);
        const float largest = float_of(largest_lane(sizes));
        // Blocks below 2^-100 are stored as zeros: 32767 over such a number could overflow.
        const bool small = !(largest >= smallest_norm);
        const float norm = small ? 0.0f : largest / largest_integer, over = small ? 0.0f : largest_integer / largest;
        norms[at / site] = norm;
        for (i64 k = 0; k < b.count; ++k) {
            // The sum with 1.5 times 2^23 rounds to nearest even.
            const Reals integers = (b.v[k] * over + to_integer) - to_integer;
            write(values + at + k * b.lanes, __builtin_convertvector(__builtin_convertvector(integers, Bits), Shorts));
            b.v[k] = integers * norm;
        }
    }
};

}  // namespace cells
