// The largest magnitude of each block of a tile: what its scale is chosen from.
#pragma once

#include "kernels/quantize/prepared.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/scales.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace block_magnitudes {

using prepared::Buffers;
using numbers::Bits, numbers::Reals, numbers::infinity_bits, numbers::larger, numbers::least, numbers::magnitude_mask,
    numbers::vector;
using scales::largest_finite, scales::largest_lanes, scales::largest_of;
using vectors::any, vectors::larger, vectors::read, vectors::shuffled, vectors::write;

namespace {  // of this file alone

// One block after the other; the last may be shorter. A size known to the compiler lets it unroll the reduction.
template <i64 fixed_size>
inline void largest_of_blocks(const float* x, i64 n, i64 size, i32* largest) {
    const i64 width = fixed_size ? fixed_size : size;
    i64 j = 0, at = 0;
    for (; at + width <= n; at += width) largest[j++] = largest_of<fixed_size>(x + at, width);
    if (at < n) largest[j] = largest_of<0>(x + at, n - at);
}

// Which lane of two vectors stands in lane `lane` of their even pieces of `piece` lanes, those of the first before those of
// the second. Single lanes are taken within 16 bytes, where one shuffle does it whatever the register's width.
template <int piece>
constexpr int even_lane(int lane) {
    constexpr int within = piece == 1 ? 4 : static_cast<int>(vector), half = within / 2;
    const int at = lane % within, second = at < half ? 0 : static_cast<int>(vector);
    return second + lane / within * within + at % half / piece * 2 * piece + lane % piece;
}

// Maxima of pairs of neighbouring pieces: halves the lanes that belong to each. Shuffled as floats, since of integers GCC makes
// two shuffles and a blend. Inlined, so that blocks stay in registers.
template <int piece>
__attribute__((always_inline)) inline Bits merge(Bits a, Bits b) {
    const Reals even = shuffled((Reals)a, (Reals)b, [](int lane) { return even_lane<piece>(lane); });
    const Reals odd = shuffled((Reals)a, (Reals)b, [](int lane) { return even_lane<piece>(lane) + piece; });
    return larger((Bits)even, (Bits)odd);
}

// The largest lane of each of `vector` vectors, in order, merged like a tournament: three instructions for each merge instead of
// nine for the reduction of one vector alone.
__attribute__((always_inline)) inline Bits largest_of_each(Bits* top) {
    // Two rounds leave in each 16 bytes a number of each of four blocks, the others join those. Lane j then holds the
    // maximum of vector j: the merges keep the order.
    constexpr int sixteen_bytes = vector > 4 ? 4 : 1;
#pragma GCC unroll 16
    for (i64 n = vector / 2; n > 0; n /= 2)
#pragma GCC unroll 16
        for (i64 b = 0; b < n; ++b) {
            if (n >= vector / 4) top[b] = merge<1>(top[2 * b], top[2 * b + 1]);
            else top[b] = merge<sixteen_bytes>(top[2 * b], top[2 * b + 1]);
        }
    return top[0];
}

// Largest magnitudes of `vector` blocks at a time.
template <i64 size>
inline void largest_of_many(const float* x, i64 blocks, i32* largest) {
    for (i64 j = 0; j < blocks; j += vector) {
        // One register for each block of the group; lanes of a block stand side by side until they are merged.
        Bits top[vector];
#pragma GCC unroll 16
        for (i64 b = 0; b < vector; ++b) {
            const float* block = x + (j + b) * size;
            top[b] = read<Bits>(block) & magnitude_mask;
#pragma GCC unroll 16
            for (i64 i = vector; i < size; i += vector) {
                // The last vector ends with the block: of 24 values it may see some twice.
                const Bits v = read<Bits>(block + least(i, size - vector)) & magnitude_mask;
                top[b] = v > top[b] ? v : top[b];
            }
        }
        write(largest + j, largest_of_each(top));
    }
}

// As many groups of whole blocks as there are, then what is left.
template <i64 size>
inline void largest_of_usual(const float* x, i64 n, i32* largest) {
    const i64 grouped = n / (size * vector) * vector;
    largest_of_many<size>(x, grouped, largest);
    largest_of_blocks<size>(x + grouped * size, n - grouped * size, size, largest + grouped);
}

// Blocks of so many vectors that what joins the lanes of one counts for little; the last may be shorter. What is not a block is
// zero: numbers written one by one would keep who reads them as a vector waiting for all stores before.
inline void largest_of_large(const float* x, i64 n, i64 size, i32* largest) {
    const i64 blocks = n / size;
    for (i64 j = 0; j < blocks; j += vector) {
        Bits top[vector];
        for (i64 b = 0; b < vector; ++b) top[b] = j + b < blocks ? largest_lanes(x + (j + b) * size, size) : Bits{};
        write(largest + j, largest_of_each(top));
    }
    if (blocks * size < n) largest[blocks] = largest_of<0>(x + blocks * size, n - blocks * size);
}

}  // namespace

// Largest magnitudes of the blocks of a tile, and if not all values are finite, which hold others. Returns whether
// all are.
inline bool measure_blocks(Buffers& t, const float* x, i64 n, i64 size, i64 blocks) {
    // Usual sizes: those of MX and NVFP4, and a spinor's real numbers.
    if (size == 32) {
        largest_of_usual<32>(x, n, t.largest);
    } else if (size % 64 == 0) {
        largest_of_large(x, n, size, t.largest);
    } else if (size == 16) {
        largest_of_usual<16>(x, n, t.largest);
    } else if (size == 24) {
        largest_of_usual<24>(x, n, t.largest);
    } else {
        largest_of_blocks<0>(x, n, size, t.largest);
    }
    // Whole vectors: beyond the blocks lie those of another tile, which a maximum with zero leaves out of it.
    const bool are_zeros = size % 64 == 0 && blocks * size == n;
    Bits top{};
    for (i64 j = blocks; !are_zeros && j % vector; ++j) t.largest[j] = 0;
    for (i64 j = 0; j < blocks; j += vector) top = larger(top, read<Bits>(t.largest + j));
    if (!any(top >= infinity_bits)) return true;
    for (i64 j = 0; j < blocks; ++j) t.bad[j] = t.largest[j] >= infinity_bits;
    // Rare: a block with a NaN or an infinity takes the largest of its finite values.
    for (i64 j = 0; j < blocks; ++j)
        if (t.bad[j]) t.largest[j] = largest_finite(x + j * size, least(size, n - j * size));
    return false;
}

}  // namespace block_magnitudes
