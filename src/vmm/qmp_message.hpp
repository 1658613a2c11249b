#pragma once
// One line of QMP (https://www.qemu.org/docs/master/interop/qmp-spec.html), checked. QEMU is what a
// hostile guest breaks first, so nothing it says is trusted: size, depth and types are bounded.

#include "util/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace wd::vmm {

// The largest answer to a command we send has a few hundred bytes.
inline constexpr std::size_t kMaxQmpLine = 256 * 1024;
inline constexpr int kMaxQmpDepth = 16;

struct QmpGreeting {
    std::string version; // "7.2.22"
};

struct QmpReply {
    std::uint64_t id = 0;
    bool good = false;
    std::string error; // printable, when not good
};

// The events the shim acts on; others have only a name.
struct QmpEvent {
    std::string name;     // printable
    std::string reason;   // SHUTDOWN, BLOCK_IO_ERROR
    bool guest = false;   // SHUTDOWN
    bool nospace = false; // BLOCK_IO_ERROR
    std::string action;   // BLOCK_IO_ERROR: "stop", "report", "ignore"
    std::string id;       // VSERPORT_CHANGE
    bool open = false;    // VSERPORT_CHANGE
};

using QmpMessage = std::variant<QmpGreeting, QmpReply, QmpEvent>;

// Error: invalid_argument with what was wrong.
Result<QmpMessage> parse_qmp(std::string_view line);

// {"execute": command, "arguments": arguments, "id": id} and a newline. `arguments`: a JSON object,
// or empty for none.
std::string qmp_command(std::string_view command, std::uint64_t id,
                        std::string_view arguments = {});

} // namespace wd::vmm
