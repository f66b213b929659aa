// What one pass over a four-dimensional lattice is, as plain numbers.
//
// A lattice of T x Z x Y x X sites, all even, is cut in two along each axis. The 16 sites at the same place of the 16
// parts are one group, the lanes of a vector: lane 8 t + 4 z + 2 y + x lies in the upper half of the axes whose bit is
// set. A neighbour is then the same lane of another group, and where the walk leaves a part, the lane with that bit
// flipped. A field holds, for each group, its numbers one after the other with 16 lanes each.
#pragma once

#include <cstdint>

namespace fewbits {

constexpr std::int64_t lattice_sites = 16;
constexpr std::int64_t spinor_reals = 24;  // 4 spins x 3 colours x real and imaginary part
constexpr std::int64_t colour_reals = 6;   // staggered fermions have one spin
constexpr std::int64_t block_reals = 36;   // of a Hermitian 6x6 matrix: the diagonal, then parts of what is below it
// Doubles that together are exactly the sum of all sites of an item: each takes at least 29 of the 2098 bits that doubles
// may span.
constexpr std::int64_t most_parts = 72;

// How the numbers of a field lie in memory. Codes of a spinor have a norm, a float32 for each site; those of links are
// multiples of 1/32767 or 1/127.
enum class FieldStorage : std::int32_t { f64, f32, i16, i8 };

enum class Pass : std::int32_t {
    hop,     // out = diagonal own - hopping (sum over the neighbours in), times gamma5 if chiral; sums: |out|^2
    update,  // out -= alpha times that; sums: |out|^2, and old out times new out
    update_direction,  // x += alpha out; out = gamma in + beta out; sums: |out|^2
    update_solution,  // x += alpha out
    store_residual,  // out = wide; sums: |out|^2, and out times in
};

struct Field {
    void* values;  // (groups, 24, 16), or 6 in place of 24
    float* norms;  // (groups, 16); null where values are no codes
};

// Hermitian blocks of a clover term, two for each site, that multiply `own`, or the whole result.
struct Blocks {
    const void* values;  // (groups, 2, 36, 16), of the storage of the fields; null without blocks
    const float* norms;  // (groups, 2, 16); null where values are no codes
    bool on_result;
};

struct Lattice {
    Pass pass;
    FieldStorage storage;             // of in, out and links; all arithmetic is float32 except with f64
    std::int32_t reals;               // of a site: 24 for Wilson fermions, 6 for staggered ones
    std::int64_t extent[4];   // groups along T, Z, Y, X
    // Along an axis that is split over processes (directions x, y, z, t), the groups beyond the first and the last ones
    // lie behind the others, as many as a face has, from these on: in their lanes what comes from the other process
    // already stands where its neighbour expects it. -1 where an axis closes in itself.
    std::int64_t below[4], above[4];
    std::int32_t numbers;     // of a link: 18, 12 or 8
    const void* links;        // (groups, 4, numbers, 16); directions in the order x, y, z, t
    Blocks blocks;
    double diagonal, hopping;  // 4 + mass and 1/2 are the Wilson operator
    bool chiral;
    // The sites that are visited: all, or those whose group has this parity, -1 for all. Where each axis has an even
    // number of groups, that is the parity of all 16 sites of a group.
    std::int32_t parity;
    Field in, own, out;
    void* x;             // (groups, reals, 16), float64 with f64 and else float32
    const double* wide;  // (groups, reals, 16)
    double alpha, beta, gamma;
    double* site_sums;  // two for each site of an item: memory of one thread
    double* parts;      // (items, 2, most_parts), zeros before the pass
};

// An item is all groups of one T and Z.
static inline std::int64_t items_of(const Lattice& job) { return job.extent[0] * job.extent[1]; }
static inline std::int64_t groups_in_item(const Lattice& job) { return job.extent[2] * job.extent[3]; }

// Whether a pass visits the group at place (y, x) of an item.
static inline bool visits(const Lattice& job, std::int64_t item, std::int64_t y, std::int64_t x) {
    return job.parity < 0 || ((item / job.extent[1] + item % job.extent[1] + y + x) & 1) == job.parity;
}

}  // namespace fewbits
