// wd exec: a command in a sandbox, as if it ran here.

#include "cli/args.hpp"
#include "cli/output.hpp"
#include "cli/session.hpp"
#include "cli/verbs.hpp"

#include "util/text.hpp"

#include <csignal>

#include <fmt/format.h>
#include <unistd.h>

namespace wd::cli {
namespace {

constexpr int kOwnFailure = 125; // of workdir, as env(1), nohup(1) and container runners have it
constexpr std::size_t kMaxCaptured = 16 * 1024 * 1024;

struct Request {
    std::string id;
    std::vector<std::string> argv;
    std::optional<std::string> cwd, user, timeout;
    std::vector<std::string> env, env_files;
    bool json = false;
    std::chrono::milliseconds limit{0};
};

std::string_view name_of(SessionEnd::Reason reason) {
    switch (reason) {
    case SessionEnd::Reason::exited:
        return "exited";
    case SessionEnd::Reason::signaled:
        return "signaled";
    case SessionEnd::Reason::timeout:
        return "timeout";
    case SessionEnd::Reason::error:
        return "error";
    case SessionEnd::Reason::detached:
        return "detached";
    case SessionEnd::Reason::interrupted:
    case SessionEnd::Reason::broken_pipe:
        return "interrupted";
    }
    return "error";
}

std::string_view code_of(const wire::Failure& failure) {
    switch (failure.kind) {
    case wire::Failure::Kind::not_executable:
        return "not_executable";
    case wire::Failure::Kind::not_found:
        return "command_not_found";
    case wire::Failure::Kind::unreachable:
        return error_code_info(ErrorCode::unreachable).name;
    case wire::Failure::Kind::limit:
        return error_code_info(ErrorCode::limit).name;
    case wire::Failure::Kind::other:
    case wire::Failure::Kind::violation:
        break;
    }
    return error_code_info(ErrorCode::internal).name;
}

void add_stream(Json& out, const std::string& key, const Sink& sink) {
    const bool text = is_valid_utf8(sink.collected());
    out[key] = text ? sink.collected() : base64(sink.collected());
    out[key + "_encoding"] = text ? "utf-8" : "base64";
    out[key + "_truncated"] = sink.truncated();
}

Json result_json(const Session& session, const SessionEnd& end,
                 std::chrono::steady_clock::duration took) {
    Json out;
    out["reason"] = name_of(end.reason);
    out["exit_code"] = end.reason == SessionEnd::Reason::exited ? Json(end.value) : Json();
    out["signal"] = end.reason == SessionEnd::Reason::signaled ? Json(end.value) : Json();
    add_stream(out, "stdout", session.out());
    add_stream(out, "stderr", session.err());
    out["cpu_seconds"] = static_cast<double>(end.cpu_us) / 1e6;
    out["peak_memory_bytes"] = end.peak_bytes;
    out["duration_ms"] = std::chrono::duration<double, std::milli>(took).count();
    if (end.reason == SessionEnd::Reason::error) {
        out["error"] = {{"code", code_of(end.failure)}, {"message", end.failure.message}};
    }
    return out;
}

// One object whatever happens, so that a program can always tell who failed.
int own_failure(const Error& error, bool json) {
    note(error.message);
    if (json) {
        Json out = error_json(error);
        out["reason"] = "error";
        (void)print_json(out);
    }
    return kOwnFailure;
}

Result<Fd> open_session(const Request& request) {
    Options options;
    if (request.cwd) {
        options.add("cwd", *request.cwd);
    }
    if (request.user) {
        options.add("user", *request.user);
    }
    if (request.timeout) {
        options.add("timeout_ms", static_cast<std::uint64_t>(request.limit.count()));
    }
    if (!request.env.empty() || !request.env_files.empty()) {
        auto env = parse_env(request.env, request.env_files);
        if (!env) {
            return fail(std::move(env).error());
        }
        options.add("env", std::move(*env));
    }
    auto bus = Bus::open();
    if (!bus) {
        return fail(std::move(bus).error());
    }
    auto path = sandbox_path(*bus, request.id);
    if (!path) {
        return fail(std::move(path).error());
    }
    auto reply = bus->call({.path = *path,
                            .interface = kSandbox,
                            .member = "Exec",
                            .arguments = {request.argv, std::move(options)}});
    if (!reply) {
        return fail(no_such_sandbox(std::move(reply).error(), request.id));
    }
    if (reply->fds.empty()) {
        return fail(ErrorCode::internal, "workdird sent no session");
    }
    return std::move(reply->fds[0]); // the bus is not needed any more
}

void explain(const Request& request, const SessionEnd& end) {
    switch (end.reason) {
    case SessionEnd::Reason::timeout:
        note(fmt::format("the command was ended after its timeout of {} s",
                         static_cast<double>(request.limit.count()) / 1000));
        break;
    case SessionEnd::Reason::error:
        note(end.failure.message.empty() ? "the command could not be run" : end.failure.message);
        break;
    case SessionEnd::Reason::interrupted:
        note("interrupted; the command was closed");
        break;
    case SessionEnd::Reason::exited:
    case SessionEnd::Reason::signaled:
    case SessionEnd::Reason::detached:
    case SessionEnd::Reason::broken_pipe:
        break;
    }
}

} // namespace

Result<int> run_exec(const Words& words) {
    Request request;
    Args args("exec", "ID [OPTIONS] [--] COMMAND [ARGUMENT...]",
              "Run a command in a sandbox, with stdin, stdout, stderr and signals.",
              "Options end at the command; its arguments arrive untouched. The exit status is\n"
              "the command's own (128+N when signal N ended it), 124 after --timeout; 125 when\n"
              "workdir failed, 126 when the command cannot be run, 127 when there is none.\n"
              "^C goes to the command, twice within a second leaves. SIGHUP detaches.\n"
              "Example: wd exec $id --cwd /tmp -- tar x < files.tar");
    args.positional("ID", request.id);
    args.guest_command(request.argv);
    args.option("--cwd", request.cwd, "DIR", "working directory (default: /workspace)");
    args.list("--env", request.env, "NAME[=VALUE]",
              "environment; without a value, pass wd's own (repeatable)");
    args.list("--env-file", request.env_files, "FILE",
              "read NAME=VALUE lines, - for stdin (repeatable)");
    args.option("--user", request.user, "USER", "user in the guest, by name or number");
    args.option("--timeout", request.timeout, "DURATION",
                "end the command and its children after this time");
    args.flag("--json", request.json,
              "collect the output; print one JSON object with it and the result");
    auto help = args.parse(words);
    if (help && *help) {
        return 0;
    }
    if (!help) {
        return own_failure(help.error(), wants_json(words));
    }
    if (request.argv.empty()) {
        return own_failure(Error{ErrorCode::invalid_argument, 0,
                                 "which command? usage: wd exec ID [OPTIONS] -- COMMAND..."},
                           request.json);
    }
    if (request.timeout) {
        auto limit = parse_duration(*request.timeout);
        if (!limit) {
            return own_failure(std::move(limit).error().context("--timeout"), request.json);
        }
        request.limit = *limit;
    }
    const auto start = std::chrono::steady_clock::now();
    // Until the session is there, ^C just ends wd.
    auto session_fd = open_session(request);
    if (!session_fd) {
        return own_failure(session_fd.error(), request.json);
    }
    auto signals = take_signals();
    if (!signals) {
        return own_failure(signals.error(), request.json);
    }
    Session session(std::move(*session_fd), Source(STDIN_FILENO),
                    request.json ? Sink::memory(kMaxCaptured) : Sink(STDOUT_FILENO),
                    request.json ? Sink::memory(kMaxCaptured) : Sink(STDERR_FILENO),
                    signals->get());
    const SessionEnd end = session.run();
    explain(request, end);
    int status = end.exit_status();
    if (request.json &&
        print_json(result_json(session, end, std::chrono::steady_clock::now() - start)) != 0) {
        status = kOwnFailure;
    }
    return status;
}

} // namespace wd::cli
