// What the files of ops/ need from outside their namespace.
#pragma once

#include "../job.hpp"
#include "../lattice.hpp"
#include "../layout.hpp"
#include "../residuals.hpp"
#include "../triangles.hpp"
#include "../rows.hpp"
#include "../stencil.hpp"
#include "../nm_permutation.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif
