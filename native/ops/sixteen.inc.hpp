// Sixteen packed values at a time, decoded in registers. AVX-512 only: elsewhere the loops of restore.inc.hpp do it.

namespace {

#if defined(__AVX512F__)

// How 16 codes become 16 floats.
enum class Decoder : i32 {
    table,    // up to four bits: the codes select from one register
    integer,  // fixed point
    floating
};

struct Sixteen {
    Decoder decoder;
    i32 bits;
    __m512i bytes, shifts, mask;  // which four bytes hold code i, and how far in
    __m512i magnitude;            // the bits of a code that are not its sign
    __m512 table;
    float unit;  // what one step of fixed point is worth, else one
    Constants k;
    bool twos_complement, has_nan;
};

inline Sixteen sixteen_of(const RestorePlan& p) {
    const Grid& g = p.f.grid;
    Sixteen s{};
    s.bits = g.bits;
    s.k = p.element;
    s.twos_complement = g.sign == Sign::twos_complement;
    s.has_nan = g.has_nan;
    s.decoder = g.bits <= 4 ? Decoder::table : Decoder::integer;
    if (g.bits > 4 && !is_fixed(g)) s.decoder = Decoder::floating;
    s.unit = s.decoder == Decoder::integer ? power_of_two(g.emin - g.m) : 1.0f;
    alignas(64) u8 bytes[64];
    alignas(64) i32 shifts[16], codes[16];
    alignas(64) float table[16], one[16];
    for (i32 i = 0; i < 16; ++i) {
        for (i32 j = 0; j < 4; ++j) bytes[4 * i + j] = static_cast<u8>(smaller(i * g.bits / 8 + j, g.bits <= 4 ? 7 : 15));
        shifts[i] = i * g.bits % 8;
        codes[i] = i & ((1 << smaller(g.bits, 4)) - 1);
        one[i] = 1.0f;
    }
    if (s.decoder == Decoder::table) decode_all(s.k, g.has_nan, codes, one, table, 16);
    s.bytes = _mm512_load_si512(bytes);
    s.shifts = _mm512_load_si512(shifts);
    s.mask = _mm512_set1_epi32((1 << g.bits) - 1);
    s.magnitude = _mm512_set1_epi32(g.sign == Sign::none ? (1 << g.bits) - 1 : (1 << (g.bits - 1)) - 1);
    s.table = _mm512_load_ps(table);
    return s;
}

// The bytes of 16 codes in each quarter of a vector; `whole` says that 16 bytes may be read, otherwise it is `have`.
template <bool narrow, bool whole>
inline __m512i load_codes(const u8* in, i64 have) {
    if (narrow && whole) {  // 16 codes of at most four bits: a broadcast from memory costs no shuffle
        i64 eight;
        __builtin_memcpy(&eight, in, sizeof eight);
        return _mm512_set1_epi64(eight);
    }
    const __m128i loaded = whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(in))
                                 : _mm_maskz_loadu_epi8(static_cast<__mmask16>(have >= 16 ? 0xffff : (1 << have) - 1), in);
    return _mm512_broadcast_i32x4(loaded);
}

// 16 values of a line, without their scale, from the codes that start at `in`.
template <Decoder decoder, bool whole>
inline __m512 decode_sixteen(const Sixteen& s, const u8* in, i64 have) {
    const __m512i loaded = load_codes<decoder == Decoder::table, whole>(in, have);
    const __m512i spread = _mm512_shuffle_epi8(loaded, s.bytes);
    const __m512i shifted = _mm512_srlv_epi32(spread, s.shifts);
    if (decoder == Decoder::table) {
        // A permutation looks at four bits of each index; narrower codes repeat in the table by their low bits.
        return _mm512_permutexvar_ps(shifted, s.table);
    }
    const __m512i code = _mm512_and_si512(shifted, s.mask);
    if (decoder == Decoder::integer && s.twos_complement) {
        const __m512i up = _mm512_slli_epi32(code, static_cast<u32>(32 - s.bits));
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(up, static_cast<u32>(32 - s.bits)));
    }
    const __m512i magnitude = _mm512_and_si512(code, s.magnitude);
    const __m512i sign = _mm512_slli_epi32(_mm512_sub_epi32(code, magnitude), static_cast<u32>(32 - s.bits));
    __m512 value;
    if (decoder == Decoder::integer) {
        value = _mm512_cvtepi32_ps(magnitude);
    } else {
        const __mmask16 subnormal = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(least_normal(s.k)));
        const __m512i field = _mm512_mask_blend_epi32(subnormal, _mm512_set1_epi32(s.k.emin_bits - binade),
                                                      _mm512_set1_epi32(s.k.emin_bits));
        value = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(magnitude, static_cast<u32>(s.k.drop)), field));
        value = _mm512_mask_sub_ps(value, subnormal, value, _mm512_set1_ps(s.k.emin_value));
        if (s.has_nan) {
            const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(s.k.limit_above)) |
                                  _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(s.k.nan));
            value = _mm512_mask_blend_ps(nan, value, _mm512_castsi512_ps(_mm512_set1_epi32(nan_bits)));
            if (s.k.inf != 0) {
                const __mmask16 inf = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(s.k.inf));
                value = _mm512_mask_blend_ps(inf, value, _mm512_castsi512_ps(_mm512_set1_epi32(infinity_bits)));
            }
        }
    }
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(value), sign));
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
    const bool blocks = !has_blocks(f) || (f.block >= 16 && (f.block & (f.block - 1)) == 0);
    const bool shifts = f.scales != Scales::shifted || f.shift_bits == 0 ||
                        (f.sub_block == 2 && f.shift_bits == 1 && f.block % 16 == 0);
    // The unit of fixed point goes into the scale: exact for a power of two, and for every scale where it is one.
    const i32 unit = f.grid.emin - f.grid.m;
    const bool units = unit == 0 || f.grid.bits <= 4 || !is_fixed(f.grid) ||
                       (unit < 0 && unit >= -22 && f.scales != Scales::real && f.scales != Scales::two_level);
    return !f.tabled && f.grid.bits <= 8 && blocks && shifts && units;
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
        r.scale_shift = 0;
        while (i64{16} << r.scale_shift < f.block) ++r.scale_shift;
    }
    if (s.unit != 1.0f)
        for (i64 j = 0; j < count; ++j) t.scale[j] *= s.unit;
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
        case Decoder::floating: decode_stretch<Decoder::floating>(s, r, out); break;
    }
}

#else

struct Sixteen {};
inline bool decodes_sixteen(const Format&) { return false; }
inline Sixteen sixteen_of(const RestorePlan&) { return {}; }
inline void decode_vectors(const RestorePlan&, const Sixteen&, RestoreBuffers&, i64, i64, i64, float*) {}

#endif

}  // namespace
