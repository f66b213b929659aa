// Initial values indexed by position: an odd integer of 24 bits and a sign, from a draw's upper bits, times a unit. One
// rounding, so that every device has the same; kernels/reference/values/counter_uniform.py defines it.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/stochastic_draws.inc.hpp"

namespace counter_uniform {

using numbers::least, numbers::tile;
using stochastic_draws::draw, stochastic_draws::drawn_together;

void counter_uniform(const CounterUniform& u, i64 first, i64 last) {
    alignas(64) u32 buffer[tile + drawn_together];
    for (i64 done = first; done < last; done += tile) {
        const i64 n = least(tile, last - done);
        const u32* drawn;
        draw(u.seed, 32, u.position + done, 1, n, buffer, &drawn);
        // The upper 24 bits d give 2 d + 1 - 2^24: odd, of magnitude below 2^24, so that its conversion is exact.
        for (i64 i = 0; i < n; ++i) u.out[done + i] = static_cast<float>(static_cast<i32>(drawn[i] >> 8 << 1) + 1 - (1 << 24)) * u.unit;
    }
}

}  // namespace counter_uniform
