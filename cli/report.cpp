#include "cli/report.hpp"

#include "cli/args.hpp"
#include "cli/output.hpp"
#include "util/ids.hpp"

#include <algorithm>
#include <deque>

#include <fmt/format.h>
#include <unistd.h>

namespace wd::cli {
namespace {

constexpr std::size_t kInFlight = 8;

struct Outcome {
    std::string word;
    std::optional<Error> error;
    Json report;
    bool skipped = false;
};

} // namespace

std::string boot_summary(const Json& report) {
    const auto found = report.find("timings_ms");
    const Json timings = found != report.end() && found->is_object() ? *found : Json::object();
    const auto ms = [&](const char* part) {
        const auto value = timings.find(part);
        return value != timings.end() && value->is_number() ? value->get<double>() : 0.0;
    };
    std::string parts;
    for (const char* part : {"queue", "assign", "unit", "vmm", "kernel", "agent"}) {
        if (ms(part) >= 0.5) {
            parts += fmt::format("{}{} {:.0f}", parts.empty() ? "" : ", ", part, ms(part));
        }
    }
    return fmt::format("{} is ready after {:.2f} s: {}, {}{}", text_of(report, "id"),
                       ms("ready") / 1000, text_of(report, "boot_path"), text_of(report, "accel"),
                       parts.empty() ? "" : " (" + parts + " ms)");
}

Result<Json> list_sandboxes(Bus& bus, bool all, const std::vector<std::string>& labels) {
    Options options;
    if (all) {
        options.add("all", true);
    }
    if (!labels.empty()) {
        auto wanted = parse_labels(labels);
        if (!wanted) {
            return fail(std::move(wanted).error());
        }
        options.add("labels", std::move(*wanted));
    }
    auto reply = bus.call({.member = "List", .arguments = {std::move(options)}});
    if (!reply) {
        return fail(std::move(reply).error());
    }
    return reply->values.empty() || !reply->values[0].is_array() ? Json::array()
                                                                 : std::move(reply->values[0]);
}

Result<int> run_on_each(Bus& bus, const std::vector<std::string>& words, const Bulk& bulk) {
    std::deque<Outcome> outcomes; // addresses stay
    for (const std::string& word : words) {
        if (std::none_of(outcomes.begin(), outcomes.end(),
                         [&](const Outcome& known) { return known.word == word; })) {
            outcomes.push_back({.word = word});
        }
    }
    std::size_t running = 0;
    const auto finish = [&](Outcome& outcome, Result<Reply> reply) {
        --running;
        if (!reply) {
            Error error = no_such_sandbox(std::move(reply).error(), outcome.word);
            if (bulk.ignore_missing && error.code == ErrorCode::not_found) {
                outcome.skipped = true;
                return;
            }
            if (!bulk.json) {
                note(error.message);
            }
            outcome.error = std::move(error);
            return;
        }
        if (!reply->values.empty()) {
            outcome.report = std::move(reply->values[0]);
        }
        if (!bulk.json) {
            (void)print(outcome.word + "\n");
            if (bulk.print_report && is_terminal(STDERR_FILENO)) {
                note(boot_summary(outcome.report));
            }
        }
    };
    const auto act = [&](Outcome& outcome, const std::string& path) {
        bus.start({.path = path,
                   .interface = kSandbox,
                   .member = bulk.member,
                   .arguments = {bulk.options},
                   .timeout = std::chrono::seconds(0)},
                  [&](Result<Reply> reply) { finish(outcome, std::move(reply)); });
    };
    const auto begin = [&](Outcome& outcome) {
        ++running;
        if (is_sandbox_id(outcome.word)) {
            act(outcome, path_of_id(outcome.word));
            return;
        }
        bus.start({.member = "Get", .arguments = {outcome.word}}, [&](Result<Reply> reply) {
            if (reply && !reply->values.empty() && reply->values[0].is_string()) {
                act(outcome, reply->values[0].get<std::string>());
            } else {
                finish(outcome, std::move(reply));
            }
        });
    };
    std::size_t next = 0;
    while (next < outcomes.size() || running > 0) {
        if (next < outcomes.size() && running < kInFlight) {
            begin(outcomes[next++]);
        } else if (auto pumped = bus.pump(); !pumped) {
            return fail(std::move(pumped).error());
        }
    }
    int status = 0;
    Json all = Json::array();
    for (const Outcome& outcome : outcomes) {
        Json entry{{"id", outcome.word}};
        if (outcome.error) {
            entry.update(error_json(*outcome.error));
            status = status != 0 ? status : error_code_info(outcome.error->code).exit_status;
        } else if (bulk.print_report) {
            entry.update(outcome.report);
        } else if (outcome.skipped) {
            entry["missing"] = true;
        }
        all.push_back(std::move(entry));
    }
    if (bulk.json) {
        const int printed = print_json(words.size() == 1 ? all[0] : all);
        status = status != 0 ? status : printed;
    }
    return status;
}

} // namespace wd::cli
