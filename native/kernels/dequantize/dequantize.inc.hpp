// From packed codes and scales to values.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/blocks.inc.hpp"
#include "kernels/values/lines.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/strips.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace dequantize {

using decode_sixteen::CodeDecoder, decode_sixteen::code_decoder_of;
using decode_vectors::decode_vectors, decode_vectors::decodes_in_registers;
using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales, packed::outer_scale,
    packed::prepare_dequantize;
using blocks::spread_blocks;
using lines::Line, lines::line_of;
using memory::at, memory::prefetch, memory::size_of, memory::store, memory::unpack;
using numbers::Bits, numbers::bits_of, numbers::float_of, numbers::infinity_bits, numbers::least, numbers::magnitude_mask, numbers::one_bits, numbers::power_of_two, numbers::tile,
    numbers::vector;
using rounding::decode_all;
using strips::Strip, strips::side_by_side, strips::strip_of, strips::strips_in;
using vectors::finish_nontemporal_stores, vectors::read, vectors::starts_vector, vectors::transpose, vectors::write;

// The values `start` to `start + n` of a line, at most a tile, in t.values; `outer` is their outer scale, or one where it
// is applied later.
inline void decode_by_loops(const PreparedDequantize& p, DecodeBuffers& t, i64 line, i64 start, i64 n, float outer) {
    const Format& f = p.f;
    // First the scale of each value, beside it in t.b.
    const float* b = t.ones;
    if (f.scales != Scales::none) {
        // A scale for the whole array is a block without an end: then only scale 0 is read.
        const i64 size = one_scale(f) ? start + n : f.block, first = one_scale(f) ? 0 : start / size;
        decode_scales(p, t, line, first, one_scale(f) ? 1 : (start + n - 1) / size - first + 1, t.scale);
        // From the start of a block whole blocks are spread; else the first is the rest of one.
        if (start % size == 0) {
            spread_blocks(t.scale, n, size, t.b);
        } else {
            i64 i = 0;
            for (i64 j = 0; i < n; ++j)
                for (const i64 end = least(n, (first + j + 1) * size - start); i < end; ++i) t.b[i] = t.scale[j];
        }
        b = t.b;
    }
    // Then the shifts of sub-blocks, powers of two that go into the scale exactly.
    if (f.scales == Scales::shifted && f.shift_bits) {
        const i64 sub = f.sub_block, first = start / sub;
        const u8* part = p.job.shifts + line * p.bytes.shifts;
        unpack(part, first, f.shift_bits, (start + n - 1) / sub - first + 1, t.shifts, part + p.bytes.shifts);
        i64 i = 0;
        if (sub == 2) {  // a run starts at an even place
            for (i64 j = 0; j < n / 2; ++j) {
                const float down = float_of(one_bits - (t.shifts[j] << 23));
                t.b[2 * j] *= down;
                t.b[2 * j + 1] *= down;
            }
            i = n / 2 * 2;
        }
        for (i64 j = i / sub; i < n; ++j) {
            const float down = power_of_two(-t.shifts[j]);
            for (const i64 end = least(n, (first + j + 1) * sub - start); i < end; ++i) t.b[i] *= down;
        }
    }
    const u8* part = p.job.codes + line * p.bytes.codes;
    unpack(part, start, bits_of_element(f), n, t.codes, part + p.bytes.codes);
    // Values of tables are double: the product with both scales is rounded once, to float32.
    if (f.tabled) {
        for (i64 i = 0; i < n; ++i)
            t.values[i] = static_cast<float>(f.table.by_code[t.codes[i]] *
                                             (static_cast<double>(b[i]) * static_cast<double>(outer)));
        return;
    }
    decode_all(p.element, f.grid.has_nan, t.codes, b, t.values, n);
    // The outer scale last, with a rounding of its own: kernels/reference/dequantize/dequantize.py.
    if (outer != 1.0f)
        for (i64 i = 0; i < n; ++i) t.values[i] *= outer;
}

namespace {  // of this file alone

// The same by the fastest way there is, at `out`; returns where the values are: there, or in t.values.
inline const float* decode_part(const PreparedDequantize& p, const CodeDecoder* s, DecodeBuffers& t, i64 line, i64 start, i64 n,
                                float* out) {
    const float outer = outer_scale(p, line);
    const i64 whole = s != nullptr && start % 16 == 0 ? n / 16 * 16 : 0;
    if (whole == 0) {
        decode_by_loops(p, t, line, start, n, outer);
        return t.values;
    }
    // Registers take whole vectors, loops the rest of a line; they first, as both use the same buffers. Where vectors go
    // past the caches, the address must begin one.
    if (whole < n) {
        decode_by_loops(p, t, line, start + whole, n - whole, outer);
        __builtin_memmove(out + whole, t.values, static_cast<u64>(n - whole) * sizeof(float));
    }
    const bool past_caches = p.job.nontemporal && out != t.values && starts_vector(out);
    const auto decode = past_caches ? decode_vectors<true> : decode_vectors<false>;
    decode(p, *s, t, line, start, whole, outer, out);
    return out;
}

// Whether whole vectors are decoded in registers. A table's values times one scale round once in float32 as in float64; times two
// they do not.
inline bool decodes_vectors(const Format& f) { return decodes_in_registers(f) && !(f.tabled && f.scales == Scales::two_level); }

// Lines side by side go in squares of 64: rows of the square are whole cache lines of the result.
constexpr i64 strip_rows = 64, strip_lanes = 64;

// Values of a line in one item.
inline i64 values_in_item(const PreparedDequantize& p) { return side_by_side(p.g) ? strip_rows : tile; }

// A strip of neighbouring lines is decoded line by line and written row by row.
inline void dequantize_strip(const PreparedDequantize& p, const CodeDecoder* d, DecodeBuffers& t, const Strip& s, i64 start, i64 n) {
    // The transpose happens here, in 16 KiB each: squares of a vector's width in registers.
    alignas(64) float lines[strip_lanes][strip_rows], rows[strip_rows][strip_lanes];
    // No processor foresees places so far apart: the rows of the results are asked for, and each lane's next codes.
    const auto row_at = [&](i64 r) { return at(p.job.values, p.job.values_type, s.line.place + (start + r) * p.g.place_step); };
    for (i64 r = 0; r < n; ++r) prefetch<memory::nearest, true>(row_at(r), s.count * s.place_stride * size_of(p.job.values_type));
    const u8* next = p.job.codes + s.line.number * p.bytes.codes + bytes_for(start + n, bits_of_element(p.f));
    for (i64 i = 0; i < s.count; ++i) __builtin_prefetch(next + i * p.bytes.codes);
    for (i64 i = 0; i < s.count; ++i) {
        const float* values = decode_part(p, d, t, s.line.number + i, start, n, lines[i]);
        if (values != lines[i]) __builtin_memcpy(lines[i], values, static_cast<u64>(n) * sizeof(float));
    }
    // Places beyond the strip hold what was there before; no row of the result has them.
    for (i64 i = 0; i < s.count; i += vector)
        for (i64 r = 0; r < n; r += vector) {
            Bits square[vector];
#pragma GCC unroll 16
            for (i64 l = 0; l < vector; ++l) square[l] = read<Bits>(lines[i + l] + r);
            transpose(square);
#pragma GCC unroll 16
            for (i64 l = 0; l < vector; ++l) write(rows[r + l] + i, square[l]);
        }
    for (i64 r = 0; r < n; ++r) store(row_at(r), p.job.values_type, s.place_stride, s.count, rows[r]);
}

// Decoded values on those that are there, each rounded once.
inline void combine_values(Combine how, const float* __restrict decoded, i64 n, float* __restrict into) {
    if (how == Combine::add) {
        for (i64 i = 0; i < n; ++i) into[i] += decoded[i];
        return;
    }
    // What rounding left over. It is not finite where the value or its code is not: nothing is left of those.
    for (i64 i = 0; i < n; ++i) {
        const float left = into[i] - decoded[i];
        into[i] = (bits_of(left) & magnitude_mask) < infinity_bits ? left : 0.0f;
    }
}

}  // namespace

// Items are tiles of lines, or squares of strips; none is cut by the division among threads.
i64 dequantize_items(const Dequantize& job) {
    const PreparedDequantize p = prepare_dequantize(job);
    if (p.g.n == 0) return 0;
    return (side_by_side(p.g) ? strips_in(p.g, strip_lanes) : lines_in(p.g)) * count_of(p.g.n, values_in_item(p));
}

void dequantize(const Dequantize& job, i64 first, i64 last) {
    const PreparedDequantize p = prepare_dequantize(job);
    DecodeBuffers t;
    // The scale of values that have none.
    for (i64 i = 0; i < tile; ++i) t.ones[i] = 1.0f;
    const i64 step = values_in_item(p), in_line = count_of(p.g.n, step);
    const bool replaces = job.combine == Combine::replace, vectors = decodes_vectors(p.f),
               direct = replaces && job.values_type == Real::f32 && p.g.place_step == 1;
    const CodeDecoder s = vectors ? code_decoder_of(p.f) : CodeDecoder{};
    for (i64 item = first; item < last; ++item) {
        const i64 start = item % in_line * step, n = least(step, p.g.n - start);
        if (side_by_side(p.g)) {
            dequantize_strip(p, vectors ? &s : nullptr, t, strip_of(p.g, item / in_line, strip_lanes), start, n);
            continue;
        }
        const Line line = line_of(p.g, item / in_line);
        void* out = at(job.values, job.values_type, line.place + start * p.g.place_step);
        float* values = direct ? static_cast<float*>(out) : t.values;
        // Decoded at the place of the result where that is float32 without gaps; else in a buffer, stored with a
        // conversion.
        const float* decoded = decode_part(p, vectors ? &s : nullptr, t, line.number, start, n, values);
        if (!replaces)
            combine_values(job.combine, decoded, n, static_cast<float*>(out));
        else if (decoded != out)
            store(out, job.values_type, p.g.place_step, n, decoded);
    }
    // One fence for all nontemporal stores of this thread.
    if (job.nontemporal) finish_nontemporal_stores();
}

}  // namespace dequantize
