// Codes of structured sparse lines to streams and back; kernels/reference/nm/stream.py is the definition.
#pragma once

#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/packing.inc.hpp"

namespace stream {

using memory::unpack;
using packing::pack;
using numbers::least, numbers::tile;

namespace {  // of this file alone

// Whether bit `bit` of a mask is set.
inline bool is_kept(const u8* mask, i64 bit) { return mask[bit / 8] >> bit % 8 & 1; }

// Whether every group of a block of n values keeps exactly `keep`.
inline bool keeps_exactly(const u8* mask, i64 n, i64 keep, i64 group) {
    const i64 groups = n / group;
    // Masks lie by position within the group: bit p groups + g. Counting by position runs over neighbouring bits.
    u8 counts[tile];
    for (i64 g = 0; g < groups; ++g) counts[g] = 0;
    for (i64 p = 0; p < group; ++p)
        for (i64 g = 0; g < groups; ++g) counts[g] = static_cast<u8>(counts[g] + is_kept(mask, p * groups + g));
    bool exactly = true;
    for (i64 g = 0; g < groups; ++g) exactly &= counts[g] == keep;
    return exactly;
}

// The n codes of a block whose mask begins at `in`. Whatever the mask says, nothing outside the block is read.
inline void expand_plainly(const NmLines& job, const u8* in, i64 n, i32* codes) {
    alignas(64) i32 kept[tile];
    const i64 groups = n / job.group, keep = job.keep, count = groups * keep;
    const u8* rest = in + bytes_for(n, 1);
    unpack(rest, 0, job.bits, count, kept, rest + bytes_for(count, job.bits));
    for (i64 g = 0; g < groups; ++g) {
        const i32* next = kept + g * keep;
        for (i64 p = 0; p < job.group; ++p) {
            // A mask with too many bits would take codes of the next group; `next` stops at the end of its own.
            const bool here = is_kept(in, p * groups + g) && next < kept + (g + 1) * keep;
            codes[g * job.group + p] = here ? *next++ : job.zero;
        }
    }
}

}  // namespace

#if defined(__AVX512F__)

// The values of 16 groups of four by position, from the two that each keeps: a group's first kept value is at position
// 0 or 1 or, where 3 is kept too, at 2. Blends take less time than expansions from memory, which are microcode on Zen 4.
template <class Move>
inline void place_groups_of_four(const u8* masks, i64 step, __m512i first, __m512i second, Move move) {
    // Bit g of m[p] says whether group g keeps position p: 16 groups are one mask of AVX-512.
    __mmask16 m[4];
#pragma GCC unroll 4
    for (i64 p = 0; p < 4; ++p) {
        u16 bits;
        __builtin_memcpy(&bits, masks + p * step, sizeof bits);
        m[p] = bits;
    }
    move(0, _mm512_maskz_mov_epi32(m[0], first));
    move(1, _mm512_maskz_mov_epi32(m[1], _mm512_mask_mov_epi32(first, m[0], second)));
    move(2, _mm512_maskz_mov_epi32(m[2], _mm512_mask_mov_epi32(second, m[3], first)));
    move(3, _mm512_maskz_mov_epi32(m[3], second));
}

namespace {  // of this file alone

// Packed codes of a block of 2:4, n a multiple of 64, in codes of 4, 8 or 16 bits whose zero is 0.
inline void expand_groups_of_four(const u8* in, i64 n, i32 bits, u8* out) {
    const i64 step = n / 32;  // bytes of the mask for one position
    const u8* codes = in + n / 8;
    for (i64 i = 0; i < n; i += 64, in += 2, codes += 4 * bits, out += 8 * bits) {
        // Two codes of 16 bits in each 32-bit lane: the pair that a group keeps.
        if (bits == 16) {
            const __m512i c = _mm512_loadu_si512(codes);
            __m512i w[4];
            place_groups_of_four(in, step, _mm512_and_si512(c, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(c, 16),
                        [&](i64 p, __m512i v) { w[p] = v; });
            // Positions 0 and 1, and 2 and 3, joined; two permutations then bring both halves of each group side by
            // side.
            const __m512i low = _mm512_or_si512(w[0], _mm512_slli_epi32(w[1], 16));
            const __m512i high = _mm512_or_si512(w[2], _mm512_slli_epi32(w[3], 16));
            const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            _mm512_storeu_si512(out, _mm512_permutex2var_epi32(low, first, high));
            _mm512_storeu_si512(out + 64, _mm512_permutex2var_epi32(low, _mm512_add_epi32(first, _mm512_set1_epi32(8)), high));
            continue;
        }
        // Narrower codes: each lane gets the two codes of its group, and four positions are put together by shifts.
        const __m512i c = bits == 8 ? _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)))
                                    : _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        __m512i all = _mm512_setzero_si512();
        const __m128i count = _mm_cvtsi32_si128(bits);
        place_groups_of_four(in, step, _mm512_and_si512(c, _mm512_set1_epi32((1 << bits) - 1)), _mm512_srl_epi32(c, count),
                    [&](i64 p, __m512i v) { all = _mm512_or_si512(all, _mm512_sll_epi32(v, _mm_cvtsi32_si128(bits * static_cast<i32>(p)))); });
        if (bits == 8) _mm512_storeu_si512(out, all);
        else _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(all));
    }
}

}  // namespace

#elif defined(__AVX2__)

namespace {  // of this file alone

// The same, eight groups at a time: a blend looks at the top bit of each lane, where a shift of its own takes the bit of
// its group.
inline void expand_groups_of_four(const u8* in, i64 n, i32 bits, u8* out) {
    const i64 step = n / 32;
    const u8* codes = in + n / 8;
    const __m256i up = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24), zero = _mm256_setzero_si256();
    const __m256i low = _mm256_set1_epi32(bits == 16 ? 0xffff : (1 << bits) - 1);
    const auto blend = [](__m256i a, __m256i b, __m256i mask) __attribute__((always_inline)) {
        return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _mm256_castsi256_ps(mask)));
    };
    for (i64 i = 0; i < n; i += 32, ++in, codes += 2 * bits, out += 4 * bits) {
        // Each lane gets the two codes that its group keeps.
        __m256i c;
        if (bits == 16) c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
        else if (bits == 8) c = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        else c = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
        const __m256i first = _mm256_and_si256(c, low), second = _mm256_srl_epi32(c, _mm_cvtsi32_si128(bits));
        __m256i m[4];
        for (i64 p = 0; p < 4; ++p) m[p] = _mm256_sllv_epi32(_mm256_set1_epi32(in[p * step]), up);
        const __m256i w[4] = {blend(zero, first, m[0]), blend(zero, blend(first, second, m[0]), m[1]),
                              blend(zero, blend(second, first, m[3]), m[2]), blend(zero, second, m[3])};
        // Positions 0 and 1, and 2 and 3, joined; then both side by side.
        const __m128i count = _mm_cvtsi32_si128(bits);
        const __m256i a = _mm256_or_si256(w[0], _mm256_sll_epi32(w[1], count)), b = _mm256_or_si256(w[2], _mm256_sll_epi32(w[3], count));
        if (bits == 16) {
            const __m256i even = _mm256_unpacklo_epi32(a, b), odd = _mm256_unpackhi_epi32(a, b);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(even, odd, 0x20));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32), _mm256_permute2x128_si256(even, odd, 0x31));
            continue;
        }
        const __m256i all = _mm256_or_si256(a, _mm256_sll_epi32(b, _mm_cvtsi32_si128(2 * bits)));
        if (bits == 8) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), all);
        else _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 8)));
    }
}

}  // namespace

#else

namespace {  // of this file alone

inline void expand_groups_of_four(const u8*, i64, i32, u8*) {}

}  // namespace

#endif

namespace {  // of this file alone

// Whether expand_groups_of_four knows this pattern; its zeros come from masking, so the code of zero must be 0.
inline bool expands_groups_of_four(const NmLines& job, i64 n) {
#if defined(__AVX2__)
    return job.keep == 2 && job.group == 4 && n % 64 == 0 && job.zero == 0 && (job.bits == 4 || job.bits == 8 || job.bits == 16);
#else
    static_cast<void>(job);
    static_cast<void>(n);
    return false;
#endif
}

}  // namespace

namespace {  // of this file alone

// The block of n codes that begins at value `start` of a line, into the line's packed codes at `out`.
inline void expand_block(const NmLines& job, const u8* in, i64 start, i64 n, u8* out) {
    if (expands_groups_of_four(job, n)) return expand_groups_of_four(in, n, job.bits, out + start * job.bits / 8);
    alignas(64) i32 codes[tile];
    expand_plainly(job, in, n, codes);
    pack(codes, n, job.bits, out, start);
}

}  // namespace

// A line from value `from` on, which begins a block; `stream` begins the line.
inline void expand_line(const NmLines& job, const u8* stream, i64 from, u8* out) {
    const i64 block = nm_block(job.group), bytes = nm_block_bytes(block, job.bits, job.keep, job.group);
    for (i64 start = from; start < job.n; start += block)
        expand_block(job, stream + start / block * bytes, start, least(block, job.n - start), out);
}

// Checks the masks of lines first to last - 1 and writes their codes, if `out` says where; returns the first wrong
// line, or -1.
i64 expand(const NmLines& job, i64 first, i64 last) {
    // A line is cut into blocks, each a mask and the codes that it keeps; bytes of whole blocks are all alike.
    const i64 block = nm_block(job.group), bytes = nm_block_bytes(block, job.bits, job.keep, job.group);
    const i64 in_stream = nm_stream_bytes(job.n, job.bits, job.keep, job.group), in_line = bytes_for(job.n, job.bits);
    for (i64 line = first; line < last; ++line) {
        const u8* stream = job.in + line * in_stream;
        for (i64 start = 0; start < job.n; start += block)
            if (!keeps_exactly(stream + start / block * bytes, least(block, job.n - start), job.keep, job.group)) return line;
        if (job.out != nullptr) expand_line(job, stream, 0, job.out + line * in_line);
    }
    return -1;
}

namespace {  // of this file alone

// Writes the stream of a block of n codes to `out`; returns whether no group has too many that are not zero.
inline bool compress_block(const NmLines& job, const i32* codes, i64 n, u8* out) {
    alignas(64) i32 kept[tile];
    const i64 groups = n / job.group, keep = job.keep;
    // Masks are built bit by bit, so they begin as zeros.
    u8* rest = out + bytes_for(n, 1);
    for (u8* byte = out; byte < rest; ++byte) *byte = 0;
    for (i64 g = 0; g < groups; ++g) {
        const i32* from = codes + g * job.group;
        // Which positions to keep: first all that are not zero, then minus zeros, then zeros, until there are `keep`.
        u64 chosen = 0;
        i64 count = 0;
        for (i64 p = 0; p < job.group; ++p)
            if (from[p] != job.zero && from[p] != job.minus_zero) {
                chosen |= u64{1} << p;
                ++count;
            }
        if (count > keep) return false;
        for (i64 p = 0; p < job.group && count < keep; ++p)
            if (from[p] == job.minus_zero && from[p] != job.zero) {
                chosen |= u64{1} << p;
                ++count;
            }
        for (i64 p = 0; p < job.group && count < keep; ++p)
            if (from[p] == job.zero) {
                chosen |= u64{1} << p;
                ++count;
            }
        // Their codes in the order of the positions, their bits in the mask.
        i32* next = kept + g * keep;
        for (i64 p = 0; p < job.group; ++p) {
            if ((chosen >> p & 1) == 0) continue;
            const i64 bit = p * groups + g;
            out[bit / 8] = static_cast<u8>(out[bit / 8] | 1 << bit % 8);
            *next++ = from[p];
        }
    }
    pack(kept, groups * keep, job.bits, rest, 0);
    return true;
}

}  // namespace

// Lines first to last - 1 to streams; returns the first that has a group with too many, or -1.
i64 compress(const NmLines& job, i64 first, i64 last) {
    const i64 block = nm_block(job.group), bytes = nm_block_bytes(block, job.bits, job.keep, job.group);
    const i64 in_stream = nm_stream_bytes(job.n, job.bits, job.keep, job.group), in_line = bytes_for(job.n, job.bits);
    alignas(64) i32 codes[tile];
    for (i64 line = first; line < last; ++line) {
        const u8* in = job.in + line * in_line;
        u8* out = job.out + line * in_stream;
        for (i64 start = 0; start < job.n; start += block, out += bytes) {
            const i64 n = least(block, job.n - start);
            unpack(in, start, job.bits, n, codes, in + in_line);
            if (!compress_block(job, codes, n, out)) return line;
        }
    }
    return -1;
}

}  // namespace stream
