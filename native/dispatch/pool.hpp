// Threads that wait for work: they survive from call to call, and a process that forks starts new ones.
#pragma once

namespace fewbits {

// Calls run(work, i, parts) once for each i below `parts`, each on a thread of its own, and returns when all are done.
// `parts` is at most `threads`, and less where the system gives no more threads; it is one while another thread of the
// process has the pool.
//
// OpenMP is not used: its runtime, which PyTorch shares with us, hangs in a child process that was forked after it ran.
void run_parallel(int threads, void (*run)(void* work, int part, int parts), void* work);

}  // namespace fewbits
