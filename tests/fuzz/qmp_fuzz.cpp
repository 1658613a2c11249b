// QMP as QEMU sends it: the line splitter with pieces of any size, and the message parser. Checked
// are the bounds that the shim relies on.

#include "vmm/line_reader.hpp"
#include "vmm/qmp_message.hpp"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace wd::vmm;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const std::size_t step = size == 0 ? 1 : 1 + data[0] % 64;
    LineReader strict(256, LineReader::Overlong::fail);
    LineReader cutting(256, LineReader::Overlong::cut);
    for (std::size_t at = 0; at < size; at += step) {
        strict.feed(text.substr(at, step));
        cutting.feed(text.substr(at, step));
        while (const auto line = strict.next()) {
            const auto message = parse_qmp(*line);
            if (message) {
                if (const auto* event = std::get_if<QmpEvent>(&*message);
                    event != nullptr && event->name.size() > 210) {
                    std::abort();
                }
            } else if (message.error().message.size() > 400) {
                std::abort();
            }
        }
        while (const auto line = cutting.next()) {
            if (line->size() > 256) {
                std::abort();
            }
        }
        if (strict.rest().size() > 256 + 64) {
            std::abort();
        }
    }
    (void)parse_qmp(text);
    return 0;
}
