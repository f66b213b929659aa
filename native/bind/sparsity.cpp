// What Python sees of the search for an order of columns, and of regenerated values: checks, unwraps and calls.
#include "bind/bind.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/parallel.hpp"
#include "jobs/nm_permutation.hpp"

using namespace fewbits;

namespace {

template <class T>
using Line = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void make_permutation(NmPermutation* self, Matrix<const std::int32_t> magnitudes, Line<std::int32_t> order, Matrix<std::int32_t> edges,
                Line<std::int64_t> bases, Line<std::int64_t> scores, std::int64_t keep) {
    const auto columns = static_cast<std::int64_t>(magnitudes.shape(0)), rows = static_cast<std::int64_t>(magnitudes.shape(1));
    const auto groups = static_cast<std::int64_t>(scores.size());
    require(groups > 0 && columns % groups == 0, "whole groups of columns");
    const std::int64_t group = columns / groups;
    require(1 <= keep && keep < group && group <= largest_group, "1 <= keep < group <= 64");
    require(order.size() == magnitudes.shape(0) && bases.size() == order.size(), "an order and a base for each column");
    require(edges.shape(0) == magnitudes.shape(0) && edges.shape(1) == magnitudes.shape(1), "edges as magnitudes");
    for (std::int64_t p = 0; p < columns; ++p) require(0 <= order(p) && order(p) < columns, "the order is of columns");
    for (std::int64_t i = 0; i < columns * rows; ++i) {
        const std::int32_t v = magnitudes.data()[i];
        require(0 <= v && v <= largest_sum / rows, "magnitudes from 0 to 2^30 / rows");
    }
    new (self) NmPermutation{
        .columns = columns,
        .rows = rows,
        .group = group,
        .keep = keep,
        .magnitudes = magnitudes.data(),
        .order = order.data(),
        .edges = edges.data(),
        .bases = bases.data(),
        .scores = scores.data(),
    };
}

void evaluate_all_groups(const NmPermutation& s, int threads) {
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    evaluate_groups(implementation.kernels, s, threads);
}

std::int64_t anneal(const NmPermutation& s, Matrix<const std::int32_t> pairs, Line<const std::int64_t> allowances, Line<std::int64_t> gains) {
    require(pairs.shape(1) == 2 && pairs.shape(0) == allowances.size() && pairs.shape(0) == gains.size(),
            "two positions, an allowance and a gain for each proposal");
    for (std::size_t i = 0; i < pairs.size(); ++i)
        require(0 <= pairs.data()[i] && pairs.data()[i] < s.columns, "pairs are of positions");
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    return implementation.kernels.anneal(s, pairs.data(), allowances.data(), gains.data(), static_cast<std::int64_t>(gains.size()));
}

void counter_uniform_values(std::uint64_t seed, std::int64_t position, float unit, Line<float> out, int threads) {
    require(position >= 0, "positions are not negative");
    const Implementation& implementation = active();
    nb::gil_scoped_release released;
    const CounterUniform job{.seed = seed, .position = position, .unit = unit, .out = out.data()};
    counter_uniform(implementation.kernels, job, static_cast<std::int64_t>(out.size()), threads);
}

}  // namespace

void fewbits::bind_sparsity(nb::module_& m) {
    nb::class_<NmPermutation>(m, "NmPermutation", "Columns in an order, and what each swap of them would keep; the arrays are not copied. native/jobs/nm_permutation.hpp.")
        .def("__init__", &make_permutation, "magnitudes"_a.noconvert(), "order"_a.noconvert(), "edges"_a.noconvert(), "bases"_a.noconvert(),
             "scores"_a.noconvert(), "keep"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
             nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>());
    m.def("evaluate_groups", &evaluate_all_groups, "swaps"_a, "threads"_a, "Write edges, bases and scores of the order.");
    m.def("anneal", &anneal, "swaps"_a, "pairs"_a.noconvert(), "allowances"_a.noconvert(), "gains"_a.noconvert(),
          "Try swaps one after the other; make those whose gain and allowance are together above zero; return how many.");
    m.def("counter_uniform", &counter_uniform_values, "seed"_a, "position"_a, "unit"_a, "out"_a.noconvert(), "threads"_a,
          "Write the initial values of the positions from `position` on.");
}
