// wd create: one sandbox; its id is all that goes to stdout.

#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/report.hpp"
#include "cli/verbs.hpp"

#include "util/ids.hpp"
#include "util/size.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace wd::cli {
namespace {

struct Request {
    std::optional<std::string> image, cpus, memory, disk, idle_timeout, name;
    std::vector<std::string> labels, env, env_files;
};

Result<Options> to_options(const Request& request) {
    Options options;
    if (request.image) {
        options.add("image", *request.image);
    }
    if (request.cpus) {
        auto cpus = parse_count(*request.cpus, "--cpus");
        if (!cpus) {
            return fail(std::move(cpus).error());
        }
        options.add("cpus", *cpus);
    }
    for (const auto& [key, text] :
         {std::pair{"memory", &request.memory}, std::pair{"disk", &request.disk}}) {
        if (*text) {
            auto size = parse_size(**text);
            if (!size) {
                return fail(std::move(size).error().context(fmt::format("--{}", key)));
            }
            options.add(key, *size);
        }
    }
    if (request.idle_timeout) {
        std::chrono::milliseconds idle{0};
        if (*request.idle_timeout != "0") {
            auto parsed = parse_duration(*request.idle_timeout);
            if (!parsed) {
                return fail(std::move(parsed).error().context("--idle-timeout"));
            }
            idle = *parsed;
        }
        options.add("idle_timeout_ms", static_cast<std::uint64_t>(idle.count()));
    }
    if (request.name) {
        options.add("name", *request.name);
    }
    if (!request.labels.empty()) {
        auto labels = parse_labels(request.labels);
        if (!labels) {
            return fail(std::move(labels).error());
        }
        options.add("labels", std::move(*labels));
    }
    if (!request.env.empty() || !request.env_files.empty()) {
        auto env = parse_env(request.env, request.env_files);
        if (!env) {
            return fail(std::move(env).error());
        }
        options.add("env", std::move(*env));
    }
    return options;
}

} // namespace

Result<int> run_create(const Words& words) {
    Request request;
    bool json = false;
    Args args("create", "[OPTIONS]", "Make a sandbox and print its id when it is ready.",
              "Interrupting wd removes the half-made sandbox again. With --json the whole\n"
              "report is printed: id, unit, boot_path, accel, timings_ms and more.\n"
              "Example: id=$(wd create --memory 2G --label job=nightly)");
    args.option("--image", request.image, "NAME", "image to start from (default: base)");
    args.option("--cpus", request.cpus, "N", "virtual CPUs, and the limit on host CPU time");
    args.option("--memory", request.memory, "SIZE", "guest memory, for example 512M or 2G");
    args.option("--disk", request.disk, "SIZE", "size of the root disk the guest sees");
    args.option("--idle-timeout", request.idle_timeout, "DURATION",
                "go to standby after so long without a command, 0 for never (default: 120s)");
    args.option("--name", request.name, "NAME", "a name to use in place of the id");
    args.list("--label", request.labels, "KEY=VALUE", "attach a label (repeatable)");
    args.list("--env", request.env, "NAME[=VALUE]",
              "environment of every command; without a value, pass wd's own (repeatable)");
    args.list("--env-file", request.env_files, "FILE",
              "read NAME=VALUE lines, - for stdin (repeatable)");
    args.flag("--json", json, "print the report as JSON");
    if (auto help = args.parse(words); !help || *help) {
        return help.map([](bool) { return 0; });
    }
    auto options = to_options(request);
    if (!options) {
        return fail(std::move(options).error());
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    Progress progress;
    const std::string token = new_machine_id(); // any text that is ours alone
    if (progress.active()) {
        options->add("token", token);
        progress.show("creating a sandbox");
        auto subscribed = bus->on_direct_signal("CreateProgress", [&](const Signal& signal) {
            const Json& values = signal.values;
            if (values.size() == 3 && values[0] == token && values[1].is_string() &&
                values[2].is_string()) {
                progress.show(fmt::format("creating {}: {}", values[1].get<std::string>(),
                                          values[2].get<std::string>()));
            }
        });
        if (!subscribed) {
            return fail(std::move(subscribed).error());
        }
    }
    auto reply = bus->call({.member = "Create",
                            .arguments = {std::move(*options)},
                            .timeout = std::chrono::seconds(0)});
    progress.clear();
    if (!reply) {
        return fail(std::move(reply).error());
    }
    const Json report = reply->values.size() > 1 ? reply->values[1] : Json::object();
    if (progress.active()) {
        note(boot_summary(report));
    }
    return json ? print_json(report) : print(text_of(report, "id") + "\n");
}

} // namespace wd::cli
