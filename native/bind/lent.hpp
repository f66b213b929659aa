// Memory that Python lends to a call: an array, or a tuple that begins with an address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "bind/bind.hpp"
#include "jobs/conversion.hpp"

namespace fewbits {

// What a call reads or writes, in C order unless a geometry says otherwise. A tensor of torch comes as a tuple, because to
// make an array of it takes longer than to round a few thousand values: (address, extents), two at most, where `Array` has
// a type, else (address, count, number of the Real). Whoever makes the tuple keeps the tensor alive.
template <class Array>
struct Lent {
    using Pointer = decltype(std::declval<const Array&>().data());

    static constexpr bool typed = !std::is_void_v<std::remove_pointer_t<Pointer>>;
    static constexpr std::size_t most_axes = 2;

    Array array;  // keeps the memory alive; invalid where a tuple was given
    Pointer address = nullptr;
    std::size_t axes = 1;
    std::size_t extent[most_axes] = {0, 1};
    Real type = Real::f32;  // of a tuple, where `Array` has none

    Pointer data() const { return address; }
    std::size_t size() const { return array.is_valid() ? array.size() : extent[0] * extent[1]; }
    std::size_t ndim() const { return array.is_valid() ? array.ndim() : axes; }
    std::size_t shape(std::size_t i) const { return array.is_valid() ? array.shape(i) : extent[i]; }
};

// Reads a tuple of two or three numbers; false leaves it to the caller to refuse the argument.
inline bool read_numbers(PyObject* tuple, std::uint64_t* numbers, Py_ssize_t count) noexcept {
    for (Py_ssize_t i = 0; i < count; ++i) {
        numbers[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, i));
        if (numbers[i] == ~std::uint64_t{0} && PyErr_Occurred() != nullptr) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

}  // namespace fewbits

template <class Array>
struct nanobind::detail::type_caster<fewbits::Lent<Array>> {
    NB_TYPE_CASTER(fewbits::Lent<Array>, make_caster<Array>::Name + const_name(" | tuple[int, ...]"))

    bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
        if (PyTuple_CheckExact(src.ptr())) return from_tuple(src.ptr());
        make_caster<Array> array;
        if (!array.from_python(src, flags, cleanup)) return false;
        value.array = array.value;
        value.address = value.array.data();
        return true;
    }

  private:
    bool from_tuple(PyObject* tuple) noexcept {
        std::uint64_t numbers[1 + fewbits::Lent<Array>::most_axes] = {};
        const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
        if (count < (value.typed ? 2 : 3) || count > 3 || !fewbits::read_numbers(tuple, numbers, count)) return false;
        value.address = reinterpret_cast<typename fewbits::Lent<Array>::Pointer>(static_cast<std::uintptr_t>(numbers[0]));
        value.extent[0] = static_cast<std::size_t>(numbers[1]);
        if (!value.typed) {
            if (numbers[2] > static_cast<std::uint64_t>(fewbits::Real::f16)) return false;
            value.type = static_cast<fewbits::Real>(numbers[2]);
        } else if (count == 3) {
            value.axes = 2;
            value.extent[1] = static_cast<std::size_t>(numbers[2]);
        }
        return value.address != nullptr || value.size() == 0;  // what torch has given back has no address
    }
};
