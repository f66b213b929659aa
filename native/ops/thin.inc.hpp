// Products of a packed matrix with few vectors, straight from the packed bits: a tile of a line is decoded in
// registers, or in the nearest cache for several vectors, and never reaches memory. Sums are float32, in an order that
// depends on the instruction set; |error| <= (n + 2) 2^-24 sum |x| |W|, docs/products.md.

namespace {

inline float dot(const float* __restrict x, const float* __restrict w, i64 n) {
    constexpr i64 lanes_of_sum = 32;
    float sums[lanes_of_sum] = {};
    i64 i = 0;
    for (; i + lanes_of_sum <= n; i += lanes_of_sum)
        for (i64 j = 0; j < lanes_of_sum; ++j) sums[j] += x[i + j] * w[i + j];
    float sum = 0.0f;
    for (; i < n; ++i) sum += x[i] * w[i];
    for (i64 width = lanes_of_sum / 2; width > 0; width /= 2)
        for (i64 j = 0; j < width; ++j) sums[j] += sums[j + width];
    return sum + sums[0];
}

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
    __m512 table;
    float unit;  // fixed point: what one step is worth
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
    // Fixed point has no binade above that of emin; a float has.
    if (g.bits > 4 && g.limit_above >= 2 << g.m) s.decoder = Decoder::floating;
    s.unit = power_of_two(g.emin - g.m);
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
    const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(static_cast<i32>(static_cast<u32>(s.k.code_mask) >> 1)));
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
    return !f.tabled && f.grid.bits <= 8 && blocks && shifts;
}

// Where the whole vectors of a stretch of a line are, and their scales: vector v has scales[v >> scale_shift].
struct Stretch {
    const u8 *codes, *end, *shifts;
    const float* scales;
    i64 scale_shift;
    i64 vectors, safe;  // from the first `safe` vectors 16 bytes can be read
};

inline Stretch stretch_of(const RestorePlan& p, RestoreBuffers& t, const Sixteen& s, i64 line, i64 start, i64 n, float unit) {
    const Format& f = p.f;
    const u8* part = p.job.codes + line * p.bytes.codes;
    Stretch r{part + start / 8 * s.bits, part + p.bytes.codes, nullptr, t.scale, 62, n / 16, 0};
    r.safe = least(r.vectors, (r.end - r.codes - 16) / (2 * s.bits) + 1);
    if (f.scales == Scales::shifted && f.shift_bits) r.shifts = p.job.shifts + line * p.bytes.shifts + start / 16;
    i64 count = 1;
    if (f.scales == Scales::none) {
        t.scale[0] = 1.0f;
    } else if (one_scale(f)) {
        restore_scales(p, t, line, 0, 1);
    } else {
        const i64 first = start / f.block;
        count = (start + n - 1) / f.block - first + 1;
        restore_scales(p, t, line, first, count);
        r.scale_shift = 0;
        while (i64{16} << r.scale_shift < f.block) ++r.scale_shift;
    }
    if (unit != 1.0f)
        for (i64 j = 0; j < count; ++j) t.scale[j] *= unit;
    return r;
}

template <Decoder decoder, bool whole>
inline __m512 weights(const Sixteen& s, const Stretch& r, i64 v) {
    const u8* in = r.codes + v * 2 * s.bits;
    const __m512 w = _mm512_mul_ps(decode_sixteen<decoder, whole>(s, in, r.end - in), _mm512_set1_ps(r.scales[v >> r.scale_shift]));
    if (!r.shifts) return w;
    return _mm512_mask_mul_ps(w, static_cast<__mmask16>(doubled(r.shifts[v])), w, _mm512_set1_ps(0.5f));
}

// A line times one vector, eight vectors of codes at a time in four sums; about five instructions for each 16 values
// of up to four bits.
template <Decoder decoder>
inline float one_product(const Sixteen& given, const Stretch& r, const float* x) {
    const Sixteen s = given;
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    i64 v = 0;
    for (; v + 4 <= r.safe; v += 4) {
#pragma GCC unroll 4
        for (i64 j = 0; j < 4; ++j)
            sums[j] = _mm512_fmadd_ps(weights<decoder, true>(s, r, v + j), _mm512_loadu_ps(x + 16 * (v + j)), sums[j]);
    }
    for (; v < r.vectors; ++v)
        sums[0] = _mm512_fmadd_ps(weights<decoder, false>(s, r, v), _mm512_loadu_ps(x + 16 * v), sums[0]);
    return _mm512_reduce_add_ps((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <Decoder decoder>
inline void decode_stretch(const Sixteen& given, const Stretch& r, float* out) {
    const Sixteen s = given;
    i64 v = 0;
    for (; v < r.safe; ++v) _mm512_store_ps(out + 16 * v, weights<decoder, true>(s, r, v));
    for (; v < r.vectors; ++v) _mm512_store_ps(out + 16 * v, weights<decoder, false>(s, r, v));
}

constexpr i64 lines_together = 4, rows_in_sums = 16;

// Four lines times four rows of x: 16 sums in registers, eight loads for 16 products.
inline void add_products(const float (*w)[tile], const float* x, i64 stride, i64 rows, i64 n, __m512 (*sums)[rows_in_sums]) {
    for (i64 b = 0; b < rows; b += 4) {
        const float* from[4];
        __m512 sum[4][4];
        for (i64 r = 0; r < 4; ++r) from[r] = x + least(b + r, rows - 1) * stride;
#pragma GCC unroll 4
        for (i64 l = 0; l < 4; ++l)
#pragma GCC unroll 4
            for (i64 r = 0; r < 4; ++r) sum[l][r] = sums[l][b + r];
        for (i64 i = 0; i < n; i += 16) {
#pragma GCC unroll 4
            for (i64 r = 0; r < 4; ++r) {
                const __m512 v = _mm512_loadu_ps(from[r] + i);
#pragma GCC unroll 4
                for (i64 l = 0; l < 4; ++l) sum[l][r] = _mm512_fmadd_ps(_mm512_load_ps(w[l] + i), v, sum[l][r]);
            }
        }
#pragma GCC unroll 4
        for (i64 l = 0; l < 4; ++l)
#pragma GCC unroll 4
            for (i64 r = 0; r < 4; ++r) sums[l][b + r] = sum[l][r];
    }
}

// The whole vectors of up to four lines, times up to 16 rows of x; y[l][b] is written. Returns how many values of a
// line they cover.
template <Decoder decoder>
inline i64 thin_lines(const Thin& job, const RestorePlan& p, const Sixteen& s, RestoreBuffers& t, i64 line, i64 lines,
                      float (*y)[rows_in_sums]) {
    const i64 whole = job.n / 16 * 16;
    const float unit = decoder == Decoder::integer ? s.unit : 1.0f;
    if (job.batch == 1) {
        for (i64 l = 0; l < lines; ++l) {
            y[l][0] = 0.0f;
            for (i64 start = 0; start < whole; start += 8 * tile) {  // a scale for each vector at most
                const Stretch r = stretch_of(p, t, s, line + l, start, least(8 * tile, whole - start), unit);
                y[l][0] += one_product<decoder>(s, r, job.x + start);
            }
        }
        return whole;
    }
    alignas(64) float w[lines_together][tile];
    __m512 sums[lines_together][rows_in_sums];
    for (auto& of_line : sums)
        for (__m512& sum : of_line) sum = _mm512_setzero_ps();
    for (i64 start = 0; start < whole; start += tile) {
        const i64 n = least(tile, whole - start);
        for (i64 l = 0; l < lines_together; ++l) {
            if (l < lines) decode_stretch<decoder>(s, stretch_of(p, t, s, line + l, start, n, unit), w[l]);
            else fill(w[l], 0.0f, tile);
        }
        add_products(w, job.x + start, job.n, job.batch, n, sums);
    }
    for (i64 l = 0; l < lines; ++l)
        for (i64 b = 0; b < job.batch; ++b) y[l][b] = _mm512_reduce_add_ps(sums[l][b]);
    return whole;
}

// Four-bit codes times one vector. A register of 64 bytes holds 128 codes, eight in each 32-bit lane; a permutation
// looks at the low four bits of each lane only, so a shift and a permutation give 16 values, with no mask and no
// shuffle, and the scale of a lane's eight codes is applied once: 28 instructions for 128 values. Vector j of 128 holds
// the values 8 i + j, so x is laid out in that order first.
constexpr i64 nibbles = 128, permuted = 4096;

inline bool takes_nibbles(const Thin& job, const Sixteen& s) {
    const Format& f = job.format;
    const bool blocks = !has_blocks(f) || (f.block >= 8 && (f.block & (f.block - 1)) == 0);
    return job.batch == 1 && s.bits == 4 && s.decoder == Decoder::table && blocks && f.scales != Scales::shifted;
}

inline __m512 nibble_group(const __m512 table, const u8* codes, const float* x) {
    const __m512i c = _mm512_loadu_si512(codes);
    __m512 sum = _mm512_mul_ps(_mm512_permutexvar_ps(c, table), _mm512_load_ps(x));
    sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), table), _mm512_load_ps(x + 16), sum);
    sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, 8), table), _mm512_load_ps(x + 32), sum);
    sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, 12), table), _mm512_load_ps(x + 48), sum);
    sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, 16), table), _mm512_load_ps(x + 64), sum);
    sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, 20), table), _mm512_load_ps(x + 80), sum);
    sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, 24), table), _mm512_load_ps(x + 96), sum);
    return _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, 28), table), _mm512_load_ps(x + 112), sum);
}

// Adds to y the products of the whole groups of each line; returns how many values of a line they cover.
inline i64 thin_nibbles(const Thin& job, const RestorePlan& p, const Sixteen& given, RestoreBuffers& t, i64 first, i64 last) {
    const Sixteen s = given;
    const Format& f = p.f;
    const i64 whole = job.n / nibbles * nibbles;
    const i64 size = has_blocks(f) ? f.block : nibbles, in_group = size < nibbles ? nibbles / size : 1;
    i64 log_size = 0;  // no division in the loop: one takes longer than a group
    while (i64{1} << log_size < size) ++log_size;
    alignas(64) float x[permuted];
    alignas(64) i32 lanes_of_scales[16];
    for (i64 i = 0; i < 16; ++i) lanes_of_scales[i] = static_cast<i32>(8 * i / size);
    const __m512i pick = _mm512_load_si512(lanes_of_scales);
    const __mmask16 present = static_cast<__mmask16>((1u << in_group) - 1);
    for (i64 start = 0; start < whole; start += permuted) {
        const i64 n = least(permuted, whole - start);
        for (i64 g = 0; g < n; g += nibbles)
            for (i64 i = 0; i < 16; ++i)
                for (i64 j = 0; j < 8; ++j) x[g + 16 * j + i] = job.x[start + g + 8 * i + j];
        for (i64 line = first; line < last; ++line) {
            const u8* codes = p.job.codes + line * p.bytes.codes + start / 2;
            if (has_blocks(f))
                restore_scales(p, t, line, start / size, (start + n - 1) / size - start / size + 1);
            else if (f.scales == Scales::none)
                t.scale[0] = 1.0f;
            else
                restore_scales(p, t, line, 0, 1);
            __m512 sum = _mm512_setzero_ps();
            for (i64 g = 0; g < n / nibbles; ++g) {
                const float* scale = t.scale + (has_blocks(f) ? (g * nibbles) >> log_size : 0);
                const __m512 scales = _mm512_permutexvar_ps(pick, _mm512_maskz_loadu_ps(present, scale));
                sum = _mm512_fmadd_ps(nibble_group(s.table, codes + 64 * g, x + nibbles * g), scales, sum);
            }
            job.y[line] += _mm512_reduce_add_ps(sum);
        }
    }
    return whole;
}

inline i64 thin_vectors(const Thin& job, const RestorePlan& p, const Sixteen& s, RestoreBuffers& t, i64 line, i64 lines,
                        float (*y)[rows_in_sums]) {
    switch (s.decoder) {
        case Decoder::table: return thin_lines<Decoder::table>(job, p, s, t, line, lines, y);
        case Decoder::integer: return thin_lines<Decoder::integer>(job, p, s, t, line, lines, y);
        case Decoder::floating: return thin_lines<Decoder::floating>(job, p, s, t, line, lines, y);
    }
    return 0;
}

#else

constexpr i64 lines_together = 4, rows_in_sums = 16;
struct Sixteen {};
inline bool decodes_sixteen(const Format&) { return false; }
inline Sixteen sixteen_of(const RestorePlan&) { return {}; }
inline bool takes_nibbles(const Thin&, const Sixteen&) { return false; }
inline i64 thin_nibbles(const Thin&, const RestorePlan&, const Sixteen&, RestoreBuffers&, i64, i64) { return 0; }
inline i64 thin_vectors(const Thin&, const RestorePlan&, const Sixteen&, RestoreBuffers&, i64, i64, float (*)[rows_in_sums]) {
    return 0;
}

#endif

// What thin_vectors left of some lines, all of them on other instruction sets.
inline void thin_rest(const Thin& job, const RestorePlan& p, RestoreBuffers& t, i64 line, i64 lines, i64 from,
                      float (*y)[rows_in_sums]) {
    for (i64 l = 0; l < lines; ++l) {
        for (i64 start = from, n; start < job.n; start += n) {
            n = least(tile, job.n - start);
            restore_run(p, t, line + l, start, n);
            for (i64 b = 0; b < job.batch; ++b) y[l][b] += dot(job.x + b * job.n + start, t.values, n);
        }
    }
}

void thin(const Thin& job, i64 first, i64 last) {
    Restore restored{job.format, {}, job.codes, job.scales, job.shifts, job.outer, nullptr, Real::f32, false};
    restored.geometry.n = job.n;
    RestorePlan p = restore_plan_of(restored);
    p.outer_later = true;
    RestoreBuffers t;
    for (i64 i = 0; i < tile; ++i) t.one[i] = 1.0f;
    const bool vectors = decodes_sixteen(job.format), outer = job.format.scales == Scales::two_level;
    const Sixteen s = vectors ? sixteen_of(p) : Sixteen{};
    if (vectors && takes_nibbles(job, s)) {
        for (i64 line = first; line < last; ++line) job.y[line] = 0.0f;
        const i64 done = thin_nibbles(job, p, s, t, first, last);
        for (i64 line = first; line < last; ++line) {
            float y[1][rows_in_sums] = {{job.y[line]}};
            thin_rest(job, p, t, line, 1, done, y);
            job.y[line] = y[0][0] * (outer ? job.outer[job.format.whole_known ? 0 : line] : 1.0f);
        }
        return;
    }
    for (i64 b = 0; b < job.batch; b += rows_in_sums) {
        Thin some = job;
        some.x += b * job.n;
        some.batch = least(rows_in_sums, job.batch - b);
        for (i64 line = first; line < last; line += lines_together) {
            const i64 lines = least(lines_together, last - line);
            float y[lines_together][rows_in_sums] = {};
            const i64 done = vectors ? thin_vectors(some, p, s, t, line, lines, y) : 0;
            thin_rest(some, p, t, line, lines, done, y);
            for (i64 l = 0; l < lines; ++l) {
                const float scale = outer ? job.outer[job.format.whole_known ? 0 : line + l] : 1.0f;
                for (i64 r = 0; r < some.batch; ++r) job.y[(b + r) * job.lines + line + l] = y[l][r] * scale;
            }
        }
    }
}

}  // namespace
