// The threads that PyTorch works with, which our calls take too where they can.
#pragma once

namespace fewbits {

// As run_parallel, with the team of OpenMP that PyTorch's operations run in; returns false, with nothing done, where there is
// none to take: without PyTorch, in any thread but the process's first, and in a forked child.
//
// After its work that team looks for more for some milliseconds before it sleeps, and keeps the cores busy that other threads
// want meanwhile: of calls of ours right behind one of PyTorch's, those of eight milliseconds took a quarter longer by the pool.
bool run_in_team(int threads, void (*run)(void* work, int part, int parts), void* work);

}  // namespace fewbits
