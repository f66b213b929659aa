// Spinors of a lattice in the four ways in which they are kept: loading, storing and sums.
//
// Codes as in kernels/reference/lattice/spinors.py: the largest magnitude of a site becomes 32767 or 127.
#pragma once

#include "kernels/lattice/exact_sums.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace spinors {

using numbers::Bits, numbers::Reals, numbers::magnitude_mask, numbers::vector, numbers::vector_bytes;
using vectors::read, vectors::shuffled, vectors::write;

constexpr i64 sites = lattice_sites;  // in a group: the lanes

// Vectors of one register; those of half and of a quarter of one hold the same number of lanes in narrower types.
using Doubles = double __attribute__((vector_size(vector_bytes)));
using HalfReals = float __attribute__((vector_size(vector_bytes / 2)));  // of as many lanes as Doubles
using Shorts = std::int16_t __attribute__((vector_size(vector_bytes / 2)));
using Tinies = std::int8_t __attribute__((vector_size(vector_bytes / 4)));

// `Raw` is what a number is before it is scaled: sums of codes are exact, and cost one conversion instead of two.
// One struct for each storage: Number is what is computed in, Element what lies in memory, Vector a register of
// numbers, top the code of the largest magnitude.
struct AsDouble {
    static constexpr i64 reals = spinor_reals;
    using Number = double;
    using Element = double;
    using Vector = Doubles;
    using Raw = Doubles;
    static constexpr bool coded = false;
    static constexpr Number top = 1;
};
struct AsFloat {
    static constexpr i64 reals = spinor_reals;
    using Number = float;
    using Element = float;
    using Vector = Reals;
    using Raw = Reals;
    static constexpr bool coded = false;
    static constexpr Number top = 1;
};
struct AsHalf {
    static constexpr i64 reals = spinor_reals;
    using Number = float;
    using Element = std::int16_t;
    using Vector = Reals;
    using Raw = Bits;
    static constexpr bool coded = true;
    static constexpr Number top = 32767;
};
struct AsQuarter {
    static constexpr i64 reals = spinor_reals;
    using Number = float;
    using Element = std::int8_t;
    using Vector = Reals;
    using Raw = Bits;
    static constexpr bool coded = true;
    static constexpr Number top = 127;
};

// The same for staggered fermions.
template <class K>
struct OneSpin : K {
    static constexpr i64 reals = colour_reals;
};

// Lanes in one vector: 16 lanes are 1, 2, 4 or 8 of them.
template <class K>
constexpr i64 at_once = vector_bytes / static_cast<i64>(sizeof(typename K::Number));

namespace {  // of this file alone

// A register of numbers from memory, before any scale.
inline Reals widened(const float* from) { return read<Reals>(from); }
inline Doubles widened(const double* from) { return read<Doubles>(from); }

// The plain conversion of a whole vector comes out of g++ 12 as two of half a vector and their gathering, or of single
// numbers: five instructions or a hundred for each one below.
inline Bits widened(const std::int16_t* from) {
#if defined(__AVX512F__)
    return reinterpret_cast<Bits>(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
    return reinterpret_cast<Bits>(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return __builtin_convertvector(read<Shorts>(from), Bits);
#endif
}

inline Bits widened(const std::int8_t* from) {
#if defined(__AVX512F__)
    return reinterpret_cast<Bits>(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
    return reinterpret_cast<Bits>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    return __builtin_convertvector(read<Tinies>(from), Bits);
#endif
}

// The low bits of each code.
inline void put(std::int16_t* to, Bits codes) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(codes)));
#else
    write(to, __builtin_convertvector(codes, Shorts));
#endif
}

inline void put(std::int8_t* to, Bits codes) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(codes)));
#else
    write(to, __builtin_convertvector(codes, Tinies));
#endif
}

}  // namespace

// One register of a field as it lies in memory, codes as integers.
template <class K>
inline typename K::Raw raw(const typename K::Element* from) {
    return widened(from);
}

// The same as numbers; exact, as codes have at most 16 bits.
template <class K>
inline typename K::Vector number(const typename K::Raw& v) {
    return __builtin_convertvector(v, typename K::Vector);
}

// The lane with bit `bit` flipped, as far as that lies within a vector; the rest is another vector: see part_of.
template <int bit>
inline Reals flipped(const Reals& v) {
    if constexpr ((i64{1} << bit) < vector) {
        return shuffled(v, v, [](int lane) { return lane ^ (1 << bit); });
    } else {
        return v;
    }
}

template <int bit>
inline Doubles flipped(const Doubles& v) {
    if constexpr ((i64{1} << bit) < vector / 2) {
        return shuffled(v, v, [](int lane) { return lane ^ (1 << bit); });
    } else {
        return v;
    }
}

// Where the vector starts that holds the lanes from `lane` on with bit `bit` flipped.
template <class K, int bit>
inline i64 part_of(i64 lane) {
    return (i64{1} << bit) < at_once<K> ? lane : lane ^ (i64{1} << bit);
}

template <class K>
struct Spinors {
    typename K::Element* values;
    float* norms;
};

template <class K>
inline Spinors<K> spinors(const Field& f) {
    return {static_cast<typename K::Element*>(f.values), f.norms};
}

template <class K>
inline void load(const Spinors<K>& from, i64 group, i64 lane, typename K::Vector* v) {
    const typename K::Element* values = from.values + group * K::reals * sites + lane;
    for (i64 c = 0; c < K::reals; ++c) v[c] = number<K>(raw<K>(values + c * sites));
    if constexpr (K::coded) {
        const Reals norm = read<Reals>(from.norms + group * sites + lane);
        for (i64 c = 0; c < K::reals; ++c) v[c] *= norm;
    }
}

// Stores v, which becomes what a load would give.
template <class K>
inline void store(const Spinors<K>& to, i64 group, i64 lane, typename K::Vector* v) {
    // Number c of these lanes lies c times 16 places further.
    typename K::Element* values = to.values + group * K::reals * sites + lane;
    if constexpr (K::coded) {
        // The constants of kernels/reference/lattice/spinors.py.
        constexpr i32 smallest_bits = 27 << 23;    // 2^-100: the quotient stays finite
        constexpr float nearest = 12582912.0f;     // 1.5 * 2^23: the sum's low bits are the rounded code
        Bits largest = {};
        for (i64 c = 0; c < K::reals; ++c) {
            // Maxima of bit patterns: exact, and NaN and infinity come out on top.
            const Bits magnitude = reinterpret_cast<Bits>(v[c]) & magnitude_mask;
            largest = magnitude > largest ? magnitude : largest;
        }
        // What is not finite keeps a norm that is not: the next sum tells of it.
        // All ones in lanes whose largest magnitude can be divided by; the others store zeros.
        const Bits kept = largest >= smallest_bits;
        largest &= kept;
        const Reals largest_value = reinterpret_cast<Reals>(largest);
        // One division for 24 numbers of a site; codes are products with it, rounded by the addition.
        const Reals quotient = K::top / largest_value, none = {};
        const Reals factor = kept ? quotient : none, norm = largest_value * (1.0f / K::top);
        for (i64 c = 0; c < K::reals; ++c) {
            const Reals moved = v[c] * factor + nearest;
            put(values + c * sites, reinterpret_cast<Bits>(moved));
            // What a load would give: sums that follow are of stored values.
            v[c] = (moved - nearest) * norm;
        }
        write(to.norms + group * sites + lane, norm);
    } else {
        for (i64 c = 0; c < K::reals; ++c) write(values + c * sites, v[c]);
    }
}

// Writes the product of two spinors for each lane; products of float32 are exact.
template <class K>
inline void write_products(const Doubles* a, const Doubles* b, double* sums) {
    Doubles sum = {};
    for (i64 c = 0; c < K::reals; ++c) sum += a[c] * b[c];
    write(sums, sum);
}

template <class K>
inline void write_products(const Reals* a, const Reals* b, double* sums) {
    constexpr i64 half = vector / 2;
    Doubles low = {}, high = {};
    // Products of two float32 are exact in double: 48 bits of 53.
    const auto wide = [](const Reals& v, i64 lane) {
        HalfReals part;
        __builtin_memcpy(&part, reinterpret_cast<const char*>(&v) + lane * 4, sizeof part);
        return __builtin_convertvector(part, Doubles);
    };
    for (i64 c = 0; c < K::reals; ++c) {
        low += wide(a[c], 0) * wide(b[c], 0);
        high += wide(a[c], half) * wide(b[c], half);
    }
    write(sums, low);
    write(sums + half, high);
}

namespace {  // of this file alone

// One register of numbers from as many doubles.
inline void narrowed(const double* from, Doubles& v) { v = read<Doubles>(from); }
inline void narrowed(const double* from, Reals& v) {
    const HalfReals parts[2] = {__builtin_convertvector(read<Doubles>(from), HalfReals),
                                __builtin_convertvector(read<Doubles>(from + vector / 2), HalfReals)};
    __builtin_memcpy(&v, parts, sizeof v);
}

}  // namespace

// The sums of the sites of one item, those of |out|^2 and then those of products. Their exact sums are what leaves it: no
// order of sites, threads or processes changes these.
struct SiteSums {
    const Lattice& job;
    i64 size = groups_in_item(job) * sites, filled = 0;

    double* lengths(i64 lane) const { return job.site_sums + filled + lane; }
    double* products(i64 lane) const { return job.site_sums + size + filled + lane; }
    void finish(i64 item, bool with_products) const {
        double* const parts = job.parts + item * 2 * most_parts;
        exact_sums::write_parts(job.site_sums, filled, parts);
        if (with_products) exact_sums::write_parts(job.site_sums + size, filled, parts + most_parts);
    }
};

// The passes in which no site sees another one.
template <class K>
void pass_over(const Lattice& job, i64 first, i64 last) {
    using Vector = typename K::Vector;
    using Number = typename K::Number;
    const Spinors<K> in = spinors<K>(job.in), out = spinors<K>(job.out);
    // The coefficients are rounded to the precision of the arithmetic once.
    Number* const x = static_cast<Number*>(job.x);
    const Number alpha = static_cast<Number>(job.alpha), beta = static_cast<Number>(job.beta), gamma = static_cast<Number>(job.gamma);
    const i64 groups = groups_in_item(job);
    for (i64 item = first; item < last; ++item) {
        SiteSums sums{job};
        for (i64 group = item * groups; group < (item + 1) * groups; ++group) {
            const i64 place_in_item = group - item * groups;
            if (!visits(job, item, place_in_item / job.extent[3], place_in_item % job.extent[3])) continue;
            for (i64 lane = 0; lane < sites; lane += at_once<K>) {
                Vector a[K::reals], b[K::reals];
                // Where the first number of these lanes lies in a field of plain numbers.
                const i64 place = group * K::reals * sites + lane;
                if (job.pass != Pass::update_solution) load(in, group, lane, a);
                // The wide residual rounded, or the direction after the solution has taken it.
                if (job.pass == Pass::store_residual) {
                    for (i64 c = 0; c < K::reals; ++c) narrowed(job.wide + place + c * sites, b[c]);
                } else {
                    load(out, group, lane, b);
                    for (i64 c = 0; c < K::reals; ++c) {
                        Number* const to = x + place + c * sites;
                        write(to, read<Vector>(to) + alpha * b[c]);
                    }
                    if (job.pass == Pass::update_solution) continue;
                    for (i64 c = 0; c < K::reals; ++c) b[c] = gamma * a[c] + beta * b[c];
                }
                store(out, group, lane, b);
                write_products<K>(b, b, sums.lengths(lane));
                if (job.pass == Pass::store_residual) write_products<K>(a, b, sums.products(lane));
            }
            sums.filled += sites;
        }
        if (job.pass != Pass::update_solution) sums.finish(item, job.pass == Pass::store_residual);
    }
}

}  // namespace spinors
