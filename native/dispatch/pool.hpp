// Threads that wait for work: they survive from call to call, and a process that forks starts new ones.
#pragma once

namespace fewbits {

// Calls run(work, i, parts) once for each i below `parts` and returns when all are done. Each part has a thread of its own,
// but for those that do not wake in time: the caller's takes their parts when it is through with its own.
// `parts` is at most `threads`, and less where the system gives no more threads; it is one while another thread of the
// process has the pool.
//
// Where PyTorch is loaded its threads do the work: `team`.
void run_parallel(int threads, void (*run)(void* work, int part, int parts), void* work);

}  // namespace fewbits
