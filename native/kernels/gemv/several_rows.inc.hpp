// Lines times several vectors: a piece of some lines is decoded once, in the nearest caches, and multiplied with that piece of
// every row of x.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/dequantize.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/nibbles.inc.hpp"
#include "kernels/gemv/row_panels.inc.hpp"
#include "kernels/gemv/row_products.inc.hpp"
#include "kernels/gemv/whole_pieces.inc.hpp"
#include "kernels/values/blocks.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace several_rows {

using blocks::fill;
using decode_sixteen::CodeDecoder, decode_sixteen::code_decoder_of;
using decode_vectors::decode_vectors, decode_vectors::decodes_in_registers;
using decoded_lines::total;
using dequantize::decode_by_loops;
using nibbles::Nibbles, nibbles::comes_in_nibbles, nibbles::decode_nibbles, nibbles::nibbles_of;
using numbers::Bits, numbers::Reals, numbers::binade, numbers::least, numbers::magnitude_mask, numbers::smaller, numbers::vector;
using packed::DecodeBuffers, packed::PreparedDequantize, packed::outer_scale;
using memory::prefetch;
using row_panels::RowPanels, row_panels::holds_pairs, row_panels::holds_values, row_panels::in_words, row_panels::least_magnitude,
    row_panels::most_rows, row_panels::pack_piece, row_panels::padded, row_panels::panels_before, row_panels::panels_of;
using row_products::Factors, row_products::RowBuffers, row_products::add_products, row_products::lines_in_group, row_products::lines_together;
using vectors::broadcast, vectors::read;
using whole_pieces::PieceDecoder, whole_pieces::Way, whole_pieces::decode_bytes, whole_pieces::piece, whole_pieces::piece_decoder_of;

// Bytes that the panels of x take, and the items of packing them: pieces of 64 rows at most. None of one row.
i64 panel_bytes(const Gemv& job) {
    if (job.batch <= 1) return 0;
    const i64 last = (job.batch - 1) / most_rows * most_rows;
    const RowPanels r = panels_of(job, last);
    return panels_before(job, last) + r.pieces * r.bytes;
}

i64 panel_items(const Gemv& job) { return job.batch <= 1 ? 0 : count_of(job.batch, most_rows) * count_of(job.n, piece); }

void pack_panels(const Gemv& job, i64 first, i64 last) {
    for (i64 item = first; item < last; ++item) {
        const i64 pieces = count_of(job.n, piece), b = item / pieces * most_rows, at = item % pieces;
        const RowPanels r = panels_of(job, b);
        pack_piece(job, r, b, at * piece, job.panels + panels_before(job, b) + at * r.bytes);
    }
}

namespace {  // of this file alone

// Of the panels of x while they are multiplied with a group of lines: part of the second cache.
constexpr i64 bytes_of_x = 1 << 17;

// How far ahead in each line codes are asked for.
constexpr i64 bytes_ahead = 1024;

// How lines are decoded: what the way of each format needs, set up once for all lines.
struct Decoding {
    bool in_nibbles, in_registers;
    PieceDecoder piece;
    Nibbles nibbles;
    CodeDecoder decoder;
};

inline Decoding decoding_of(const Gemv& job, const PreparedDequantize& p) {
    Decoding c{comes_in_nibbles(job.format), decodes_in_registers(job.format), piece_decoder_of(job.format), {}, {}};
    if (c.in_nibbles) c.nibbles = nibbles_of(job, false);
    if (c.in_registers) c.decoder = code_decoder_of(p.f);
    return c;
}

// Decodes n values of a line into `out`, in the order of the panels, and zeros up to a multiple of 32: a piece of bytes, or groups
// of nibbles, then whole vectors, then what is left.
inline void decode_piece(const PreparedDequantize& p, const Decoding& c, DecodeBuffers& d, i64 line, i64 start, i64 n, float* out) {
    if (c.piece.way == Way::bytes && n == piece && decode_bytes(p, c.piece, line, start, out)) return;
    i64 done = c.in_nibbles ? decode_nibbles(p, c.nibbles, d, line, start, n, out) : 0;
    if (const i64 whole = c.in_registers ? (n - done) / 16 * 16 : 0; whole) {
        decode_vectors<false>(p, c.decoder, d, line, start + done, whole, 1.0f, out + done);
        done += whole;
    }
    if (done < n) {
        decode_by_loops(p, d, line, start + done, n - done, 1.0f);
        __builtin_memcpy(out + done, d.values, static_cast<u64>(n - done) * sizeof(float));
    }
    // A NaN of another line may be there, and would be one times the zeros of x too.
    fill(out + n, 0.0f, padded(n) - n);
}

// Asks for a piece of a line: the hardware does not guess what comes next, as other lines are read in between.
[[gnu::always_inline]] inline void prefetch_piece(const PreparedDequantize& p, i64 line, i64 start) {
    const i64 bits = bits_of_element(p.f);
    const u8* codes = p.job.codes + line * p.bytes.codes + start * bits / 8;
    for (i64 i = 0; i < piece * bits / 8; i += 64) __builtin_prefetch(codes + i);
    if (has_blocks(p.f)) __builtin_prefetch(p.job.scales + line * p.bytes.scales + start / p.f.block * p.f.scale_bits / 8);
}

#if defined(__AVX512BF16__)

using whole_pieces::decode_narrow, whole_pieces::place_of_nibble;

// Copies n values, whole vectors of 16, as bfloat16; returns the bits of the least magnitude but zero, the largest of all if
// there is none, or 0 if a value is no bfloat16.
inline i32 copy_narrow(const float* w, i64 n, u16* out) {
    Bits rest = broadcast(0), least_bits = broadcast(magnitude_mask - 1);
    for (i64 i = 0; i < n; i += 16) {
        const Bits v = read<Bits>(w + i), magnitude = v & magnitude_mask;
        rest |= v;
        // Zero minus one is the largest of the numbers without a sign.
        least_bits = (Bits)_mm512_min_epu32((__m512i)least_bits, (__m512i)(magnitude - 1));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)v, 16)));
    }
    if (_mm512_test_epi32_mask((__m512i)rest, _mm512_set1_epi32(0xffff))) return 0;
    return static_cast<i32>(_mm512_reduce_min_epu32((__m512i)least_bits)) + 1;
}

// As decode_piece, but in the order of decode_narrow where a whole piece comes in that.
inline void decode_for_pairs(const PreparedDequantize& p, const Decoding& c, DecodeBuffers& d, const RowPanels& r, i64 line, i64 start, i64 n,
                             float* out) {
    if (!in_words(r, n)) return decode_piece(p, c, d, line, start, n, out);
    decode_by_loops(p, d, line, start, n, 1.0f);
    for (i64 i = 0; i < n; ++i) out[place_of_nibble(i)] = d.values[i];
}

// Whether no product of numbers of these least magnitudes, nor a sum of such products, is subnormal: the instruction for
// bfloat16 takes that for zero. All are multiples of 2^-14 times the least product.
inline bool stays_normal(i32 of_w, i32 of_x) {
    return of_w >= binade && of_x >= binade && (of_w >> 23) + (of_x >> 23) - 2 * 127 - 14 >= -126;
}

#endif

// Decodes n values of `lines` lines into the buffers; returns how they are multiplied with a piece of x. Where the instruction
// for bfloat16 would lose a product of one line, all of them are decoded as float32 instead: that happens with numbers near
// the ends of the range alone.
inline Factors decode_lines(const PreparedDequantize& p, const Decoding& c, DecodeBuffers& d, RowBuffers& t,
                            [[maybe_unused]] const RowPanels& r, i64 line, i64 lines, i64 start, i64 n, [[maybe_unused]] const u8* panel) {
#if defined(__AVX512BF16__)
    if (holds_pairs(r.lanes)) {
        const i32 of_x = least_magnitude(panel, r);
        bool normal = true;
        for (i64 l = 0; l < lines; ++l) {
            i32 of_w = c.piece.way != Way::none && n == piece ? decode_narrow(p, c.piece, line + l, start, t.narrow[l]) : 0;
            if (of_w == 0) {
                decode_for_pairs(p, c, d, r, line + l, start, n, t.w[l]);
                of_w = copy_narrow(t.w[l], padded(n), t.narrow[l]);
            }
            normal &= stays_normal(of_w, of_x);
        }
        if (normal) return Factors::pairs;
        for (i64 l = 0; l < lines; ++l) decode_for_pairs(p, c, d, r, line + l, start, n, t.w[l]);
        return Factors::pairs_as_floats;
    }
#endif
    for (i64 l = 0; l < lines; ++l) decode_piece(p, c, d, line + l, start, n, t.w[l]);
    return Factors::floats;
}

}  // namespace

// Lines first to last - 1 times every row of x, whose panels are packed.
inline void gemv_several(const Gemv& job, const PreparedDequantize& p, i64 first, i64 last) {
    const Decoding decoding = decoding_of(job, p);
    DecodeBuffers d;
    fill(d.ones, 1.0f, numbers::tile);
    RowBuffers t;
    // Lines that are not there are multiplied too.
    __builtin_memset(t.w, 0, sizeof t.w);
    __builtin_memset(t.narrow, 0, sizeof t.narrow);
    for (i64 b = 0; b < job.batch; b += most_rows) {
        const RowPanels r = panels_of(job, b);
        const i64 together = lines_together(r), run = piece * numbers::clamp(static_cast<i32>(bytes_of_x / r.bytes), 1, 8);
        // Ahead in each of few lines: so far that memory answers in time. Many lines have more to do meanwhile.
        const i64 ahead = holds_values(r.lanes) ? piece * count_of(bytes_ahead, bytes_for(piece, bits_of_element(p.f))) : piece;
        for (i64 line = first; line < last; line += lines_in_group) {
            const i64 lines = least(lines_in_group, last - line);
            __builtin_memset(t.sums, 0, sizeof t.sums);
            const u8* panels = job.panels + panels_before(job, b);
            // Some pieces of few lines, one after the other, before the next lines: memory is read in longer runs.
            for (i64 begin = 0; begin < job.n; begin += run) {
                const i64 end = least(begin + run, job.n);
                for (i64 l = 0; l < lines; l += together) {
                    const i64 here = least(together, lines - l);
                    for (i64 start = begin; start < end; start += piece) {
                        const i64 n = least(piece, end - start);
                        const u8* panel = panels + start / piece * r.bytes;
                        // What comes next: of these lines, of the next ones, of the first ones further on, of the next group.
                        i64 next = start + ahead, of = line + l;
                        if (next >= end && l + together < lines) next += begin - end, of += together;
                        else if (next >= end) of = line;
                        if (next >= job.n) next -= job.n, of += lines_in_group;
                        for (i64 i = 0; i < here && next < job.n; ++i) prefetch_piece(p, of + i, next);
                        const Factors factors = decode_lines(p, decoding, d, t, r, line + l, here, start, n, panel);
                        add_products(t, r, factors, here, panel, padded(n), t.sums + l);
                    }
                }
            }
            for (i64 l = 0; l < lines; ++l) {
                const float scale = outer_scale(p, line + l);
                for (i64 row = 0; row < r.rows; ++row) {
                    const float sum = holds_values(r.lanes) ? total(read<Reals>(t.sums[l] + row * vector)) : t.sums[l][row];
                    job.y[(b + row) * job.stride + line + l] = sum * scale;
                }
            }
        }
    }
}

}  // namespace several_rows
