#pragma once
// What several verbs say about sandboxes.

#include "cli/bus.hpp"

#include <string>
#include <vector>

namespace wd::cli {

// "sb-… is ready after 2.9 s: cold_boot, tcg (unit 52, vmm 30, kernel 700, agent 20 ms)"
std::string boot_summary(const Json& report);

// The entries of Manager.List. `labels`: words KEY=VALUE that must all match.
Result<Json> list_sandboxes(Bus& bus, bool all, const std::vector<std::string>& labels);

// The same method on several sandboxes at once, a few in flight. Goes on after a failure.
struct Bulk {
    const char* member;
    Options options;
    bool json = false;
    bool ignore_missing = false;
    bool print_report = false; // the method returns a boot report
};
// Prints each word as its sandbox is done, each error on stderr. With json instead: an object
// {"id", "error"? or the report's fields} for one word, an array of them for several or none.
// Returns the exit status of the first failure, in order of `words`.
Result<int> run_on_each(Bus& bus, const std::vector<std::string>& words, const Bulk& bulk);

} // namespace wd::cli
