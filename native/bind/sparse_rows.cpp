// What Python sees of compressed rows: checks, unwraps and calls; no arithmetic.
#include <algorithm>

#include "bind/bind.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"

using namespace fewbits;

namespace {

template <class T>
using Line = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Rows whose every column lies within `columns`.
struct HeldRows {
    SparseRows rows;
    std::int64_t columns;
};

template <class Column>
std::int64_t end_of(const SparseRows& a) {
    const auto* columns = static_cast<const Column*>(a.columns);
    std::int64_t end = 0;
    for (std::int64_t segment = 0; segment < a.first[a.slices]; ++segment)
        for (std::int64_t k = a.start[segment]; k < a.start[segment + 1]; ++k)
            if (a.runs[k] >= 0) end = std::max(end, a.base[segment] + a.runs[k] + slice);
    for (std::int64_t segment = 0; segment < a.first[a.slices]; ++segment)
        for (std::int64_t i = slice * a.start[segment]; i < slice * a.start[segment + 1]; ++i) {
            require(columns[i] >= 0, "columns are not negative");
            end = std::max(end, a.base[segment] + static_cast<std::int64_t>(columns[i]) + 1);
        }
    return end;
}

void make_rows(HeldRows* self, std::int64_t rows, Line<std::int64_t> first, Line<std::int64_t> start, Line<std::int64_t> base,
               Storage storage, Numbers values, Numbers columns, Line<std::int32_t> runs, Line<float> unit, Line<std::int32_t> place) {
    const auto slices = static_cast<std::int64_t>(first.size()) - 1, segments = static_cast<std::int64_t>(base.size());
    require(rows >= 0 && slices == (rows + slice - 1) / slice, "16 rows in a slice");
    require(static_cast<std::int64_t>(start.size()) == segments + 1, "start: one more than segments");
    require(first(0) == 0 && start(0) == 0 && first(slices) == segments, "segments begin at 0 and are all of a slice");
    for (std::int64_t s = 0; s < slices; ++s) require(first(s) <= first(s + 1), "slices rise");
    for (std::int64_t s = 0; s < segments; ++s) require(start(s) <= start(s + 1) && base(s) >= 0, "segments rise");
    const auto count = static_cast<std::size_t>(slice * start(segments));
    require(storage != Storage::f64 && values.size() == count && columns.size() == count, "a value and a column for each entry");
    require(runs.size() == count / slice, "runs: one for 16 entries");
    require(values.itemsize() == (storage == Storage::f32 ? 4u : 2u), "values have another size than their storage says");
    require(columns.itemsize() == 2 || columns.itemsize() == 4, "columns have 16 or 32 bits");
    require(static_cast<std::int64_t>(unit.size()) == slice * slices && unit.size() == place.size(), "a unit and a place for each lane");
    for (std::size_t i = 0; i < place.size(); ++i) require(place(i) < rows, "places are rows");
    const SparseRows a{
        .rows = rows,
        .slices = slices,
        .first = first.data(),
        .start = start.data(),
        .base = base.data(),
        .storage = storage,
        .wide = columns.itemsize() == 4,
        .values = values.data(),
        .columns = columns.data(),
        .runs = runs.data(),
        .unit = unit.data(),
        .place = place.data(),
    };
    new (self) HeldRows{.rows = a, .columns = a.wide ? end_of<std::int32_t>(a) : end_of<std::uint16_t>(a)};
}

void multiply_rows(const HeldRows& a, Line<float> x, Result y, int threads) {
    require(static_cast<std::int64_t>(x.size()) >= a.columns, "x has a value for each column");
    require(static_cast<std::int64_t>(y.size()) == a.rows.rows, "y has a value for each row");
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    multiply(implementation.systems, a.rows, x.data(), y.data(), threads);
}

}  // namespace

void fewbits::bind_sparse_rows(nb::module_& m) {
    nb::class_<HeldRows>(m, "SparseRows", "Compressed rows; the arrays are not copied. native/jobs/sparse_rows.hpp.")
        .def("__init__", &make_rows, "rows"_a, "first"_a.noconvert(), "start"_a.noconvert(), "base"_a.noconvert(), "storage"_a,
             "values"_a.noconvert(), "columns"_a.noconvert(), "runs"_a.noconvert(), "unit"_a.noconvert(), "place"_a.noconvert(), nb::keep_alive<1, 3>(),
             nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>(),
             nb::keep_alive<1, 10>(), nb::keep_alive<1, 11>());
    m.def("multiply_rows", &multiply_rows, "a"_a, "x"_a.noconvert(), "y"_a.noconvert(), "threads"_a, "Write A x into y.");
}
