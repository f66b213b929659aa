// Where the values of an array lie.
#pragma once

#include <cstdint>

namespace fewbits {

constexpr int most_axes = 8;

// Where the values lie, counted in values. A line runs along the block axis; `extent` lists the other axes, the outer
// first. `place` is the place of a value in the C order of the array; fake quantization writes there.
struct Geometry {
    std::int64_t n;  // values in a line
    std::int64_t step, place_step;
    std::int32_t axes;
    std::int64_t extent[most_axes], stride[most_axes], place_stride[most_axes];
};

}  // namespace fewbits
