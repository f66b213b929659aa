// What the files of kernels/ need from outside their namespace.
#pragma once

#include "jobs/job.hpp"
#include "jobs/lattice.hpp"
#include "jobs/layout.hpp"
#include "jobs/dense.hpp"
#include "jobs/triangles.hpp"
#include "jobs/sparse_rows.hpp"
#include "jobs/stencil.hpp"
#include "jobs/nm_permutation.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif
