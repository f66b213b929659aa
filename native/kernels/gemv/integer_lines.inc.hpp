// Lines times vectors that were rounded to int8 in blocks of 32, by integers: kernels/reference/gemv/int8.py defines the
// result, bit for bit. Elements of four and eight bits that are small integers times one power of two are multiplied as
// those; the sum of a block is exact in 32 bits and becomes a float32 once. Everything else is multiplied in float32.
//
// 512 values, 16 blocks, are one step, and the sum of block b of it stands in a lane of its own: lanes hold the blocks in
// the order in which additions of neighbours leave them, `order`, and the scales of x are put into that order once.
#pragma once

#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/dot_bytes.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace integer_lines {

using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales, packed::outer_scale, packed::prepare_dequantize;
using memory::unpack;
using numbers::is_power_of_two, numbers::least, numbers::log2_of, numbers::power_of_two, numbers::tile;
using rounding::constants_of, rounding::decode_all;

#if defined(__AVX2__)
using dot_bytes::add_byte_products;
#endif

using i8 = std::int8_t;

namespace {  // of this file alone

constexpr i64 block = 32, step = 512, blocks_in_step = step / block;
constexpr i32 nibble_offset = 32;  // makes integers of four bits unsigned; a table entry is at most 63
constexpr i64 bytes_ahead = 2048;

// What the lines of one job share: the integers of the codes, and where in a step the block of each lane is.
struct Integers {
    i32 value[256];  // of as many codes as there are
    u8 table[64];  // four bits: the integers plus the offset, four times
    i32 order[blocks_in_step];
    float unit;  // what one is worth
    i64 steps;   // whole ones in a line
    i64 log_size;  // blocks of x that share a scale of the weight
};

// Sets `value`; returns whether all codes are integers that the products below take.
inline bool set_values(const Grid& g, Integers& k) {
    alignas(64) i32 codes[256];
    alignas(64) float ones[256], values[256];
    // Those there are and no more: every call with few lines pays for this.
    const i32 count = 1 << g.bits, at_most = g.bits == 4 ? nibble_offset - 1 : 128;
    for (i32 i = 0; i < count; ++i) {
        codes[i] = i;
        ones[i] = 1.0f;
    }
    // The values come from the same function that decodes everything else.
    decode_all(constants_of(g, Overflow::saturate), g.has_nan, codes, ones, values, count);
    k.unit = power_of_two(g.emin - g.m);
    bool fits = g.emin - g.m >= -126;
    for (i32 i = 0; i < count; ++i) {
        const float in_units = values[i] / k.unit;  // a power of two: exact
        const bool within = in_units >= static_cast<float>(-at_most) && in_units <= static_cast<float>(at_most);
        k.value[i] = within ? static_cast<i32>(in_units) : 0;
        // Bytes are multiplied as they are: they must be their own integers.
        fits &= within && static_cast<float>(k.value[i]) == in_units && (g.bits == 4 || k.value[i] == static_cast<i32>(static_cast<i8>(i)));
    }
    for (i32 i = 0; i < 64; ++i) k.table[i] = static_cast<u8>(k.value[i % 16] + nibble_offset);
    return fits;
}

// The blocks in the order of lanes: as they come from additions of neighbours in the functions below.
inline void set_order(i32 bits, i32* order) {
    for (i32 i = 0; i < blocks_in_step; ++i) {
#if defined(__AVX512F__)
        // Four bits: lane 4 q + r is quarter q of register r, which has four blocks. Eight bits: registers of two blocks.
        order[i] = bits == 4 ? 4 * (i % 4) + i / 4 : 8 * (i / 8) + 2 * (i % 4) + i / 4 % 2;
#elif defined(__AVX2__)
        // Four bits: within eight blocks lane 4 q + r is half q of register r. Eight bits: each register is a block.
        order[i] = bits == 4 ? 8 * (i / 8) + 2 * (i % 4) + i / 4 % 2 : i;
#else
        order[i] = i + 0 * bits;
#endif
    }
}

}  // namespace

// Whether integers serve the job: x is rounded, and a scale of the weight serves whole blocks of x.
inline bool takes_integers(const Gemv& job, Integers& k) {
    const Format& f = job.format;
    const bool blocks = !has_blocks(f) || (f.block >= block && is_power_of_two(f.block));
    if (job.x_codes == nullptr || f.keep != 0 || f.tabled || !blocks || f.scales == Scales::shifted) return false;
    if ((f.grid.bits != 4 && f.grid.bits != 8) || !set_values(f.grid, k)) return false;
    set_order(f.grid.bits, k.order);
    k.steps = job.n / step;
    k.log_size = log2_of((has_blocks(f) ? f.block : block) / block);
    return true;
}

// One vector as the steps read it.
struct Rounded {
    const i8* codes;      // four bits: for each register of weights its even values, then its odd ones
    const i32* offsets;   // of each block: what the offset of the weights adds to its sum
    const float* scales;  // of each block, times what one is worth
};

// Bytes of a row of x in the workspace: codes, offsets and scales of its whole steps.
inline i64 rounded_bytes(i64 n) { return n / step * (step + 8 * blocks_in_step); }

namespace {  // of this file alone

inline Rounded rounded_row(const u8* workspace, const Integers& k) {
    const u8* offsets = workspace + k.steps * step;
    const u8* scales = offsets + k.steps * blocks_in_step * 4;
    return {reinterpret_cast<const i8*>(workspace), reinterpret_cast<const i32*>(offsets), reinterpret_cast<const float*>(scales)};
}

#if defined(__AVX512F__)
constexpr i64 codes_in_register = 128;
#else
constexpr i64 codes_in_register = 64;
#endif

// Writes the whole steps of row b of x into the workspace.
inline void prepare_row(const Gemv& job, const Integers& k, i64 b, u8* workspace) {
    const i8* __restrict x = job.x_codes + b * job.n;
    i8* __restrict codes = reinterpret_cast<i8*>(workspace);
    i32* __restrict offsets = reinterpret_cast<i32*>(workspace + k.steps * step);
    float* __restrict scales = reinterpret_cast<float*>(workspace + k.steps * (step + 4 * blocks_in_step));
    // Nibbles come apart as even and odd values; bytes stay in their order.
    constexpr i64 half = codes_in_register / 2;
    const bool nibbles = job.format.grid.bits == 4;
    if (!nibbles) __builtin_memcpy(codes, x, static_cast<u64>(k.steps * step));
    for (i64 i = 0; nibbles && i < k.steps * step; i += codes_in_register)
        for (i64 j = 0; j < half; ++j) {
            codes[i + j] = x[i + 2 * j];
            codes[i + half + j] = x[i + 2 * j + 1];
        }
    for (i64 i = 0; i < k.steps * blocks_in_step; ++i) {
        const i64 of = i / blocks_in_step * blocks_in_step + k.order[i % blocks_in_step];
        // At most 32 times 127.
        i32 sum = 0;
        for (i64 j = 0; j < block; ++j) sum += x[of * block + j];
        // Bytes without vpdpbusd are multiplied with their signs: nothing is added there.
        offsets[i] = nibbles ? nibble_offset * sum : job.byte_products ? 128 * sum : 0;
        scales[i] = job.x_scales[b * count_of(job.n, block) + of] * k.unit;
    }
}

#if defined(__AVX512F__)

using Words = __m512i;
using Sums = __m512;
constexpr i64 lanes = 16, lines_side_by_side = 4;

inline Words load(const void* p) { return _mm512_loadu_si512(p); }

// Lane i of the result: the sum of four lanes that become neighbours, of register i % 4.
inline Words add_lanes(const Words* d) {
    const Words first = _mm512_add_epi32(_mm512_unpacklo_epi32(d[0], d[1]), _mm512_unpackhi_epi32(d[0], d[1]));
    const Words second = _mm512_add_epi32(_mm512_unpacklo_epi32(d[2], d[3]), _mm512_unpackhi_epi32(d[2], d[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
}

// Blocks of bytes are half a register: quarters 0 and 1, or 2 and 3.
inline Words join(Words a, Words b) { return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd)); }

// The products of 128 codes, four or eight of a block in a lane: two byte shuffles look up integers, two instructions multiply.
template <bool byte_products>
__attribute__((always_inline)) inline Words nibble_products(Words table, Words c, const i8* x) {
    const Words nibble = _mm512_set1_epi8(15), x0 = load(x), x1 = load(x + 64);
    const Words even = _mm512_shuffle_epi8(table, _mm512_and_si512(c, nibble));
    const Words odd = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(c, 4), nibble));
    if (byte_products) return add_byte_products(add_byte_products(_mm512_setzero_si512(), even, x0), odd, x1);
    // Four products of at most 63 x 127 fit 16 bits.
    return _mm512_madd_epi16(_mm512_add_epi16(_mm512_maddubs_epi16(even, x0), _mm512_maddubs_epi16(odd, x1)), _mm512_set1_epi16(1));
}

// The same of 64 codes of a byte.
template <bool byte_products>
__attribute__((always_inline)) inline Words products_of_bytes(Words c, const i8* x) {
    const Words v = load(x);
    if (byte_products) return add_byte_products(_mm512_setzero_si512(), _mm512_xor_si512(c, _mm512_set1_epi8(-128)), v);
    // Two products of at most 128 x 127 fit 16 bits.
    const Words signed_x = _mm512_mask_sub_epi8(v, _mm512_movepi8_mask(c), _mm512_setzero_si512(), v);
    return _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(c), signed_x), _mm512_set1_epi16(1));
}

// sum += products, each rounded: the definition has no fused operation.
inline Sums add_scaled(Words order, Words of_blocks, const i32* offsets, const float* x_scales, const float* scales, Sums sum) {
    const Sums s = _mm512_mul_ps(_mm512_permutexvar_ps(order, _mm512_loadu_ps(scales)), _mm512_loadu_ps(x_scales));
    return _mm512_add_ps(sum, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(of_blocks, load(offsets))), s));
}

// The sum of all lanes in the order of `total`: what lies eight, four, two and one block apart.
template <bool nibbles>
inline float total_of(const Sums* sums) {
    const auto add_halves = [](__m512 v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); };
    __m256 two;
    if constexpr (nibbles) {
        // Lane 4 q + r has block 4 r + q.
        const __m512 eight = _mm512_add_ps(sums[0], _mm512_permute_ps(sums[0], 0x4e)), four = _mm512_add_ps(eight, _mm512_permute_ps(eight, 0xb1));
        two = add_halves(four);
    } else {
        // Lane 8 h + 4 q + r has block 8 h + 2 r + q.
        const __m256 eight = add_halves(sums[0]), four = _mm256_add_ps(eight, _mm256_permute_ps(eight, 0x4e));
        two = _mm256_add_ps(four, _mm256_permute_ps(four, 0xb1));
    }
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1)));
}

inline void write_sums(const Sums* sums, float* out) { _mm512_storeu_ps(out, sums[0]); }
inline Sums no_sum() { return _mm512_setzero_ps(); }

#elif defined(__AVX2__)

using Words = __m256i;
using Sums = __m256;
// One line: the products of several would take more registers than there are.
constexpr i64 lanes = 8, lines_side_by_side = 1;

inline Words load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Lane i of each half of the result: the sum of that half of register i.
inline Words add_lanes(const Words* d) { return _mm256_hadd_epi32(_mm256_hadd_epi32(d[0], d[1]), _mm256_hadd_epi32(d[2], d[3])); }

// A block of bytes is a register: its halves are added.
inline Words join(Words a, Words b) { return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)); }

template <bool byte_products>
__attribute__((always_inline)) inline Words nibble_products(Words table, Words c, const i8* x) {
    const Words nibble = _mm256_set1_epi8(15), x0 = load(x), x1 = load(x + 32);
    const Words even = _mm256_shuffle_epi8(table, _mm256_and_si256(c, nibble));
    const Words odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(c, 4), nibble));
    if (byte_products) return add_byte_products(add_byte_products(_mm256_setzero_si256(), even, x0), odd, x1);
    // Four products of at most 63 x 127 fit 16 bits.
    return _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(even, x0), _mm256_maddubs_epi16(odd, x1)), _mm256_set1_epi16(1));
}

template <bool byte_products>
__attribute__((always_inline)) inline Words products_of_bytes(Words c, const i8* x) {
    const Words v = load(x);
    if (byte_products) return add_byte_products(_mm256_setzero_si256(), _mm256_xor_si256(c, _mm256_set1_epi8(-128)), v);
    // Two products of at most 128 x 127 fit 16 bits.
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(v, c)), _mm256_set1_epi16(1));
}

// Every eight blocks have the order of the first.
inline Sums add_scaled(Words order, Words of_blocks, const i32* offsets, const float* x_scales, const float* scales, Sums sum) {
    const Sums s = _mm256_mul_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(scales), order), _mm256_loadu_ps(x_scales));
    return _mm256_add_ps(sum, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(of_blocks, load(offsets))), s));
}

// The sum of all lanes in the order of `total`, by the order of blocks that the lanes have: eight less those beside them
// first, then what lies four, two and one block apart.
template <bool nibbles>
inline float total_of(const Sums* sums) {
    const __m256 eight = _mm256_add_ps(sums[0], sums[1]);
    if constexpr (nibbles) {
        // Lane 4 q + r has block 2 r + q.
        const __m256 four = _mm256_add_ps(eight, _mm256_permute_ps(eight, 0x0e)), two = _mm256_add_ps(four, _mm256_permute_ps(four, 1));
        return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1)));
    } else {
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
}

inline void write_sums(const Sums* sums, float* out) {
    _mm256_storeu_ps(out, sums[0]);
    _mm256_storeu_ps(out + 8, sums[1]);
}
inline Sums no_sum() { return _mm256_setzero_ps(); }

#endif

#if defined(__AVX2__)

// Sixty-four bytes, or half of them, and the request for those `ahead` of them, to the second cache. As assembly because the compiler would else
// move all requests of a step to its start, where each waits for the others: memory then delivered at four fifths of its rate.
__attribute__((always_inline)) inline Words load_and_prefetch(const u8* from, i64 ahead) {
    Words codes = load(from);
    __asm__ volatile("prefetcht1 %1" : "+v"(codes) : "m"(from[ahead]));
    return codes;
}

// The sums of as many blocks as a register has lanes, of lines that lie `stride` bytes apart and take turns.
template <bool nibbles, bool byte_products, i64 lines>
__attribute__((always_inline)) inline void block_sums(Words table, const u8* codes, i64 stride, i64 ahead, const i8* x, Words* sums) {
    constexpr i64 size = sizeof(Words), halves = nibbles ? 1 : 2;
    Words of_halves[lines][2];
#pragma GCC unroll 2
    for (i64 h = 0; h < halves; ++h) {
        Words d[lines][4];
#pragma GCC unroll 4
        for (i64 r = 0; r < 4; ++r) {
            const i64 at = (4 * h + r) * size;
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                const u8* from = codes + l * stride + at;
                const Words c = at % 64 == 0 ? load_and_prefetch(from, ahead) : load(from);
                if constexpr (nibbles) d[l][r] = nibble_products<byte_products>(table, c, x + 2 * at);
                else d[l][r] = products_of_bytes<byte_products>(c, x + at);
            }
        }
#pragma GCC unroll 4
        for (i64 l = 0; l < lines; ++l) of_halves[l][h] = add_lanes(d[l]);
    }
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l) sums[l] = nibbles ? of_halves[l][0] : join(of_halves[l][0], of_halves[l][1]);
}

#endif

// Adds the blocks from value `start` on, the last of them perhaps shorter, one by one; `in_lanes` has lane b % 16 for block b.
inline void add_by_loops(const Gemv& job, const Integers& k, const PreparedDequantize& p, DecodeBuffers& t, i64 line, i64 b, i64 start,
                         float* in_lanes) {
    const i8* x = job.x_codes + b * job.n;
    const u8* part = job.codes + line * p.bytes.codes;
    const bool none = p.f.scales == Scales::none;
    for (i64 first = start, n; first < job.n; first += n) {
        n = least(tile, job.n - first);
        unpack(part, first, p.f.grid.bits, n, t.codes, part + p.bytes.codes);
        for (i64 i = 0; i < n; i += block) {
            const i64 number = (first + i) / block, size = least(block, n - i);
            i32 sum = 0;
            for (i64 j = i; j < i + size; ++j) sum += k.value[t.codes[j] & 255] * x[first + j];
            // Whole vectors of scales are written: room for one.
            float scale[16] = {1.0f};
            if (!none) decode_scales(p, t, line, has_blocks(p.f) ? number >> k.log_size : 0, 1, scale);
            // In this order: the scale of x times what one is worth, times the weight's scale, times the exact sum.
            const float of_x = job.x_scales[b * count_of(job.n, block) + number] * k.unit;
            in_lanes[number % blocks_in_step] += static_cast<float>(sum) * (scale[0] * of_x);
        }
    }
}

// The lanes, block b of every 16 in lane b, as a tree: 8 and 8, 4 and 4, and so on.
inline float total(float* in_lanes) {
    for (i64 width = blocks_in_step / 2; width > 0; width /= 2)
        for (i64 j = 0; j < width; ++j) in_lanes[j] += in_lanes[j + width];
    return in_lanes[0];
}

#if defined(__AVX2__)

// The scales of the blocks of some steps of a line.
inline void scales_of_steps(const PreparedDequantize& p, const Integers& k, DecodeBuffers& t, i64 line, i64 first, i64 steps, float* out) {
    const i64 begin = first * blocks_in_step, n = steps * blocks_in_step;
    if (has_blocks(p.f) && k.log_size == 0) return decode_scales(p, t, line, begin, n, out);
    // Larger blocks, or one for the line: each scale serves several blocks of x.
    t.scale[0] = 1.0f;
    const i64 of_first = has_blocks(p.f) ? begin >> k.log_size : 0;
    if (has_blocks(p.f)) decode_scales(p, t, line, of_first, ((begin + n - 1) >> k.log_size) - of_first + 1, t.scale);
    else if (one_scale(p.f)) decode_scales(p, t, line, 0, 1, t.scale);
    for (i64 i = 0; i < n; ++i) out[i] = t.scale[has_blocks(p.f) ? ((begin + i) >> k.log_size) - of_first : 0];
}

// Some lines times row b: they share the loads of x. Where lines end with a step their sums go to `totals`, else to the lanes
// of blocks.
template <bool nibbles, bool byte_products, i64 lines>
inline void add_steps(const Gemv& job, const Integers& k, const PreparedDequantize& p, DecodeBuffers& t, const Rounded& x, i64 line,
                      float (*in_lanes)[blocks_in_step], float* totals) {
    // A step of nibbles has half the bytes of one of bytes: scales of as many bytes are decoded ahead, and with E8M0 they are
    // a cache line for each four steps.
    constexpr i64 steps_together = nibbles ? 8 : 4, parts = blocks_in_step / integer_lines::lanes;
    constexpr i64 values = step / parts, bytes = nibbles ? values / 2 : values;
    constexpr i64 together = lines < lines_side_by_side ? lines : lines_side_by_side;
    Sums sums[lines][parts];
    for (auto& of_line : sums)
        for (Sums& s : of_line) s = no_sum();
    alignas(64) float scales[lines][steps_together * blocks_in_step + 16];  // and room for a register
    const Words table = load(k.table), order = load(k.order);
    const u8 *const codes = job.codes + line * p.bytes.codes, *const of_scales = p.job.scales + line * p.bytes.scales;
    const i64 stride = p.bytes.codes;
    // From the end of a line in the one that comes after these.
    const auto ahead_of = [](i64 at, i64 by, i64 size) { return at + by < size ? by : by + (lines - 1) * size; };
    for (i64 start = 0; start < k.steps; start += steps_together) {
        const i64 count = least(steps_together, k.steps - start);
        for (i64 l = 0; l < lines; ++l) scales_of_steps(p, k, t, line + l, start, count, scales[l]);
        const i64 next_scales = bytes_for((start + 2 * steps_together) * blocks_in_step >> k.log_size, p.f.scale_bits);
        for (i64 s = 0; s < count; ++s) {
            // Those after the next ones, a line in each step.
            if (has_blocks(p.f) && s % 4 < lines)
                __builtin_prefetch(of_scales + s % 4 * p.bytes.scales + ahead_of(0, next_scales + s / 4 * 64, p.bytes.scales));
#pragma GCC unroll 2
            for (i64 part = 0; part < parts; ++part) {
                const i64 number = (start + s) * parts + part, at = number * bytes, ahead = ahead_of(at, bytes_ahead, stride);
                const i64 first = number * integer_lines::lanes, in_scales = first - start * blocks_in_step;
#pragma GCC unroll 4
                for (i64 l = 0; l < lines; l += together) {
                    Words of_blocks[together];
                    block_sums<nibbles, byte_products, together>(table, codes + l * stride + at, stride, ahead, x.codes + number * values, of_blocks);
#pragma GCC unroll 4
                    for (i64 i = 0; i < together; ++i)
                        sums[l + i][part] =
                            add_scaled(order, of_blocks[i], x.offsets + first, x.scales + first, scales[l + i] + in_scales, sums[l + i][part]);
                }
            }
        }
    }
    const bool ends = k.steps * step == job.n;
    for (i64 l = 0; l < lines; ++l) {
        // From the order of lanes to that of blocks.
        alignas(64) float ordered[blocks_in_step];
        if (ends) {
            totals[l] = total_of<nibbles>(sums[l]);
            continue;
        }
        write_sums(sums[l], ordered);
        for (i64 i = 0; i < blocks_in_step; ++i) in_lanes[l][k.order[i]] = ordered[i];
    }
}

// Four lines, or fewer, one by one.
template <bool nibbles, bool byte_products>
inline void add_steps(const Gemv& job, const Integers& k, const PreparedDequantize& p, DecodeBuffers& t, const Rounded& x, i64 line,
                      i64 lines, float (*in_lanes)[blocks_in_step], float* totals) {
    if (lines == 4) return add_steps<nibbles, byte_products, 4>(job, k, p, t, x, line, in_lanes, totals);
    for (i64 l = 0; l < lines; ++l) add_steps<nibbles, byte_products, 1>(job, k, p, t, x, line + l, in_lanes + l, totals + l);
}

#endif

}  // namespace

// Bytes that the rows of x need in the workspace.
inline i64 integer_workspace(const Gemv& job) { return job.x_codes == nullptr ? 0 : job.batch * rounded_bytes(job.n); }

// Lines first to last - 1 of every row of x; `workspace` has what the rows need.
inline void gemv_integers(const Gemv& job, const Integers& k, const Dequantize& packed, u8* workspace, bool prepared, i64 first, i64 last) {
    const PreparedDequantize p = prepare_dequantize(packed);
    DecodeBuffers t;
    for (i64 i = 0; i < tile; ++i) t.ones[i] = 1.0f;
    // Rows of x are put into the order of the steps once for each thread.
    const i64 each = rounded_bytes(job.n);
    for (i64 b = 0; b < job.batch && !prepared; ++b) prepare_row(job, k, b, workspace + b * each);
    for (i64 line = first; line < last; line += 4) {
        const i64 lines = least(4, last - line);
        // All rows while the codes of four lines are in a near cache.
        for (i64 b = 0; b < job.batch; ++b) {
            float in_lanes[4][blocks_in_step] = {}, totals[4];
            i64 done = 0;
#if defined(__AVX2__)
            const Rounded x = rounded_row(workspace + b * each, k);
            const bool nibbles = job.format.grid.bits == 4;
            const auto add = nibbles ? (job.byte_products ? add_steps<true, true> : add_steps<true, false>)
                                     : (job.byte_products ? add_steps<false, true> : add_steps<false, false>);
            add(job, k, p, t, x, line, lines, in_lanes, totals);
            done = k.steps * step;
#endif
            for (i64 l = 0; l < lines; ++l) {
                if (done < job.n || done == 0) {
                    add_by_loops(job, k, p, t, line + l, b, done, in_lanes[l]);
                    totals[l] = total(in_lanes[l]);
                }
                job.y[b * job.stride + line + l] = totals[l] * outer_scale(p, line + l);
            }
        }
    }
}

}  // namespace integer_lines
