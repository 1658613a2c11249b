// Every decode<>(); the first byte says which. What decodes must encode to what decodes to the
// same.

#include "wire/message.hpp"

#include <cstdlib>

using namespace wd::wire;

namespace {

template <class Message>
void check(View payload) {
    if (const auto message = decode<Message>(payload)) {
        const Bytes once = encode(*message);
        const auto second = decode<Message>(once);
        if (!second || encode(*second) != once) {
            std::abort();
        }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const View payload = std::as_bytes(std::span(data + 1, size - 1));
    switch (data[0] % 7) {
    case 0:
        check<Hello>(payload);
        break;
    case 1:
        check<Setup>(payload);
        break;
    case 2:
        check<Ready>(payload);
        break;
    case 3:
        check<ExecRequest>(payload);
        break;
    case 4:
        check<Opened>(payload);
        break;
    case 5:
        check<Failure>(payload);
        break;
    default:
        check<Exit>(payload);
        break;
    }
    return 0;
}
