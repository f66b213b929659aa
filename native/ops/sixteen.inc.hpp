// Sixteen packed values at a time, decoded in registers. AVX-512 only: elsewhere the loops of restore.inc.hpp do it.

namespace {

#if defined(__AVX512F__)

// How 16 codes become 16 floats.
enum class Decoder : i32 {
    table,   // up to four bits: the codes select from one register
    half,    // sign and magnitude: the code's bits, put in the right places, are a float16, which the CPU converts
    integer  // two's complement
};

struct Sixteen {
    Decoder decoder;
    i32 bits;
    __m512i bytes, shifts;  // table: which four bytes hold code i, and how far in
    __m512 table;
    __m256i two_bytes, to_top;  // others: which two bytes hold code i, and how far from the top of them it ends
    __m256i places;             // half: sign and magnitude of a float16 that a code fills
    __m128i down;               // from the top to those places, or to an integer
    __m256i largest, nan;       // half: above the first, or equal to the second, is NaN
    __m512 unit;                // what one is worth
    bool has_nan;
};

// Bits of the exponent of an element with a sign bit; fixed point has none.
inline i32 exponent_bits(const Grid& g) { return is_fixed(g) ? 0 : g.bits - 1 - g.m; }

inline Decoder decoder_of(const Grid& g) {
    return g.bits <= 4 ? Decoder::table : g.sign == Sign::bit ? Decoder::half : Decoder::integer;
}

inline Sixteen sixteen_of(const RestorePlan& p) {
    const Grid& g = p.f.grid;
    Sixteen s{};
    s.bits = g.bits;
    s.has_nan = g.has_nan;
    s.decoder = decoder_of(g);
    alignas(64) u8 bytes[64], two_bytes[32];
    alignas(64) i32 shifts[16], codes[16];
    alignas(64) u16 to_top[16];
    alignas(64) float table[16], one[16];
    for (i32 i = 0; i < 16; ++i) {
        const i32 byte = i * g.bits / 8, bit = i * g.bits % 8;
        for (i32 j = 0; j < 4; ++j) bytes[4 * i + j] = static_cast<u8>(smaller(byte + j, 7));
        for (i32 j = 0; j < 2; ++j) two_bytes[2 * i + j] = static_cast<u8>(smaller(byte + j, 15) % 16);
        shifts[i] = bit;
        to_top[i] = static_cast<u16>(16 - g.bits - bit);
        codes[i] = i & ((1 << smaller(g.bits, 4)) - 1);
        one[i] = 1.0f;
    }
    s.bytes = _mm512_load_si512(bytes);
    s.shifts = _mm512_load_si512(shifts);
    s.two_bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(two_bytes));
    s.to_top = _mm256_load_si256(reinterpret_cast<const __m256i*>(to_top));
    if (s.decoder == Decoder::table) decode_all(p.element, g.has_nan, codes, one, table, 16);
    s.table = _mm512_load_ps(table);
    // Fixed point becomes a subnormal float16, a multiple of 2^-24; a float keeps its exponent field and m bits of 10.
    const i32 low = is_fixed(g) ? 0 : 10 - g.m;
    s.down = _mm_cvtsi32_si128(s.decoder == Decoder::half ? 16 - g.bits - low : 16 - g.bits);
    const i32 magnitude = (1 << (g.bits - 1)) - 1;
    s.places = _mm256_set1_epi16(static_cast<short>(magnitude << low | 0x8000));
    s.largest = _mm256_set1_epi16(static_cast<short>((g.inf != 0 ? g.inf & magnitude : g.limit_above) << low));
    s.nan = _mm256_set1_epi16(static_cast<short>((g.nan & magnitude) << low | (g.nan > magnitude ? 0x8000 : 0)));
    const i32 step = g.emin - g.m;
    s.unit = _mm512_set1_ps(power_of_two(s.decoder == Decoder::integer ? step : is_fixed(g) ? step + 24 : g.emin + 14));
    return s;
}

// 16 bytes, or the `have` of them that there are.
template <bool whole>
inline __m128i load_codes(const u8* in, i64 have) {
    return whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(in))
                 : _mm_maskz_loadu_epi8(static_cast<__mmask16>(have >= 16 ? 0xffff : (1 << have) - 1), in);
}

// 16 values of a line, without their scale, from the codes that start at `in`.
template <Decoder decoder, bool whole>
inline __m512 decode_sixteen(const Sixteen& s, const u8* in, i64 have) {
    if (decoder == Decoder::table) {
        __m512i loaded;
        if (whole) {  // 16 codes of at most four bits: a broadcast from memory costs no shuffle
            i64 eight;
            __builtin_memcpy(&eight, in, sizeof eight);
            loaded = _mm512_set1_epi64(eight);
        } else {
            loaded = _mm512_broadcast_i32x4(load_codes<whole>(in, have));
        }
        // A permutation looks at four bits of each index; narrower codes repeat in the table by their low bits.
        return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_shuffle_epi8(loaded, s.bytes), s.shifts), s.table);
    }
    const __m256i loaded = _mm256_broadcastsi128_si256(load_codes<whole>(in, have));
    const __m256i top = _mm256_sllv_epi16(_mm256_shuffle_epi8(loaded, s.two_bytes), s.to_top);
    const __m256i down = _mm256_sra_epi16(top, s.down);
    if (decoder == Decoder::integer) return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(down)) * s.unit;
    const __m256i half = _mm256_and_si256(down, s.places);
    const __m512 value = _mm512_cvtph_ps(half) * s.unit;
    if (!s.has_nan) return value;
    const __mmask16 nan = _mm256_cmpgt_epi16_mask(_mm256_and_si256(half, _mm256_set1_epi16(0x7fff)), s.largest) |
                          _mm256_cmpeq_epi16_mask(half, s.nan);
    return _mm512_mask_mov_ps(value, nan, _mm512_castsi512_ps(_mm512_set1_epi32(nan_bits)));
}

// Each bit twice, for the shifts of pairs.
inline u32 doubled(u32 v) {
    v = (v | v << 4) & 0x0f0f;
    v = (v | v << 2) & 0x3333;
    v = (v | v << 1) & 0x5555;
    return v | v << 1;
}

// Whether whole vectors of a line can be decoded in registers.
inline bool decodes_sixteen(const Format& f) {
    // Blocks of 16, 32, 64 and so on, or one scale for the line: a stretch begins with a block.
    const bool blocks = !has_blocks(f) || (f.block >= 16 && is_power_of_two(f.block));
    const bool shifts = f.scales != Scales::shifted || f.shift_bits == 0 ||
                        (f.sub_block == 2 && f.shift_bits == 1 && f.block % 16 == 0);
    // A float16 has five bits of exponent, and nothing but infinity and NaN with the highest.
    const Grid& g = f.grid;
    const bool half = exponent_bits(g) < 5 ? g.inf == 0 : exponent_bits(g) == 5 && g.limit_above < 31 << g.m;
    const bool decoded = g.bits <= 4 || g.sign == Sign::twos_complement || (g.sign == Sign::bit && half);
    return !f.tabled && g.bits <= 8 && blocks && shifts && decoded;
}

// Where the whole vectors of a stretch of a line are, and their scales: vector v has scales[v >> scale_shift].
struct Stretch {
    const u8 *codes, *end, *shifts;
    const float* scales;
    i64 scale_shift;
    i64 vectors, safe;  // from the first `safe` vectors 16 bytes can be read
};

inline Stretch stretch_of(const RestorePlan& p, RestoreBuffers& t, const Sixteen& s, i64 line, i64 start, i64 n) {
    const Format& f = p.f;
    const u8* part = p.job.codes + line * p.bytes.codes;
    Stretch r{part + start / 8 * s.bits, part + p.bytes.codes, nullptr, t.scale, 62, n / 16, 0};
    const i64 bytes = r.end - r.codes;
    r.safe = bytes < 16 ? 0 : least(r.vectors, (bytes - 16) / (2 * s.bits) + 1);
    if (f.scales == Scales::shifted && f.shift_bits) r.shifts = p.job.shifts + line * p.bytes.shifts + start / 16;
    i64 count = 1;
    if (f.scales == Scales::none) {
        t.scale[0] = 1.0f;
    } else if (one_scale(f)) {
        restore_scales(p, t, line, 0, 1, t.scale);
    } else {
        const i64 first = start / f.block;
        count = (start + n - 1) / f.block - first + 1;
        restore_scales(p, t, line, first, count, t.scale);
        r.scale_shift = log2_of(f.block / 16);
    }
    return r;
}

template <Decoder decoder, bool whole>
inline __m512 weights(const Sixteen& s, const Stretch& r, i64 v) {
    const u8* in = r.codes + v * 2 * s.bits;
    __m512 scale = _mm512_set1_ps(r.scales[v >> r.scale_shift]);
    // The scale takes the shift, which is exact; their product with the element rounds once.
    if (r.shifts) scale = _mm512_mask_mul_ps(scale, static_cast<__mmask16>(doubled(r.shifts[v])), scale, _mm512_set1_ps(0.5f));
    return _mm512_mul_ps(decode_sixteen<decoder, whole>(s, in, r.end - in), scale);
}

template <Decoder decoder>
inline void decode_stretch(const Sixteen& given, const Stretch& r, float* out) {
    const Sixteen s = given;
    i64 v = 0;
    for (; v < r.safe; ++v) _mm512_storeu_ps(out + 16 * v, weights<decoder, true>(s, r, v));
    for (; v < r.vectors; ++v) _mm512_storeu_ps(out + 16 * v, weights<decoder, false>(s, r, v));
}

// n values of a line, whole vectors of them, into `out`.
inline void decode_vectors(const RestorePlan& p, const Sixteen& s, RestoreBuffers& t, i64 line, i64 start, i64 n,
                           float* out) {
    const Stretch r = stretch_of(p, t, s, line, start, n);
    switch (s.decoder) {
        case Decoder::table: decode_stretch<Decoder::table>(s, r, out); break;
        case Decoder::integer: decode_stretch<Decoder::integer>(s, r, out); break;
        case Decoder::half: decode_stretch<Decoder::half>(s, r, out); break;
    }
}

#else

struct Sixteen {};
inline bool decodes_sixteen(const Format&) { return false; }
inline Sixteen sixteen_of(const RestorePlan&) { return {}; }
inline void decode_vectors(const RestorePlan&, const Sixteen&, RestoreBuffers&, i64, i64, i64, float*) {}

#endif

}  // namespace
