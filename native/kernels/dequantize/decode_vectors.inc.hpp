// Whole vectors of packed values, sixteen at a time, with their scales.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace decode_vectors {

using decode_sixteen::CodeDecoder, decode_sixteen::decodes_in_registers;
using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales;
using numbers::Bits, numbers::Reals, numbers::is_power_of_two, numbers::least, numbers::log2_of, numbers::one_bits,
    numbers::vector;
using vectors::broadcast, vectors::read, vectors::store_nontemporal, vectors::write;
#if defined(__AVX2__)
using Fours = float __attribute__((vector_size(16)));
using decode_sixteen::Decoder, decode_sixteen::bytes_of_sixteen, decode_sixteen::decode_part, decode_sixteen::parts;

// Whether whole vectors of a line can be decoded in registers: elements of a grid, or of a small table.
inline bool decodes_in_registers(const Format& f) {
    // A scale for each eight values or more, or one for the line.
    const bool blocks = !has_blocks(f) || f.block % 8 == 0;
    const bool shifts = f.scales != Scales::shifted || f.shift_bits == 0 ||
                        (f.sub_block == 2 && f.shift_bits == 1 && f.block >= 16 && is_power_of_two(f.block));
    return blocks && (f.tabled ? f.scales != Scales::shifted && decodes_in_registers(f.table) : shifts && decodes_in_registers(f.grid));
}

// Which values of a vector share a scale: all of them, each half of them, or all but for the shifts of pairs.
enum class Sharing : i32 { all, halves, pairs };

// Where the whole vectors of a run of a line are, and their scales: vector v has scales[v >> scale_shift], or its halves
// the scales 2 v and 2 v + 1.
struct PackedRun {
    const u8 *codes, *end, *shifts;
    const float* scales;
    i64 scale_shift;
    Sharing sharing;
    i64 vectors, safe;  // from the first `safe` vectors all bytes that are read lie in this line or the next ones
};

namespace {  // of this file alone

// The scale of each eight values beside it: block after block, from eight number `first` of the first block on. Four are
// written at a time, those too many are overwritten by the next block.
inline void spread_eights(const float* of_blocks, i64 first, i64 in_block, i64 n, float* __restrict out) {
    for (i64 j = 0, at = 0, end = in_block - first; at < n; at = end, end += in_block, ++j) {
        const Fours four = of_blocks[j] - Fours{};
        for (i64 i = at; i < least(end, n); i += 4) write(out + i, four);
    }
}

}  // namespace

// Prepares the values `start` to `start + n` of a line: their scales become float32 in t.scale or t.eights, the last vector
// may lack bytes. `start` is a multiple of 16.
inline PackedRun packed_run_of(const PreparedDequantize& p, DecodeBuffers& t, const CodeDecoder& s, i64 line, i64 start, i64 n) {
    const Format& f = p.f;
    const u8 *part = p.job.codes + line * p.bytes.codes, *end = part + p.bytes.codes;
    PackedRun r{
        .codes = part + start / 8 * s.bits,
        .end = p.end > end ? p.end : end,  // a job of products has one line and asks for others
        .shifts = nullptr,
        .scales = t.scale,
        .scale_shift = 62,
        .sharing = Sharing::all,
        .vectors = n / 16,
        .safe = 0,
    };
    const i64 bytes = r.end - r.codes, loaded = bytes_of_sixteen(s);
    // A vector takes 2 bits bytes but more are loaded: near the end of all lines that would read beyond them. Those vectors are read
    // from a copy, for which the CPU waits until all stores before are done.
    r.safe = bytes < loaded ? 0 : least(r.vectors, (bytes - loaded) / (2 * s.bits) + 1);
    if (f.scales == Scales::shifted && f.shift_bits)
        r.sharing = Sharing::pairs, r.shifts = p.job.shifts + line * p.bytes.shifts + start / 16;
    // One scale for all, or those of all blocks that the run meets.
    if (f.scales == Scales::none) {
        t.scale[0] = 1.0f;
    } else if (one_scale(f)) {
        decode_scales(p, t, line, 0, 1, t.scale);
    } else {
        const i64 first = start / f.block;
        decode_scales(p, t, line, first, (start + n - 1) / f.block - first + 1, t.scale);
        // Block numbers of vectors come from a shift, no division.
        if (f.block >= 16 && is_power_of_two(f.block)) {
            r.scale_shift = log2_of(f.block / 16);
        } else {
            r.sharing = Sharing::halves;
            spread_eights(t.scale, start % f.block / 8, f.block / 8, n / 8, t.eights);
            r.scales = t.eights;
        }
    }
    return r;
}

namespace {  // of this file alone

// What the elements of part h of vector v are multiplied by.
template <Sharing sharing>
inline Reals scale_of(const PackedRun& r, i64 v, i64 h) {
    if (sharing == Sharing::halves) {
#if defined(__AVX512F__)
        // Two scales, eight lanes each.
        const __m512i places = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        i64 both;
        __builtin_memcpy(&both, r.scales + 2 * v, sizeof both);
        return (Reals)_mm512_permutexvar_epi32(places, _mm512_set1_epi64(both));
#else
        return broadcast(r.scales[2 * v + h]);
#endif
    }
    const Reals scale = broadcast(r.scales[v >> r.scale_shift]);
    if (sharing == Sharing::all) return scale;
    // A bit for each pair of lanes goes to the top of both. The scale takes the shift, which is exact; its product with the
    // element rounds once.
    alignas(64) static constexpr i32 up[16] = {31, 31, 30, 30, 29, 29, 28, 28, 27, 27, 26, 26, 25, 25, 24, 24};
    const Bits shift = broadcast(i32{r.shifts[v]}) << read<Bits>(up + h * vector);
    return shift < 0 ? scale * 0.5f : scale;
}

}  // namespace

// Part h of vector v of a run, scaled: what products multiply. `in` is where the codes of the vector are, or a copy.
template <Decoder decoder, Sharing sharing>
inline Reals weights(const CodeDecoder& s, const PackedRun& r, const u8* in, i64 v, i64 h) {
    return decode_part<decoder>(s, in, h) * scale_of<sharing>(r, v, h);
}

#if defined(__AVX512F__)

// The same for a vector in one register, which may be the last of a line.
template <Decoder decoder, bool in_bounds>
inline __m512 weights(const CodeDecoder& s, const PackedRun& r, i64 v) {
    const u8* in = r.codes + v * 2 * s.bits;
    u8 last[32];
    if (!in_bounds) in = static_cast<u8*>(__builtin_memcpy(last, in, static_cast<u64>(2 * s.bits)));
    if (r.sharing == Sharing::halves) return (__m512)weights<decoder, Sharing::halves>(s, r, in, v, 0);
    if (r.sharing == Sharing::pairs) return (__m512)weights<decoder, Sharing::pairs>(s, r, in, v, 0);
    return (__m512)weights<decoder, Sharing::all>(s, r, in, v, 0);
}

#endif

namespace {  // of this file alone

template <Decoder decoder, Sharing sharing, bool past_caches>
inline void decode_shared(const CodeDecoder& given, const PackedRun& given_run, float outer, float* out) {
    const CodeDecoder s = given;
    const PackedRun r = given_run;
    // In the order of the definition: the element times its block's scale, rounded, then times the outer scale.
    const Reals second = broadcast(outer);  // exact where there is no outer scale
    i64 v = 0;
    const u8* in = r.codes;
    for (; v < r.safe; ++v, in += 2 * s.bits) {
        // Both parts before a store, which the compiler takes for one into the codes: what they share is computed once.
        Reals values[parts];
#pragma GCC unroll 2
        for (i64 h = 0; h < parts; ++h) values[h] = weights<decoder, sharing>(s, r, in, v, h) * second;
#pragma GCC unroll 2
        for (i64 h = 0; h < parts; ++h) {
            float* to = out + 16 * v + h * vector;
            if (past_caches) store_nontemporal(to, values[h]);
            else write(to, values[h]);
        }
    }
    // The last few are copied, so that nothing beyond the lines is read.
    for (; v < r.vectors; ++v, in += 2 * s.bits) {
        u8 last[32] = {};
        __builtin_memcpy(last, in, static_cast<u64>(2 * s.bits));
        for (i64 h = 0; h < parts; ++h) write(out + 16 * v + h * vector, weights<decoder, sharing>(s, r, last, v, h) * second);
    }
}

}  // namespace

// The whole vectors of a run, into `out`.
template <Decoder decoder, bool past_caches>
inline void decode_run(const CodeDecoder& s, const PackedRun& r, float outer, float* out) {
    switch (r.sharing) {
        case Sharing::all: return decode_shared<decoder, Sharing::all, past_caches>(s, r, outer, out);
        case Sharing::halves: return decode_shared<decoder, Sharing::halves, past_caches>(s, r, outer, out);
        case Sharing::pairs: return decode_shared<decoder, Sharing::pairs, past_caches>(s, r, outer, out);
    }
}

// n values of a line, whole vectors of them, into `out`.
template <bool past_caches>
inline void decode_vectors(const PreparedDequantize& p, const CodeDecoder& s, DecodeBuffers& t, i64 line, i64 start, i64 n,
                           float outer, float* out) {
    const PackedRun r = packed_run_of(p, t, s, line, start, n);
    // The decoder is the same for the whole run: chosen here, once.
    switch (s.decoder) {
        case Decoder::table: return decode_run<Decoder::table, past_caches>(s, r, outer, out);
        case Decoder::number: return decode_run<Decoder::number, past_caches>(s, r, outer, out);
        case Decoder::number_or_nan: return decode_run<Decoder::number_or_nan, past_caches>(s, r, outer, out);
        case Decoder::wide_integer: return decode_run<Decoder::wide_integer, past_caches>(s, r, outer, out);
        case Decoder::wide_number: return decode_run<Decoder::wide_number, past_caches>(s, r, outer, out);
        case Decoder::bfloat: return decode_run<Decoder::bfloat, past_caches>(s, r, outer, out);
        case Decoder::integer: return decode_run<Decoder::integer, past_caches>(s, r, outer, out);
        case Decoder::half: return decode_run<Decoder::half, past_caches>(s, r, outer, out);
        case Decoder::byte_integer: return decode_run<Decoder::byte_integer, past_caches>(s, r, outer, out);
        case Decoder::byte_half: return decode_run<Decoder::byte_half, past_caches>(s, r, outer, out);
        case Decoder::byte_half_or_nan: return decode_run<Decoder::byte_half_or_nan, past_caches>(s, r, outer, out);
    }
}

#else

inline bool decodes_in_registers(const Format&) { return false; }
template <bool>
inline void decode_vectors(const PreparedDequantize&, const CodeDecoder&, DecodeBuffers&, i64, i64, i64, float, float*) {}

#endif

}  // namespace decode_vectors
