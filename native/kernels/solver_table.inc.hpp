// The table of one instruction set's kernels that solve linear systems.
#pragma once

#include "kernels/dense/eliminated_columns.inc.hpp"
#include "kernels/dense/residuals.inc.hpp"
#include "kernels/dense/triangles.inc.hpp"
#include "kernels/dense/updated_columns.inc.hpp"
#include "kernels/lattice/passes.inc.hpp"
#include "kernels/sparse/rows.inc.hpp"
#include "kernels/stencil/direction.inc.hpp"
#include "kernels/stencil/residual.inc.hpp"

namespace solver_table {

// Of what there is for float32 and for float64, the parts for one of them.
template <class T>
constexpr LuKernels<T> lu = {
    .panel = updated_columns::columns_of_panel<T>,
    .factorize_columns = eliminated_columns::factorize_columns<T>,
    .solve_upper_rows = updated_columns::solve_upper_rows<T>,
    .subtract_lower_rows = updated_columns::subtract_lower_rows<T>,
};

template <class T>
constexpr TriangleKernels<T> triangles_of = {
    .substitute = triangles::substitute<T>,
    .subtract_solved = triangles::subtract_solved<T>,
};

// The operators of solvers, conjugate gradients on grids and lattices, and dense systems; what a function does is said in
// jobs/systems.hpp, and the rules are those of table.inc.hpp. This table is apart from that one since no instruction newer
// than AVX-512 serves it: sets that have a table of their own there share this one.
constexpr Systems functions = {
    .lattice = passes::lattice,
    .direction_workspace = direction::direction_workspace,
    .update_direction = direction::update_direction,
    .update_residual = residual::update_residual,
    .pack = residual::pack_rows,
    .multiply_rows = rows::multiply_rows,
    .residuals = residuals::residuals,
    .extents = residuals::extents,
    .triangles = triangles_of<float>,
    .triangles_double = triangles_of<double>,
    .lu = lu<float>,
    .lu_double = lu<double>,
};

}  // namespace solver_table
