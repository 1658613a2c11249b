// wd ls: sandboxes, oldest first.

#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/report.hpp"
#include "cli/verbs.hpp"

#include <fmt/format.h>

namespace wd::cli {

Result<int> run_ls(const Words& words) {
    bool all = false;
    bool json = false;
    bool quiet = false;
    std::vector<std::string> labels;
    Args args("ls", "[OPTIONS]", "List your sandboxes, oldest first.",
              "The columns are stable; a program reads --json, one entry a sandbox with the\n"
              "fields of wd inspect. REASON says why a sandbox does not run.");
    args.flag("--all", all, "those of other users too");
    args.list("--label", labels, "KEY=VALUE", "only those with this label (repeatable)");
    args.flag("-q,--quiet", quiet, "ids only");
    args.flag("--json", json, "print JSON");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    auto list = list_sandboxes(*bus, all, labels);
    if (!list) {
        return fail(std::move(list).error());
    }
    if (json) {
        return print_json(*list);
    }
    if (quiet) {
        std::string ids;
        for (const Json& entry : *list) {
            ids += text_of(entry, "id") + "\n";
        }
        return print(ids);
    }
    std::vector<std::string> header{"ID",   "NAME",   "STATE", "REASON", "IMAGE",
                                    "CPUS", "MEMORY", "DISK",  "ACCEL",  "AGE"};
    if (all) {
        header.emplace_back("OWNER");
    }
    Table table(header);
    for (const Json& entry : *list) {
        std::vector<std::string> row{text_of(entry, "id"),
                                     or_dash(text_of(entry, "name")),
                                     text_of(entry, "state"),
                                     or_dash(text_of(entry, "end_reason")),
                                     text_of(entry, "image"),
                                     fmt::format("{}", number_of(entry, "cpus")),
                                     size_or_dash(number_of(entry, "memory_bytes")),
                                     size_or_dash(number_of(entry, "disk_bytes")),
                                     or_dash(text_of(entry, "accel")),
                                     age(number_of(entry, "created_us"))};
        if (all) {
            row.push_back(fmt::format("{}", number_of(entry, "owner_uid")));
        }
        table.add(std::move(row));
    }
    return print(table.text());
}

} // namespace wd::cli
