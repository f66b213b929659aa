// The table of kernels of one instruction set.
#pragma once

#include "kernels/dequantize/dequantize.inc.hpp"
#include "kernels/feedback/feedback.inc.hpp"
#include "kernels/gemm/additions.inc.hpp"
#include "kernels/gemv/gemv.inc.hpp"
#include "kernels/gemv/planes.inc.hpp"
#include "kernels/nm/permutation.inc.hpp"
#include "kernels/nm/stream.inc.hpp"
#include "kernels/quantize/quantize.inc.hpp"
#include "kernels/tally/tally.inc.hpp"
#include "kernels/top_k/top_k.inc.hpp"
#include "kernels/values/counter_uniform.inc.hpp"
#include "kernels/values/magnitudes.inc.hpp"
#include "kernels/values/memory.inc.hpp"

namespace table {

// Every function by the name that dispatch/ calls it: conversions, products, N:M streams, measures, the search for an order
// of columns, the largest values, initial values. isa/ gives each table its external name; all else of an instruction set is
// local to its file, so that the linker cannot take one for another. What a function does is said in jobs/kernels.hpp and
// beside its definition. The compiler checks names and types of all fields; a field that is forgotten here is a null pointer,
// which the first test of its operation meets; -Wextra warns of it besides. Nothing is chosen here: a table is one instruction
// set, and dispatch/ takes one table for a whole call.
constexpr Kernels functions = {
    .quantize_items = quantize::quantize_items,
    .quantize = quantize::quantize,
    .dequantize_items = dequantize::dequantize_items,
    .dequantize = dequantize::dequantize,
    .load = memory::load,
    .store = memory::store,
    .gemv_workspace = gemv::gemv_workspace,
    .gemv = gemv::multiply,
    .gemv_lines = gemv::lines_multiple,
    .gemv_panel_bytes = gemv::panel_bytes,
    .gemv_panel_items = gemv::panel_items,
    .gemv_pack = gemv::pack_panels,
    .planes_panel_bytes = planes::panel_bytes,
    .planes_pack = planes::pack,
    .planes = planes::multiply,
    .compress = stream::compress,
    .expand = stream::expand,
    .measure_items = magnitudes::measure_items,
    .measure = magnitudes::measure,
    .largest_of_lines = tally::largest_of_lines,
    .tally = tally::tally,
    .tally_pairs = tally::tally_pairs,
    .additions = additions::additions,
    .evaluate_groups = permutation::evaluate_groups,
    .anneal = permutation::anneal,
    .feedback_items = feedback::feedback_items,
    .feedback = feedback::feedback,
    .top_k = top_k::top_k,
    .keep_largest = top_k::keep_largest,
    .counter_uniform = counter_uniform::counter_uniform,
};

}  // namespace table
