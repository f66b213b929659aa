// Many calls of the pool at once and one after the other, for ThreadSanitizer: tests/native/dispatch/test_pool.py.
//
// Each call has `parts` numbers to count up; a part that ran twice, or not at all, or with another call's numbers, leaves
// one that is not the call's own. Parts that do next to nothing come in between, so that the caller takes some of them
// from threads that have not woken, and some that take long enough for every thread to wake. With the argument `fork` children
// are forked between the calls, whose pool is their own. Linked with openmp_stand_in.cpp, calls of the first thread run in its team.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "dispatch/pool.hpp"

extern "C" __attribute__((weak)) int regions, pauses;  // of the stand-in, where it is linked

namespace {

bool has_team() { return &regions != nullptr; }
int regions_now() { return has_team() ? regions : 0; }

std::atomic<bool> wrong{false};

struct Call {
    long counts[8] = {};
    int work = 0;
    std::atomic<int> ran{0};
};

void part(void* given, int me, int parts) {
    Call& call = *static_cast<Call*>(given);
    if (me < 0 || me >= parts || parts > 8) wrong = true;
    volatile long* mine = &call.counts[me];  // unsynchronized on purpose; volatile, so that the compiler counts it all
    for (int i = 0; i < call.work; ++i) *mine = *mine + i;
    call.ran.fetch_add(1 << 8 | parts);
}

void calls(int seed, int times) {
    for (int i = 0; i < times; ++i) {
        Call call;
        call.work = i % 250 == 7 ? 1'000'000 : (seed + i) % 3 == 0 ? 0 : 2000;
        fewbits::run_parallel(1 + (seed + i) % 5, part, &call);
        const int ran = call.ran.load() >> 8, parts = (call.ran.load() & 0xff) / (ran ? ran : 1);
        if (ran == 0 || ran != parts) wrong = true;
        for (int p = 0; p < 8; ++p)
            if (call.counts[p] != (p < parts ? static_cast<long>(call.work) * (call.work - 1) / 2 : 0)) wrong = true;
    }
}

void at_once(int callers, int times) {
    std::vector<std::thread> threads;
    for (int i = 0; i < callers; ++i) threads.emplace_back(calls, i, times);
    for (std::thread& thread : threads) thread.join();
}

bool child_works() {
    const int before = regions_now(), ended = has_team() ? pauses : 0;
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);  // a child that hangs ends itself
        calls(0, 50);
        _exit(wrong || regions_now() != before ? 3 : 0);
    }
    if (has_team() && pauses != ended + 1) wrong = true;
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int main(int count, char** words) {
    calls(0, 500);
    const int first = regions_now();
    if (has_team() && first < 300) wrong = true;  // a fifth of the calls is for one thread
    at_once(4, 500);
    if (regions_now() != first) wrong = true;
    const bool forks = count > 1 && std::strcmp(words[1], "fork") == 0;
    for (int i = 0; forks && i < 10; ++i)
        if (!child_works()) wrong = true;
    if (forks) {  // while others are within a call
        std::thread others(at_once, 3, 500);
        for (int i = 0; i < 10; ++i)
            if (!child_works()) wrong = true;
        others.join();
    }
    std::puts(wrong ? "wrong" : "right");
    return wrong ? 1 : 0;
}
