// What workdird sends to a shim; what is taken must survive another round.

#include "control/message.hpp"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace wd::control;
    const auto request = decode_request({reinterpret_cast<const char*>(data), size});
    if (!request) {
        return 0;
    }
    const std::string once = encode(*request);
    const auto again = decode_request(once);
    if (once.size() <= kMaxMessage && (!again || encode(*again) != once)) {
        std::abort();
    }
    return 0;
}
