#include "wire/message.hpp"

#include <cstring>

namespace wd::wire {
namespace {

// Each message is described once, by visiting its fields in order of their tags (1, 2, …);
// encoding and decoding are two visitors of that description.

class Writer {
public:
    void operator()(const std::uint64_t& value) {
        std::byte raw[8];
        for (int i = 0; i < 8; ++i) {
            raw[i] = static_cast<std::byte>(value >> (8 * i));
        }
        put(++tag_, raw);
    }
    template <class Enum>
    requires std::is_enum_v<Enum>
    void operator()(const Enum& value) { (*this)(static_cast<std::uint64_t>(value)); }
    void operator()(const std::string& value) {
        put(++tag_, std::as_bytes(std::span(value.data(), value.size())));
    }
    void operator()(const std::vector<std::string>& values) {
        ++tag_;
        for (const std::string& value : values) {
            put(tag_, std::as_bytes(std::span(value.data(), value.size())));
        }
    }
    Bytes take() { return std::move(out_); }

private:
    void put(std::uint8_t tag, View value) {
        const auto length = static_cast<std::uint32_t>(value.size());
        out_.push_back(static_cast<std::byte>(tag));
        for (int i = 0; i < 4; ++i) {
            out_.push_back(static_cast<std::byte>(length >> (8 * i)));
        }
        out_.insert(out_.end(), value.begin(), value.end());
    }
    Bytes out_;
    std::uint8_t tag_ = 0;
};

// Takes one (tag, value) to the field of that tag.
class Assigner {
public:
    Assigner(std::uint8_t tag, View value) : wanted_(tag), value_(value) {}

    void operator()(std::uint64_t& field) {
        if (!mine()) {
            return;
        }
        good_ = value_.size() == 8;
        if (good_) {
            field = 0;
            for (int i = 0; i < 8; ++i) {
                field |= std::to_integer<std::uint64_t>(value_[static_cast<std::size_t>(i)])
                         << (8 * i);
            }
        }
    }
    void operator()(Failure::Kind& field) { enumeration(field, Failure::Kind::limit); }
    void operator()(Exit::Kind& field) { enumeration(field, Exit::Kind::timeout); }
    void operator()(std::string& field) {
        if (mine()) {
            field = text();
        }
    }
    void operator()(std::vector<std::string>& field) {
        if (mine()) {
            field.push_back(text());
        }
    }
    bool good() const { return good_; }

private:
    bool mine() { return ++tag_ == wanted_; }
    std::string text() const {
        return {reinterpret_cast<const char*>(value_.data()), value_.size()};
    }
    template <class Enum>
    void enumeration(Enum& field, Enum last) {
        std::uint64_t raw = static_cast<std::uint64_t>(field);
        (*this)(raw);
        if (raw > static_cast<std::uint64_t>(last)) {
            good_ = false;
        } else {
            field = static_cast<Enum>(raw);
        }
    }

    std::uint8_t wanted_;
    std::uint8_t tag_ = 0;
    View value_;
    bool good_ = true;
};

template <class V, class M>
void visit_hello(V& v, M& m) {
    v(m.oldest_version), v(m.version), v(m.agent_version), v(m.kernel_release);
    v(m.agent_start_ns), v(m.now_ns);
}
template <class V, class M>
void visit_setup(V& v, M& m) {
    v(m.version), v(m.root_device), v(m.realtime_ns), v(m.random), v(m.hostname);
    v(m.machine_id), v(m.env);
}
template <class V, class M>
void visit_ready(V& v, M& m) {
    v(m.mount_ns), v(m.identity_ns), v(m.root_bytes);
}
template <class V, class M>
void visit_exec(V& v, M& m) {
    v(m.argv), v(m.env), v(m.cwd), v(m.user), v(m.timeout_ms);
}
template <class V, class M>
void visit_opened(V& v, M& m) {
    v(m.pid);
}
template <class V, class M>
void visit_failure(V& v, M& m) {
    v(m.kind), v(m.errnum), v(m.message);
}
template <class V, class M>
void visit_exit(V& v, M& m) {
    v(m.kind), v(m.value), v(m.cpu_us), v(m.peak_bytes);
}

template <class Message, class Visit>
std::optional<Message> read_fields(View payload, Visit visit) {
    Message message;
    while (!payload.empty()) {
        if (payload.size() < 5) {
            return std::nullopt;
        }
        std::size_t length = 0;
        for (std::size_t i = 0; i < 4; ++i) {
            length |= std::to_integer<std::size_t>(payload[1 + i]) << (8 * i);
        }
        if (length > payload.size() - 5) {
            return std::nullopt;
        }
        Assigner assigner(std::to_integer<std::uint8_t>(payload[0]), payload.subspan(5, length));
        visit(assigner, message);
        if (!assigner.good()) {
            return std::nullopt;
        }
        payload = payload.subspan(5 + length);
    }
    return message;
}

} // namespace

#define WD_WIRE_MESSAGE(Message, visit)                                                            \
    Bytes encode(const Message& message) {                                                         \
        Writer writer;                                                                             \
        visit(writer, message);                                                                    \
        return writer.take();                                                                      \
    }                                                                                              \
    template <>                                                                                    \
    std::optional<Message> decode<Message>(View payload) {                                         \
        return read_fields<Message>(payload, [](auto& v, auto& m) { visit(v, m); });               \
    }

WD_WIRE_MESSAGE(Hello, visit_hello)
WD_WIRE_MESSAGE(Setup, visit_setup)
WD_WIRE_MESSAGE(Ready, visit_ready)
WD_WIRE_MESSAGE(ExecRequest, visit_exec)
WD_WIRE_MESSAGE(Opened, visit_opened)
WD_WIRE_MESSAGE(Failure, visit_failure)
WD_WIRE_MESSAGE(Exit, visit_exit)

#undef WD_WIRE_MESSAGE

} // namespace wd::wire
