// From values to values of the format, or to packed codes and scales: the entry of this folder.
#pragma once

#include "kernels/quantize/contiguous_lines.inc.hpp"
#include "kernels/quantize/prepared.inc.hpp"
#include "kernels/quantize/strided_lines.inc.hpp"
#include "kernels/values/blocks.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/strips.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace quantize {

using contiguous_lines::items_of_contiguous, contiguous_lines::quantize_contiguous, contiguous_lines::write_shared;
using prepared::Buffers, prepared::PreparedQuantize, prepared::prepare_quantize;
using strided_lines::items_of_strided, strided_lines::quantize_strided;
using blocks::fill;
using numbers::long_tile;
using strips::side_by_side;
using vectors::finish_nontemporal_stores;

// Items are pieces of lines, or strips of lines where neighbouring values belong to different lines. What an item gives
// does not depend on which items are done together.
i64 quantize_items(const Quantize& job) {
    const PreparedQuantize p = prepare_quantize(job);
    return side_by_side(p.g) ? items_of_strided(p) : items_of_contiguous(p);
}

namespace {  // of this file alone

// What the compiler really had, not what the build meant to give it.
constexpr const char* compiled_for =
#if defined(__AVX512BF16__)
    "avx512_bf16";
#elif defined(__AVX512F__)
    "avx512";
#elif defined(__AVX2__)
    "avx2";
#else
    "baseline";
#endif

}  // namespace

// Items first to last - 1. Everything lies on the stack: kernels allocate nothing and throw nothing.
Outcome quantize(const Quantize& job, i64 first, i64 last) {
    // Each thread prepares for itself: it takes less time than handing it over.
    const PreparedQuantize p = prepare_quantize(job);
    Buffers t;
    fill(t.ones, 1.0f, long_tile);
    // The thread of the first item writes what the array has once.
    if (first == 0) write_shared(p, t);
    bool finite = true;
    if (first < last)
        finite = side_by_side(p.g) ? quantize_strided(p, t, first, last) : quantize_contiguous(p, t, first, last);
    if (job.nontemporal) finish_nontemporal_stores();
    return {compiled_for, !finite};
}

}  // namespace quantize
