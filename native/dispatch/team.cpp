#include "dispatch/team.hpp"

#include "dispatch/relax.hpp"

#if defined(__linux__)

#include <algorithm>
#include <atomic>
#include <memory>

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fewbits {
namespace {

// The entries of the OpenMP runtime, GNU's or one that has its names, as PyTorch finds them: another library of the process
// may have brought another runtime, whose team would be one more.
struct OpenMp {
    void (*parallel)(void (*work)(void*), void* given, unsigned threads, unsigned flags);
    int (*thread)();   // which one of the team this is
    int (*threads)();  // of the team
    int (*pause)(int kind);
};

template <class Entry>
bool find(void* library, const char* name, Entry& entry) {
    entry = reinterpret_cast<Entry>(dlsym(library, name));
    return entry != nullptr;
}

// For the first thread alone.
const OpenMp* openmp_of_torch() {
    static OpenMp entries{};
    if (entries.parallel != nullptr) return &entries;
    // Only looks whether it is loaded, and is asked again by the next call if not. It is never unloaded.
    void* const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (torch == nullptr) return nullptr;
    OpenMp here{};
    const bool all = find(torch, "GOMP_parallel", here.parallel) && find(torch, "omp_get_thread_num", here.thread) &&
                     find(torch, "omp_get_num_threads", here.threads) && find(torch, "omp_pause_resource_all", here.pause);
    dlclose(torch);
    if (!all) return nullptr;
    entries = here;
    return &entries;
}

// Each thread that enters a parallel region has a team of its own. PyTorch's work is nearly always the first thread's; that
// of others, which may live for one call, is not worth a team each.
bool is_first_thread() {
    static thread_local const bool first = syscall(SYS_gettid) == getpid();
    return first;
}

std::atomic<bool> forked{false};

// A child has the records of its parent's team and none of its threads: it would wait for them forever, in PyTorch's calls as
// in ours. So the team ends before a fork, and begins anew when it is next wanted. Only who has found a team registers this.
void end_team() {
    constexpr int soft = 1;  // omp_pause_soft
    if (is_first_thread()) openmp_of_torch()->pause(soft);
}

struct Call {
    const OpenMp& openmp;
    int threads;
    void (*run)(void*, int, int);
    void* work;
    std::unique_ptr<std::atomic<bool>[]> begun;
    std::atomic<int> here{0};  // threads of the team
};

// How often a thread that is through lets others have its core: half a millisecond where none wants it.
constexpr int yields = 1000;

// One thread of the team: its own part, and then those of threads that other work still holds up.
void take_parts(void* given) {
    Call& call = *static_cast<Call*>(given);
    ++call.here;
    const int parts = std::min(call.openmp.threads(), call.threads), me = call.openmp.thread();
    for (int i = 0; i < parts; ++i)
        if (const int part = (me + i) % parts; !call.begun[part].exchange(true)) call.run(call.work, part, parts);
    // Who comes late may wait for this very core, where the system woke it: the team's own waiting would keep the core for as long
    // as the system lets it, 5 ms, beside a core that idles.
    const int all = call.openmp.threads();
    for (int i = 0; i < looks && call.here < all; ++i) relax();
    for (int i = 0; i < yields && call.here < all; ++i) sched_yield();
}

}  // namespace

bool run_in_team(int threads, void (*run)(void*, int, int), void* work) {
    if (forked || !is_first_thread()) return false;
    const OpenMp* const openmp = openmp_of_torch();
    if (openmp == nullptr) return false;
    [[maybe_unused]] static const int registered = pthread_atfork(&end_team, nullptr, [] { forked = true; });
    Call call{*openmp, threads, run, work, std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(threads)), 0};
    // Always the whole team: another number of threads would end some and start them again.
    openmp->parallel(&take_parts, &call, 0, 0);
    return true;
}

}  // namespace fewbits

#else

namespace fewbits {

bool run_in_team(int, void (*)(void*, int, int), void*) { return false; }

}  // namespace fewbits

#endif
