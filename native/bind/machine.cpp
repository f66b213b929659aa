// What Python asks about this CPU and may force: instruction sets, stores past the caches, exact arithmetic; and memory.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "bind/bind.hpp"
#include "dispatch/dispatch.hpp"
#include "dispatch/exact.hpp"
#include "dispatch/nontemporal.hpp"
#include "dispatch/pages.hpp"
#include "dispatch/scratch.hpp"

using namespace fewbits;

namespace {

std::vector<std::string> isa_names(bool available) {
    std::vector<std::string> names;
    for (const Implementation& i : implementations())
        if (!available || i.runs_here()) names.emplace_back(i.name);
    return names;
}

using Octets = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The array owns the memory: it goes back when the last view of it is gone.
Octets scratch(std::size_t bytes) {
    auto* memory = new Scratch(bytes);
    const nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<Scratch*>(p); });
    return Octets(memory->data(), {bytes}, owner);
}

}  // namespace

void fewbits::bind_machine(nb::module_& m) {
    m.def("isa_names", &isa_names, "available"_a,
          "Names of the instruction sets in this build, preferred first; or only those that this CPU runs.");
    m.def("active_isa", [] { return std::string(active().name); }, "Name of the instruction set that runs.");
    m.def(
        "force_isa", [](const std::optional<std::string>& name) { force(name.value_or("")); }, "name"_a.none(),
        "Make one instruction set run, or give the choice back with None.");
    m.def("force_nontemporal", &force_nontemporal, "wanted"_a.none(),
          "Make every result go to memory past the caches, or none, or give the choice back with None.");
    m.def("scratch", &scratch, "bytes"_a, "Return memory without values that is kept in the process once the array is gone.");
    m.def(
        "ask_for_huge_pages",
        [](std::uintptr_t address, std::size_t bytes) { ask_for_huge_pages(reinterpret_cast<void*>(address), bytes); },
        "address"_a, "bytes"_a, "Ask the system for huge pages where this new memory has none yet.");
    m.def("enter_exact", &enter_exact, "Keep subnormals and round to nearest in this thread; return the state before.");
    m.def("leave_exact", &leave_exact, "saved"_a, "Give this thread the state that enter_exact returned.");
}
