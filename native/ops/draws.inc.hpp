// Random bits indexed by position: Philox 4x32-7, as in kernels/reference/philox.py. The draw of position p is word
// p % 4 of counter p / 4. A vector holds one counter in each 64-bit lane; only the low halves mean something, and the
// high ones are never looked at. Compilers take a product of all 64 bits, three times as slow, where the one
// instruction for 32 x 32 bits would do: hence its intrinsic. About 25 instructions for each 16 draws with AVX-512.

namespace {

#if defined(__AVX512F__)
using Wide = u64 __attribute__((vector_size(64)));
inline Wide product(Wide a, Wide b) { return (Wide)_mm512_mask_mul_epu32((__m512i)a, 0xff, (__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
using Wide = u64 __attribute__((vector_size(32)));
inline Wide product(Wide a, Wide b) { return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
#else
using Wide = u64 __attribute__((vector_size(16)));
inline Wide product(Wide a, Wide b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
#endif

constexpr int wide = sizeof(Wide) / 8;  // counters in a vector, which give four draws each
constexpr int strands = 4;              // vectors at once: one alone waits for its own products
constexpr int drawn_together = 4 * wide * strands;

struct Words {
    Wide a, b, c, d;
};

inline Wide all_lanes(u64 v) { return Wide{} + v; }

// Even lanes take the first half of the counters and odd lanes the second, so that pairs of lanes come out of the
// interleaving below in their order.
inline Wide lane_numbers() {
    Wide lanes{};
    for (int i = 0; i < wide; ++i) lanes[i] = static_cast<u64>(i / 2 + i % 2 * (wide / 2));
    return lanes;
}

// Even lanes of a beside even lanes of b, or odd ones.
inline Wide interleave(Wide a, Wide b, u64 odd) {
    Wide picked{};
    for (u64 i = 0; i < wide; ++i) picked[i] = (i & ~u64{1}) + odd + (i & 1) * wide;
    return __builtin_shuffle(a, b, picked);
}

// The draws of the counters from `first` on, in order.
inline void draw_together(u64 seed, u64 first, u32* __restrict out) {
    const Wide m0 = all_lanes(0xD2511F53u), m1 = all_lanes(0xCD9E8D57u), low = all_lanes(0xffffffffu);
    u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
    Words w[strands];
    for (int s = 0; s < strands; ++s) {
        const Wide counter = lane_numbers() + (first + static_cast<u64>(s * wide));
        w[s] = {counter, counter >> 32, Wide{}, Wide{}};
    }
    for (int round = 0; round < 7; ++round) {
        const Wide key0 = all_lanes(k0), key1 = all_lanes(k1);
        for (int s = 0; s < strands; ++s) {
            const Wide p = product(w[s].a, m0), q = product(w[s].c, m1);
            w[s] = {(q >> 32) ^ w[s].b ^ key0, q, (p >> 32) ^ w[s].d ^ key1, p};
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int s = 0; s < strands; ++s) {
        const Wide ab = (w[s].a & low) | w[s].b << 32, cd = (w[s].c & low) | w[s].d << 32;
        const Wide even = interleave(ab, cd, 0), odd = interleave(ab, cd, 1);
        __builtin_memcpy(out + 4 * wide * s, &even, sizeof even);
        __builtin_memcpy(out + 4 * wide * s + 2 * wide, &odd, sizeof odd);
    }
}

// The draws of n positions from `first` on, `step` apart, at `*start`. n is at most a tile; `out` has room for
// drawn_together more.
inline void draw(u64 seed, i64 first, i64 step, i64 n, u32* __restrict out, u32** start) {
    if (step != 1) {
        u32 some[drawn_together];
        for (i64 i = 0; i < n; ++i) {
            const u64 p = static_cast<u64>(first + i * step);
            draw_together(seed, p / 4, some);
            out[i] = some[p % 4];
        }
        *start = out;
        return;
    }
    const i64 before = first % 4;
    for (i64 done = 0; done < n + before; done += drawn_together)
        draw_together(seed, static_cast<u64>(first / 4 + done / 4), out + done);
    *start = out + before;
}

}  // namespace
