// Fake quantization in one pass over memory: 4 bytes read and 4 written for each value.
//
// Included by each file of isa/ into that file's own namespace, and compiled there with that file's flags. Nothing of
// the standard library's templates is used and everything but the entry has internal linkage: a weak symbol would let
// the linker keep one copy, perhaps the AVX-512 one, for every instruction set.
//
// The definition that this equals bit for bit is fewbits/kernels/reference.

// Rounding a magnitude u to a multiple of 2^s, ties to even, is (u + M) - M with M = 2^(s+23): the sum lies in
// [M, 2M), where float32 itself holds multiples of 2^s only. That needs u <= M, hence mantissa_bits <= 22, and no
// contraction or reassociation by the compiler.

namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u32 = std::uint32_t;

constexpr i32 magnitude_mask = 0x7fffffff;
constexpr i32 exponent_mask = 0x7f800000;
constexpr i32 infinity_bits = 0x7f800000;
constexpr i32 nan_bits = 0x7fc00000;
constexpr i32 one_bits = 0x3f800000;
constexpr i32 sign_bit = static_cast<i32>(0x80000000u);
constexpr i32 binade = 1 << 23;  // one step of the exponent field

inline i32 bits_of(float v) {
    i32 b;
    __builtin_memcpy(&b, &v, sizeof b);
    return b;
}

inline float float_of(i32 b) {
    float v;
    __builtin_memcpy(&v, &b, sizeof v);
    return v;
}

inline i32 larger(i32 a, i32 b) { return a > b ? a : b; }
inline i32 smaller(i32 a, i32 b) { return a < b ? a : b; }
inline i32 clamp(i32 v, i32 low, i32 high) { return smaller(larger(v, low), high); }

// 2^e for e in [-127, 127]; 2^-127 is a subnormal.
inline float power_of_two(i32 e) { return float_of(e > -127 ? (e + 127) << 23 : 1 << 22); }

// Largest magnitude as bits. Over floats this loop would stay scalar, since a maximum must not reorder NaN;
// over bit patterns it vectorizes, is exact, and puts infinities and NaN on top. The pragma keeps g++ from unrolling
// the loop of a block of 16 into scalars before the vectorizer sees it: 5.5 became 8 GB/s on AVX2.
inline i32 largest_magnitude(const float* in, i64 n) {
    i32 largest = 0;
#pragma GCC unroll 1
    for (i64 i = 0; i < n; ++i) largest = larger(largest, bits_of(in[i]) & magnitude_mask);
    return largest;
}

inline bool fill_nan(float* out, i64 n) {
    for (i64 i = 0; i < n; ++i) out[i] = float_of(nan_bits);
    return true;
}

// A finite magnitude above zero as 2^exponent * (1 + fraction / 2^23); subnormals are normalized.
struct Split {
    i32 exponent, fraction;
};

inline Split split(i32 magnitude) {
    if (magnitude >= binade) return {(magnitude >> 23) - 127, magnitude & (binade - 1)};
    const i32 lead = 31 - __builtin_clz(static_cast<u32>(magnitude));
    return {lead - 149, (magnitude << (23 - lead)) & (binade - 1)};
}

// The rules of kernels/reference/scale_rules.py for a magnitude given as finite bits above zero.
inline i32 ruled_exponent(const FakeQuantize& p, i32 magnitude) {
    const Split a = split(magnitude);
    const i32 top_fraction = bits_of(p.max) & (binade - 1);
    const i32 e = a.exponent - p.emax;
    switch (p.scale_rule) {
        case ScaleRule::floor: break;
        case ScaleRule::ceil: return e + (a.fraction > 0);
        case ScaleRule::rceil: return e + (a.fraction > top_fraction);
        case ScaleRule::even: return split(magnitude + (1 << (22 - p.mantissa_bits))).exponent - p.emax;
        case ScaleRule::one_seventy_five: return split(magnitude + (1 << 21)).exponent - p.emax;
        case ScaleRule::midmax: return e + (2 * a.fraction > binade + top_fraction);
        case ScaleRule::oas: {
            const i32 scaled = bits_of(float_of(magnitude) / p.max * p.oas_factor);
            const i32 nearest = (scaled + 0x7fff + (scaled >> 16 & 1)) & ~0xffff;  // to bfloat16
            return nearest == 0 ? p.scale_emin : split(nearest).exponent;
        }
        case ScaleRule::double_floor: return e + 1;
    }
    return e;
}

// Exponent of the scale of a block; the choice for zeros shows in no value.
inline i32 scale_exponent(const FakeQuantize& p, i32 largest) {
    return largest == 0 ? p.scale_emin : clamp(ruled_exponent(p, largest), p.scale_emin, p.scale_emax);
}

// Constants of the element, read once: stores to floats could otherwise change them, as far as the compiler knows.
struct Element {
    i32 emin_bits;   // exponent field of emin
    i32 magic;       // what turns the exponent field of a value's binade into that of M
    float max, min;  // largest magnitudes above and below zero
    i32 zero_sign;   // the sign bit where minus zero exists
};

inline Element element_of(const FakeQuantize& p) {
    return {(p.emin + 127) << 23, (23 - p.mantissa_bits) << 23, p.max, p.min, p.signed_zero ? sign_bit : 0};
}

// M for a value of these magnitude bits. Far beyond the largest scale the sum leaves the exponent field; the value
// then stays as large as it was, or becomes NaN, and is clamped to the limit either way.
inline float magic_of(const Element& el, i32 magnitude) {
    const i32 field = larger(magnitude & exponent_mask, el.emin_bits);
    return float_of(static_cast<i32>(static_cast<u32>(field) + static_cast<u32>(el.magic)));
}

// The sign goes back on, except on a zero of a format that has one zero only.
inline float with_sign(float magnitude, float element, i32 sign, i32 zero_sign) {
    return float_of(bits_of(magnitude) | (element != 0.0f ? sign : sign & zero_sign));
}

// Two passes over a block, the second out of the nearest cache; about 14 instructions for each vector of values.
template <i64 fixed_n>
inline bool quantize_block(const FakeQuantize& p, const Element& el, const float* __restrict in,
                           float* __restrict out, i64 length) {
    const i64 n = fixed_n ? fixed_n : length;
    const i32 largest = largest_magnitude(in, n);
    if (largest >= infinity_bits) return fill_nan(out, n);
    const i32 e = scale_exponent(p, largest);
    const float scale = power_of_two(e), inverse = power_of_two(-e);
    for (i64 i = 0; i < n; ++i) {
        const i32 b = bits_of(in[i]);
        const float u = float_of(b & magnitude_mask) * inverse;
        const float m = magic_of(el, bits_of(u));
        const float rounded = (u + m) - m;
        const float limit = b < 0 ? el.min : el.max;
        const float q = rounded < limit ? rounded : limit;
        out[i] = with_sign(q * scale, q, b & sign_bit, el.zero_sign);
    }
    return false;
}

// Scaling by the block's power of two has made a sub-block's shift a difference to exponent 0; zeros get the largest.
inline i32 shift_bits(i32 sub_block_largest, i32 most) {
    return clamp(one_bits - (sub_block_largest & exponent_mask), 0, most);
}

// One value of a BDR block: emin is 0, and the step and the limit come down by the shift of its sub-block.
inline float quantize_shifted(const Element& el, i32 b, float u, i32 shift, float scale) {
    const float m = float_of(one_bits + el.magic - shift), limit = float_of(bits_of(el.max) - shift);
    const float rounded = (u + m) - m;
    const float q = rounded < limit ? rounded : limit;
    return with_sign(q * scale, q, b & sign_bit, el.zero_sign);
}

inline bool quantize_bdr(const FakeQuantize& p, const Element& el, const float* __restrict in, float* __restrict out,
                         i64 n) {
    const i32 largest = largest_magnitude(in, n);
    if (largest >= infinity_bits) return fill_nan(out, n);
    const i32 e = scale_exponent(p, largest), most = p.largest_shift << 23;
    const float scale = power_of_two(e), inverse = power_of_two(-e);
    for (i64 start = 0; start < n; start += p.sub_block) {
        const i64 count = n - start < p.sub_block ? n - start : p.sub_block;
        const i32 sub_largest = bits_of(float_of(largest_magnitude(in + start, count)) * inverse);
        const i32 shift = shift_bits(sub_largest, most);
        for (i64 i = start; i < start + count; ++i) {
            const i32 b = bits_of(in[i]);
            out[i] = quantize_shifted(el, b, float_of(b & magnitude_mask) * inverse, shift, scale);
        }
    }
    return false;
}

// The same for full blocks of sub-blocks of two, where the neighbour's magnitude is 32 bits to the left or right
// in one 64-bit lane: whole vectors at a time instead of two values at a time.
template <int n>
inline bool quantize_bdr_pairs(const FakeQuantize& p, const Element& el, const float* __restrict in,
                               float* __restrict out) {
    const i32 largest = largest_magnitude(in, n);
    if (largest >= infinity_bits) return fill_nan(out, n);
    const i32 e = scale_exponent(p, largest), most = p.largest_shift << 23;
    const float scale = power_of_two(e), inverse = power_of_two(-e);
    float u[n], neighbour[n];
    for (int i = 0; i < n; ++i) u[i] = float_of(bits_of(in[i]) & magnitude_mask) * inverse;
    for (int i = 0; i < n; i += 2) {
        std::uint64_t pair;
        __builtin_memcpy(&pair, u + i, sizeof pair);
        pair = pair << 32 | pair >> 32;
        __builtin_memcpy(neighbour + i, &pair, sizeof pair);
    }
    for (int i = 0; i < n; ++i) {
        const i32 shift = shift_bits(larger(bits_of(u[i]), bits_of(neighbour[i])), most);
        out[i] = quantize_shifted(el, bits_of(in[i]), u[i], shift, scale);
    }
    return false;
}

// M would overflow float32 for the largest values, so magnitudes from one up are rounded 2^-32 smaller; below one they
// are taken as they are, because 2^-32 would take the smallest of them out of float32's range.
inline bool quantize_scalars(const FakeQuantize& p, const Element& el, const float* __restrict in,
                             float* __restrict out, i64 n) {
    constexpr i32 high_shift = 32 * binade;
    const bool saturate = p.saturate;
    const i32 overflow = bits_of(p.overflow);
    i32 largest = 0;
    for (i64 i = 0; i < n; ++i) {
        const i32 b = bits_of(in[i]), magnitude = b & magnitude_mask;
        const bool high = magnitude >= one_bits;
        const float down = high ? 0x1p-32f : 1.0f, up = high ? 0x1p32f : 1.0f;
        const i32 field = larger(magnitude & exponent_mask, el.emin_bits) - (high ? high_shift : 0);
        const float m = float_of(field + el.magic);
        const float rounded = ((float_of(magnitude) * down + m) - m) * up;
        const i32 limit = bits_of(b < 0 ? el.min : el.max);
        largest = larger(largest, magnitude);
        // Magnitudes compare as integers, and an infinity is only the largest of them.
        const i32 finite = magnitude < infinity_bits ? bits_of(rounded) : magnitude;
        i32 q = finite > limit ? (saturate ? limit : overflow) : finite;
        q = magnitude > infinity_bits ? nan_bits : q;
        const i32 sign = b & (q == 0 ? el.zero_sign : q > infinity_bits ? 0 : sign_bit);
        out[i] = float_of(q | sign);
    }
    return largest >= infinity_bits;
}

// Calls one(in, out, values) for each block from first to last-1 and returns whether any of them said true.
template <class One>
inline bool any_block(const FakeQuantize& p, const float* in, float* out, i64 first, i64 last, One one) {
    const i64 per_row = blocks_per_row(p);
    i64 row = first / per_row, start = first % per_row * p.block;
    bool any = false;
    for (i64 index = first; index < last; ++index) {
        const i64 offset = row * p.cols + start, rest = p.cols - start;
        any |= one(in + offset, out + offset, rest < p.block ? rest : p.block);
        start += p.block;
        if (start >= p.cols) {
            start = 0;
            ++row;
        }
    }
    return any;
}

// Full blocks of a size that the compiler knows have no loop overhead: twice the speed.
template <i64 size>
inline bool any_block_of(const FakeQuantize& p, const Element& el, const float* in, float* out, i64 first, i64 last) {
    return any_block(p, in, out, first, last, [&](const float* x, float* y, i64 n) {
        return n == size ? quantize_block<size>(p, el, x, y, n) : quantize_block<0>(p, el, x, y, n);
    });
}

inline bool quantize(const FakeQuantize& p, const float* in, float* out, i64 first, i64 last) {
    const Element el = element_of(p);
    switch (p.kind) {
        case Kind::scalar:
            return any_block(p, in, out, first, last,
                             [&](const float* x, float* y, i64 n) { return quantize_scalars(p, el, x, y, n); });
        case Kind::block:
            if (p.block == 32) return any_block_of<32>(p, el, in, out, first, last);
            if (p.block == 16) return any_block_of<16>(p, el, in, out, first, last);
            return any_block_of<0>(p, el, in, out, first, last);
        case Kind::bdr: break;
    }
    const bool pairs = p.block == 16 && p.sub_block == 2;
    return any_block(p, in, out, first, last, [&](const float* x, float* y, i64 n) {
        return pairs && n == 16 ? quantize_bdr_pairs<16>(p, el, x, y) : quantize_bdr(p, el, x, y, n);
    });
}

// What the compiler really had, not what the build meant to give it.
constexpr const char* compiled_for =
#if defined(__AVX512F__)
    "avx512";
#elif defined(__AVX2__)
    "avx2";
#else
    "baseline";
#endif

}  // namespace

Outcome fake_quantize(const FakeQuantize& p, const float* in, float* out, i64 first, i64 last) {
    return {compiled_for, quantize(p, in, out, first, last)};
}
