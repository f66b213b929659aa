// The two passes of conjugate gradients on a 7-point stencil. Each number is decoded once in a pass, into rows of
// float32 (or float64) that stay in the caches; the order of every operation is that of kernels/reference/stencil.py.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace {

constexpr i64 parts = 16;         // sums run in as many parts on every instruction set
constexpr i64 margin = parts;     // before and after a row: its neighbours, zeros
constexpr float to_integer = 0x1.8p23f;  // added to a float, leaves it rounded to an integer
constexpr float largest_integer = 32767.0f, smallest_norm = 0x1p-100f;
constexpr float largest_half = 65504.0f;

template <class T>
struct CellsPlain {  // stored as the arithmetic has them
    using Number = T;
    static void load(const Stored& s, i64 at, i64 n, T* __restrict to) {
        const T* from = static_cast<const T*>(s.values) + at;
        for (i64 i = 0; i < n; ++i) to[i] = from[i];
    }
    static void store(const Stored& s, double, i64 at, i64 n, T* __restrict v) {
        T* to = static_cast<T*>(s.values) + at;
        for (i64 i = 0; i < n; ++i) to[i] = v[i];
    }
};
using CellsF64 = CellsPlain<double>;
using CellsF32 = CellsPlain<float>;

struct CellsF16 {
    using Number = float;
    static void load(const Stored& s, i64 at, i64 n, float* __restrict to) {
        const u16* from = static_cast<const u16*>(s.values) + at;
        const float unit = static_cast<float>(s.scale);
#if defined(__AVX512F__)
        for (i64 i = 0; i < n; i += parts) {
            const __m512 v = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
            _mm512_storeu_ps(to + i, v * _mm512_set1_ps(unit));
        }
#else
        for (i64 i = 0; i < n; ++i) to[i] = from_f16(from[i]) * unit;
#endif
    }
    // v becomes what load() gives back.
    static void store(const Stored& s, double scale, i64 at, i64 n, float* __restrict v) {
        u16* to = static_cast<u16*>(s.values) + at;
        const float unit = static_cast<float>(scale), over = 1.0f / unit;
#if defined(__AVX512F__)
        const __m512 largest = _mm512_set1_ps(largest_half);
        for (i64 i = 0; i < n; i += parts) {
            const __m512 scaled = _mm512_loadu_ps(v + i) * _mm512_set1_ps(over);
            const __m512 within = _mm512_max_ps(_mm512_min_ps(scaled, largest), -largest);
            const __m256i bits = _mm512_cvtps_ph(within, _MM_FROUND_TO_NEAREST_INT);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), bits);
            _mm512_storeu_ps(v + i, _mm512_cvtph_ps(bits) * _mm512_set1_ps(unit));
        }
#else
        for (i64 i = 0; i < n; ++i) {
            const float scaled = v[i] * over;
            to[i] = to_f16(scaled > largest_half ? largest_half : scaled < -largest_half ? -largest_half : scaled);
            v[i] = from_f16(to[i]) * unit;
        }
#endif
    }
};

struct CellsI16 {
    using Number = float;
#if defined(__AVX512F__)
    static void store_sixteen(__m512 v, float over, float norm, std::int16_t* to, float* back) {
        const __m512i whole = _mm512_cvtps_epi32(v * _mm512_set1_ps(over));  // to nearest even
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(whole));
        _mm512_storeu_ps(back, _mm512_cvtepi32_ps(whole) * _mm512_set1_ps(norm));
    }
#endif
    static void load(const Stored& s, i64 at, i64 n, float* __restrict to) {
        for (i64 block = 0; block < n; block += site) {
            const std::int16_t* from = static_cast<const std::int16_t*>(s.values) + at + block;
            const float norm = s.norms[(at + block) / site];
            for (i64 i = 0; i < site; ++i) to[block + i] = static_cast<float>(from[i]) * norm;
        }
    }
    static void store(const Stored& s, double, i64 at, i64 n, float* __restrict v) {
        for (i64 block = 0; block < n; block += site) {
            float* __restrict x = v + block;
            std::int16_t* __restrict to = static_cast<std::int16_t*>(s.values) + at + block;
#if defined(__AVX512F__)
            const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + parts);
            const __m512i sizes = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(low)), _mm512_castps_si512(_mm512_abs_ps(high)));
            const float largest = float_of(_mm512_reduce_max_epi32(sizes));
#else
            i32 bits = 0;
            for (i64 i = 0; i < site; ++i) bits = larger(bits, bits_of(x[i]) & magnitude_mask);
            const float largest = float_of(bits);
#endif
            const bool small = !(largest >= smallest_norm);
            const float norm = small ? 0.0f : largest / largest_integer, over = small ? 0.0f : largest_integer / largest;
            s.norms[(at + block) / site] = norm;
#if defined(__AVX512F__)
            store_sixteen(low, over, norm, to, x);
            store_sixteen(high, over, norm, to + parts, x + parts);
#else
            for (i64 i = 0; i < site; ++i) {
                const float whole = (x[i] * over + to_integer) - to_integer;
                to[i] = static_cast<std::int16_t>(static_cast<i32>(whole));
                x[i] = whole * norm;
            }
#endif
        }
    }
};

#if defined(__AVX512F__)
inline void add_sixteen(const float* u, const float* v, __m512d& low, __m512d& high) {
    const __m512 product = _mm512_loadu_ps(u) * _mm512_loadu_ps(v);
    low = low + _mm512_cvtps_pd(_mm512_castps512_ps256(product));
    high = high + _mm512_cvtps_pd(_mm512_extractf32x8_ps(product, 1));
}
inline void add_sixteen(const double* u, const double* v, __m512d& low, __m512d& high) {
    low = low + _mm512_loadu_pd(u) * _mm512_loadu_pd(v);
    high = high + _mm512_loadu_pd(u + 8) * _mm512_loadu_pd(v + 8);
}
#endif

template <class Number>
struct Sums {
    alignas(64) double part[parts];
    void clear() {
        for (i64 l = 0; l < parts; ++l) part[l] = 0.0;
    }
    // Products in Number, sums in double; those stay in registers for a row.
    void add(const Number* u, const Number* v, i64 n) {
#if defined(__AVX512F__)
        __m512d low = _mm512_load_pd(part), high = _mm512_load_pd(part + 8);
        for (i64 i = 0; i < n; i += parts) add_sixteen(u + i, v + i, low, high);
        _mm512_store_pd(part, low);
        _mm512_store_pd(part + 8, high);
#else
        for (i64 i = 0; i < n; i += parts)
            for (i64 l = 0; l < parts; ++l) part[l] += static_cast<double>(u[i + l] * v[i + l]);
#endif
    }
    double total() const {
        double sum = 0.0;
        for (i64 l = 0; l < parts; ++l) sum += part[l];
        return sum;
    }
};

constexpr i64 longest_row = 4096;  // of what is kept on the stack beside the planes

// One item: the rows y0 <= y < y1 of the planes z0 <= z < z1.
template <class Vectors, class Faces>
struct Piece {
    using Number = typename Vectors::Number;
    const DirectionUpdate& t;
    i64 y0, y1, z0, z1, line;  // line: numbers in a row with its margins
    Number *planes, *face_z, *face_y, *face_x, *scratch, *q, *spare_row;
    Sums<Number> pq, pp, qq;

    static i64 numbers(const Stencil& a) {
        const i64 line = a.stride + 2 * margin;
        return line * (3 * (turn_y + 2) + 2 * turn_y + 2 + 1 + 1 + 1 + 1);
    }

    Piece(const DirectionUpdate& turn, i64 item, Number* room) : t(turn) {
        const i64 across = count_of(t.a.ny, turn_y);
        y0 = item % across * turn_y;
        y1 = least(t.a.ny, y0 + turn_y);
        z0 = item / across * turn_z;
        z1 = least(t.a.nz, z0 + turn_z);
        line = t.a.stride + 2 * margin;
        planes = room;
        face_z = planes + 3 * (turn_y + 2) * line;
        face_y = face_z + 2 * turn_y * line;
        face_x = face_y + 2 * line;
        scratch = face_x + line;
        q = scratch + line;
        spare_row = q + line;
        for (i64 i = 0; i < numbers(t.a); ++i) room[i] = Number(0);
    }

    Number* row(i64 y, i64 z) { return planes + (((z + 3) % 3) * (turn_y + 2) + (y - y0 + 1)) * line + margin; }
    Number* faces(i64 y, i64 z) { return face_z + ((z & 1) * turn_y + (y - y0)) * line + margin; }

    // The new direction in one row; only rows of this item are written back.
    void direction(i64 y, i64 z) {
        Number* __restrict to = row(y, z);
        if (y < 0 || y >= t.a.ny || z < 0 || z >= t.a.nz) {
            for (i64 i = 0; i < t.a.stride; ++i) to[i] = Number(0);
            return;
        }
        const i64 n = t.a.stride, at = (z * t.a.ny + y) * n;
        const bool mine = y >= y0 && y < y1 && z >= z0 && z < z1;
        const Number gamma = static_cast<Number>(t.gamma), beta = static_cast<Number>(t.beta);
        Number* __restrict old = scratch + margin;
        Vectors::load(t.r, at, n, to);
        if (t.x == nullptr) {
            for (i64 i = 0; i < n; ++i) to[i] *= gamma;
            return;
        }
        Vectors::load(t.p, at, n, old);
        for (i64 i = 0; i < n; ++i) to[i] = gamma * to[i] + beta * old[i];
        if (mine) {
            if (t.alpha != 0 || t.earlier != 0) {
                const Number alpha = static_cast<Number>(t.alpha), earlier = static_cast<Number>(t.earlier);
                Number* __restrict x = static_cast<Number*>(t.x) + at;
                Number* __restrict before = spare_row;
                Vectors::load(t.next, at, n, before);  // its cache lines are fetched to be written in any case
                for (i64 i = 0; i < n; ++i) x[i] += alpha * old[i] + earlier * before[i];
            }
            Vectors::store(t.next, t.next.scale, at, n, to);
        } else {
            float norms[longest_row / site];
            Vectors::store(Stored{t.next.storage, spare_row, norms, t.next.scale}, t.next.scale, 0, n, to);
        }
    }

    void load_z(i64 z) {
        for (i64 y = y0; y < y1; ++y) Faces::load(t.a.z, (z * t.a.ny + y) * t.a.stride, t.a.stride, faces(y, z));
    }

    void load_y(i64 y, i64 z) {
        Faces::load(t.a.y, (z * (t.a.ny + 1) + y) * t.a.stride, t.a.stride, face_y + (y & 1) * line + margin);
    }

    void image(i64 y, i64 z) {
        const i64 n = t.a.stride, at = (z * t.a.ny + y) * n;
        Number* fx = face_x + margin;
        Faces::load(t.a.x, at, n, fx);
        fx[t.a.nx] = static_cast<Number>(t.a.high[z * t.a.ny + y]);
        load_y(y + 1, z);
        const Number* __restrict c = row(y, z);
        const Number *__restrict south = row(y - 1, z), *__restrict north = row(y + 1, z);
        const Number *__restrict below = row(y, z - 1), *__restrict above = row(y, z + 1);
        const Number *__restrict fs = face_y + (y & 1) * line + margin, *__restrict fn = face_y + (~y & 1) * line + margin;
        const Number *__restrict fb = faces(y, z), *__restrict fa = faces(y, z + 1);
        const Number* __restrict f = fx;
        Number* __restrict to = q + margin;
        const Number shift = static_cast<Number>(t.a.shift);
        for (i64 i = 0; i < n; ++i) {
            const Number here = c[i];
            Number sum = f[i] * (here - c[i - 1]) + f[i + 1] * (here - c[i + 1]);
            sum += fs[i] * (here - south[i]) + fn[i] * (here - north[i]);
            sum += fb[i] * (here - below[i]) + fa[i] * (here - above[i]);
            to[i] = sum + shift * here;
        }
        for (i64 i = t.a.nx; i < n; ++i) to[i] = Number(0);
        Vectors::store(t.q, t.q.scale, at, n, to);
        pq.add(c, to, n);
        pp.add(c, c, n);
        qq.add(to, to, n);
    }

    void run(double* sums) {
        pq.clear();
        pp.clear();
        qq.clear();
        for (i64 z = z0 - 1; z < z0 + 1; ++z)
            for (i64 y = y0 - 1; y <= y1; ++y) direction(y, z);
        load_z(z0);
        for (i64 z = z0; z < z1; ++z) {
            for (i64 y = y0 - 1; y <= y1; ++y) direction(y, z + 1);
            load_z(z + 1);
            load_y(y0, z);
            for (i64 y = y0; y < y1; ++y) image(y, z);
        }
        sums[0] = pq.total();
        sums[1] = pp.total();
        sums[2] = qq.total();
    }
};

template <class Vectors, class Faces>
void direction_pieces(const DirectionUpdate& t, void* room, i64 first, i64 last) {
    for (i64 item = first; item < last; ++item)
        Piece<Vectors, Faces>(t, item, static_cast<typename Vectors::Number*>(room)).run(t.sums + 3 * item);
}

template <class Vectors>
void residual_rows_of(const ResidualUpdate& job, i64 first, i64 last) {
    using Number = typename Vectors::Number;
    alignas(64) Number r[tile], old[tile], q[tile];
    const Number alpha = static_cast<Number>(job.alpha);
    for (i64 item = first; item < last; ++item) {
        Sums<Number> now, mixed;
        now.clear();
        mixed.clear();
        const i64 end = least(job.rows, (item + 1) * residual_rows) * job.stride;
        for (i64 at = item * residual_rows * job.stride; at < end; at += tile) {
            const i64 n = least(tile, end - at);
            Vectors::load(job.r, at, n, old);
            Vectors::load(job.q, at, n, q);
            for (i64 i = 0; i < n; ++i) r[i] = old[i] - alpha * q[i];
            Vectors::store(job.r, job.r_scale, at, n, r);
            now.add(r, r, n);
            mixed.add(r, old, n);
        }
        job.sums[2 * item] = now.total();
        job.sums[2 * item + 1] = mixed.total();
    }
}

template <class Vectors>
void pack_rows_of(const Pack& job, i64 first, i64 last) {
    using Number = typename Vectors::Number;
    alignas(64) Number v[longest_row], p[longest_row];
    for (i64 item = first; item < last; ++item) {
        Sums<Number> now, mixed;
        now.clear();
        mixed.clear();
        const i64 end = least(job.rows, (item + 1) * residual_rows);
        for (i64 row = item * residual_rows; row < end; ++row) {
            const double* from = job.from + row * job.nx;
            for (i64 i = 0; i < job.nx; ++i) v[i] = static_cast<Number>(from[i]);
            for (i64 i = job.nx; i < job.stride; ++i) v[i] = Number(0);
            Vectors::store(job.to, job.to.scale, row * job.stride, job.stride, v);
            Vectors::load(job.p, row * job.stride, job.stride, p);
            now.add(v, v, job.stride);
            mixed.add(v, p, job.stride);
        }
        job.sums[2 * item] = now.total();
        job.sums[2 * item + 1] = mixed.total();
    }
}

i64 direction_workspace(const DirectionUpdate& t) {
    const i64 numbers = Piece<CellsF32, CellsF32>::numbers(t.a);
    return numbers * (t.r.storage == Storage::f64 ? 8 : 4);
}

void direction_all(const DirectionUpdate& t, void* room, i64 first, i64 last) {
    const bool wide_faces = t.a.x.storage == Storage::f32;
    switch (t.r.storage) {
        case Storage::f64: return direction_pieces<CellsF64, CellsF64>(t, room, first, last);
        case Storage::f32: return direction_pieces<CellsF32, CellsF32>(t, room, first, last);
        case Storage::f16:
            if (t.a.x.storage == Storage::i16) return direction_pieces<CellsF16, CellsI16>(t, room, first, last);
            return wide_faces ? direction_pieces<CellsF16, CellsF32>(t, room, first, last) : direction_pieces<CellsF16, CellsF16>(t, room, first, last);
        case Storage::i16:
            return wide_faces ? direction_pieces<CellsI16, CellsF32>(t, room, first, last)
                              : direction_pieces<CellsI16, CellsI16>(t, room, first, last);
    }
}

void residual_all(const ResidualUpdate& job, i64 first, i64 last) {
    switch (job.r.storage) {
        case Storage::f64: return residual_rows_of<CellsF64>(job, first, last);
        case Storage::f32: return residual_rows_of<CellsF32>(job, first, last);
        case Storage::f16: return residual_rows_of<CellsF16>(job, first, last);
        case Storage::i16: return residual_rows_of<CellsI16>(job, first, last);
    }
}

void pack_all(const Pack& job, i64 first, i64 last) {
    switch (job.to.storage) {
        case Storage::f64: return pack_rows_of<CellsF64>(job, first, last);
        case Storage::f32: return pack_rows_of<CellsF32>(job, first, last);
        case Storage::f16: return pack_rows_of<CellsF16>(job, first, last);
        case Storage::i16: return pack_rows_of<CellsI16>(job, first, last);
    }
}

}  // namespace
