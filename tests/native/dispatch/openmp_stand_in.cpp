// Stands in for libtorch_cpu.so and the OpenMP runtime behind it, for tests/native/dispatch/test_pool.py: ThreadSanitizer
// knows std::thread and not the real runtime. The size of a team goes from one to three, and one thread at times begins late.
#include <chrono>
#include <thread>
#include <vector>

extern "C" {

int regions = 0, pauses = 0;
static thread_local int me = 0, all = 1;

int omp_get_thread_num() { return me; }
int omp_get_num_threads() { return all; }

int omp_pause_resource_all(int) {
    ++pauses;
    return 0;
}

void GOMP_parallel(void (*work)(void*), void* given, unsigned, unsigned) {
    const int size = 1 + ++regions % 3;
    std::vector<std::thread> others;
    for (int i = 1; i < size; ++i)
        others.emplace_back([=, late = i == 1 && regions % 10 == 5] {
            if (late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            me = i, all = size;
            work(given);
        });
    all = size;
    work(given);
    all = 1;
    for (std::thread& thread : others) thread.join();
}

}
