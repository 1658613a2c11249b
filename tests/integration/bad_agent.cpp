// An init that is no good agent, for tests of what the shim and workdird make of it. What it does
// is said by a line "mode=…" at the end of its own file, where bad_agent_image puts it.

#include "agent/clock.hpp"
#include "agent/console.hpp"
#include "agent/device.hpp"
#include "agent/root_fs.hpp"
#include "wire/message.hpp"

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using namespace wd;
using wire::FrameType;

// Before /proc is mounted, so by its name in the initramfs.
std::string own_mode() {
    const int file = ::open("/init", O_RDONLY | O_CLOEXEC);
    char tail[64];
    const off_t end = ::lseek(file, 0, SEEK_END);
    const ssize_t n = ::pread(file, tail, sizeof tail, end - static_cast<off_t>(sizeof tail));
    const std::string_view text(tail, n < 0 ? 0 : static_cast<std::size_t>(n));
    const std::size_t from = text.rfind("mode=");
    const std::size_t to = text.rfind('\n');
    if (from == std::string_view::npos || to == std::string_view::npos || to < from) {
        return "none";
    }
    return std::string(text.substr(from + 5, to - from - 5));
}

int open_port() {
    agent::DeviceWatch watch;
    const std::uint64_t deadline = agent::boot_ns() + 10 * agent::kSecond;
    do {
        if (const auto path = agent::find_port("dev.workdir.agent")) {
            return ::open(path->c_str(), O_RDWR);
        }
    } while (watch.wait(deadline));
    return -1;
}

void send(int port, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(port, bytes.data(), bytes.size());
        if (n > 0) {
            bytes = bytes.subspan(static_cast<std::size_t>(n));
        } else if (errno != EINTR && errno != EAGAIN) {
            return;
        }
    }
}

void send_frame(int port, std::uint32_t channel, FrameType type, const wire::Bytes& payload) {
    wire::Bytes bytes;
    wire::append_frame(bytes, {.channel = channel, .type = type, .payload = payload});
    send(port, bytes);
}

wire::Bytes garbage() {
    wire::Bytes bytes(4096);
    if (::getrandom(bytes.data(), bytes.size(), 0) < 0) {
        ::_exit(1);
    }
    bytes[8] = std::byte{0xee}; // no frame type, whatever the rest says
    bytes[7] = std::byte{0};
    bytes[6] = std::byte{0};
    return bytes;
}

wire::Hello hello(std::uint64_t version) {
    return {.oldest_version = version, .version = version, .agent_version = "bad"};
}

// The next whole frame from the host.
FrameType wait_for_frame(int port, wire::FrameReader& reader) {
    for (;;) {
        if (const auto frame = reader.next()) {
            return frame->type;
        }
        std::byte chunk[4096];
        const ssize_t n = ::read(port, chunk, sizeof chunk);
        if (n > 0) {
            reader.feed({chunk, static_cast<std::size_t>(n)});
        }
    }
}

// A good agent until the first command; then garbage in the middle of it.
void turn_bad_later(int port) {
    send_frame(port, 0, FrameType::hello, wire::encode(hello(wire::kProtocolVersion)));
    wire::FrameReader reader;
    for (;;) {
        const FrameType type = wait_for_frame(port, reader);
        if (type == FrameType::setup) {
            send_frame(port, 0, FrameType::ready, wire::encode(wire::Ready{}));
        } else if (type == FrameType::open) {
            send_frame(port, 1, FrameType::opened, wire::encode(wire::Opened{1}));
            send(port, garbage());
        }
    }
}

void misbehave(const std::string& mode, int port) {
    if (mode == "garbage") {
        send(port, garbage());
    } else if (mode == "oversized") {
        std::byte head[wire::kHeaderSize];
        wire::put_header(head, 0, FrameType::hello, 0, wire::kMaxPayload + 1);
        send(port, head);
        send(port, wire::Bytes(wire::kMaxPayload + 1, std::byte{'x'}));
    } else if (mode == "version") {
        send_frame(port, 0, FrameType::hello, wire::encode(hello(999)));
    } else if (mode == "later") {
        turn_bad_later(port);
    } // "silent": nothing
}

} // namespace

int main() {
    agent::console_init();
    const std::string mode = own_mode();
    ::mkdir("/dev", 0755);
    if (const auto mounted = agent::mount_early(); !mounted) {
        return 1;
    }
    const std::string line = "bad-agent: mode " + mode + "\n";
    if (::write(2, line.data(), line.size()) < 0 || mode == "exit") {
        return 3;
    }
    misbehave(mode, open_port());
    for (;;) {
        ::pause();
    }
}
