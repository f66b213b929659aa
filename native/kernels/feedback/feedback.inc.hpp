// Error feedback in one pass over memory: kernels/reference/feedback/feedback.py.
//
// An item is some thousand values: x is added to their residuals, quantize/ rounds the sums to packed parts, and
// dequantize/ takes the values of those parts off again. All that the three share stays in the nearest caches, and each is
// the whole array's own job, of which a few items are asked for: scales, bytes and draws are those of the whole.
#pragma once

#include "kernels/dequantize/dequantize.inc.hpp"
#include "kernels/quantize/contiguous_lines.inc.hpp"
#include "kernels/quantize/prepared.inc.hpp"
#include "kernels/quantize/quantize.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace feedback {

using contiguous_lines::values_in_item;
using memory::at, memory::load;
using numbers::least, numbers::tile;
using prepared::prepare_quantize;

namespace {  // of this file alone

// Where the items of a job begin. One is whole items of quantize/ and whole tiles of dequantize/; a line that cannot be cut
// is a single item.
struct Steps {
    i64 n, quantized, values;  // of the line, of an item of quantize/, of an item here
};

inline Steps steps_of(const Feedback& job) {
    const i64 n = job.quantize.geometry.n, quantized = values_in_item(prepare_quantize(job.quantize));
    i64 values = quantized;
    while (values % tile) values += quantized;
    return {n, quantized, values};
}

inline void add_values(const Feedback& job, i64 start, i64 end) {
    alignas(64) float x[tile];
    for (i64 i = start; i < end; i += tile) {
        const i64 n = least(tile, end - i);
        load(at(job.x, job.x_type, i), job.x_type, 1, n, x);
        for (i64 j = 0; j < n; ++j) job.residual[i + j] += x[j];
    }
}

}  // namespace

i64 feedback_items(const Feedback& job) {
    const Steps s = steps_of(job);
    return count_of(s.n, s.values);
}

// Items first to last - 1. The first of all writes the scale that the array may share, which dequantize/ reads again.
Outcome feedback(const Feedback& job, i64 first, i64 last) {
    const Steps s = steps_of(job);
    Outcome all{nullptr, false};
    for (i64 item = first; item < last; ++item) {
        const i64 start = item * s.values, end = least(start + s.values, s.n);
        if (job.x != nullptr) add_values(job, start, end);
        const Outcome mine = quantize::quantize(job.quantize, start / s.quantized, count_of(end, s.quantized));
        all = {mine.isa, all.nonfinite || mine.nonfinite};
        dequantize::dequantize(job.dequantize, start / tile, count_of(end, tile));
    }
    return all;
}

}  // namespace feedback
