// Spinors of a lattice in the four ways in which they are kept: loading, storing and sums.
//
// Codes as in kernels/reference/wilson.py: the largest magnitude of a site becomes 32767 or 127.

namespace {

constexpr i64 sites = lattice_sites;  // in a group: the lanes

using Doubles = double __attribute__((vector_size(vector_bytes)));
using WideDoubles = double __attribute__((vector_size(2 * vector_bytes)));  // of as many lanes as Reals
using Longs = i64 __attribute__((vector_size(vector_bytes)));
using Shorts = std::int16_t __attribute__((vector_size(vector_bytes / 2)));
using Tinies = std::int8_t __attribute__((vector_size(vector_bytes / 4)));

// `Raw` is what a number is before it is scaled: sums of codes are exact, and cost one conversion instead of two.
struct AsDouble {
    using Number = double;
    using Element = double;
    using Vector = Doubles;
    using Elements = Doubles;
    using Raw = Doubles;
    using Wide = Doubles;
    static constexpr bool coded = false;
    static constexpr Number top = 1;
};
struct AsFloat {
    using Number = float;
    using Element = float;
    using Vector = Reals;
    using Elements = Reals;
    using Raw = Reals;
    using Wide = WideDoubles;
    static constexpr bool coded = false;
    static constexpr Number top = 1;
};
struct AsHalf {
    using Number = float;
    using Element = std::int16_t;
    using Vector = Reals;
    using Elements = Shorts;
    using Raw = Bits;
    using Wide = WideDoubles;
    static constexpr bool coded = true;
    static constexpr Number top = 32767;
};
struct AsQuarter {
    using Number = float;
    using Element = std::int8_t;
    using Vector = Reals;
    using Elements = Tinies;
    using Raw = Bits;
    using Wide = WideDoubles;
    static constexpr bool coded = true;
    static constexpr Number top = 127;
};

// Lanes in one vector: 16 lanes are 1, 2, 4 or 8 of them.
template <class K>
constexpr i64 at_once = vector_bytes / static_cast<i64>(sizeof(typename K::Number));

template <class K>
inline typename K::Raw raw(const typename K::Element* from) {
    return __builtin_convertvector(read<typename K::Elements>(from), typename K::Raw);
}

template <class K>
inline typename K::Vector number(const typename K::Raw& v) {
    return __builtin_convertvector(v, typename K::Vector);
}

// The lane with bit `bit` flipped, as far as that lies within a vector; the rest is another vector: see part_of.
template <int bit>
inline Reals flipped(const Reals& v) {
    if constexpr ((i64{1} << bit) < vector) {
        Bits places;
        for (int l = 0; l < static_cast<int>(vector); ++l) places[l] = l ^ (1 << bit);
        return __builtin_shuffle(v, places);
    } else {
        return v;
    }
}

template <int bit>
inline Doubles flipped(const Doubles& v) {
    if constexpr ((i64{1} << bit) < vector / 2) {
        Longs places;
        for (int l = 0; l < static_cast<int>(vector / 2); ++l) places[l] = l ^ (1 << bit);
        return __builtin_shuffle(v, places);
    } else {
        return v;
    }
}

// Where the vector starts that holds the lanes from `lane` on with bit `bit` flipped.
template <class K, int bit>
inline i64 part_of(i64 lane) {
    return (i64{1} << bit) < at_once<K> ? lane : lane ^ (i64{1} << bit);
}

template <class K>
struct Spinors {
    typename K::Element* values;
    float* norms;
};

template <class K>
inline Spinors<K> spinors(const Field& f) {
    return {static_cast<typename K::Element*>(f.values), f.norms};
}

template <class K>
inline void load(const Spinors<K>& from, i64 group, i64 lane, typename K::Vector* v) {
    const typename K::Element* values = from.values + group * spinor_reals * sites + lane;
    for (i64 c = 0; c < spinor_reals; ++c) v[c] = number<K>(raw<K>(values + c * sites));
    if constexpr (K::coded) {
        const Reals norm = read<Reals>(from.norms + group * sites + lane);
        for (i64 c = 0; c < spinor_reals; ++c) v[c] *= norm;
    }
}

// Stores v, which becomes what a load would give.
template <class K>
inline void store(const Spinors<K>& to, i64 group, i64 lane, typename K::Vector* v) {
    typename K::Element* values = to.values + group * spinor_reals * sites + lane;
    if constexpr (K::coded) {
        constexpr i32 smallest_bits = 27 << 23;    // 2^-100: the quotient stays finite
        constexpr float nearest = 12582912.0f;     // 1.5 * 2^23: the sum's low bits are the rounded code
        Bits largest = {};
        for (i64 c = 0; c < spinor_reals; ++c) {
            const Bits magnitude = reinterpret_cast<Bits>(v[c]) & magnitude_mask;
            largest = magnitude > largest ? magnitude : largest;
        }
        // What is not finite keeps a norm that is not: the next sum tells of it.
        const Bits kept = largest >= smallest_bits;
        largest &= kept;
        const Reals most = reinterpret_cast<Reals>(largest);
        const Reals quotient = K::top / most, none = {};
        const Reals factor = kept ? quotient : none, norm = most * (1.0f / K::top);
        for (i64 c = 0; c < spinor_reals; ++c) {
            const Reals moved = v[c] * factor + nearest;
            const Bits code = reinterpret_cast<Bits>(moved);
            write(values + c * sites, __builtin_convertvector(code, typename K::Elements));
            v[c] = (moved - nearest) * norm;
        }
        write(to.norms + group * sites + lane, norm);
    } else {
        for (i64 c = 0; c < spinor_reals; ++c) write(values + c * sites, v[c]);
    }
}

// Adds the products of two spinors to one sum for each lane.
template <class K>
inline void add_products(const typename K::Vector* a, const typename K::Vector* b, double* sums) {
    using Wide = typename K::Wide;
    Wide sum;
    __builtin_memcpy(&sum, sums, sizeof sum);
    for (i64 c = 0; c < spinor_reals; ++c)
        sum += __builtin_convertvector(a[c], Wide) * __builtin_convertvector(b[c], Wide);
    __builtin_memcpy(sums, &sum, sizeof sum);
}

// Adds the lanes in their order.
inline double total(const double* sums) {
    double all = 0;
    for (i64 l = 0; l < sites; ++l) all += sums[l];
    return all;
}

// The passes in which no site sees another one.
template <class K>
void pass_over(const Lattice& job, i64 first, i64 last) {
    using Vector = typename K::Vector;
    using Number = typename K::Number;
    const Spinors<K> in = spinors<K>(job.in), out = spinors<K>(job.out);
    Number* const x = static_cast<Number*>(job.x);
    const Number alpha = static_cast<Number>(job.alpha), beta = static_cast<Number>(job.beta), gamma = static_cast<Number>(job.gamma);
    const i64 groups = groups_in_item(job);
    for (i64 item = first; item < last; ++item) {
        double lengths[sites] = {}, products[sites] = {};
        for (i64 group = item * groups; group < (item + 1) * groups; ++group)
            for (i64 lane = 0; lane < sites; lane += at_once<K>) {
                Vector a[spinor_reals], b[spinor_reals];
                const i64 place = group * spinor_reals * sites + lane;
                if (job.pass != Pass::settle) load(in, group, lane, a);
                if (job.pass == Pass::load) {
                    for (i64 c = 0; c < spinor_reals; ++c)
                        for (i64 l = 0; l < at_once<K>; ++l) b[c][l] = static_cast<Number>(job.wide[place + c * sites + l]);
                } else {
                    load(out, group, lane, b);
                    for (i64 c = 0; c < spinor_reals; ++c) {
                        Number* const to = x + place + c * sites;
                        write(to, read<Vector>(to) + alpha * b[c]);
                    }
                    if (job.pass == Pass::settle) continue;
                    for (i64 c = 0; c < spinor_reals; ++c) b[c] = gamma * a[c] + beta * b[c];
                }
                store(out, group, lane, b);
                add_products<K>(b, b, lengths + lane);
                if (job.pass == Pass::load) add_products<K>(a, b, products + lane);
            }
        job.sums[2 * item] = total(lengths);
        job.sums[2 * item + 1] = total(products);
    }
}

}  // namespace
