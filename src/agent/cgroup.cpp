#include "agent/cgroup.hpp"

#include "agent/clock.hpp"
#include "agent/console.hpp"
#include "agent/files.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::agent {
namespace {

constexpr const char* kTop = "/sys/fs/cgroup";
constexpr const char* kFolder = "/sys/fs/cgroup/exec";
// What users nest below their exec's group is theirs; this much of it is followed.
constexpr int kDeepest = 32;
constexpr std::uint64_t kFreezeGrace = kSecond;

std::string read_at(int folder, const char* name) {
    const Fd file(::openat(folder, name, O_RDONLY | O_CLOEXEC));
    std::string text;
    char chunk[4096];
    ssize_t n = 0;
    while (file && (n = ::read(file.get(), chunk, sizeof chunk)) > 0) {
        text.append(chunk, static_cast<std::size_t>(n));
    }
    return text;
}

std::uint64_t number_after(std::string_view text, std::string_view key) {
    const std::size_t at = text.find(key);
    std::uint64_t value = 0;
    if (at != std::string_view::npos) {
        const std::string_view rest = text.substr(at + key.size());
        std::from_chars(rest.data(), rest.data() + rest.size(), value);
    }
    return value;
}

// Calls visit(folder, name) for each group directly below.
template <class Visit>
void each_child(int folder, Visit visit) {
    const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* const list = copy < 0 ? nullptr : ::fdopendir(copy);
    if (list == nullptr) {
        return;
    }
    while (const dirent* const entry = ::readdir(list)) {
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.') {
            visit(copy, entry->d_name);
        }
    }
    ::closedir(list);
}

void signal_below(int folder, int signal, int depth) {
    const std::string procs = read_at(folder, "cgroup.procs");
    for (const char* at = procs.c_str(); *at != '\0';) {
        char* end = nullptr;
        const long pid = std::strtol(at, &end, 10);
        if (pid > 1) { // 0: not in our pid namespace
            ::kill(static_cast<pid_t>(pid), signal);
        }
        at = *end == '\0' ? end : end + 1;
    }
    if (depth < kDeepest) {
        each_child(folder, [&](int parent, const char* name) {
            const Fd child(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
            if (child) {
                signal_below(child.get(), signal, depth + 1);
            }
        });
    }
}

void remove_below(int folder, int depth) {
    each_child(folder, [&](int parent, const char* name) {
        if (::unlinkat(parent, name, AT_REMOVEDIR) == 0 || depth >= kDeepest) {
            return;
        }
        const Fd child(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (child) {
            remove_below(child.get(), depth + 1);
        }
        ::unlinkat(parent, name, AT_REMOVEDIR);
    });
}

bool read_populated(int events) {
    char text[128];
    const ssize_t n = ::pread(events, text, sizeof text, 0);
    return n > 0 && number_after({text, static_cast<std::size_t>(n)}, "populated ") != 0;
}

// "+cpu +memory …": all that this kernel has.
void enable_controllers(const char* folder) {
    const std::string path = std::string(folder) + "/cgroup.subtree_control";
    auto names = read_small_file((std::string(folder) + "/cgroup.controllers").c_str(), 4096);
    std::string_view rest = names ? std::string_view(*names) : std::string_view();
    while (!rest.empty()) {
        const std::size_t end = std::min(rest.find_first_of(" \n"), rest.size());
        if (end > 0) {
            // One by one: a controller that refuses must not keep the others out.
            static_cast<void>(write_control(path.c_str(), "+" + std::string(rest.substr(0, end))));
        }
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
}

} // namespace

bool Cgroup::populated() const {
    return number_after(read_at(folder_.get(), "cgroup.events"), "populated ") != 0;
}

std::uint64_t Cgroup::cpu_us() const {
    return number_after(read_at(folder_.get(), "cpu.stat"), "usage_usec ");
}

std::uint64_t Cgroup::peak_bytes() const {
    return number_after(read_at(folder_.get(), "memory.peak"), "");
}

void Cgroup::signal_all(int signal) const {
    signal_below(folder_.get(), signal, 0);
}

void Cgroup::kill_all() const {
    if (auto done = write_control_at(folder_.get(), "cgroup.kill", "1"); !done) {
        signal_all(SIGKILL);
    }
}

Outcome<Fd> Cgroup::open_events() const {
    Fd events(::openat(folder_.get(), "cgroup.events", O_RDONLY | O_CLOEXEC));
    if (!events) {
        return failure_errno(errno, "cgroup.events");
    }
    // kernfs reports changes since the last read.
    static_cast<void>(read_populated(events.get()));
    return events;
}

class CgroupTree::Lingering final : public EventHandler {
public:
    Lingering(CgroupTree& tree, Cgroup cgroup) : tree_(tree), cgroup_(std::move(cgroup)) {
        auto events = cgroup_.open_events();
        if (events) {
            auto watched = Watched::create(tree.poller_, std::move(*events), EPOLLPRI, *this);
            if (watched) {
                events_ = std::move(*watched);
            }
        }
    }
    const std::string& name() const { return cgroup_.name_; }
    bool over() const { return over_; }
    void on_events(std::uint32_t) override {
        if (!over_ && !read_populated(events_.get()) && tree_.remove(cgroup_.name_)) {
            over_ = true; // the tree drops it when the next one is given up
            events_.reset();
            cgroup_ = {};
        }
    }

private:
    CgroupTree& tree_;
    Cgroup cgroup_;
    Watched events_;
    bool over_ = false;
};

CgroupTree::CgroupTree(Poller& poller) : poller_(poller) {}

CgroupTree::~CgroupTree() = default;

Outcome<std::unique_ptr<CgroupTree>> CgroupTree::create(Poller& poller) {
    enable_controllers(kTop);
    if (::mkdir(kFolder, 0755) < 0 && errno != EEXIST) {
        return failure_errno(errno, kFolder);
    }
    enable_controllers(kFolder);
    std::unique_ptr<CgroupTree> tree(new CgroupTree(poller));
    tree->folder_ = Fd(::open(kFolder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!tree->folder_) {
        return failure_errno(errno, kFolder);
    }
    // A fork bomb must leave room for another exec, and all of them for the machine itself.
    const auto threads = read_small_file("/proc/sys/kernel/threads-max", 64);
    const auto pids = read_small_file("/proc/sys/kernel/pid_max", 64);
    const std::uint64_t most = std::min(threads ? number_after(*threads, "") : 1024,
                                        pids ? number_after(*pids, "") : 1024);
    tree->pids_max_ = std::to_string(most * 8 / 10);
    static_cast<void>(
        write_control_at(tree->folder_.get(), "pids.max", std::to_string(most * 9 / 10)));
    return tree;
}

Outcome<Cgroup> CgroupTree::make() {
    const std::string name = std::to_string(next_++);
    if (::mkdirat(folder_.get(), name.c_str(), 0755) < 0) {
        return failure_errno(errno, "make a control group");
    }
    Fd folder(::openat(folder_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) {
        auto failed = failure_errno(errno, "open a control group");
        remove(name);
        return failed;
    }
    static_cast<void>(write_control_at(folder.get(), "pids.max", pids_max_));
    return Cgroup(name, std::move(folder));
}

void CgroupTree::freeze() {
    const Fd events(::openat(folder_.get(), "cgroup.events", O_RDONLY | O_CLOEXEC));
    if (auto done = write_control_at(folder_.get(), "cgroup.freeze", "1"); !done || !events) {
        return;
    }
    const std::uint64_t deadline = boot_ns() + kFreezeGrace;
    for (std::uint64_t now = boot_ns(); now < deadline; now = boot_ns()) {
        char text[128];
        const ssize_t n = ::pread(events.get(), text, sizeof text, 0);
        if (n > 0 && number_after({text, static_cast<std::size_t>(n)}, "frozen ") != 0) {
            return;
        }
        pollfd change{.fd = events.get(), .events = POLLPRI, .revents = 0};
        static_cast<void>(
            ::poll(&change, 1, static_cast<int>((deadline - now) / kMillisecond) + 1));
    }
    console("some processes are not frozen yet");
}

void CgroupTree::thaw() {
    if (auto done = write_control_at(folder_.get(), "cgroup.freeze", "0"); !done) {
        console("thaw: %s", done.error().message.c_str());
    }
}

void CgroupTree::give_up(Cgroup cgroup) {
    std::erase_if(lingering_, [](const auto& old) { return old->over(); });
    if (!cgroup || remove(cgroup.name_)) {
        return;
    }
    lingering_.push_back(std::make_unique<Lingering>(*this, std::move(cgroup)));
    lingering_.back()->on_events(0); // it may have become empty before the watch was there
}

bool CgroupTree::remove(const std::string& name) {
    if (::unlinkat(folder_.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) {
        return true;
    }
    const Fd folder(::openat(folder_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder && number_after(read_at(folder.get(), "cgroup.events"), "populated ") == 0) {
        remove_below(folder.get(), 0);
    }
    return ::unlinkat(folder_.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
}

} // namespace wd::agent
