// What Python sees of dense matrices in double precision: checks, unwraps and calls.
#include <nanobind/stl/optional.h>

#include <optional>
#include <vector>

#include "bind/bind.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/lu.hpp"
#include "dispatch/parallel.hpp"
#include "dispatch/scratch.hpp"

using namespace fewbits;

namespace {

using Matrix = nb::ndarray<const double, nb::ndim<2>, nb::device::cpu>;
template <class T>
using Square = nb::ndarray<const T, nb::ndim<2>, nb::device::cpu>;
using Given = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Taken = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rounded = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Factored = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;
using Places = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Exchanges = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Line = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

DenseRows rows_of(const Matrix& a) {
    require(a.stride(1) == 1 || a.shape(1) <= 1, "the values of a row follow each other");
    return {
        .m = static_cast<std::int64_t>(a.shape(0)),
        .n = static_cast<std::int64_t>(a.shape(1)),
        .row = a.stride(0),
        .a = a.data(),
    };
}

void residuals_of(const Matrix& a, const Given& x, const Given& b, const Taken& r, const Taken& sizes, int threads) {
    const DenseRows rows = rows_of(a);
    const std::size_t k = x.shape(0), m = a.shape(0);
    require(x.shape(1) == a.shape(1), "a value of x for each column");
    require(b.shape(0) == k && r.shape(0) == k && sizes.shape(0) == k, "as many right-hand sides as solutions");
    require(b.shape(1) == m && r.shape(1) == m && sizes.shape(1) == m, "a value of b, r and sizes for each row");
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    const double* value = x.data();
    std::vector<double> high(x.size()), low(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {  // Dekker: the upper 26 bits, rounded, and the rest
        const double far = value[i] * 134217729.0;
        high[i] = far - (far - value[i]);
        low[i] = value[i] - high[i];
    }
    const Residuals job{
        .a = rows,
        .k = static_cast<std::int64_t>(k),
        .x = value,
        .high = high.data(),
        .low = low.data(),
        .b = b.data(),
        .r = r.data(),
        .sizes = sizes.data(),
    };
    residuals(implementation.systems, job, threads);
}

void extents_of(const Matrix& a, const Line& largest, const Line& sums, const Line& columns, const std::optional<Rounded>& single,
                const std::optional<Line>& left, const std::optional<Line>& right, int threads) {
    const DenseRows rows = rows_of(a);
    require(largest.size() == a.shape(0) && sums.size() == a.shape(0), "a value for each row");
    require(columns.size() == a.shape(1), "a value for each column");
    require(left.has_value() == right.has_value(), "powers of two for rows and columns, or for neither");
    require(!left || (left->size() == a.shape(0) && right->size() == a.shape(1)), "a power of two for each row and column");
    require(!single || (single->shape(0) == a.shape(0) && single->shape(1) == a.shape(1)), "a rounded value for each value");
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    const Extents job{
        .a = rows,
        .left = left ? left->data() : nullptr,
        .right = right ? right->data() : nullptr,
        .largest = largest.data(),
        .sums = sums.data(),
        .single = single ? single->data() : nullptr,
    };
    extents(implementation.systems, job, columns.data(), threads);
}

template <class T>
void substitute_in(const Square<T>& t, const Taken& x, bool upper, bool unit, bool transposed, int threads) {
    require(t.stride(1) == 1 || t.shape(1) <= 1, "the values of a row follow each other");
    require(t.shape(0) == t.shape(1), "as many rows as columns");
    require(x.shape(1) == t.shape(0), "a value of x for each row");
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    const Triangle<T> job{
        .n = static_cast<std::int64_t>(t.shape(0)),
        .row = t.stride(0),
        .sides = static_cast<std::int64_t>(x.shape(0)),
        .values = t.data(),
        .upper = upper,
        .unit = unit,
        .transposed = transposed,
        .x = x.data(),
    };
    substitute(implementation.systems, job, threads);
}

template <class T>
void factorize_in(const Factored<T>& a, const Places& exchanges, int threads) {
    require(a.stride(1) == 1 || a.shape(1) <= 1, "the values of a row follow each other");
    require(a.shape(0) >= a.shape(1), "at least as many rows as columns");
    require(exchanges.size() == a.shape(1), "an exchange for each column");
    const auto m = static_cast<std::int64_t>(a.shape(0)), n = static_cast<std::int64_t>(a.shape(1));
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    const Lu<T> lu{.a = a.data(), .row = a.stride(0), .m = m, .n = n, .exchanges = exchanges.data()};
    factorize_lu(implementation.systems, lu, threads);
}

void exchange_in(const Factored<float>& a, const Exchanges& exchanges, int threads) {
    require(a.stride(1) == 1 || a.shape(1) <= 1, "the values of a row follow each other");
    const auto m = static_cast<std::int64_t>(a.shape(0)), count = static_cast<std::int64_t>(exchanges.size());
    require(count <= m, "at most an exchange for each row");
    for (std::int64_t i = 0; i < count; ++i) require(0 <= exchanges.data()[i] && exchanges.data()[i] < m, "rows change places with rows");
    nb::gil_scoped_release released;
    exchange_rows(a.data(), a.stride(0), static_cast<std::int64_t>(a.shape(1)), exchanges.data(), count, threads);
}

}  // namespace

void fewbits::bind_dense(nb::module_& m) {
    m.def("residuals", &residuals_of, "a"_a.noconvert(), "x"_a.noconvert(), "b"_a.noconvert(), "r"_a.noconvert(), "sizes"_a.noconvert(), "threads"_a,
          "Write b - A x, as if in twice the precision, and |A| |x| + |b|.");
    m.def("extents", &extents_of, "a"_a.noconvert(), "largest"_a.noconvert(), "sums"_a.noconvert(), "columns"_a.noconvert(),
          "single"_a.noconvert().none(), "left"_a.noconvert().none(), "right"_a.noconvert().none(), "threads"_a,
          "Write the largest magnitude and the sum of magnitudes of each row, the largest of each column, and the values as float32;"
          " of R A C, with the diagonals of R and C, if these are given.");
    constexpr auto solved = "Solve T x = b, or its transpose's, for the rows of x, in their place.";
    m.def("substitute", &substitute_in<float>, "t"_a.noconvert(), "x"_a.noconvert(), "upper"_a, "unit"_a, "transposed"_a, "threads"_a, solved);
    m.def("substitute", &substitute_in<double>, "t"_a.noconvert(), "x"_a.noconvert(), "upper"_a, "unit"_a, "transposed"_a, "threads"_a, solved);
    constexpr auto what = "Put the LU factors of a in its place, and the rows that changed places in `exchanges`.";
    m.def("factorize_lu", &factorize_in<float>, "a"_a.noconvert(), "exchanges"_a.noconvert(), "threads"_a, what);
    m.def("factorize_lu", &factorize_in<double>, "a"_a.noconvert(), "exchanges"_a.noconvert(), "threads"_a, what);
    m.def("exchange_rows", &exchange_in, "a"_a.noconvert(), "exchanges"_a.noconvert(), "threads"_a,
          "Have row i of a and row exchanges[i] change places, one after the other.");
}
