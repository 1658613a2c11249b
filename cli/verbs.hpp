#pragma once
// The verbs of wd, one file each. Each takes the words after its own name and returns the exit
// status, or an Error that the caller reports (with --json among the words: as JSON too).

#include "util/result.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace wd::cli {

using Words = std::vector<std::string>;

struct Verb {
    std::string_view name;
    std::string_view summary;
    Result<int> (*run)(const Words& words);
};

const std::vector<Verb>& verbs();

Result<int> run_create(const Words& words);
Result<int> run_exec(const Words& words); // reports by itself: 125, 126, 127
Result<int> run_ls(const Words& words);
Result<int> run_inspect(const Words& words);
Result<int> run_stop(const Words& words);
Result<int> run_standby(const Words& words);
Result<int> run_start(const Words& words);
Result<int> run_rm(const Words& words);
Result<int> run_logs(const Words& words);
Result<int> run_image(const Words& words);
Result<int> run_doctor(const Words& words);
Result<int> run_version(const Words& words);

// Everything after the program's name.
int run(const Words& words);

// --json among the words, before a "--".
bool wants_json(const Words& words);

} // namespace wd::cli
