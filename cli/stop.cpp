// wd stop: the guests end in order, their disks stay.

#include "cli/args.hpp"
#include "cli/report.hpp"
#include "cli/verbs.hpp"

namespace wd::cli {

Result<int> run_stop(const Words& words) {
    std::vector<std::string> ids;
    std::optional<std::string> timeout;
    bool json = false;
    Args args("stop", "[OPTIONS] ID...", "Stop sandboxes in order; their disks stay.",
              "A sandbox that is stopped already is not an error. wd start starts it again.");
    args.positionals("ID", ids, true);
    args.option("--timeout", timeout, "DURATION",
                "how long a guest may take before it is killed (default: 10s)");
    args.flag("--json", json, "print JSON: {id, error?}, an array for several");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    Bulk bulk{.member = "Stop", .options = {}, .json = json};
    if (timeout) {
        auto limit = parse_duration(*timeout);
        if (!limit) {
            return fail(std::move(limit).error().context("--timeout"));
        }
        bulk.options.add("timeout_ms", static_cast<std::uint64_t>(limit->count()));
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    return run_on_each(*bus, ids, bulk);
}

} // namespace wd::cli
