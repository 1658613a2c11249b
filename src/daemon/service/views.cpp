#include "daemon/service/views.hpp"

#include "util/ids.hpp"
#include "util/text.hpp"

#include <fmt/format.h>

namespace wd::daemon {
namespace {

using Labels = std::map<std::string, std::string>;
using Texts = std::vector<std::string>;

constexpr std::size_t kMaxToken = 64;
constexpr std::uint64_t kMaxIdleMs = 366ull * 24 * 3600 * 1000;
constexpr std::size_t kMaxPathLength = 4096; // PATH_MAX, cwd
constexpr std::size_t kMaxUser = 256;
constexpr std::uint64_t kMaxTimeoutMs = 30ull * 24 * 3600 * 1000;

std::map<std::string, double> timings_of(const model::Timings& t) {
    return {{"queue", t.queue},   {"assign", t.assign}, {"unit", t.unit},  {"vmm", t.vmm},
            {"kernel", t.kernel}, {"agent", t.agent},   {"ready", t.ready}};
}

Texts env_names(const Texts& env) {
    Texts names;
    for (const std::string& assignment : env) {
        names.push_back(assignment.substr(0, assignment.find('=')));
    }
    return names;
}

Result<void> check_text(std::string_view text, std::size_t limit, std::string_view what) {
    if (text.size() > limit || text.find('\0') != std::string_view::npos) {
        return fail(
            ErrorCode::invalid_argument,
            fmt::format("{} {}: at most {} bytes, without zero bytes", what, quote(text), limit));
    }
    return {};
}

// The sizes that Linux itself allows: better said here than as an errno from the guest.
Result<void> check_arguments(const wire::ExecRequest& request) {
    if (request.argv.empty() || request.argv[0].empty()) {
        return fail(ErrorCode::invalid_argument, "no command was given");
    }
    std::size_t total = 0;
    for (const Texts* list : {&request.argv, &request.env}) {
        for (std::size_t i = 0; i < list->size(); ++i) {
            const std::string& text = (*list)[i];
            const char* const what = list == &request.argv ? "argument" : "environment variable";
            if (text.size() > wire::kMaxArgument) {
                return fail(ErrorCode::limit,
                            fmt::format("{} {} has {} bytes; the limit of Linux is {}. Pass large "
                                        "data through stdin or a file",
                                        what, i, text.size(), wire::kMaxArgument));
            }
            if (text.find('\0') != std::string::npos) {
                return fail(ErrorCode::invalid_argument,
                            fmt::format("{} {} has a zero byte in it", what, i));
            }
            total += text.size() + 16; // and its share of the encoding
        }
    }
    if (total > wire::kMaxExecRequest - kMaxPathLength - kMaxUser) {
        return fail(ErrorCode::limit,
                    fmt::format("arguments and environment have {} bytes; the limit is {}. Pass "
                                "large data through stdin or a file",
                                total, wire::kMaxExecRequest));
    }
    return {};
}

} // namespace

Result<CreateOptions> read_create_options(const bus::Dict& dict, const config::Defaults& defaults) {
    bus::DictReader reader(dict);
    CreateOptions options;
    model::SandboxSpec& spec = options.spec;
    spec.image = reader.take<std::string>("image").value_or(defaults.image);
    const auto name = reader.take<std::string>("name");
    spec.name = name.value_or("");
    spec.cpus = reader.take<std::uint32_t>("cpus").value_or(defaults.cpus);
    spec.memory_bytes = reader.take<std::uint64_t>("memory").value_or(defaults.memory_bytes);
    spec.disk_bytes = reader.take<std::uint64_t>("disk").value_or(defaults.disk_bytes);
    const auto idle = reader.take<std::uint64_t>("idle_timeout_ms");
    spec.idle_timeout =
        idle ? std::chrono::milliseconds(std::min(*idle, kMaxIdleMs)) : defaults.idle_timeout;
    spec.labels = reader.take<Labels>("labels").value_or(Labels{});
    spec.env = reader.take<Texts>("env").value_or(Texts{});
    options.token = reader.take<std::string>("token").value_or("");
    if (auto good = reader.finish(); !good) {
        return fail(std::move(good).error());
    }
    if (idle && *idle > kMaxIdleMs) {
        return fail(
            ErrorCode::invalid_argument,
            fmt::format("an idle timeout of {} ms; the limit is {} (a year), and 0 is never", *idle,
                        kMaxIdleMs));
    }
    if (name && name->empty()) {
        return fail(ErrorCode::invalid_argument,
                    "the sandbox name is empty; leave it out for a sandbox without a name");
    }
    if (options.token.size() > kMaxToken) {
        return fail(ErrorCode::invalid_argument, fmt::format("token of {} bytes; the limit is {}",
                                                             options.token.size(), kMaxToken));
    }
    return options;
}

Result<ListOptions> read_list_options(const bus::Dict& dict) {
    bus::DictReader reader(dict);
    ListOptions options;
    options.all = reader.take<bool>("all").value_or(false);
    options.labels = reader.take<Labels>("labels").value_or(Labels{});
    if (auto good = reader.finish(); !good) {
        return fail(std::move(good).error());
    }
    return options;
}

Result<wire::ExecRequest> read_exec_request(Texts argv, const bus::Dict& dict) {
    bus::DictReader reader(dict);
    wire::ExecRequest request;
    request.argv = std::move(argv);
    request.env = reader.take<Texts>("env").value_or(Texts{});
    request.cwd = reader.take<std::string>("cwd").value_or("");
    request.user = reader.take<std::string>("user").value_or("");
    request.timeout_ms = reader.take<std::uint64_t>("timeout_ms").value_or(0);
    if (auto good = reader.finish(); !good) {
        return fail(std::move(good).error());
    }
    for (const std::string& assignment : request.env) {
        if (auto good = check_env(assignment); !good) {
            return fail(std::move(good).error());
        }
    }
    auto good = check_text(request.cwd, kMaxPathLength, "cwd");
    if (good && !request.cwd.empty() && request.cwd[0] != '/') {
        good =
            fail(ErrorCode::invalid_argument,
                 fmt::format("cwd {} is not an absolute path in the sandbox", quote(request.cwd)));
    }
    if (good) {
        good = check_text(request.user, kMaxUser, "user");
    }
    if (good && request.timeout_ms > kMaxTimeoutMs) {
        good = fail(ErrorCode::invalid_argument,
                    fmt::format("timeout of {} ms; the limit is {} (30 days)", request.timeout_ms,
                                kMaxTimeoutMs));
    }
    if (good) {
        good = check_arguments(request);
    }
    if (!good) {
        return fail(std::move(good).error());
    }
    return request;
}

Result<std::chrono::milliseconds> read_stop_options(const bus::Dict& dict) {
    constexpr std::uint64_t kDefaultMs = 10'000;
    constexpr std::uint64_t kMaxMs = 600'000;
    bus::DictReader reader(dict);
    const std::uint64_t timeout = reader.take<std::uint64_t>("timeout_ms").value_or(kDefaultMs);
    if (auto good = reader.finish(); !good) {
        return fail(std::move(good).error());
    }
    if (timeout > kMaxMs) {
        return fail(ErrorCode::invalid_argument,
                    fmt::format("timeout_ms {}; the limit is {}", timeout, kMaxMs));
    }
    return std::chrono::milliseconds(timeout);
}

Result<std::string> read_version_option(const bus::Dict& dict) {
    bus::DictReader reader(dict);
    std::string version = reader.take<std::string>("version").value_or("");
    if (auto good = reader.finish(); !good) {
        return fail(std::move(good).error());
    }
    return version;
}

Result<void> read_no_options(const bus::Dict& dict) {
    return bus::DictReader(dict).finish();
}

bus::Dict view_of_sandbox(const sandbox::Sandbox& sandbox, const sandbox::Paths& paths) {
    const store::SandboxRow& row = sandbox.row();
    bus::DictBuilder view;
    view.add("id", row.id)
        .add("name", row.spec.name)
        .add("state", model::to_string(row.state))
        .add("owner_uid", row.owner_uid)
        .add("image", row.spec.image)
        .add("image_version", row.spec.image_version)
        .add("cpus", row.spec.cpus)
        .add("memory_bytes", row.spec.memory_bytes)
        .add("disk_bytes", row.spec.disk_bytes)
        .add("idle_timeout_ms", static_cast<std::uint64_t>(row.spec.idle_timeout.count()))
        .add("labels", row.spec.labels)
        .add("env_names", env_names(row.spec.env))
        .add("unit", sandbox.unit())
        .add("accel", model::to_string(row.accel))
        .add("boot_path", model::to_string(row.boot_path))
        .add("created_us", row.created_us)
        .add("started_us", row.started_us)
        .add("console", paths.console(row.id).string())
        .add("timings_ms", timings_of(row.timings))
        .add("agent_version", row.agent_version)
        .add("kernel_release", row.kernel_release);
    if (row.ended_us != 0) {
        view.add("end_reason", model::to_string(row.end.reason))
            .add("end_detail", row.end.detail)
            .add("end_limit", row.end.limit)
            .add("end_peak", row.end.peak)
            .add("ended_us", row.ended_us);
    }
    return view.take();
}

bus::Dict report_of(const sandbox::Sandbox& sandbox) {
    const store::SandboxRow& row = sandbox.row();
    bus::DictBuilder report;
    report.add("id", row.id)
        .add("name", row.spec.name)
        .add("unit", sandbox.unit())
        .add("boot_path", model::to_string(row.boot_path))
        .add("accel", model::to_string(row.accel))
        .add("image", row.spec.image)
        .add("image_version", row.spec.image_version)
        .add("timings_ms", timings_of(row.timings));
    return report.take();
}

bus::Dict view_of_image(const image::Image& image, std::size_t users, bool latest) {
    const config::ImageManifest& manifest = image.manifest;
    bus::DictBuilder view;
    view.add("name", manifest.name)
        .add("version", manifest.version)
        .add("size_bytes", manifest.size_bytes)
        .add("allocated_bytes", manifest.allocated_bytes)
        .add("created_us", manifest.created_us)
        .add("users", static_cast<std::uint32_t>(users))
        .add("latest", latest);
    return view.take();
}

bus::Dict view_of_finding(const Finding& finding) {
    bus::DictBuilder view;
    view.add("check", finding.check)
        .add("status", to_string(finding.status))
        .add("detail", finding.detail)
        .add("remedy", finding.remedy);
    return view.take();
}

} // namespace wd::daemon
