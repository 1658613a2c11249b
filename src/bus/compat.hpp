#pragma once
// What differs between sdbus-c++ 1.x (Debian 12: 1.2, Ubuntu 24.04: 1.4) and 2.x (Debian 13), under
// one name each. WORKDIR_SDBUS_MAJOR comes from meson. Everything here may throw sdbus::Error.

#include "util/fd.hpp"

#include <sdbus-c++/sdbus-c++.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>

namespace wd::bus {

inline sdbus::Error make_error(const std::string& name, const std::string& message) {
#if WORKDIR_SDBUS_MAJOR >= 2
    return sdbus::Error(sdbus::Error::Name{name}, message);
#else
    return sdbus::Error(name, message);
#endif
}

inline sdbus::ObjectPath make_path(const std::string& path) {
    return sdbus::ObjectPath{path};
}

// A proxy on a connection that the caller drives; no thread is started.
inline std::unique_ptr<sdbus::IProxy> make_proxy(sdbus::IConnection& connection,
                                                 const std::string& destination,
                                                 const std::string& path) {
#if WORKDIR_SDBUS_MAJOR >= 2
    return sdbus::createProxy(connection, sdbus::ServiceName{destination}, sdbus::ObjectPath{path});
#else
    return sdbus::createProxy(connection, destination, path);
#endif
}

// One message that is there already; false: none was.
inline bool process_pending(sdbus::IConnection& connection) {
#if WORKDIR_SDBUS_MAJOR >= 2
    return connection.processPendingEvent();
#else
    return connection.processPendingRequest();
#endif
}

inline void request_name(sdbus::IConnection& connection, const std::string& name) {
#if WORKDIR_SDBUS_MAJOR >= 2
    connection.requestName(sdbus::ServiceName{name});
#else
    connection.requestName(name);
#endif
}

inline std::string unique_name(const sdbus::IConnection& connection) {
    return connection.getUniqueName();
}

inline sdbus::MethodCall make_call(sdbus::IProxy& proxy, const std::string& interface,
                                   const std::string& method) {
#if WORKDIR_SDBUS_MAJOR >= 2
    return proxy.createMethodCall(sdbus::InterfaceName{interface}, sdbus::MethodName{method});
#else
    return proxy.createMethodCall(interface, method);
#endif
}

// `reply` is called once, from the loop, with the reply or what the other side said. The proxy must
// live until then, and not be destroyed from inside it.
template <class Reply> // void(sdbus::MethodReply*, const sdbus::Error*): one of them is null
void call_async(sdbus::IProxy& proxy, const sdbus::MethodCall& message, std::uint64_t timeout_us,
                Reply reply) {
#if WORKDIR_SDBUS_MAJOR >= 2
    proxy.callMethodAsync(
        message,
        [reply = std::move(reply)](sdbus::MethodReply answer, std::optional<sdbus::Error> error) {
            error ? reply(nullptr, &*error) : reply(&answer, nullptr);
        },
        timeout_us);
#else
    proxy.callMethod(
        message,
        [reply = std::move(reply)](sdbus::MethodReply& answer, const sdbus::Error* error) {
            error != nullptr ? reply(nullptr, error) : reply(&answer, nullptr);
        },
        timeout_us);
#endif
}

// The handler is called with the message for as long as the slot lives.
template <class Handler> // void(sdbus::Message&)
[[nodiscard]] sdbus::Slot add_match(sdbus::IConnection& connection, const std::string& match,
                                    Handler handler) {
#if WORKDIR_SDBUS_MAJOR >= 2
    return connection.addMatch(
        match, [handler = std::move(handler)](sdbus::Message message) mutable { handler(message); },
        sdbus::return_slot);
#else
    return connection.addMatch(match, std::move(handler));
#endif
}

// What the handler of an asynchronous call gets first: null or empty when the call succeeded.
#if WORKDIR_SDBUS_MAJOR >= 2
using ReplyError = std::optional<sdbus::Error>;
#else
using ReplyError = const sdbus::Error*;
#endif

inline std::string sender_of(const sdbus::Message& message) {
    return std::string(message.getSender());
}

inline std::string path_of(const sdbus::Message& message) {
    return std::string(message.getPath());
}

inline std::string value_type(const sdbus::Variant& variant) {
    return std::string(variant.peekValueType());
}

template <class T>
std::string signature() {
#if WORKDIR_SDBUS_MAJOR >= 2
    const auto& text = sdbus::signature_of_v<T>;
    return std::string(text.begin(), text.end());
#else
    return sdbus::signature_of<T>::str();
#endif
}

// The unique bus name (":1.42") of who called the method that is being handled; only inside a
// handler.
inline std::string current_sender_name(sdbus::IObject& object) {
#if WORKDIR_SDBUS_MAJOR >= 2
    return sender_of(object.getCurrentlyProcessedMessage());
#else
    return sender_of(*object.getCurrentlyProcessedMessage());
#endif
}

// The same with its effective user, asked of the bus, which waits for its answer.
struct Sender {
    std::string name;
    std::uint32_t uid = 0;
};
inline Sender current_sender(sdbus::IObject& object) {
#if WORKDIR_SDBUS_MAJOR >= 2
    return {current_sender_name(object), object.getCurrentlyProcessedMessage().getCredsEuid()};
#else
    return {current_sender_name(object), object.getCurrentlyProcessedMessage()->getCredsEuid()};
#endif
}

// A signal to one receiver alone.
template <class... Arguments>
void emit_to(sdbus::IObject& object, const std::string& destination, const std::string& interface,
             const std::string& signal, const Arguments&... arguments) {
#if WORKDIR_SDBUS_MAJOR >= 2
    auto message = object.createSignal(sdbus::InterfaceName{interface}, sdbus::SignalName{signal});
#else
    auto message = object.createSignal(interface, signal);
#endif
    (message << ... << arguments);
    message.setDestination(destination);
    object.emitSignal(message);
}

inline void emit_changed(sdbus::IObject& object, const std::string& interface,
                         const std::vector<std::string>& properties) {
#if WORKDIR_SDBUS_MAJOR >= 2
    std::vector<sdbus::PropertyName> names(properties.begin(), properties.end());
    object.emitPropertiesChangedSignal(sdbus::InterfaceName{interface}, names);
#else
    object.emitPropertiesChangedSignal(interface, properties);
#endif
}

// A CLOEXEC duplicate of a received fd: copies that sdbus-c++ makes are not CLOEXEC and may land on
// a stdio slot.
inline Result<Fd> take_fd(const sdbus::UnixFd& fd) {
    if (!fd.isValid()) {
        return fail(ErrorCode::invalid_argument, "no file descriptor in the message");
    }
    const int copy = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3);
    if (copy < 0) {
        return fail_errno(errno, "duplicate a file descriptor");
    }
    return Fd(copy);
}

// Hands the fd over: it closes when the message has been sent and the UnixFd is gone.
inline sdbus::UnixFd give_fd(Fd fd) {
    return sdbus::UnixFd{fd.release(), sdbus::adopt_fd};
}

} // namespace wd::bus
