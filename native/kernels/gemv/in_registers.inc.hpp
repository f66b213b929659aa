// The ways that decode lines in registers, for one vector and for few: what a register holds is multiplied with each of them, and
// of each way a product is the same, bit for bit, however many there are.
#pragma once

#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/few_rows.inc.hpp"
#include "kernels/gemv/looked_up_lines.inc.hpp"
#include "kernels/gemv/nibbles.inc.hpp"
#include "kernels/gemv/unit_lines.inc.hpp"
#include "kernels/gemv/whole_pieces.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace in_registers {

using decoded_lines::lines_together;
using few_rows::FewRows, few_rows::rows_together;
using looked_up_lines::gemv_lookups, looked_up_lines::lookups_at_once, looked_up_lines::permute_for_lookups, looked_up_lines::takes_lookups;
using nibbles::gemv_nibbles, nibbles::is_narrow, nibbles::nibbles_at_once, nibbles::permute_for_narrow_nibbles,
    nibbles::permute_for_nibbles, nibbles::takes_nibbles;
using numbers::least;
using packed::DecodeBuffers, packed::PreparedDequantize;
using unit_lines::gemv_units, unit_lines::multiply_by_unit, unit_lines::takes_units, unit_lines::units_at_once;

namespace {  // of this file alone

// Bytes of codes that all rows pass before the next lines: they stay in the second cache.
constexpr i64 codes_together = 1 << 17;

inline bool takes(const Format& f) { return takes_nibbles(f) || takes_lookups(f) || takes_units(f); }

// Values that come together, and what they take of x in its order, in floats: half as many where it is narrow.
inline i64 group_of(const Format& f) {
    return takes_nibbles(f) ? nibbles_at_once : takes_lookups(f) ? lookups_at_once(f) : units_at_once;
}
inline bool halves_x(const Gemv& job) { return takes_nibbles(job.format) && is_narrow(job); }
inline i64 floats_of(const Gemv& job) { return halves_x(job) ? group_of(job.format) / 2 : group_of(job.format); }

// n values of x, whole groups, in the order of the way.
inline void permute(const Gemv& job, const float* x, i64 n, float* out) {
    if (halves_x(job)) permute_for_narrow_nibbles(x, n, reinterpret_cast<u16*>(out));
    else if (takes_nibbles(job.format)) permute_for_nibbles(x, n, out);
    else if (takes_lookups(job.format)) permute_for_lookups(job.format, x, n, out);
    else multiply_by_unit(job.format, x, n, out);
}

inline i64 multiply(const Gemv& job, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 first, i64 last) {
    return takes_nibbles(job.format)   ? gemv_nibbles(job, p, x, t, first, last)
           : takes_lookups(job.format) ? gemv_lookups(job, p, x, t, first, last)
                                       : gemv_units(job, p, x, t, first, last);
}

inline i64 groups(const Gemv& job) { return job.n / group_of(job.format); }

// Rows are parted evenly, into two and three for five, and the panels of a part follow those of the one before.
inline i64 parts(const Gemv& job) { return count_of(job.batch, rows_together); }
inline float* panel_of(const Gemv& job, i64 row) { return reinterpret_cast<float*>(job.panels) + row * groups(job) * floats_of(job); }

inline FewRows rows_of(const Gemv& job, i64 part) {
    const i64 first = job.batch * part / parts(job), count = job.batch * (part + 1) / parts(job) - first;
    return {panel_of(job, first), first, count, count};
}

}  // namespace

// Whether one vector is multiplied here.
inline bool takes_one(const Gemv& job) { return job.batch == 1 && takes(job.format); }

// Whether several are. Beyond so many what is decoded first is multiplied faster; measured with Zen 4. Where bytes are decoded to
// bfloat16 for its instruction, that holds sooner.
inline bool takes_few(const Gemv& job) {
    const bool narrow_bytes = is_narrow(job) && whole_pieces::piece_decoder_of(job.format).way == whole_pieces::Way::bytes;
    return job.batch > 1 && job.batch <= (narrow_bytes ? 4 : 8) && takes(job.format) && groups(job) > 0;
}

// One vector in its order at `room`.
inline void permute_one(const Gemv& job, float* room) { permute(job, job.x, job.n, room); }

// The products of one vector; returns how many values of a line are covered.
inline i64 multiply_one(const Gemv& job, const PreparedDequantize& p, const float* permuted, DecodeBuffers& t, i64 first, i64 last) {
    return multiply(job, p, {permuted, 0, 1, 1}, t, first, last);
}

// What few rows take in their order, and the items of packing them: some values of all rows.
constexpr i64 values_in_item = 2048;
inline i64 few_bytes(const Gemv& job) { return job.batch * groups(job) * floats_of(job) * i64{sizeof(float)}; }
inline i64 few_items(const Gemv& job) { return count_of(groups(job) * group_of(job.format), values_in_item); }

inline void pack_few(const Gemv& job, i64 first, i64 last) {
    const i64 group = group_of(job.format), floats = floats_of(job), covered = groups(job) * group;
    alignas(64) float permuted[values_in_item];
    for (i64 start = first * values_in_item; start < least(last * values_in_item, covered); start += values_in_item) {
        const i64 n = least(values_in_item, covered - start);
        for (i64 part = 0; part < parts(job); ++part) {
            const FewRows x = rows_of(job, part);
            float* const panel = panel_of(job, x.first) + start / group * x.step * floats;
            for (i64 r = 0; r < x.count; ++r) {
                permute(job, job.x + (x.first + r) * job.n + start, n, permuted);
                for (i64 g = 0; g < n / group; ++g)
                    __builtin_memcpy(panel + (g * x.step + r) * floats, permuted + g * floats, static_cast<u64>(floats) * sizeof(float));
            }
        }
    }
}

// The products of few rows, whose panels are packed.
inline i64 multiply_few(const Gemv& job, const PreparedDequantize& p, DecodeBuffers& t, i64 first, i64 last) {
    const i64 fit = codes_together / p.bytes.codes / lines_together * lines_together;
    const i64 lines = parts(job) == 1 ? last - first : fit > lines_together ? fit : lines_together;
    for (i64 line = first, end; line < last; line = end) {
        end = least(line + lines, last);
        for (i64 part = 0; part < parts(job); ++part) multiply(job, p, rows_of(job, part), t, line, end);
    }
    return groups(job) * group_of(job.format);
}

}  // namespace in_registers
