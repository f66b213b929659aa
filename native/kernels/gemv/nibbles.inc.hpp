// Lines of four-bit codes times one vector.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace nibbles {

using decode_sixteen::CodeDecoder;
using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales;
using numbers::is_power_of_two, numbers::least, numbers::log2_of;
#if defined(__AVX512F__)
using decode_sixteen::Decoder;

// Four-bit codes times one vector. A register of 64 bytes holds 128 codes, eight in each 32-bit lane; a permutation
// looks at the low four bits of each lane only, so a permutation gives 16 values, with no mask and no shuffle. The next
// eight bits come by a load one byte further, the four in between by a shift: a load costs less. The scale of a lane's
// eight codes is applied once: 23 instructions for 128 values, and a few for scales. Vector j of 128 holds
// the values 8 i + j, and so does Gemv::permuted. Lines go four at a time, because the vector is seldom in the nearest
// cache whole and would be read again for each.
constexpr i64 nibbles_at_once = 128, scaled_together = 4096, most_scales = scaled_together / 8;

// Whether this way knows the job: one vector, permuted by the caller, four-bit codes, a scale for at least eight
// values.
inline bool takes_nibbles(const Gemv& job, const CodeDecoder& s) {
    const Format& f = job.format;
    const bool blocks = !has_blocks(f) || (f.block >= 8 && is_power_of_two(f.block));
    return job.permuted != nullptr && s.bits == 4 && s.decoder == Decoder::table && blocks && f.scales != Scales::shifted;
}

struct Nibbles {
    __m512 table;
    __m512i pick;        // which scale of a group each lane takes
    __mmask16 present;   // how many scales a group has
    i64 log_size;        // of blocks; no division in the loop: one takes longer than a group
    i64 covered;         // values of a line in whole groups
};

inline Nibbles nibbles_of(const Gemv& job, const CodeDecoder& s) {
    const Format& f = job.format;
    const i64 size = has_blocks(f) ? f.block : nibbles_at_once, in_group = size < nibbles_at_once ? nibbles_at_once / size : 1;
    Nibbles k{
        .table = s.table,
        .pick = {},
        .present = static_cast<__mmask16>((1u << in_group) - 1),
        .log_size = log2_of(size),
        .covered = job.n / nibbles_at_once * nibbles_at_once,
    };
    // Lane i holds the values 8 i to 8 i + 7 of 128: its scale is that of their block.
    alignas(64) i32 lanes_of_scales[16];
    for (i64 i = 0; i < 16; ++i) lanes_of_scales[i] = static_cast<i32>(8 * i / size);
    k.pick = _mm512_load_si512(lanes_of_scales);
    return k;
}

namespace {  // of this file alone

// Writes to y the products of the whole groups of `lines` lines.
template <i64 lines>
inline void nibble_products(const Gemv& job, const PreparedDequantize& p, const Nibbles& given, DecodeBuffers& t, i64 line) {
    const Nibbles k = given;
    const Format& f = p.f;
    const bool blocks = has_blocks(f);
    alignas(64) float scales[lines][most_scales];
    // Without blocks one scale, or none, serves the line.
    for (i64 l = 0; l < lines && !blocks; ++l) {
        scales[l][0] = 1.0f;
        if (one_scale(f)) decode_scales(p, t, line + l, 0, 1, scales[l]);
    }
    __m512 sums[lines];
    for (i64 l = 0; l < lines; ++l) sums[l] = _mm512_setzero_ps();
    for (i64 start = 0; start < k.covered; start += scaled_together) {
        const i64 n = least(scaled_together, k.covered - start), first = start >> k.log_size;
        const i64 count = ((start + n - 1) >> k.log_size) - first + 1;
        for (i64 l = 0; l < lines && blocks; ++l) decode_scales(p, t, line + l, first, count, scales[l]);
        const u8* codes = p.job.codes + line * p.bytes.codes + start / 2;
        const float* x = job.permuted + start;
        for (i64 g = 0; g < n; g += nibbles_at_once, codes += nibbles_at_once / 2, x += nibbles_at_once) {
            const u8* from[lines];
            alignas(64) u8 copies[lines][nibbles_at_once];
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) from[l] = codes + l * p.bytes.codes;
            if (line + lines == job.lines && start + g + nibbles_at_once == k.covered)  // nothing may be read beyond the end
                for (i64 l = 0; l < lines; ++l) from[l] = static_cast<u8*>(__builtin_memcpy(copies[l], from[l], nibbles_at_once / 2));
            __m512 group[lines];
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                __builtin_prefetch(codes + l * p.bytes.codes + 1024, 0, 2);
                group[l] = _mm512_setzero_ps();
            }
#pragma GCC unroll 4
            for (i64 j = 0; j < 4; ++j) {
                // Permuted x: the values of codes 2 j and 2 j + 1 of all lanes.
                const __m512 low = _mm512_loadu_ps(x + 32 * j), high = _mm512_loadu_ps(x + 32 * j + 16);
#pragma GCC unroll 4
                for (i64 l = 0; l < lines; ++l) {
                    // One byte further: codes 2 j and 2 j + 1 of each lane are now its lowest eight bits.
                    const __m512i c = _mm512_loadu_si512(from[l] + j);
                    const __m512 even = _mm512_permutexvar_ps(c, k.table);
                    group[l] = j == 0 ? _mm512_mul_ps(even, low) : _mm512_fmadd_ps(even, low, group[l]);
                    const __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), k.table);
                    group[l] = _mm512_fmadd_ps(odd, high, group[l]);
                }
            }
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                // The scales of the group in one register, then each to its lanes.
                const __m512 of_blocks = _mm512_maskz_loadu_ps(k.present, scales[l] + (blocks ? g >> k.log_size : 0));
                sums[l] = _mm512_fmadd_ps(group[l], _mm512_permutexvar_ps(k.pick, of_blocks), sums[l]);
            }
        }
    }
    for (i64 l = 0; l < lines; ++l) job.y[line + l] = _mm512_reduce_add_ps(sums[l]);
}

}  // namespace

// The same for many lines; returns how many values of a line are covered.
inline i64 gemv_nibbles(const Gemv& job, const PreparedDequantize& p, const CodeDecoder& s, DecodeBuffers& t, i64 first, i64 last) {
    const Nibbles k = nibbles_of(job, s);
    i64 line = first;
    for (; line + 4 <= last; line += 4) nibble_products<4>(job, p, k, t, line);
    for (; line < last; ++line) nibble_products<1>(job, p, k, t, line);
    return k.covered;
}

#else

inline bool takes_nibbles(const Gemv&, const CodeDecoder&) { return false; }
inline i64 gemv_nibbles(const Gemv&, const PreparedDequantize&, const CodeDecoder&, DecodeBuffers&, i64, i64) { return 0; }

#endif

}  // namespace nibbles
