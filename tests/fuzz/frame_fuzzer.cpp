// FrameReader, fed in pieces of changing size; what it hands out must be what came in.

#include "wire/frame.hpp"

#include <cstdlib>
#include <cstring>

using namespace wd::wire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto input = std::as_bytes(std::span(data, size));
    FrameReader whole;
    FrameReader pieces;
    CreditAccount account;
    whole.feed(input);

    std::size_t fed = 0;
    std::vector<std::byte> again;
    for (std::size_t step = size == 0 ? 1 : data[0] % 37 + 1; fed < size;) {
        const std::size_t n = std::min(step, size - fed);
        const auto room = pieces.prepare(n + step % 5);
        std::memcpy(room.data(), input.data() + fed, n);
        pieces.commit(n);
        fed += n;
        step = step % 41 + 3;
        while (const auto frame = pieces.next()) {
            const auto same = whole.next();
            if (!same || same->type != frame->type || same->channel != frame->channel ||
                same->flag != frame->flag || same->payload.size() != frame->payload.size() ||
                (!frame->payload.empty() && std::memcmp(same->payload.data(), frame->payload.data(),
                                                        frame->payload.size()) != 0)) {
                std::abort();
            }
            append_frame(again, *frame);
            if (const auto bytes = parse_credit(frame->payload)) {
                static_cast<void>(account.grant(*bytes));
            }
            static_cast<void>(parse_stream(frame->flag));
            static_cast<void>(account.use(frame->payload.size()));
            if (account.available() > kWindow) {
                std::abort();
            }
        }
    }
    if (whole.next() || whole.violation() != pieces.violation()) {
        std::abort();
    }
    if (!again.empty() && std::memcmp(again.data(), data, again.size()) != 0) {
        std::abort();
    }
    return 0;
}
