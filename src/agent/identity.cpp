#include "agent/identity.hpp"

#include "agent/clock.hpp"
#include "agent/console.hpp"
#include "agent/files.hpp"
#include "util/fd.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <linux/random.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace wd::agent {
namespace {

constexpr std::size_t kLeastRandom = 32; // bytes: a whole key of the kernel's generator

Outcome<void> seed_random(const std::string& bytes) {
    if (bytes.size() < kLeastRandom || bytes.size() > 4096) {
        return failure(FailureKind::other, EINVAL,
                       std::to_string(bytes.size()) + " random bytes from the host, not 64");
    }
    const Fd pool(::open("/dev/urandom", O_RDWR | O_CLOEXEC));
    if (!pool) {
        return failure_errno(errno, "open /dev/urandom");
    }
    // struct rand_pool_info ends in a flexible array: bits of entropy, bytes, the bytes.
    std::vector<int> info(2 + (bytes.size() + sizeof(int) - 1) / sizeof(int));
    info[0] = static_cast<int>(bytes.size() * 8);
    info[1] = static_cast<int>(bytes.size());
    std::memcpy(info.data() + 2, bytes.data(), bytes.size());
    const bool added = ::ioctl(pool.get(), RNDADDENTROPY, info.data()) == 0;
    const int errnum = errno;
    ::explicit_bzero(info.data(), info.size() * sizeof(int));
    if (!added) {
        return failure_errno(errnum, "RNDADDENTROPY");
    }
    // Else the pool's new state would reach readers only at the next periodic reseed.
    if (::ioctl(pool.get(), RNDRESEEDCRNG) < 0) {
        return failure_errno(errno, "RNDRESEEDCRNG");
    }
    return {};
}

Outcome<void> loopback_up() {
    const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::memcpy(request.ifr_name, "lo", 3);
    if (!socket || ::ioctl(socket.get(), SIOCGIFFLAGS, &request) < 0) {
        return failure_errno(errno, "loopback");
    }
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    if (::ioctl(socket.get(), SIOCSIFFLAGS, &request) < 0) {
        return failure_errno(errno, "loopback up");
    }
    return {};
}

Outcome<void> set_names(const wire::Setup& setup) {
    if (!is_hostname(setup.hostname)) {
        return failure(FailureKind::other, EINVAL,
                       quote(setup.hostname) + " is no valid host name");
    }
    if (!is_machine_id(setup.machine_id)) {
        return failure(FailureKind::other, EINVAL, "the machine id is not 32 hex digits");
    }
    if (::sethostname(setup.hostname.data(), setup.hostname.size()) < 0) {
        return failure_errno(errno, "sethostname");
    }
    if (auto done = update_file("/etc/hostname", setup.hostname + "\n", 0644); !done) {
        return done;
    }
    const auto hosts = read_small_file("/etc/hosts", 1024 * 1024);
    if (!hosts && hosts.error().errnum != ENOENT) {
        return tl::unexpected(hosts.error());
    }
    const std::string base = hosts ? *hosts : "127.0.0.1\tlocalhost\n::1\tlocalhost\n";
    if (auto done = update_file("/etc/hosts", hosts_with(base, setup.hostname), 0644); !done) {
        return done;
    }
    return update_file("/etc/machine-id", setup.machine_id + "\n", 0444);
}

} // namespace

Outcome<void> set_clock(const wire::Setup& setup, std::uint64_t received_ns) {
    if (setup.realtime_ns == 0) {
        return failure(FailureKind::other, EINVAL, "no time of day from the host");
    }
    const std::uint64_t now = setup.realtime_ns + (boot_ns() - received_ns);
    timespec time{};
    time.tv_sec = static_cast<time_t>(now / kSecond);
    time.tv_nsec = static_cast<long>(now % kSecond);
    if (::clock_settime(CLOCK_REALTIME, &time) < 0) {
        return failure_errno(errno, "set the clock");
    }
    return {};
}

Outcome<void> set_identity(const wire::Setup& setup, bool names) {
    if (auto done = seed_random(setup.random); !done) {
        return done;
    }
    if (names) {
        if (auto done = set_names(setup); !done) {
            return done;
        }
    }
    return loopback_up();
}

std::string hosts_with(std::string_view hosts, std::string_view hostname) {
    constexpr std::string_view kAddress = "127.0.1.1";
    const std::string entry = std::string(kAddress) + "\t" + std::string(hostname) + "\n";
    std::string out;
    bool placed = false;
    while (!hosts.empty()) {
        const std::size_t end = std::min(hosts.find('\n'), hosts.size());
        const std::string_view line = hosts.substr(0, end);
        hosts.remove_prefix(std::min(end + 1, hosts.size()));
        const bool ours = line.starts_with(kAddress) && line.size() > kAddress.size() &&
                          (line[kAddress.size()] == '\t' || line[kAddress.size()] == ' ');
        if (!ours) {
            out.append(line);
            out += '\n';
        } else if (!placed) {
            out += entry;
            placed = true;
        }
    }
    return placed ? out : out + entry;
}

bool is_hostname(std::string_view text) {
    const auto good = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '.' || c == '_';
    };
    // 64: HOST_NAME_MAX of Linux.
    return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), good) &&
           text.front() != '-' && text.front() != '.';
}

bool is_machine_id(std::string_view text) {
    return text.size() == 32 && std::all_of(text.begin(), text.end(), [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

} // namespace wd::agent
