// One number for each block, written beside each of its values.
#pragma once

namespace blocks {

// n copies of one number.
inline void fill(float* out, float v, i64 n) {
    for (i64 i = 0; i < n; ++i) out[i] = v;
}

namespace {  // of this file alone

template <i64 fixed_size>
inline void spread(const float* per_block, i64 n, i64 size, float* __restrict out) {
    const i64 width = fixed_size ? fixed_size : size;
    i64 j = 0, at = 0;
    for (; at + width <= n; at += width, ++j)
        for (i64 i = 0; i < width; ++i) out[at + i] = per_block[j];
    // The last block of a line may be shorter; then j is its number.
    for (; at < n; ++at) out[at] = per_block[j];
}

}  // namespace

// The number of each block beside each of its values.
inline void spread_blocks(const float* per_block, i64 n, i64 size, float* out) {
    if (size == 32)
        spread<32>(per_block, n, size, out);
    else if (size == 16)
        spread<16>(per_block, n, size, out);
    else if (size == 24)  // a spinor's real numbers
        spread<24>(per_block, n, size, out);
    else
        spread<0>(per_block, n, size, out);
}

}  // namespace blocks
