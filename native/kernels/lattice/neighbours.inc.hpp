// Where the neighbours of a group of sites lie; see jobs/lattice.hpp.
#pragma once

namespace neighbours {

struct Neighbours {
    i64 up[4], down[4];  // groups, directions x, y, z, t
    bool up_crosses[4], down_crosses[4];
};

inline void find(const Lattice& job, i64 group, const i64* place, Neighbours& n) {
    // Groups along an axis are `step` apart; the last one's neighbour is the first, in the next part.
    i64 step = 1;
    for (int mu = 0; mu < 4; ++mu) {
        const i64 size = job.extent[3 - mu], at = place[mu];
        n.up_crosses[mu] = at == size - 1;
        n.down_crosses[mu] = at == 0;
        n.up[mu] = group + (n.up_crosses[mu] ? 1 - size : 1) * step;
        n.down[mu] = group + (n.down_crosses[mu] ? size - 1 : -1) * step;
        // Where the lattice goes on in another process: the place of this group in the face, which has no such axis.
        const i64 face = group / (step * size) * step + group % step;
        if (n.up_crosses[mu] && job.above[mu] >= 0) n.up[mu] = job.above[mu] + face;
        if (n.down_crosses[mu] && job.below[mu] >= 0) n.down[mu] = job.below[mu] + face;
        step *= size;
    }
}

}  // namespace neighbours
