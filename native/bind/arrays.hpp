// Arrays that come from Python, and the checks that guard memory; the Python side has messages for people.
#pragma once

#include <optional>

#include "bind/lent.hpp"
#include "jobs/layout.hpp"

namespace fewbits {

using Values = Lent<nb::ndarray<nb::device::cpu>>;
using ConstValues = Lent<nb::ndarray<nb::ro, nb::device::cpu>>;
using Bytes = Lent<nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>>;
using ConstBytes = Lent<nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>>;
using Floats = Lent<nb::ndarray<float, nb::c_contig, nb::device::cpu>>;
using ConstFloats = Lent<nb::ndarray<const float, nb::c_contig, nb::device::cpu>>;

// The ranges that the kernels rely on; defined in format.cpp.
void check(const Format& f);

template <class Array>
void check_aligned(const Array& x, std::size_t size) {
    require(reinterpret_cast<std::uintptr_t>(x.data()) % size == 0, "an address is no multiple of the size of a value");
}

inline std::size_t bytes_of(Real type) { return type == Real::f32 ? 4 : 2; }

// What the values of an array are. bfloat16 arrays of NumPy come as their 16-bit patterns.
template <class Array>
Real type_of_array(const Array& x) {
    const nb::dlpack::dtype t = x.dtype();
    check_aligned(x, t.bits == 32 ? 4 : 2);
    if (t.lanes == 1 && t.bits == 32 && t.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float))
        return Real::f32;
    require(t.lanes == 1 && t.bits == 16, "values must be float32, float16 or bfloat16");
    return t.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) ? Real::f16 : Real::bf16;
}

// The same of memory that may be lent.
template <class Lent>
Real type_of(const Lent& x) {
    if (x.array.is_valid()) return type_of_array(x.array);
    check_aligned(x, bytes_of(x.type));
    return x.type;
}

// Sizes of the packed parts, which the kernels write or read whole.
template <class Codes, class Parts, class Outers>
void check_parts(const Format& f, const Geometry& g, const Codes& codes, const std::optional<Parts>& scales,
                 const std::optional<Parts>& shifts, const std::optional<Outers>& outer) {
    const std::int64_t lines = lines_in(g);
    const LineBytes bytes = line_bytes(f, g.n);
    const auto holds = [](const auto& part, std::int64_t size) {
        return part.has_value() && static_cast<std::int64_t>(part->size()) == size;
    };
    require(static_cast<std::int64_t>(codes.size()) == lines * bytes.codes, "codes have the wrong size");
    if (f.scales == Scales::none) return;
    require(holds(scales, one_scale(f) ? bytes_for(1, f.scale_bits) : lines * bytes.scales), "scales have the wrong size");
    if (f.scales == Scales::shifted && f.shift_bits) require(holds(shifts, lines * bytes.shifts), "shifts have the wrong size");
    if (f.scales != Scales::two_level) return;
    require(holds(outer, f.whole_known ? 1 : lines), "outer has the wrong size");
    check_aligned(*outer, sizeof(float));
}

// Where a part begins; null where the format has no such part.
template <class T>
auto* data_of(const std::optional<T>& part) {
    return part.has_value() ? part->data() : nullptr;
}

}  // namespace fewbits
