// wd start: stopped or failed sandboxes boot again on their disks.

#include "cli/args.hpp"
#include "cli/report.hpp"
#include "cli/verbs.hpp"

namespace wd::cli {

Result<int> run_start(const Words& words) {
    std::vector<std::string> ids;
    bool json = false;
    Args args("start", "[OPTIONS] ID...", "Start stopped or failed sandboxes on their disks.",
              "Processes and memory of before are gone; files are there.");
    args.positionals("ID", ids, true);
    args.flag("--json", json, "print JSON: the report, or an array of them for several");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    return run_on_each(*bus, ids,
                       {.member = "Start", .options = {}, .json = json, .print_report = true});
}

} // namespace wd::cli
