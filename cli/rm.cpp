// wd rm: sandboxes go, in whatever state they are, with their disks.

#include "cli/args.hpp"
#include "cli/report.hpp"
#include "cli/verbs.hpp"

namespace wd::cli {

Result<int> run_rm(const Words& words) {
    std::vector<std::string> ids;
    std::vector<std::string> labels;
    bool all = false;
    bool force = false;
    bool json = false;
    Args args("rm", "[OPTIONS] ID... | --all | --label KEY=VALUE",
              "Remove sandboxes with their disks, in whatever state they are.",
              "Goes on after an error and reports each; the exit status is that of the first.");
    args.positionals("ID", ids, false);
    args.flag("--all", all, "all of your own sandboxes");
    args.list("--label", labels, "KEY=VALUE", "those of your own with this label (repeatable)");
    args.flag("-f,--force", force, "one that does not exist is not an error");
    args.flag("--json", json, "print JSON: {id, error?}, an array for several");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    const bool by_query = all || !labels.empty();
    if (by_query == !ids.empty()) {
        return fail(ErrorCode::invalid_argument,
                    by_query ? "name sandboxes, or use --all or --label, but not both"
                             : "which sandboxes? name them, or use --all or --label");
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    if (by_query) {
        auto list = list_sandboxes(*bus, false, labels);
        if (!list) {
            return fail(std::move(list).error());
        }
        for (const Json& entry : *list) {
            ids.push_back(text_of(entry, "id"));
        }
    }
    return run_on_each(*bus, ids,
                       {.member = "Remove",
                        .options = {},
                        .json = json,
                        .ignore_missing = force || by_query}); // gone meanwhile: as wished
}

} // namespace wd::cli
