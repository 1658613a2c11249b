// wd version: this program's and the running daemon's.

#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/verbs.hpp"

#include <fmt/format.h>

namespace wd::cli {

Result<int> run_version(const Words& words) {
    bool json = false;
    Args args("version", "[--json]", "Print the versions of wd and of the running workdird.",
              "A workdird that does not answer is not an error here; wd doctor says more.");
    args.flag("--json", json, "print JSON: {wd, workdird}; null when it does not answer");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto daemon = Bus::open().and_then(
        [](Bus&& bus) { return bus.property({.timeout = std::chrono::seconds(5)}, "Version"); });
    const bool known = daemon && daemon->is_string();
    if (json) {
        return print_json({{"wd", WORKDIR_VERSION}, {"workdird", known ? *daemon : Json()}});
    }
    if (!known) {
        note(daemon ? "workdird sent no version" : daemon.error().message);
    }
    return print(fmt::format("wd        {}\nworkdird  {}\n", WORKDIR_VERSION,
                             known ? daemon->get<std::string>() : "not reachable"));
}

} // namespace wd::cli
