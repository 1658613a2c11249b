// wd image: build, ls, inspect, rm.

#include "cli/args.hpp"
#include "cli/job.hpp"
#include "cli/output.hpp"
#include "cli/verbs.hpp"

#include "util/text.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <unistd.h>

namespace wd::cli {
namespace {

Result<int> run_build(const Words& words) {
    std::string name;
    bool detach = false;
    bool json = false;
    Args args("image build", "[OPTIONS] NAME",
              "Build a new version of an image from its installed recipe.",
              "The build runs in a unit of its own. ^C cancels it, a second ^C leaves it\n"
              "running. Exits 10 when the build failed, 13 when it was cancelled.\n"
              "Example: wd image build base");
    args.positional("NAME", name);
    args.flag("--detach", detach, "print the job's object path and leave it running");
    args.flag("--json", json, "print the result as JSON: {image, job, unit, state, status}");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    JobWatch watch(*bus);
    if (auto subscribed = watch.subscribe(); !subscribed) {
        return fail(std::move(subscribed).error());
    }
    auto reply = bus->call({.member = "BuildImage", .arguments = {name, Options()}});
    if (!reply) {
        return fail(std::move(reply).error());
    }
    if (reply->values.size() < 2 || !reply->values[0].is_string()) {
        return fail(ErrorCode::internal, "workdird answered BuildImage with something else");
    }
    const auto job = reply->values[0].get<std::string>();
    const std::string unit = reply->values[1].is_string() ? reply->values[1] : "";
    Json result{{"image", name}, {"job", job}, {"unit", unit}};
    if (detach) {
        return json ? print_json(result) : print(job + "\n");
    }
    auto end = watch.run(job);
    if (!end) {
        return fail(std::move(end).error().context("build of image " + quote(name)));
    }
    result["state"] = end->state;
    result["status"] = end->status;
    if (end->state != "done") {
        const bool cancelled = end->state == "cancelled";
        const Error error{cancelled ? ErrorCode::cancelled : ErrorCode::start_failed, 0,
                          cancelled ? fmt::format("the build of image {} was cancelled", name)
                                    : fmt::format("the build of image {} failed: {}; see more "
                                                  "with: journalctl -u {}",
                                                  name, end->status, unit)};
        const int status = report(error);
        if (json) {
            result.update(error_json(error));
            (void)print_json(result);
        }
        return status;
    }
    if (json) {
        return print_json(result);
    }
    note(fmt::format("image {} is ready: {}", name, end->status));
    return 0;
}

Result<int> run_image_ls(const Words& words) {
    bool json = false;
    bool quiet = false;
    Args args("image ls", "[OPTIONS]", "List images and their versions.",
              "SIZE is what a guest sees, ALLOCATED what it takes on the host's disk, USERS the\n"
              "sandboxes that rest on it. * marks the version that a create takes.");
    args.flag("-q,--quiet", quiet, "names only");
    args.flag("--json", json, "print JSON");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    auto reply = bus->call({.member = "ListImages", .arguments = {}});
    if (!reply) {
        return fail(std::move(reply).error());
    }
    const Json images = reply->values.empty() ? Json::array() : reply->values[0];
    if (json) {
        return print_json(images);
    }
    if (quiet) {
        std::vector<std::string> names;
        for (const Json& image : images) {
            names.push_back(text_of(image, "name"));
        }
        names.erase(std::unique(names.begin(), names.end()), names.end());
        std::string text;
        for (const std::string& name : names) {
            text += name + "\n";
        }
        return print(text);
    }
    Table table({"NAME", "VERSION", "LATEST", "SIZE", "ALLOCATED", "USERS", "AGE"});
    for (const Json& image : images) {
        table.add({text_of(image, "name"), text_of(image, "version"),
                   image.contains("latest") && image["latest"] == true ? "*" : "-",
                   size_or_dash(number_of(image, "size_bytes")),
                   size_or_dash(number_of(image, "allocated_bytes")),
                   fmt::format("{}", number_of(image, "users")),
                   age(number_of(image, "created_us"))});
    }
    return print(table.text());
}

Result<int> run_image_inspect(const Words& words) {
    std::string name;
    bool json = false;
    Args args("image inspect", "[OPTIONS] NAME", "Show the latest version of an image.",
              "When stdout is not a terminal: JSON.");
    args.positional("NAME", name);
    args.flag("--json", json, "print JSON on a terminal too");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    auto reply = bus->call({.member = "InspectImage", .arguments = {name}});
    if (!reply) {
        return fail(std::move(reply).error());
    }
    const Json image = reply->values.empty() ? Json::object() : reply->values[0];
    return json || !is_terminal(STDOUT_FILENO) ? print_json(image) : print(fields_text(image));
}

Result<int> run_image_rm(const Words& words) {
    std::string image;
    bool json = false;
    Args args("image rm", "[OPTIONS] NAME[:VERSION]", "Remove an image, or one version of it.",
              "Refused while sandboxes rest on it. Prints what was removed.");
    args.positional("NAME[:VERSION]", image);
    args.flag("--json", json, "print JSON: {removed: [...]}");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    Options options;
    const std::size_t colon = image.find(':');
    if (colon != std::string::npos) {
        options.add("version", image.substr(colon + 1));
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    auto reply = bus->call({.member = "RemoveImage",
                            .arguments = {image.substr(0, colon), std::move(options)},
                            .timeout = std::chrono::seconds(0)});
    if (!reply) {
        return fail(std::move(reply).error());
    }
    const Json removed = reply->values.empty() ? Json::array() : reply->values[0];
    if (json) {
        return print_json({{"removed", removed}});
    }
    std::string text;
    for (const Json& entry : removed) {
        text += (entry.is_string() ? printable(entry.get<std::string>(), 200) : "") + "\n";
    }
    return print(text);
}

constexpr std::string_view kHelp =
    "Usage: wd image VERB [ARGUMENTS]\n\n"
    "Images are what sandboxes start from: a root file system, versioned.\n\n"
    "Verbs:\n"
    "  build     build a new version of an image from its installed recipe\n"
    "  ls        list images and their versions\n"
    "  inspect   show the latest version of an image\n"
    "  rm        remove an image, or one version of it\n"
    "\n"
    "Options:\n"
    "  -h, --help     print this help\n"
    "\n"
    "wd image VERB --help tells more of a verb.\n";

} // namespace

Result<int> run_image(const Words& words) {
    if (words.empty()) {
        return fail(ErrorCode::invalid_argument,
                    "which verb of image? build, ls, inspect or rm; see wd image --help");
    }
    const Words rest(words.begin() + 1, words.end());
    if (words[0] == "build") {
        return run_build(rest);
    }
    if (words[0] == "ls") {
        return run_image_ls(rest);
    }
    if (words[0] == "inspect") {
        return run_image_inspect(rest);
    }
    if (words[0] == "rm") {
        return run_image_rm(rest);
    }
    if (words[0] == "-h" || words[0] == "--help") {
        return print(kHelp);
    }
    const std::string near = nearest(words[0], {"build", "ls", "inspect", "rm"});
    return fail(ErrorCode::invalid_argument,
                fmt::format("unknown verb {} of image{}; see wd image --help", quote(words[0]),
                            near.empty() ? "" : fmt::format(", did you mean {}?", near)));
}

} // namespace wd::cli
