// The table of implementations: which exist, which this CPU can run, which one runs.
#pragma once

#include <string>
#include <vector>

#include "jobs/kernels.hpp"
#include "jobs/product.hpp"
#include "jobs/systems.hpp"

namespace fewbits {

struct Implementation {
    const char* name;     // the word that FEWBITS_ISA and force() take
    bool (*runs_here)();  // asks the CPU
    const Kernels& kernels;
    const Products& products;
    const Systems& systems;
    // Whether kernels may use vpdpbusd, of the width of their registers: kernels of one instruction set serve CPUs with and
    // without it.
    bool byte_products;
};

// Every implementation in this build, the preferred one first; baseline is last and runs anywhere.
const std::vector<Implementation>& implementations();

// The one that runs: the forced one, else the one that the environment variable FEWBITS_ISA names, else the first
// that runs here. Throws std::invalid_argument when the variable names one that cannot.
const Implementation& active();

// Makes `name` the one that runs, or gives the choice back when it is empty. Throws std::invalid_argument when the
// name is unknown or this CPU cannot run it; then nothing has changed.
void force(const std::string& name);

}  // namespace fewbits
