// What one step of a 2:4 stream multiplies: the codes that are kept, decoded, and the values of x that they meet. Both come
// to be in registers: x, not the weights, is put in place by the masks, so no product is of a value that is not kept.
//
// A step has two vectors of groups. Of each group one lane holds the first value that is kept and the same lane of another
// vector the second. Which group is in which lane is what loading costs least: of codes of 16 bits lane i of vector v is
// group `vector` v + i, of narrower ones 2 i + v, because a lane of 32 bits holds the codes of two groups. Where words are
// unpacked lane 4 k + j is group 8 k + 4 v + j, as of each eight words one instruction takes four.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace kept_operands {

#if defined(__AVX2__)

using decode_sixteen::CodeDecoder, decode_sixteen::Decoder, decode_sixteen::code_decoder_of, decode_sixteen::decodes_in_registers,
    decode_sixteen::number_of;
using numbers::Bits, numbers::Naturals, numbers::Reals;
using numbers::bits_of, numbers::infinity_bits, numbers::is_power_of_two, numbers::larger, numbers::log2_of, numbers::magnitude_mask,
    numbers::power_of_two, numbers::vector;
using rounding::constants_of, rounding::decode_all;
using vectors::read;

constexpr i64 in_step = 8 * vector;  // values, half of them kept
constexpr i64 stream_block = 512;    // values of which a stream has one mask
constexpr i64 whole_steps = 128;     // what a block has to be a multiple of, with either width of registers

// How codes become operands. `floats` have eight bits, a sign and an exponent; `half` is float16.
enum class Kind : i32 { none, bfloat16, half, floats, integers, nibbles };

constexpr i32 bits_of(Kind kind) { return kind == Kind::nibbles ? 4 : kind == Kind::floats || kind == Kind::integers ? 8 : 16; }

// Whether two groups share a lane of codes.
constexpr bool is_paired(Kind kind) { return bits_of(kind) < 16; }

// How x lies: float32 as they are; the upper and the lower halves of 32 bits apart, so that one mask of AVX-512 serves 32
// groups; the same, to be `unpacked` with groups in another order; the upper halves alone where the lower ones are zero, or to be
// multiplied as the bfloat16 that they are.
enum class Halves : i32 { together, apart, unpacked, upper, bfloat16 };

// What all lines of one job share.
struct Kept {
    Kind kind;
    Halves halves;
    bool scaled;    // whether a line has more than one scale
    i64 log_size;   // of blocks
    i64 covered;    // values of a line that steps take
    i64 in_block;   // bytes of the stream of 512 values
    const u8* x;    // in the order of the steps
    i64 x_step;     // bytes of x for each step
    float unit;     // what one is worth in the sums of products
    Bits pick;      // which scale of a step each lane takes
    i32 largest;    // floats: the largest magnitude of a code that is no NaN and no infinity
    CodeDecoder decoder;
#if defined(__AVX512F__)
    Reals table;  // nibbles: the values of the codes
    Bits narrow;  // the same as bfloat16, twice
#else
    Bits table;   // nibbles: the values as bytes, multiples of `unit` 2^24, in both halves of the register
    Bits up[2];   // how far the bit of a lane's group is from the top of a mask
#endif
};

namespace {  // of this file alone

// Whether a line has more than one scale.
inline bool has_short_blocks(const Gemv& job) { return has_blocks(job.format) && job.format.block < job.n; }

// The kind of a job's format, Kind::none where products of kept values do not know one.
inline Kind kind_of(const Gemv& job) {
    const Format& f = job.format;
    const Grid& g = f.grid;
    // A scale serves whole lanes, two groups.
    const bool blocks = !has_short_blocks(job) || (f.block >= 8 && is_power_of_two(f.block));
    if (f.keep != 2 || f.group != 4 || f.zero != 0 || f.tabled || !blocks || f.scales == Scales::shifted) return Kind::none;
    if (g.bits == 16 && g.sign == Sign::bit && f.scales == Scales::none && g.inf != 0)
        return g.m == 7 && g.emin == -126 ? Kind::bfloat16 : g.m == 10 && g.emin == -14 ? Kind::half : Kind::none;
    if (g.bits == 8 && g.sign == Sign::twos_complement && !g.has_nan) return Kind::integers;
    // A NaN in the place of minus zero is not found by its magnitude.
    if (g.bits == 8 && g.sign == Sign::bit && g.nan < 128 && decodes_in_registers(g)) return Kind::floats;
    return g.bits == 4 && !g.has_nan && g.inf == 0 ? Kind::nibbles : Kind::none;
}

// The 16 values of four-bit codes; returns whether they can be had as this instruction set wants them.
inline bool nibble_table(const Grid& g, Kept& k) {
    alignas(64) i32 codes[16];
    alignas(64) float ones[16], values[16];
    for (i32 i = 0; i < 16; ++i) {
        codes[i] = i;
        ones[i] = 1.0f;
    }
    // From the definition's function, as every table.
    decode_all(constants_of(g, Overflow::saturate), g.has_nan, codes, ones, values, 16);
#if defined(__AVX512F__)
    k.table = read<Reals>(values);
    k.unit = 1.0f;
    // No value of four bits has more than three significant ones.
    alignas(64) u16 upper[32];
    for (i32 i = 0; i < 32; ++i) upper[i] = static_cast<u16>(static_cast<u32>(bits_of(values[i % 16])) >> 16);
    k.narrow = read<Bits>(upper);
#else
    // Multiples of the smallest step, which a conversion reads at the top of a lane: worth 2^24 times as much there.
    const float step = power_of_two(g.emin - g.m);
    alignas(32) u8 bytes[32];
    for (i32 i = 0; i < 32; ++i) {
        const float steps = values[i % 16] / step;
        if (!(steps >= -127.0f && steps <= 127.0f)) return false;
        bytes[i] = static_cast<u8>(static_cast<i32>(steps));
    }
    k.table = read<Bits>(bytes);
    k.unit = step * 0x1p-24f;
#endif
    return true;
}

}  // namespace

// All that does not depend on x; Kind::none where another way has to be taken.
inline Kept kept_of(const Gemv& job) {
    const Format& f = job.format;
    Kept k{};
    if (job.batch != 1) return k;
    k.kind = kind_of(job);
    if (k.kind == Kind::none) return k;
    k.scaled = has_short_blocks(job);
    k.in_block = nm_block_bytes(stream_block, bits_of(k.kind), 2, 4);
    // The last block, too, if it has whole steps.
    k.covered = job.n % whole_steps ? job.n / stream_block * stream_block : job.n;
    k.unit = 1.0f;
    k.log_size = log2_of(k.scaled ? f.block : in_step);
    // Lane i has the groups 2 i and 2 i + 1, eight values; unpacked, two of the same 32.
    alignas(64) i32 pick[16];
    for (i32 i = 0; i < 16; ++i) pick[i] = 8 * i >> k.log_size;
    k.pick = read<Bits>(pick);
#if !defined(__AVX512F__)
    // Bit 0 of a mask is 31 places below the top.
    for (i32 v = 0; v < 2; ++v)
        for (i32 i = 0; i < 8; ++i) k.up[v][i] = 31 - (is_paired(k.kind) ? 2 * i + v : 8 * v + i);
#endif
    if (k.kind == Kind::integers) k.unit = power_of_two(f.grid.emin - f.grid.m) * 0x1p-24f;
    if (k.kind == Kind::nibbles && !nibble_table(f.grid, k)) k.kind = Kind::none;
    if (k.kind == Kind::floats || k.kind == Kind::half) {
        k.decoder = code_decoder_of(f.grid);
        k.largest = f.grid.limit_above;
    }
    return k;
}

// Whether all values are finite; `halves` becomes how AVX-512 has them in the order of pairs.
inline bool all_finite(const float* x, i64 n, Halves& halves) {
    i32 largest = 0, all = 0;
    for (i64 i = 0; i < n; ++i) {
        const i32 b = bits_of(x[i]);
        largest = larger(largest, b & magnitude_mask);
        all |= b;
    }
    halves = (all & 0xffff) == 0 ? Halves::upper : Halves::apart;
    return largest < infinity_bits;
}

// The bytes of x for each step.
inline i64 x_bytes(Halves halves) { return halves == Halves::upper || halves == Halves::bfloat16 ? in_step * 2 : in_step * 4; }

// Writes the covered values of x in the order of the steps to `out`, which has room for n float32.
inline void arrange(const float* __restrict x, const Kept& k, u8* __restrict out) {
    for (i64 start = 0; start < k.covered; start += in_step, x += in_step, out += x_bytes(k.halves)) {
        float* const values = reinterpret_cast<float*>(out);
        u16* const halves = reinterpret_cast<u16*>(out);
        // Position p of all groups side by side: the groups of one vector after those of the other...
        if (k.halves == Halves::together) {
            const i64 apart = is_paired(k.kind) ? 2 : 1, further = is_paired(k.kind) ? 1 : vector;
            for (i64 v = 0; v < 2; ++v)
                for (i64 p = 0; p < 4; ++p)
                    for (i64 i = 0; i < vector; ++i) values[vector * (4 * v + p) + i] = x[4 * (apart * i + further * v) + p];
            continue;
        }
        // ... or of both in the two halves of a lane, upper 16 bits first.
        const i64 groups = 2 * vector;
        for (i64 p = 0; p < 4; ++p)
            for (i64 g = 0; g < groups; ++g) halves[groups * p + g] = static_cast<u16>(static_cast<u32>(bits_of(x[4 * g + p])) >> 16);
        if (k.halves != Halves::apart && k.halves != Halves::unpacked) continue;
        for (i64 p = 0; p < 4; ++p)
            for (i64 g = 0; g < groups; ++g) halves[groups * (4 + p) + g] = static_cast<u16>(bits_of(x[4 * g + p]));
    }
}

namespace {  // of this file alone

// Lanes of b where the mask is set, else of a.
#if defined(__AVX512F__)
inline __m512 blend(__m512 a, __m512 b, __mmask16 mask) { return _mm512_mask_mov_ps(a, mask, b); }
inline __m512i blend(__m512i a, __m512i b, __mmask32 mask) { return _mm512_mask_mov_epi16(a, mask, b); }

// Masks from memory. GCC would take them through general registers, from which one mask a cycle can come.
struct MaskBytes {
    u8 of[4];
};

inline __mmask16 mask_of_16(const u8* bits) {
    __mmask16 mask;
    __asm__("kmovw %1, %0" : "=k"(mask) : "m"(*reinterpret_cast<const MaskBytes*>(bits)));
    return mask;
}

inline __mmask32 mask_of_32(const u8* bits) {
    __mmask32 mask;
    __asm__("kmovd %1, %0" : "=k"(mask) : "m"(*reinterpret_cast<const MaskBytes*>(bits)));
    return mask;
}
#else
// AVX2 looks at the top bit of each lane of the mask.
inline __m256 blend(__m256 a, __m256 b, __m256 mask) { return _mm256_blendv_ps(a, b, mask); }
#endif

// Of four vectors by position the values that each group keeps first and second; m[p] says which groups keep position p.
// The first is at 0, else at 1, else at 2; the second at 3, else at 2, else at 1.
template <class Vector, class Mask>
inline void choose_two(const Vector* x, const Mask* m, Vector& first, Vector& second) {
    first = blend(blend(x[2], x[1], m[1]), x[0], m[0]);
    second = blend(blend(x[1], x[2], m[2]), x[3], m[3]);
}

constexpr i32 top_half = static_cast<i32>(0xffff0000u), top_byte = static_cast<i32>(0xff000000u);

}  // namespace

// Which values of x a step meets: chosen[v][0] are the first ones of the groups of vector v. `masks` are those of position
// 0, `stride` bytes further those of position 1.
template <Halves halves>
inline void choose(const Kept& k, const u8* masks, i64 stride, const u8* x, Reals (*chosen)[2]) {
#if defined(__AVX512F__)
    static_cast<void>(k);
    if constexpr (halves == Halves::together) {
        for (i64 v = 0; v < 2; ++v, x += 256) {
            __mmask16 m[4];
            __m512 by_position[4], two[2];
            for (i64 p = 0; p < 4; ++p) {
                m[p] = mask_of_16(masks + p * stride + 2 * v);
                by_position[p] = _mm512_loadu_ps(x + 64 * p);
            }
            choose_two(by_position, m, two[0], two[1]);
            chosen[v][0] = (Reals)two[0];
            chosen[v][1] = (Reals)two[1];
        }
    } else {
        // 32 groups in lanes of 16 bits.
        __mmask32 m[4];
        __m512i by_position[4], upper[2], lower[2];
        for (i64 p = 0; p < 4; ++p) {
            m[p] = mask_of_32(masks + p * stride);
            by_position[p] = _mm512_loadu_si512(x + 64 * p);
        }
        choose_two(by_position, m, upper[0], upper[1]);
        if constexpr (halves == Halves::apart || halves == Halves::unpacked) {
            for (i64 p = 0; p < 4; ++p) by_position[p] = _mm512_loadu_si512(x + 256 + 64 * p);
            choose_two(by_position, m, lower[0], lower[1]);
        }
        for (i64 s = 0; s < 2; ++s) {
            if constexpr (halves == Halves::unpacked) {
                chosen[0][s] = (Reals)_mm512_unpacklo_epi16(lower[s], upper[s]);
                chosen[1][s] = (Reals)_mm512_unpackhi_epi16(lower[s], upper[s]);
                continue;
            }
            // Even groups are in the lower half of each 32-bit lane, odd ones in the upper half.
            Bits even = (Bits)upper[s] << 16, odd = (Bits)upper[s] & top_half;
            if constexpr (halves == Halves::apart) {
                even = (Bits)_mm512_ternarylogic_epi32((__m512i)even, lower[s], _mm512_set1_epi32(top_half), 0xf4);  // a | (b & ~c)
                odd |= (Bits)((Naturals)lower[s] >> 16);
            }
            chosen[0][s] = (Reals)even;
            chosen[1][s] = (Reals)odd;
        }
    }
#else
    __m256i m[4];
    for (i64 p = 0; p < 4; ++p) {
        i32 bits;  // of 16 groups, and 16 bits more: after the last mask are codes
        __builtin_memcpy(&bits, masks + p * stride, sizeof bits);
        m[p] = _mm256_set1_epi32(bits);
    }
    for (i64 v = 0; v < 2; ++v, x += 128) {
        __m256 by_position[4], at_top[4], two[2];
        for (i64 p = 0; p < 4; ++p) {
            by_position[p] = (__m256)read<Reals>(x + 32 * p);
            at_top[p] = _mm256_castsi256_ps(_mm256_sllv_epi32(m[p], (__m256i)k.up[v]));
        }
        choose_two(by_position, at_top, two[0], two[1]);
        chosen[v][0] = (Reals)two[0];
        chosen[v][1] = (Reals)two[1];
    }
#endif
}

// The values that a step keeps, without scales and `unit`, as x in `choose`. `worst` are the largest magnitudes of floats so
// far, those of eight bits in bytes, those of 16 in halves of a lane.
template <Kind kind, Halves halves>
inline void decode(const Kept& k, const u8* codes, Reals (*w)[2], Bits& worst) {
    if constexpr (kind == Kind::integers || kind == Kind::floats) {
        // Four codes, each to the top of its lane. Without what is below them they are integers 2^24 times as large.
        Bits c = read<Bits>(codes), top[4];
        __asm__("" : "+v"(c));  // read once: GCC would read it again for each
        if constexpr (halves == Halves::unpacked) {
#if defined(__AVX512F__)
            // Both of a group above zeros.
            top[1] = (Bits)_mm512_unpacklo_epi16(_mm512_setzero_si512(), (__m512i)c), top[0] = top[1] << 8;
            top[3] = (Bits)_mm512_unpackhi_epi16(_mm512_setzero_si512(), (__m512i)c), top[2] = top[3] << 8;
#endif
        } else {
            top[0] = c << 24, top[1] = c << 16, top[2] = c << 8, top[3] = c;  // both of the even group, both of the odd one
        }
        for (i64 i = 0; i < 4; ++i) {
            const bool lowest = i == 0 || (i == 2 && halves == Halves::unpacked);
            const Bits alone = lowest ? top[i] : top[i] & top_byte;
            w[i / 2][i % 2] = kind == Kind::floats ? number_of<Decoder::number>(k.decoder, top[i]) : __builtin_convertvector(alone, Reals);
        }
        if constexpr (kind == Kind::floats) {
            const Bits magnitudes = c & 0x7f7f7f7f;
#if defined(__AVX512F__)
            worst = (Bits)_mm512_max_epu8((__m512i)worst, (__m512i)magnitudes);
#else
            worst = (Bits)_mm256_max_epu8((__m256i)worst, (__m256i)magnitudes);
#endif
        }
    } else if constexpr (kind == Kind::nibbles) {
#if defined(__AVX512F__)
        // Four codes in a lane, of which a permutation looks at the low four bits.
        const __m512i c = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
        for (u32 i = 0; i < 4; ++i) w[i / 2][i % 2] = (Reals)_mm512_permutexvar_ps(_mm512_srli_epi32(c, 4 * i), (__m512)k.table);
#else
        // Four codes in a lane, in a byte each: the first ones of both groups below the second ones. Then as integers.
        const Bits c = (Bits)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        const Bits b = (Bits)_mm256_shuffle_epi8((__m256i)k.table, (__m256i)((c | c << 12) & 0x0f0f0f0f));
        const Bits top[4] = {b << 24, b << 8, b << 16, b};
        for (i64 i = 0; i < 4; ++i) w[i / 2][i % 2] = __builtin_convertvector(top[i] & top_byte, Reals);
#endif
    } else {
        // Two codes in a lane; bfloat16 are the upper half of a float32.
        for (i64 v = 0; v < 2; ++v) {
            const Bits c = read<Bits>(codes + 4 * vector * v);
            w[v][0] = kind == Kind::half ? number_of<Decoder::number>(k.decoder, c << 16) : (Reals)(c << 16);
            w[v][1] = kind == Kind::half ? number_of<Decoder::number>(k.decoder, c) : (Reals)(c & top_half);
            if constexpr (kind == Kind::half) {
                const Bits magnitudes = c & 0x7fff7fff;
#if defined(__AVX512F__)
                worst = (Bits)_mm512_max_epu16((__m512i)worst, (__m512i)magnitudes);
#else
                worst = (Bits)_mm256_max_epu16((__m256i)worst, (__m256i)magnitudes);
#endif
            }
        }
    }
}

// Whether a float among those seen is NaN or infinity.
template <Kind kind>
inline bool is_beyond(const Kept& k, const Bits& worst) {
    if (kind != Kind::floats && kind != Kind::half) return false;
    // Bytes, or pairs of them.
    constexpr i64 bytes = bits_of(kind) / 8;
    u8 all[sizeof worst];
    __builtin_memcpy(all, &worst, sizeof worst);
    i32 largest = 0;
    for (u64 i = 0; i < sizeof worst; i += bytes) largest = larger(largest, bytes == 1 ? all[i] : all[i] | all[i + 1] << 8);
    return largest > k.largest;
}

#if defined(__AVX512BF16__)

// The sums of a step of nibbles: products of bfloat16, 32 by one instruction, in whose lanes two groups are added. It takes
// subnormals for zero; x has none here, nor have the codes.
inline Reals product_of_bfloat16(const Kept& k, const u8* masks, i64 stride, const u8* codes, const u8* x) {
    __mmask32 m[4];
    __m512i by_position[4], two[2];
    for (i64 p = 0; p < 4; ++p) {
        m[p] = mask_of_32(masks + p * stride);
        by_position[p] = _mm512_loadu_si512(x + 64 * p);
    }
    choose_two(by_position, m, two[0], two[1]);
    // Two codes in each lane of 16 bits, of which a permutation looks at the low five; the table is there twice.
    const __m512i c = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i first = _mm512_permutexvar_epi16(c, (__m512i)k.narrow);
    const __m512i second = _mm512_permutexvar_epi16(_mm512_srli_epi16(c, 4), (__m512i)k.narrow);
    const __m512 products = _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)first, (__m512bh)two[0]);
    return (Reals)_mm512_dpbf16_ps(products, (__m512bh)second, (__m512bh)two[1]);
}

#else
inline Reals product_of_bfloat16(const Kept&, const u8*, i64, const u8*, const u8*) { return Reals{}; }
#endif

inline Reals times_plus(Reals a, Reals b, Reals c) {
#if defined(__AVX512F__)
    return (Reals)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return (Reals)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
}

// The scales of a step, each in its lanes; a whole register is read.
inline Reals scales_of(const Kept& k, const float* scales) {
#if defined(__AVX512F__)
    return (Reals)_mm512_permutexvar_ps((__m512i)k.pick, _mm512_loadu_ps(scales));
#else
    return (Reals)_mm256_permutevar8x32_ps(_mm256_loadu_ps(scales), (__m256i)k.pick);
#endif
}

#endif

}  // namespace kept_operands
