// Lines of ternary or binary weights times integers of few bits, exactly: kernels/reference/gemv/planes.py defines the result.
//
// Plane j of some integers is bit j of each. With planes L and H of the weights, L - 2 H, and planes X_j of x, worth c_j,
// the product of a line is the sum over j of c_j (|L & X_j| - 2 |H & X_j|), where |.| counts bits. A binary weight
// is 1 - 2 C of its one plane C, so its product is the sum of x minus twice the sum over j of c_j |C & X_j|.
//
// Weights lie as they are stored, the two bits of one beside each other. 512 values are a chunk, and two registers of
// stored bits come apart into L and H by a shift and a selection each: value i of the first half of the chunk is bit 2 i of the
// planes, value i of the second half bit 2 i + 1. Planes of x have that order; it is made once for all lines. Beyond the
// end of a line the planes of x are zero, so that whatever the weights have there counts nothing.
//
// The other way multiplies bytes: (stored bits ^ 2) is the weight plus 2, an unsigned integer, and x are signed bytes.
#pragma once

#include "kernels/gemv/dot_bytes.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"

namespace planes {

using numbers::least;
#if defined(__AVX2__)
using dot_bytes::add_byte_products;
#endif

using i8 = std::int8_t;

namespace {  // of this file alone

constexpr i64 chunk = 512, word_bytes = 64, most_bits = 8;
constexpr i64 bytes_ahead = 2048;
constexpr u64 even_bits = 0x5555555555555555u;

// A row of x in the panels: the sum of its values, then 64 bytes of each plane for each chunk, or a byte for each value.
constexpr i64 header = 64;

// Bytes of one vector of a panel, as planes or as bytes.
inline i64 row_bytes(const Planes& job) {
    return header + count_of(job.n, chunk) * (job.by_bytes ? chunk : job.bits * word_bytes);
}

// What a code of x is worth: two's complement, or no sign.
inline i64 value_of(const Planes& job, u8 code) { return job.is_signed ? static_cast<i8>(code) : code; }

// What plane j of x is worth.
inline i64 worth(const Planes& job, i64 j) {
    const i64 power = i64{1} << j;
    return job.is_signed && j == job.bits - 1 ? -power : power;
}

// Eight bytes of eight bits each, turned: byte j of the result has bit j of each. Three exchanges of halves of squares of
// 2, 4 and 8 bits.
inline u64 turned(u64 v) {
    v = (v & 0xAA55AA55AA55AA55u) | ((v & 0x00AA00AA00AA00AAu) << 7) | ((v >> 7) & 0x00AA00AA00AA00AAu);
    v = (v & 0xCCCC3333CCCC3333u) | ((v & 0x0000CCCC0000CCCCu) << 14) | ((v >> 14) & 0x0000CCCC0000CCCCu);
    return (v & 0xF0F0F0F00F0F0F0Fu) | ((v & 0x00000000F0F0F0F0u) << 28) | ((v >> 28) & 0x00000000F0F0F0F0u);
}

// The planes of 512 values of x, in the order of the bits of the weights.
inline void pack_planes(const Planes& job, const u8* x, u8* out) {
    alignas(64) u8 ordered[chunk];
    if (job.weight_bits == 1) __builtin_memcpy(ordered, x, chunk);
    for (i64 i = 0; job.weight_bits == 2 && i < chunk / 2; ++i) {
        ordered[2 * i] = x[i];
        ordered[2 * i + 1] = x[chunk / 2 + i];
    }
    for (i64 i = 0; i < word_bytes; ++i) {
        u64 eight;
        __builtin_memcpy(&eight, ordered + 8 * i, 8);
        eight = turned(eight);
        for (i64 j = 0; j < job.bits; ++j) out[j * word_bytes + i] = static_cast<u8>(eight >> (8 * j));
    }
}

// 512 values of x, those of every 256 in four parts: a byte of weights has values 4 i to 4 i + 3, one for each part.
inline void pack_bytes(const u8* x, u8* out) {
    for (i64 half = 0; half < chunk; half += chunk / 2)
        for (i64 part = 0; part < 4; ++part)
            for (i64 i = 0; i < word_bytes; ++i) out[half + part * word_bytes + i] = x[half + 4 * i + part];
}

}  // namespace

i64 panel_bytes(const Planes& job) { return job.batch * row_bytes(job); }

// Rows first to last - 1 of x as the lines read them.
void pack(const Planes& job, i64 first, i64 last) {
    for (i64 b = first; b < last; ++b) {
        const u8* x = job.x + b * job.n;
        u8* out = job.panels + b * row_bytes(job);
        i64 sum = 0;
        for (i64 i = 0; i < job.n; ++i) sum += value_of(job, x[i]);
        __builtin_memcpy(out, &sum, sizeof sum);
        out += header;
        for (i64 start = 0; start < job.n; start += chunk, out += job.by_bytes ? chunk : job.bits * word_bytes) {
            alignas(64) u8 whole[chunk] = {};
            __builtin_memcpy(whole, x + start, static_cast<u64>(least(chunk, job.n - start)));
            if (job.by_bytes) pack_bytes(whole, out);
            else pack_planes(job, whole, out);
        }
    }
}

namespace {  // of this file alone

// A register of planes: how many bits of each of its lanes of 64 bits are ones.
#if defined(__AVX512F__)
using Vector = __m512i;
inline Vector load(const void* p) { return _mm512_loadu_si512(p); }
inline Vector both(Vector a, Vector b) { return _mm512_and_si512(a, b); }
inline Vector plus(Vector a, Vector b) { return _mm512_add_epi64(a, b); }
inline Vector minus(Vector a, Vector b) { return _mm512_sub_epi64(a, b); }
inline Vector zeros() { return _mm512_setzero_si512(); }
// Counts of a word are summed in 64 bits: a line of any length fits.
inline i64 total(Vector a) { return _mm512_reduce_add_epi64(a); }
// Bits of a where `mask` has ones, of b elsewhere: one instruction.
inline Vector selected(Vector mask, Vector a, Vector b) { return _mm512_ternarylogic_epi64(mask, a, b, 0xCA); }
inline Vector alternating() { return _mm512_set1_epi64(static_cast<i64>(even_bits)); }
inline Vector up(Vector a) { return _mm512_slli_epi64(a, 1); }
inline Vector down(Vector a) { return _mm512_srli_epi64(a, 1); }
#if defined(__AVX512VPOPCNTDQ__)
inline Vector ones_in(Vector a) { return _mm512_popcnt_epi64(a); }
#else
// Two lookups of four bits for each byte, then the bytes of a lane are added.
inline Vector ones_in(Vector a) {
    const Vector counts = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const Vector nibble = _mm512_set1_epi8(15);
    const Vector low = _mm512_shuffle_epi8(counts, _mm512_and_si512(a, nibble));
    const Vector high = _mm512_shuffle_epi8(counts, _mm512_and_si512(_mm512_srli_epi16(a, 4), nibble));
    return _mm512_sad_epu8(_mm512_add_epi8(low, high), _mm512_setzero_si512());
}
#endif
#elif defined(__AVX2__)
using Vector = __m256i;
inline Vector load(const void* p) { return _mm256_loadu_si256(static_cast<const Vector*>(p)); }
inline Vector both(Vector a, Vector b) { return _mm256_and_si256(a, b); }
inline Vector plus(Vector a, Vector b) { return _mm256_add_epi64(a, b); }
inline Vector minus(Vector a, Vector b) { return _mm256_sub_epi64(a, b); }
inline Vector zeros() { return _mm256_setzero_si256(); }
inline i64 total(Vector a) {
    alignas(32) i64 lanes[4];
    _mm256_store_si256(reinterpret_cast<Vector*>(lanes), a);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}
inline Vector selected(Vector mask, Vector a, Vector b) { return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b)); }
inline Vector alternating() { return _mm256_set1_epi64x(static_cast<i64>(even_bits)); }
inline Vector up(Vector a) { return _mm256_slli_epi64(a, 1); }
inline Vector down(Vector a) { return _mm256_srli_epi64(a, 1); }
inline Vector ones_in(Vector a) {
    const Vector counts = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const Vector nibble = _mm256_set1_epi8(15);
    const Vector low = _mm256_shuffle_epi8(counts, _mm256_and_si256(a, nibble));
    const Vector high = _mm256_shuffle_epi8(counts, _mm256_and_si256(_mm256_srli_epi16(a, 4), nibble));
    return _mm256_sad_epu8(_mm256_add_epi8(low, high), _mm256_setzero_si256());
}
#else
using Vector = u64;
inline Vector load(const void* p) {
    u64 v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
inline Vector both(Vector a, Vector b) { return a & b; }
inline Vector plus(Vector a, Vector b) { return a + b; }
inline Vector minus(Vector a, Vector b) { return a - b; }
inline Vector zeros() { return 0; }
inline i64 total(Vector a) { return static_cast<i64>(a); }
inline Vector selected(Vector mask, Vector a, Vector b) { return (mask & a) | (~mask & b); }
inline Vector alternating() { return even_bits; }
inline Vector up(Vector a) { return a << 1; }
inline Vector down(Vector a) { return a >> 1; }
// Counts of two bits, of four, of eight, whose sum the multiplication leaves in the highest byte.
inline Vector ones_in(Vector a) {
    a -= (a >> 1) & even_bits;
    a = (a & 0x3333333333333333u) + ((a >> 2) & 0x3333333333333333u);
    return (((a + (a >> 4)) & 0x0F0F0F0F0F0F0F0Fu) * 0x0101010101010101u) >> 56;
}
#endif

constexpr i64 vector_bytes = sizeof(Vector), parts = word_bytes / vector_bytes;

// Adds to totals[r][j] what plane j of x has in common with line r, in `chunks` chunks: |L & X_j| - 2 |H & X_j|, or |C & X_j|.
// Of 512 values each plane takes, per line, with two bits a weight two ANDs, two counts and three additions in registers
// of 512 bits, with one bit one of each; the loads of x serve all lines.
template <i32 weight_bits, i32 bits, i64 together>
inline void count_chunks(const u8* codes, i64 line_bytes, const u8* x, i64 chunks, i64 (*totals)[most_bits]) {
    constexpr i64 chunk_bytes = weight_bits * word_bytes;
    Vector sums[together][bits];
    for (auto& of_line : sums)
        for (Vector& s : of_line) s = zeros();
    for (i64 c = 0; c < chunks; ++c, codes += chunk_bytes, x += bits * word_bytes) {
        for (i64 r = 0; r < together; ++r) memory::prefetch(codes + r * line_bytes + bytes_ahead, chunk_bytes);
#pragma GCC unroll 2
        for (i64 p = 0; p < parts; ++p) {
            Vector low[together], high[together];
#pragma GCC unroll 2
            for (i64 r = 0; r < together; ++r) {
                const u8* from = codes + r * line_bytes + p * vector_bytes;
                const Vector a = load(from);
                low[r] = high[r] = a;
                if (weight_bits == 1) continue;
                const Vector b = load(from + word_bytes), mask = alternating();
                low[r] = selected(mask, a, up(b));
                high[r] = selected(mask, down(a), b);
            }
#pragma GCC unroll 8
            for (i32 j = 0; j < bits; ++j) {
                const Vector plane = load(x + j * word_bytes + p * vector_bytes);
#pragma GCC unroll 2
                for (i64 r = 0; r < together; ++r) {
                    sums[r][j] = plus(sums[r][j], ones_in(both(low[r], plane)));
                    if (weight_bits == 1) continue;
                    const Vector twos = ones_in(both(high[r], plane));
                    sums[r][j] = minus(minus(sums[r][j], twos), twos);
                }
            }
        }
    }
    for (i64 r = 0; r < together; ++r)
        for (i32 j = 0; j < bits; ++j) totals[r][j] += total(sums[r][j]);
}

// The same by the number of bits, which the compiler has to know to keep all sums in registers.
template <i32 weight_bits, i64 together>
inline void count_chunks_of(i32 bits, const u8* codes, i64 line_bytes, const u8* x, i64 chunks, i64 (*totals)[most_bits]) {
    switch (bits) {
        case 1: return count_chunks<weight_bits, 1, together>(codes, line_bytes, x, chunks, totals);
        case 2: return count_chunks<weight_bits, 2, together>(codes, line_bytes, x, chunks, totals);
        case 3: return count_chunks<weight_bits, 3, together>(codes, line_bytes, x, chunks, totals);
        case 4: return count_chunks<weight_bits, 4, together>(codes, line_bytes, x, chunks, totals);
        case 5: return count_chunks<weight_bits, 5, together>(codes, line_bytes, x, chunks, totals);
        case 6: return count_chunks<weight_bits, 6, together>(codes, line_bytes, x, chunks, totals);
        case 7: return count_chunks<weight_bits, 7, together>(codes, line_bytes, x, chunks, totals);
        default: return count_chunks<weight_bits, 8, together>(codes, line_bytes, x, chunks, totals);
    }
}

// The codes behind the last whole chunk, in memory that may be read to the end of a chunk.
struct Tail {
    alignas(64) u8 codes[2 * word_bytes];
};

inline Tail tail_of(const Planes& job, const u8* line) {
    // Zeros behind the line share no bit with x and count nothing.
    Tail tail = {};
    // Bytes of the whole chunks; the rest of the line follows them.
    const i64 whole = job.n / chunk * job.weight_bits * word_bytes;
    __builtin_memcpy(tail.codes, line + whole, static_cast<u64>(bytes_for(job.n, job.weight_bits) - whole));
    return tail;
}

// The products of lines line to line + together - 1 with a row of x, by planes.
template <i32 weight_bits, i64 together>
inline void products_by_planes(const Planes& job, i64 line, const u8* panel, i64* products) {
    const i64 line_bytes = bytes_for(job.n, weight_bits), whole = job.n / chunk;
    const u8* codes = job.codes + line * line_bytes;
    i64 sum, totals[together][most_bits] = {};
    __builtin_memcpy(&sum, panel, sizeof sum);
    const u8* x = panel + header;
    count_chunks_of<weight_bits, together>(job.bits, codes, line_bytes, x, whole, totals);
    for (i64 r = 0; r < together; ++r) {
        if (job.n % chunk) {
            const Tail tail = tail_of(job, codes + r * line_bytes);
            count_chunks_of<weight_bits, 1>(job.bits, tail.codes, 0, x + whole * job.bits * word_bytes, 1, totals + r);
        }
        i64 product = 0;
        for (i64 j = 0; j < job.bits; ++j) product += worth(job, j) * totals[r][j];
        products[r] = weight_bits == 2 ? product : sum - 2 * product;
    }
}

#if defined(__AVX512F__)
using Words = __m512i;
inline Words set1(i8 v) { return _mm512_set1_epi8(v); }
inline Words flipped(Words a, Words b) { return _mm512_xor_si512(a, b); }
template <int by>
inline Words shifted(Words a) { return _mm512_srli_epi16(a, by); }
inline Words add_words(Words a, Words b) { return _mm512_add_epi32(a, b); }
inline Words pair_products(Words a, Words b) { return _mm512_maddubs_epi16(a, b); }
inline Words add_halves(Words a, Words b) { return _mm512_add_epi16(a, b); }
inline Words widened(Words a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
// The sum of the lanes: lines of up to most_by_bytes values keep it in 32 bits.
inline i64 total_of_words(Words a) { return _mm512_reduce_add_epi32(a); }
#elif defined(__AVX2__)
using Words = __m256i;
inline Words set1(i8 v) { return _mm256_set1_epi8(v); }
inline Words flipped(Words a, Words b) { return _mm256_xor_si256(a, b); }
template <int by>
inline Words shifted(Words a) { return _mm256_srli_epi16(a, by); }
inline Words add_words(Words a, Words b) { return _mm256_add_epi32(a, b); }
inline Words pair_products(Words a, Words b) { return _mm256_maddubs_epi16(a, b); }
inline Words add_halves(Words a, Words b) { return _mm256_add_epi16(a, b); }
inline Words widened(Words a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
inline i64 total_of_words(Words a) {
    alignas(32) i32 lanes[8];
    _mm256_store_si256(reinterpret_cast<Words*>(lanes), a);
    i64 sum = 0;
    for (const i32 lane : lanes) sum += lane;
    return sum;
}
#endif

// Adds to totals[r] the sum of (weight + 2) times x over `halves` of chunks, 64 bytes of codes each.
#if defined(__AVX2__)
template <bool has_byte_products, i64 together>
inline void multiply_halves(const u8* codes, i64 line_bytes, const u8* x, i64 halves, i64* totals) {
    // With vpdpbusd each pair of bits stays where it is in its byte, worth 1, 4, 16 or 64, and has a sum of its own: a mask
    // and a product for 64 values. It adds 192 x 128 at most for each of a quarter of the values, and those of most_by_bytes
    // are in 32 bits, all lanes together.
    Words sums[together][4];
    for (auto& of_line : sums)
        for (Words& s : of_line) s = set1(0);
    const Words two = set1(static_cast<i8>(0xAA)), pair = set1(3);
    for (i64 h = 0; h < halves; ++h, codes += word_bytes, x += 4 * word_bytes) {
        for (i64 r = 0; r < together; ++r) memory::prefetch(codes + r * line_bytes + bytes_ahead, 1);
#pragma GCC unroll 2
        for (i64 p = 0; p < parts; ++p) {
            Words v[4];
#pragma GCC unroll 4
            for (i64 f = 0; f < 4; ++f) v[f] = load(x + f * word_bytes + p * vector_bytes);
#pragma GCC unroll 4
            for (i64 r = 0; r < together; ++r) {
                const Words c = flipped(load(codes + r * line_bytes + p * vector_bytes), two);
                if (has_byte_products) {
#pragma GCC unroll 4
                    for (i64 f = 0; f < 4; ++f)
                        sums[r][f] = add_byte_products(sums[r][f], both(c, set1(static_cast<i8>(3 << (2 * f)))), v[f]);
                } else {  // eight products of at most 3 x 128 fit 16 bits
                    const Words first = add_halves(pair_products(both(c, pair), v[0]), pair_products(both(shifted<2>(c), pair), v[1]));
                    const Words second = add_halves(pair_products(both(shifted<4>(c), pair), v[2]), pair_products(both(shifted<6>(c), pair), v[3]));
                    sums[r][0] = add_words(sums[r][0], widened(add_halves(first, second)));
                }
            }
        }
    }
    for (i64 r = 0; r < together; ++r) {
        if (!has_byte_products) totals[r] += total_of_words(sums[r][0]);
        // Each sum is a multiple of what its bits are worth: the division is exact.
        else for (i64 f = 0; f < 4; ++f) totals[r] += total_of_words(sums[r][f]) / (i64{1} << (2 * f));
    }
}
#else
// Where there are no such products, value by value: the same integers.
template <bool, i64 together>
inline void multiply_halves(const u8* codes, i64 line_bytes, const u8* x, i64 halves, i64* totals) {
    for (i64 r = 0; r < together; ++r)
        for (i64 i = 0; i < halves * word_bytes; ++i)
            for (i64 f = 0; f < 4; ++f) {
                const i64 weight = ((codes[r * line_bytes + i] >> (2 * f)) & 3) ^ 2;
                totals[r] += weight * static_cast<i8>(x[i / word_bytes * 4 * word_bytes + f * word_bytes + i % word_bytes]);
            }
}
#endif

// The products of some lines with a row of x, by bytes.
template <bool has_byte_products, i64 together>
inline void products_by_bytes(const Planes& job, i64 line, const u8* panel, i64* products) {
    const i64 line_bytes = bytes_for(job.n, 2), whole = job.n / chunk;
    const u8* codes = job.codes + line * line_bytes;
    i64 sum;
    __builtin_memcpy(&sum, panel, sizeof sum);
    const u8* x = panel + header;
    for (i64 r = 0; r < together; ++r) products[r] = -2 * sum;
    multiply_halves<has_byte_products, together>(codes, line_bytes, x, 2 * whole, products);
    for (i64 r = 0; r < together && job.n % chunk; ++r) {
        const Tail tail = tail_of(job, codes + r * line_bytes);
        multiply_halves<has_byte_products, 1>(tail.codes, 0, x + whole * chunk, 2, products + r);
    }
}

// Some lines times all rows of x, while the codes of the lines are in a near cache.
template <i64 together>
inline void multiply_lines(const Planes& job, i64 line) {
    i64 products[together];
    for (i64 b = 0; b < job.batch; ++b) {
        const u8* panel = job.panels + b * row_bytes(job);
        if (job.by_bytes && job.byte_products) products_by_bytes<true, together>(job, line, panel, products);
        else if (job.by_bytes) products_by_bytes<false, together>(job, line, panel, products);
        else if (job.weight_bits == 2) products_by_planes<2, together>(job, line, panel, products);
        else products_by_planes<1, together>(job, line, panel, products);
        for (i64 r = 0; r < together; ++r) {
            const float scale = job.scales == nullptr ? 1.0f : job.scales[(line + r) * job.scale_step];
            // The product of the scales is rounded, the whole number is, and their product is.
            job.y[b * job.lines + line + r] = static_cast<float>(products[r]) * (scale * job.x_scales[b]);
        }
    }
}

}  // namespace

constexpr i64 lines_together = 2;

// Lines first to last - 1 of every row of x; the panels have the rows.
void multiply(const Planes& job, i64 first, i64 last) {
    i64 line = first;
    for (; line + lines_together <= last; line += lines_together) multiply_lines<lines_together>(job, line);
    for (; line < last; ++line) multiply_lines<1>(job, line);
}

}  // namespace planes
