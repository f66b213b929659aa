// Whole vectors of packed values, sixteen at a time, with their scales.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace decode_vectors {

using decode_sixteen::CodeDecoder, decode_sixteen::decodes_in_registers;
using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales;
using numbers::Reals, numbers::is_power_of_two, numbers::least, numbers::log2_of;
using vectors::broadcast, vectors::store_nontemporal, vectors::write;
#if defined(__AVX512F__)
using decode_sixteen::Decoder, decode_sixteen::decode_sixteen;

namespace {  // of this file alone

// Each bit twice, for the shifts of pairs.
inline u32 doubled(u32 v) {
    v = (v | v << 4) & 0x0f0f;
    v = (v | v << 2) & 0x3333;
    v = (v | v << 1) & 0x5555;
    return v | v << 1;
}

}  // namespace

// Whether whole vectors of a line can be decoded in registers.
inline bool decodes_in_registers(const Format& f) {
    // Blocks of 16, 32, 64 and so on, or one scale for the line: a run begins with a block.
    const bool blocks = !has_blocks(f) || (f.block >= 16 && is_power_of_two(f.block));
    const bool shifts = f.scales != Scales::shifted || f.shift_bits == 0 ||
                        (f.sub_block == 2 && f.shift_bits == 1 && f.block % 16 == 0);
    return !f.tabled && blocks && shifts && decodes_in_registers(f.grid);
}

// Where the whole vectors of a run of a line are, and their scales: vector v has scales[v >> scale_shift].
struct PackedRun {
    const u8 *codes, *end, *shifts;
    const float* scales;
    i64 scale_shift;
    i64 vectors, safe;  // from the first `safe` vectors 16 bytes can be read
};

// Prepares the values `start` to `start + n` of a line: their scales become float32 in t.scale, the last vector may
// lack bytes.
inline PackedRun packed_run_of(const PreparedDequantize& p, DecodeBuffers& t, const CodeDecoder& s, i64 line, i64 start, i64 n) {
    const Format& f = p.f;
    const u8* part = p.job.codes + line * p.bytes.codes;
    PackedRun r{
        .codes = part + start / 8 * s.bits,
        .end = part + p.bytes.codes,
        .shifts = nullptr,
        .scales = t.scale,
        .scale_shift = 62,
        .vectors = n / 16,
        .safe = 0,
    };
    const i64 bytes = r.end - r.codes;
    // A vector takes 2 bits bytes but is loaded by 16: near the end of a line that would read beyond it.
    r.safe = bytes < 16 ? 0 : least(r.vectors, (bytes - 16) / (2 * s.bits) + 1);
    if (f.scales == Scales::shifted && f.shift_bits) r.shifts = p.job.shifts + line * p.bytes.shifts + start / 16;
    // One scale for all, or those of all blocks that the run meets; block numbers come from a shift, no division.
    i64 count = 1;
    if (f.scales == Scales::none) {
        t.scale[0] = 1.0f;
    } else if (one_scale(f)) {
        decode_scales(p, t, line, 0, 1, t.scale);
    } else {
        const i64 first = start / f.block;
        count = (start + n - 1) / f.block - first + 1;
        decode_scales(p, t, line, first, count, t.scale);
        r.scale_shift = log2_of(f.block / 16);
    }
    return r;
}

// Vector v of a run, scaled: what products multiply.
template <Decoder decoder, bool in_bounds>
inline __m512 weights(const CodeDecoder& s, const PackedRun& r, i64 v) {
    const u8* in = r.codes + v * 2 * s.bits;
    __m512 scale = _mm512_set1_ps(r.scales[v >> r.scale_shift]);
    // The scale takes the shift, which is exact; their product with the element rounds once.
    if (r.shifts) scale = _mm512_mask_mul_ps(scale, static_cast<__mmask16>(doubled(r.shifts[v])), scale, _mm512_set1_ps(0.5f));
    return _mm512_mul_ps(decode_sixteen<decoder, in_bounds>(s, in, r.end - in), scale);
}

template <Decoder decoder, bool past_caches>
inline void decode_run(const CodeDecoder& given, const PackedRun& r, float outer, float* out) {
    const CodeDecoder s = given;
    // In the order of the definition: the element times its block's scale, rounded, then times the outer scale.
    const Reals second = broadcast(outer);  // exact where there is no outer scale
    i64 v = 0;
    for (; v < r.safe; ++v) {
        const Reals values = (Reals)weights<decoder, true>(s, r, v) * second;
        if (past_caches) store_nontemporal(out + 16 * v, values);
        else write(out + 16 * v, values);
    }
    // The last few are loaded under a mask.
    for (; v < r.vectors; ++v) write(out + 16 * v, (Reals)weights<decoder, false>(s, r, v) * second);
}

// n values of a line, whole vectors of them, into `out`.
template <bool past_caches>
inline void decode_vectors(const PreparedDequantize& p, const CodeDecoder& s, DecodeBuffers& t, i64 line, i64 start, i64 n,
                           float outer, float* out) {
    const PackedRun r = packed_run_of(p, t, s, line, start, n);
    // The decoder is the same for the whole run: chosen here, once.
    switch (s.decoder) {
        case Decoder::table: return decode_run<Decoder::table, past_caches>(s, r, outer, out);
        case Decoder::integer: return decode_run<Decoder::integer, past_caches>(s, r, outer, out);
        case Decoder::half: return decode_run<Decoder::half, past_caches>(s, r, outer, out);
    }
}

#else

inline bool decodes_in_registers(const Format&) { return false; }
template <bool>
inline void decode_vectors(const PreparedDequantize&, const CodeDecoder&, DecodeBuffers&, i64, i64, i64, float, float*) {}

#endif

}  // namespace decode_vectors
