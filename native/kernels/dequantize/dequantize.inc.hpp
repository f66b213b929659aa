// From packed codes and scales to values.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/quantize/strided_lines.inc.hpp"
#include "kernels/quantize/tiles.inc.hpp"
#include "kernels/values/elements.inc.hpp"
#include "kernels/values/lines.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace {

// The values `start` to `start + n` of a line, at most a tile, in t.values; `outer` is their outer scale, or one where it
// is applied later.
inline void restore_plainly(const RestorePlan& p, RestoreBuffers& t, i64 line, i64 start, i64 n, float outer) {
    const Format& f = p.f;
    const float* b = t.one;
    if (f.scales != Scales::none) {
        const i64 size = one_scale(f) ? start + n : f.block, first = one_scale(f) ? 0 : start / size;
        restore_scales(p, t, line, first, one_scale(f) ? 1 : (start + n - 1) / size - first + 1, t.scale);
        if (start % size == 0) {
            spread_blocks(t.scale, n, size, t.b);
        } else {
            i64 i = 0;
            for (i64 j = 0; i < n; ++j)
                for (const i64 end = least(n, (first + j + 1) * size - start); i < end; ++i) t.b[i] = t.scale[j];
        }
        b = t.b;
    }
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
    if (f.tabled) {
        for (i64 i = 0; i < n; ++i)
            t.values[i] = static_cast<float>(f.table.by_code[t.codes[i]] *
                                             (static_cast<double>(b[i]) * static_cast<double>(outer)));
        return;
    }
    decode_all(p.element, f.grid.has_nan, t.codes, b, t.values, n);
    if (outer != 1.0f)
        for (i64 i = 0; i < n; ++i) t.values[i] *= outer;
}

// The same by the fastest way there is, at `out`; returns where the values are: there, or in t.values.
inline const float* restore_run(const RestorePlan& p, const Sixteen* s, RestoreBuffers& t, i64 line, i64 start, i64 n,
                                float* out) {
    const float outer = outer_scale(p, line);
    if (s != nullptr && n % 16 == 0 && start % tile == 0) {
        const bool past_caches = p.job.nontemporal && out != t.values && starts_vector(out);
        const auto decode = past_caches ? decode_vectors<true> : decode_vectors<false>;
        decode(p, *s, t, line, start, n, outer, out);
        return out;
    }
    restore_plainly(p, t, line, start, n, outer);
    return t.values;
}

constexpr i64 restored_rows = 64, restored_lanes = 64;

inline i64 restore_step(const RestorePlan& p) { return side_by_side(p.g) ? restored_rows : tile; }

// A strip of neighbouring lines is restored line by line and written row by row.
inline void restore_strip(const RestorePlan& p, RestoreBuffers& t, const Strip& s, i64 start, i64 n) {
    alignas(64) float rows[restored_rows][restored_lanes];
    for (i64 i = 0; i < s.count; ++i) {
        restore_plainly(p, t, s.line.number + i, start, n, outer_scale(p, s.line.number + i));
        for (i64 r = 0; r < n; ++r) rows[r][i] = t.values[r];
    }
    for (i64 r = 0; r < n; ++r)
        store(at(p.job.values, p.job.values_type, s.line.place + (start + r) * p.g.place_step), p.job.values_type,
              s.place_stride, s.count, rows[r]);
}

i64 restore_items(const Restore& job) {
    const RestorePlan p = restore_plan_of(job);
    if (p.g.n == 0) return 0;
    return (side_by_side(p.g) ? strips_in(p.g, restored_lanes) : lines_in(p.g)) * count_of(p.g.n, restore_step(p));
}

void restore(const Restore& job, i64 first, i64 last) {
    const RestorePlan p = restore_plan_of(job);
    RestoreBuffers t;
    for (i64 i = 0; i < tile; ++i) t.one[i] = 1.0f;
    const i64 step = restore_step(p), in_line = count_of(p.g.n, step);
    const bool vectors = decodes_sixteen(p.f), direct = job.values_type == Real::f32 && p.g.place_step == 1;
    const Sixteen s = vectors ? sixteen_of(p.f.grid) : Sixteen{};
    for (i64 item = first; item < last; ++item) {
        const i64 start = item % in_line * step, n = least(step, p.g.n - start);
        if (side_by_side(p.g)) {
            restore_strip(p, t, strip_of(p.g, item / in_line, restored_lanes), start, n);
            continue;
        }
        const Line line = line_of(p.g, item / in_line);
        void* out = at(job.values, job.values_type, line.place + start * p.g.place_step);
        float* values = direct ? static_cast<float*>(out) : t.values;
        const float* found = restore_run(p, vectors ? &s : nullptr, t, line.number, start, n, values);
        if (found != out) store(out, job.values_type, p.g.place_step, n, found);
    }
    if (job.nontemporal) finish_nontemporal_stores();
}

}  // namespace
