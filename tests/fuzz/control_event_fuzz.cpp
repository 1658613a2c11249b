// What a shim may send to workdird, which is root. What is taken must be bounded and printable, and
// survive another round.

#include "control/message.hpp"
#include "util/text.hpp"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace wd::control;
    const auto event = decode_event({reinterpret_cast<const char*>(data), size});
    if (!event) {
        return 0;
    }
    if (const auto* ended = std::get_if<Ended>(&*event)) {
        if (ended->end.detail.size() > 520 || !wd::is_valid_utf8(ended->end.detail) ||
            ended->console_tail.size() > 4 * kMaxConsoleTail + 8) {
            std::abort();
        }
    }
    const std::string once = encode(*event);
    const auto again = decode_event(once);
    if (!again || encode(*again) != once) {
        std::abort();
    }
    return 0;
}
