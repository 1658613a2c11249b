#include "agent/exec_table.hpp"

#include "agent/clock.hpp"
#include "agent/console.hpp"
#include "agent/environment.hpp"

#include <algorithm>
#include <cerrno>

#include <sys/wait.h>

namespace wd::agent {
namespace {
using wire::FrameType;
// Data frames between two looks at what came in, so a bulk stream delays nobody for long.
constexpr int kFramesPerTurn = 8;
} // namespace

void ExecTable::on_frame(const wire::Frame& frame) {
    if (frame.type == FrameType::open) {
        on_open(frame);
    } else if (Exec* const exec = find(frame.channel)) {
        exec->on_frame(frame);
    } else if (frame.type == FrameType::close || frame.type == FrameType::detach) {
        std::erase_if(openings_, [&](const Opening& o) { return o.channel == frame.channel; });
    }
    // Else it crossed our exit frame on the way.
}

Exec* ExecTable::find(std::uint32_t channel) {
    for (const auto& exec : execs_) {
        if (exec->channel() == channel && !exec->over()) {
            return exec.get();
        }
    }
    return nullptr;
}

void ExecTable::open_failed(std::uint32_t channel, const wire::Failure& failure) {
    const wire::Bytes payload = wire::encode(failure);
    wire::append_frame(parts_.port.out(),
                       {.channel = channel, .type = FrameType::open_failed, .payload = payload});
}

void ExecTable::on_open(const wire::Frame& frame) {
    auto opening = std::find_if(openings_.begin(), openings_.end(), [&](const Opening& other) {
        return other.channel == frame.channel;
    });
    if (opening == openings_.end()) {
        if (find(frame.channel) != nullptr) {
            console("the host opened channel %u twice; ignored", frame.channel);
            return;
        }
        opening = openings_.insert(opening, {.channel = frame.channel, .request = {}});
        // Of a request that will be refused anyway nothing is kept.
        opening->too_large = openings_.size() > kMaxChannels;
    }
    if (opening->request.size() + frame.payload.size() > wire::kMaxExecRequest) {
        opening->too_large = true;
        opening->request = {};
    }
    if (!opening->too_large) {
        opening->request.insert(opening->request.end(), frame.payload.begin(), frame.payload.end());
    }
    if ((frame.flag & wire::kMore) == 0) {
        Opening whole = std::move(*opening);
        openings_.erase(opening);
        open(std::move(whole));
    }
}

void ExecTable::open(Opening opening) {
    const auto refuse_with = [&](FailureKind kind, int errnum, std::string message) {
        open_failed(opening.channel,
                    {kind, static_cast<std::uint64_t>(errnum), std::move(message)});
    };
    if (!refusal_.empty()) {
        return refuse_with(FailureKind::other, EAGAIN, refusal_);
    }
    if (opening.too_large) {
        return refuse_with(FailureKind::limit, E2BIG,
                           "the command and its environment are larger than 1 MiB together "
                           "(pass data through stdin or a file)");
    }
    sweep();
    if (execs_.size() >= kMaxChannels) {
        return refuse_with(FailureKind::limit, EMFILE,
                           "the sandbox runs " + std::to_string(kMaxChannels) +
                               " commands already, which is the most it takes");
    }
    const auto request = wire::decode<wire::ExecRequest>(opening.request);
    opening.request = {};
    if (!request) {
        return refuse_with(FailureKind::violation, EPROTO, "a malformed exec request");
    }
    if (const auto checked = check_request(*request); !checked) {
        return open_failed(opening.channel, checked.error());
    }
    auto exec = Exec::create(parts_, opening.channel, *request, env_);
    if (!exec) {
        return open_failed(opening.channel, exec.error());
    }
    execs_.push_back(std::move(*exec));
}

bool ExecTable::reap() {
    for (;;) {
        int status = 0;
        const pid_t pid = ::waitpid(-1, &status, WNOHANG);
        if (pid == 0) {
            return true;
        }
        if (pid < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno != ECHILD;
        }
        for (const auto& exec : execs_) {
            if (exec->pid() == pid) {
                exec->on_reaped(status);
                break;
            }
        }
    }
}

bool ExecTable::pump() {
    Port& port = parts_.port;
    for (int frames = 0; frames < kFramesPerTurn;) {
        if (!port.has_data_room() || port.queued() >= wire::kDataChunk) {
            if (!port.flush()) {
                return false; // the port says when it takes more
            }
        }
        bool made = false;
        for (std::size_t i = 0; i < execs_.size() && !made; ++i) {
            const std::size_t at = (turn_ + i) % execs_.size();
            if (execs_[at]->produce()) {
                turn_ = at + 1;
                made = true;
            }
        }
        if (!made) {
            port.flush();
            return false;
        }
        ++frames;
    }
    port.flush();
    return true;
}

std::uint64_t ExecTable::deadline() const {
    std::uint64_t earliest = kNever;
    for (const auto& exec : execs_) {
        earliest = std::min(earliest, exec->deadline());
    }
    return earliest;
}

void ExecTable::on_time(std::uint64_t now) {
    for (const auto& exec : execs_) {
        if (exec->deadline() <= now) {
            exec->on_deadline();
        }
    }
}

void ExecTable::orphan_all() {
    openings_.clear();
    for (const auto& exec : execs_) {
        exec->orphan();
    }
}

void ExecTable::sweep() {
    std::erase_if(execs_, [](const auto& exec) { return exec->over(); });
}

} // namespace wd::agent
