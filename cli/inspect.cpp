// wd inspect: everything about sandboxes. Lines for a person, JSON for a program.

#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/verbs.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace wd::cli {
namespace {

Result<Json> inspect(Bus& bus, const std::string& word) {
    auto path = sandbox_path(bus, word);
    if (!path) {
        return fail(std::move(path).error());
    }
    auto reply =
        bus.call({.path = *path, .interface = kSandbox, .member = "Inspect", .arguments = {}});
    if (!reply) {
        return fail(no_such_sandbox(std::move(reply).error(), word));
    }
    return reply->values.empty() ? Json::object() : std::move(reply->values[0]);
}

} // namespace

Result<int> run_inspect(const Words& words) {
    std::vector<std::string> ids;
    bool json = false;
    Args args("inspect", "[OPTIONS] ID...", "Show everything about sandboxes.",
              "When stdout is not a terminal, or with --json: one JSON object for one ID, an\n"
              "array for several. Values of environment variables are never shown.");
    args.positionals("ID", ids, true);
    args.flag("--json", json, "print JSON on a terminal too");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    const bool as_json = json || !is_terminal(STDOUT_FILENO);
    int status = 0;
    Json all = Json::array();
    for (const std::string& id : ids) {
        auto entry = inspect(*bus, id);
        if (!entry) {
            note(entry.error().message);
            status = status != 0 ? status : error_code_info(entry.error().code).exit_status;
            if (json) {
                Json failed{{"id", id}};
                failed.update(error_json(entry.error()));
                all.push_back(std::move(failed));
            }
        } else if (as_json) {
            all.push_back(std::move(*entry));
        } else {
            (void)print((&id == &ids.front() ? "" : "\n") + fields_text(*entry));
        }
    }
    if (as_json && !all.empty()) {
        const int printed = print_json(ids.size() == 1 ? all[0] : all);
        status = status != 0 ? status : printed;
    }
    return status;
}

} // namespace wd::cli
