// Compiled with the flags that CMakeLists.txt gives this file; otherwise equal to its siblings.
#include "jobs/product.hpp"
#include "kernels/headers.hpp"

namespace fewbits::amx {
namespace {
#include "kernels/gemm/product.inc.hpp"
}  // namespace

extern const Products products;
const Products products = product::functions;
}  // namespace fewbits::amx
