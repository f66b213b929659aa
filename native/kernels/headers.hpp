// What the files of kernels/ need from outside their namespace.
#pragma once

// Included outside of any namespace, before one is opened: the kernels themselves are compiled once for each
// instruction set, jobs and intrinsics are the same for all.
#include "jobs/additions.hpp"
#include "jobs/conversion.hpp"
#include "jobs/counter_uniform.hpp"
#include "jobs/dense.hpp"
#include "jobs/feedback.hpp"
#include "jobs/format.hpp"
#include "jobs/gemv.hpp"
#include "jobs/geometry.hpp"
#include "jobs/integers.hpp"
#include "jobs/kernels.hpp"
#include "jobs/lattice.hpp"
#include "jobs/layout.hpp"
#include "jobs/lu.hpp"
#include "jobs/nm_lines.hpp"
#include "jobs/nm_permutation.hpp"
#include "jobs/planes.hpp"
#include "jobs/sparse_rows.hpp"
#include "jobs/stencil.hpp"
#include "jobs/systems.hpp"
#include "jobs/tally.hpp"
#include "jobs/top_k.hpp"
#include "jobs/triangles.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif
