// Lines times one vector, sixteen values decoded at a time in registers: every format that decode_sixteen knows.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace decoded_lines {

using decode_sixteen::CodeDecoder;
using packed::DecodeBuffers, packed::PreparedDequantize;
using numbers::Reals, numbers::least, numbers::tile, numbers::vector;
using vectors::broadcast, vectors::multiply_add, vectors::read;

// Lines and rows of x whose sums stand side by side.
constexpr i64 lines_together = 4, rows_in_sums = 16;

// The lanes as a tree: halves are added to each other.
inline float total(Reals v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX2__)
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

#if defined(__AVX2__)
using decode_sixteen::Decoder, decode_sixteen::parts;
using decode_vectors::PackedRun, decode_vectors::Sharing, decode_vectors::packed_run_of, decode_vectors::weights;

namespace {  // of this file alone

// The whole vectors of a run times x. Four sums: a fused multiply-add takes four cycles to deliver, and one could start in
// each.
template <Decoder decoder, Sharing sharing>
inline float dot_of_run(const CodeDecoder& given, const PackedRun& r, const float* x) {
    const CodeDecoder s = given;
    constexpr i64 together = 4;
    Reals sums[together];
    for (Reals& sum : sums) sum = broadcast(0.0f);
    // Vectors whose bytes can be read whole, so many at a time that they fill the four sums; then the rest one by one.
    i64 v = 0;
    for (; v + together / parts <= r.safe; v += together / parts) {
        // Half a page ahead, as in nibbles.
        memory::prefetch(r.codes + v * 2 * s.bits + 2048, 1);
#pragma GCC unroll 4
        for (i64 j = 0; j < together; ++j) {
            // With AVX2 a vector of 16 is two parts, each in a sum of its own.
            const i64 at = v + j / parts, h = j % parts;
            const u8* in = r.codes + at * 2 * s.bits;
            sums[j] = multiply_add(weights<decoder, sharing>(s, r, in, at, h), read<Reals>(x + 16 * at + h * vector), sums[j]);
        }
    }
    for (; v < r.vectors; ++v) {
        // A copy: nothing beyond the line is read.
        u8 last[32] = {};
        __builtin_memcpy(last, r.codes + v * 2 * s.bits, static_cast<u64>(2 * s.bits));
        for (i64 h = 0; h < parts; ++h)
            sums[h] = multiply_add(weights<decoder, sharing>(s, r, last, v, h), read<Reals>(x + 16 * v + h * vector), sums[h]);
    }
    return total((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <Decoder decoder>
inline float dot_of_line(const PreparedDequantize& p, const CodeDecoder& s, DecodeBuffers& t, i64 line, const float* x, i64 n) {
    float y = 0.0f;
    // DecodeBuffers has a scale for each of 1,024 blocks, none shorter than eight: eight tiles fit.
    for (i64 start = 0; start < n; start += 8 * tile) {
        const PackedRun r = packed_run_of(p, t, s, line, start, least(8 * tile, n - start));
        switch (r.sharing) {
            case Sharing::all: y += dot_of_run<decoder, Sharing::all>(s, r, x + start); break;
            case Sharing::halves: y += dot_of_run<decoder, Sharing::halves>(s, r, x + start); break;
            case Sharing::pairs: y += dot_of_run<decoder, Sharing::pairs>(s, r, x + start); break;
        }
    }
    return y;
}

}  // namespace

// The product of the first n values of a line, whole vectors of them, with x.
inline float dot_decoded(const PreparedDequantize& p, const CodeDecoder& s, DecodeBuffers& t, i64 line, const float* x, i64 n) {
    switch (s.decoder) {
        case Decoder::table: return dot_of_line<Decoder::table>(p, s, t, line, x, n);
        case Decoder::integer: return dot_of_line<Decoder::integer>(p, s, t, line, x, n);
        case Decoder::number: return dot_of_line<Decoder::number>(p, s, t, line, x, n);
        case Decoder::number_or_nan: return dot_of_line<Decoder::number_or_nan>(p, s, t, line, x, n);
        case Decoder::wide_integer: return dot_of_line<Decoder::wide_integer>(p, s, t, line, x, n);
        case Decoder::wide_number: return dot_of_line<Decoder::wide_number>(p, s, t, line, x, n);
        case Decoder::bfloat: return dot_of_line<Decoder::bfloat>(p, s, t, line, x, n);
        case Decoder::half: return dot_of_line<Decoder::half>(p, s, t, line, x, n);
        case Decoder::byte_integer: return dot_of_line<Decoder::byte_integer>(p, s, t, line, x, n);
        case Decoder::byte_half: return dot_of_line<Decoder::byte_half>(p, s, t, line, x, n);
        case Decoder::byte_half_or_nan: return dot_of_line<Decoder::byte_half_or_nan>(p, s, t, line, x, n);
    }
    return 0.0f;
}

#else

inline float dot_decoded(const PreparedDequantize&, const CodeDecoder&, DecodeBuffers&, i64, const float*, i64) { return 0.0f; }

#endif

}  // namespace decoded_lines
