#include "dispatch/pool.hpp"

#include "dispatch/relax.hpp"
#include "dispatch/team.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace fewbits {
namespace {

// A count that threads wait for. They look at it for a while, then sleep.
class Signal {
  public:
    std::uint64_t value() const { return value_.load(std::memory_order_acquire); }

    void add(std::uint64_t by) {
        {
            const std::lock_guard<std::mutex> guard(lock_);  // so that no waiter misses it on its way to sleep
            value_.fetch_add(by, std::memory_order_release);
        }
        changed_.notify_all();
    }

    void wait(std::uint64_t wanted) {
        for (int i = 0; i < looks; ++i) {
            if (value() >= wanted) return;
            relax();
        }
        std::unique_lock<std::mutex> guard(lock_);
        changed_.wait(guard, [&] { return value() >= wanted; });
    }

  private:
    std::atomic<std::uint64_t> value_{0};
    std::mutex lock_;
    std::condition_variable changed_;
};

// A thread besides the caller's: how often it was called, and whether its part is still to be taken. The caller takes
// what is left when its own part is done: another library's threads may keep a core busy for a millisecond after their
// work, and a thread that wakes too late then finds nothing to do.
struct Worker {
    Signal calls;
    std::atomic<bool> open{false};

    // Whoever takes the part reads the call after this, which is the newest one: no other begins before the part is done.
    bool take() { return open.exchange(false, std::memory_order_acq_rel); }
};

// The waiting threads and the call that they work on. It is never destroyed: they wait on it until the process ends.
struct Pool {
    std::mutex busy;             // held by the call that has the threads
    std::deque<Worker> threads;  // each has the part of its place, counted from one
    Signal done;                 // how many parts these threads have done
    // Of the call that runs; written before any part is open.
    void (*run)(void*, int, int) = nullptr;
    void* work = nullptr;
    int parts = 0;

    void serve(int part, Worker& mine) {
        for (std::uint64_t next = 1;; ++next) {
            mine.calls.wait(next);
            if (!mine.take()) continue;
            run(work, part, parts);
            done.add(1);
        }
    }

    // Starts threads up to `wanted` besides the caller's, or as many as the system gives.
    void grow(int wanted) {
        while (workers() < wanted) {
            threads.emplace_back();  // others stay where they are
            try {
                std::thread([this, part = workers(), &mine = threads.back()] { serve(part, mine); }).detach();
            } catch (const std::system_error&) {
                threads.pop_back();
                return;
            }
        }
    }

    int workers() const { return static_cast<int>(threads.size()); }
};

std::atomic<Pool*> pool{nullptr};

// In a forked child only the thread that forked lives on: the pool of the parent, and what it locks, are left alone.
void forget() { pool = nullptr; }

Pool& the_pool() {
#if defined(__unix__) || defined(__APPLE__)
    [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &forget);
#endif
    Pool* existing = pool;
    if (existing == nullptr) {
        Pool* mine = new Pool;
        if (pool.compare_exchange_strong(existing, mine)) return *mine;
        delete mine;  // another thread was first
    }
    return *existing;
}

}  // namespace

void run_parallel(int threads, void (*run)(void*, int, int), void* work) {
    Pool& p = the_pool();
    const std::unique_lock<std::mutex> mine(p.busy, std::try_to_lock);
    if (!mine || threads < 2) return run(work, 0, 1);
    if (run_in_team(threads, run, work)) return;
    p.grow(threads - 1);
    p.run = run;
    p.work = work;
    p.parts = std::min(p.workers() + 1, threads);
    const auto others = static_cast<std::uint64_t>(p.parts - 1);
    std::uint64_t all = p.done.value() + others;
    for (std::uint64_t i = 0; i < others; ++i) {
        p.threads[i].open.store(true, std::memory_order_release);
        p.threads[i].calls.add(1);
    }
    run(work, 0, p.parts);
    for (std::uint64_t i = 0; i < others; ++i) {
        if (!p.threads[i].take()) continue;
        run(work, static_cast<int>(i) + 1, p.parts);
        --all;
    }
    p.done.wait(all);
}

}  // namespace fewbits
