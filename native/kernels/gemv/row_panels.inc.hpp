// Several rows of x as their products with decoded lines read them: packed once for all threads, in pieces of as many
// values as are decoded of a line at once.
//
// Few rows keep their values side by side, and lanes hold neighbours of a row; the lanes of a sum are added in the end.
// Many rows are transposed: lanes hold the same value of neighbouring rows, so that a sum has a lane of its own and a value
// of the weight is the same in all of them. Where the CPU multiplies bfloat16, and all of x are such numbers, a lane holds
// two values of a row; of few rows only where the weights are decoded to bfloat16 at once.
#pragma once

#include "kernels/gemv/nibbles.inc.hpp"
#include "kernels/gemv/whole_pieces.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace row_panels {

using nibbles::comes_in_nibbles, nibbles::nibbles_at_once, nibbles::permute_for_nibbles;
using numbers::Bits, numbers::Naturals, numbers::least, numbers::magnitude_mask, numbers::vector;
using vectors::broadcast, vectors::read, vectors::smaller, vectors::transpose, vectors::write;
using whole_pieces::PieceDecoder, whole_pieces::Way, whole_pieces::piece, whole_pieces::piece_decoder_of;

// Rows whose sums stand beside each other.
constexpr i64 most_rows = 64;

// What lanes hold. Pairs are of bfloat16.
enum class Lanes : i32 { values, pairs_of_values, rows, pairs_of_rows };
inline bool holds_pairs(Lanes l) { return l == Lanes::pairs_of_values || l == Lanes::pairs_of_rows; }
inline bool holds_values(Lanes l) { return l == Lanes::values || l == Lanes::pairs_of_values; }

// Up to so many rows lanes hold values; measured with Zen 5. A product of transposed rows takes as long for one row as for a
// register full of them.
constexpr i64 most_by_values = vector > 8 ? 16 : 7;

// Up to 64 rows of x, and where their pieces are.
struct RowPanels {
    Lanes lanes;
    PieceDecoder decoder;  // of the weights
    i64 rows, vectors;  // registers across the rows, where those are transposed
    i64 bytes;          // of a piece, with its least magnitude at the end
    i64 pieces;
};

// The rows from b on.
inline RowPanels panels_of(const Gemv& job, i64 b) {
    RowPanels r{};
    r.rows = least(most_rows, job.batch - b);
    r.decoder = piece_decoder_of(job.format);
    r.lanes = r.rows > most_by_values ? Lanes::rows : Lanes::values;
#if defined(__AVX512BF16__)
    if (job.narrow && r.lanes == Lanes::rows) r.lanes = Lanes::pairs_of_rows;
    if (job.narrow && r.lanes == Lanes::values && r.decoder.way != Way::none) r.lanes = Lanes::pairs_of_values;
#endif
    r.vectors = count_of(r.rows, vector);
    const i64 each = holds_values(r.lanes) ? r.rows : r.vectors * vector;
    r.bytes = each * piece * (holds_pairs(r.lanes) ? 2 : 4) + 64;
    r.pieces = count_of(job.n, piece);
    return r;
}

// Where the pieces of the rows from b on begin, a multiple of 64: all rows before come in whole panels.
inline i64 panels_before(const Gemv& job, i64 b) {
    const RowPanels r = panels_of(job, 0);
    return b / most_rows * r.pieces * r.bytes;
}

// The smallest magnitude of the pairs of a piece that is not zero, as bits.
inline i32 least_magnitude(const u8* panel, const RowPanels& r) {
    i32 bits;
    __builtin_memcpy(&bits, panel + r.bytes - 64, sizeof bits);
    return bits;
}

// Decoded values are multiplied in multiples of 32, two vectors of bfloat16, of which the last ones are zeros.
inline i64 padded(i64 n) { return count_of(n, 32) * 32; }

// Whether n values of a line are decoded as nibbles of words.
inline bool in_words(const RowPanels& r, i64 n) { return holds_pairs(r.lanes) && r.decoder.way == Way::nibbles && n == piece; }

namespace {  // of this file alone

#if defined(__AVX512BF16__)
using whole_pieces::place_of_nibble;
#endif

// n values of a row from `start` on, in the order in which the weights are decoded, and zeros up to a multiple of 32.
inline void arrange_row(const Gemv& job, const RowPanels& r, i64 row, i64 start, i64 n, float* out) {
    const float* x = job.x + row * job.n + start;
    i64 done = 0;
    if (in_words(r, n)) {
#if defined(__AVX512BF16__)
        for (i64 i = 0; i < n; ++i) out[place_of_nibble(i)] = x[i];
#endif
        return;
    }
    if (comes_in_nibbles(job.format)) {
        permute_for_nibbles(x, n, out);
        done = n / nibbles_at_once * nibbles_at_once;
    }
    __builtin_memcpy(out + done, x + done, static_cast<u64>(n - done) * sizeof(float));
    __builtin_memset(out + n, 0, static_cast<u64>(padded(n) - n) * sizeof(float));
}

using Halves = u16 __attribute__((vector_size(2 * vector)));

inline void note_least(Bits v, Bits& least_bits) {
    const Bits magnitude = v & magnitude_mask;
    least_bits = smaller(least_bits, magnitude != 0 ? magnitude : broadcast(magnitude_mask));
}

// Writes a square, vector i of which has value i of its rows; a block of a panel has `width` rows.
template <bool pairs>
inline void write_square(const Bits* square, u8* panel, i64 start, i64 row, i64 width, Bits& least_bits) {
    i32* to = reinterpret_cast<i32*>(panel);
    for (i64 i = 0; i < vector; i += pairs ? 2 : 1) {
        if (!pairs) {
            write(to + (start + i) * width + row, square[i]);
            continue;
        }
        // The lower half of a float32 that is a bfloat16 is zero.
        write(to + (start + i) / 2 * width + row, (Bits)((Naturals)square[i] >> 16) | square[i + 1]);
        note_least(square[i], least_bits);
        note_least(square[i + 1], least_bits);
    }
}

// Writes n values, whole vectors of bfloat16.
inline void narrow_row(const float* x, i64 n, u16* out, Bits& least_bits) {
    for (i64 i = 0; i < n; i += vector) {
        const Bits v = read<Bits>(x + i);
        note_least(v, least_bits);
        write(out + i, __builtin_convertvector((Naturals)v >> 16, Halves));
    }
}

}  // namespace

// Registers across the rows whose sums stay in registers together: a block of a panel, which lies side by side.
#if defined(__AVX512F__)
constexpr i64 vectors_in_block = 4;
#else
constexpr i64 vectors_in_block = 2;
#endif

// One piece of the rows from b on: values from `start` on, and zeros behind the end of a row up to a multiple of 32.
inline void pack_piece(const Gemv& job, const RowPanels& r, i64 b, i64 start, u8* panel) {
    const i64 n = least(piece, job.n - start);
    const bool pairs = holds_pairs(r.lanes);
    Bits least_bits = broadcast(magnitude_mask);
    if (holds_values(r.lanes)) {
        for (i64 row = 0; row < r.rows; ++row) {
            alignas(64) float values[piece];
            float* const to = pairs ? values : reinterpret_cast<float*>(panel) + row * piece;
            arrange_row(job, r, b + row, start, n, to);
            if (pairs) narrow_row(to, padded(n), reinterpret_cast<u16*>(panel) + row * piece, least_bits);
        }
        panel += r.rows * piece * (pairs ? 2 : 4);
    }
    for (i64 v = 0; !holds_values(r.lanes) && v < r.vectors; v += vectors_in_block) {
        const i64 vectors = least(vectors_in_block, r.vectors - v);
        for (i64 i = 0; i < vectors; ++i) {
            // Rows beyond the last are zeros.
            alignas(64) float rows[vector][piece];
            const i64 row = (v + i) * vector;
            for (i64 l = 0; l < vector; ++l) {
                if (row + l < r.rows) arrange_row(job, r, b + row + l, start, n, rows[l]);
                else __builtin_memset(rows[l], 0, sizeof rows[l]);
            }
            for (i64 j = 0; j < padded(n); j += vector) {
                Bits square[vector];
                for (i64 l = 0; l < vector; ++l) square[l] = read<Bits>(rows[l] + j);
                transpose(square);
                if (pairs) write_square<true>(square, panel, j, i * vector, vectors * vector, least_bits);
                else write_square<false>(square, panel, j, i * vector, vectors * vector, least_bits);
            }
        }
        panel += vectors * vector * piece * (pairs ? 2 : 4);
    }
    i32 smallest = magnitude_mask;
    for (i64 i = 0; i < vector; ++i) smallest = numbers::smaller(smallest, least_bits[i]);
    __builtin_memcpy(panel, &smallest, sizeof smallest);
}

}  // namespace row_panels
