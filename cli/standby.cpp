// wd standby: the guests are written to the disk; the next call wakes them.

#include "cli/args.hpp"
#include "cli/report.hpp"
#include "cli/verbs.hpp"

namespace wd::cli {

Result<int> run_standby(const Words& words) {
    std::vector<std::string> ids;
    bool json = false;
    Args args("standby", "[OPTIONS] ID...", "Park sandboxes: memory and processes go to the disk.",
              "The next wd exec wakes a sandbox as it was; so does wd start. Refused while a\n"
              "command runs in it. After its --idle-timeout a sandbox goes there by itself.");
    args.positionals("ID", ids, true);
    args.flag("--json", json, "print JSON: {id, error?}, an array for several");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    return run_on_each(*bus, ids, {.member = "Standby", .options = {}, .json = json});
}

} // namespace wd::cli
