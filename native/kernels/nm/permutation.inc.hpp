// Which columns to swap so that N:M keeps more. All sums are of integers: their order does not matter.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace permutation {

using numbers::larger, numbers::least, numbers::smaller;

namespace {  // of this file alone

constexpr i64 rows_at_once = 64;  // rows: what a group of them keeps then lies in the nearest cache

// Writes the keep + 1 largest of the group's columns in rows first to first + n - 1, the largest first.
inline void largest_of(const NmPermutation& s, i64 group, i64 first, i64 n, i32 (*__restrict top)[rows_at_once]) {
    for (i64 k = 0; k <= s.keep; ++k)
        for (i64 r = 0; r < n; ++r) top[k][r] = 0;
    for (i64 p = group * s.group; p < (group + 1) * s.group; ++p) {
        // A column sinks through the sorted list: at each place the larger stays, the smaller goes on. Every row of the
        // group is a lane.
        i32 sinking[rows_at_once];
        __builtin_memcpy(sinking, s.magnitudes + s.order[p] * s.rows + first, static_cast<u64>(n) * sizeof(i32));
        for (i64 k = 0; k <= s.keep; ++k)
            for (i64 r = 0; r < n; ++r) {
                const i32 high = larger(top[k][r], sinking[r]);
                sinking[r] = smaller(top[k][r], sinking[r]);
                top[k][r] = high;
            }
    }
}

// Writes edges and bases of the columns of one group, and its score, from the order.
void evaluate_group(const NmPermutation& s, i64 group) {
    alignas(64) i32 top[largest_group][rows_at_once];
    alignas(64) i32 kept[rows_at_once];
    const i64 begin = group * s.group;
    for (i64 p = begin; p < begin + s.group; ++p) s.bases[p] = 0;
    i64 score = 0;
    for (i64 first = 0; first < s.rows; first += rows_at_once) {
        const i64 n = least(rows_at_once, s.rows - first);
        largest_of(s, group, first, n, top);
        // What the group keeps in each row: the sum of its `keep` largest.
        for (i64 r = 0; r < n; ++r) kept[r] = top[0][r];
        for (i64 k = 1; k < s.keep; ++k)
            for (i64 r = 0; r < n; ++r) kept[r] += top[k][r];
        for (i64 r = 0; r < n; ++r) score += kept[r];
        // Without one of its columns a group keeps the `keep` largest of the others: if that column is among them, the
        // next one moves up.
        const i32 *last = top[s.keep - 1], *next = top[s.keep];
        for (i64 p = begin; p < begin + s.group; ++p) {
            const i32* __restrict x = s.magnitudes + s.order[p] * s.rows + first;
            i32* __restrict edge = s.edges + p * s.rows + first;
            i64 base = 0;
            for (i64 r = 0; r < n; ++r) {
                // The value that a new column has to exceed here, and what the others keep beside it.
                edge[r] = x[r] >= last[r] ? next[r] : last[r];
                base += kept[r] - larger(x[r], last[r]);
            }
            s.bases[p] += base;
        }
    }
    s.scores[group] = score;
}

}  // namespace

void evaluate_groups(const NmPermutation& s, i64 first, i64 last) {
    for (i64 group = first; group < last; ++group) evaluate_group(s, group);
}

namespace {  // of this file alone

// What the group of position p keeps once p holds `column`: two operations and two reads per row.
inline i64 score_with(const NmPermutation& s, i64 p, i64 column) {
    const i32* __restrict edge = s.edges + p * s.rows;
    const i32* __restrict x = s.magnitudes + column * s.rows;
    i32 sum = 0;
    for (i64 r = 0; r < s.rows; ++r) sum += larger(edge[r], x[r]);
    return s.bases[p] + sum;
}

}  // namespace

// Tries n swaps of two positions; returns how many were made.
i64 anneal(const NmPermutation& s, const i32* pairs, const i64* allowances, i64* gains, i64 n) {
    i64 accepted = 0;
    for (i64 k = 0; k < n; ++k) {
        const i64 p = pairs[2 * k], q = pairs[2 * k + 1], of_p = p / s.group, of_q = q / s.group;
        gains[k] = 0;
        // Within a group a swap changes nothing.
        if (of_p == of_q) continue;
        const i64 gain = score_with(s, p, s.order[q]) + score_with(s, q, s.order[p]) - s.scores[of_p] - s.scores[of_q];
        gains[k] = gain;
        if (gain + allowances[k] <= 0) continue;
        const i32 moved = s.order[p];
        s.order[p] = s.order[q];
        s.order[q] = moved;
        // Only the two groups that were touched change.
        evaluate_group(s, of_p);
        evaluate_group(s, of_q);
        ++accepted;
    }
    return accepted;
}

}  // namespace permutation
