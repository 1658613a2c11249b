#include "bus/error_name.hpp"

#include <array>
#include <string>

#include <systemd/sd-bus.h>

namespace wd::bus {
namespace {

struct Foreign {
    std::string_view name;
    ErrorCode code;
};

// Names that are not ours but have a meaning a caller acts on.
constexpr std::array kForeign{
    Foreign{"org.freedesktop.DBus.Error.ServiceUnknown", ErrorCode::unreachable},
    Foreign{"org.freedesktop.DBus.Error.NameHasNoOwner", ErrorCode::unreachable},
    Foreign{"org.freedesktop.DBus.Error.NoReply", ErrorCode::unreachable},
    Foreign{"org.freedesktop.DBus.Error.Disconnected", ErrorCode::unreachable},
    Foreign{"org.freedesktop.DBus.Error.Timeout", ErrorCode::timeout},
    Foreign{"org.freedesktop.DBus.Error.TimedOut", ErrorCode::timeout},
    Foreign{"org.freedesktop.DBus.Error.AccessDenied", ErrorCode::not_authorised},
    Foreign{"org.freedesktop.DBus.Error.AuthFailed", ErrorCode::not_authorised},
    Foreign{"org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
            ErrorCode::not_authorised},
    Foreign{"org.freedesktop.DBus.Error.UnknownObject", ErrorCode::not_found},
    Foreign{"org.freedesktop.DBus.Error.UnknownMethod", ErrorCode::unsupported},
    Foreign{"org.freedesktop.DBus.Error.UnknownInterface", ErrorCode::unsupported},
    Foreign{"org.freedesktop.DBus.Error.UnknownProperty", ErrorCode::unsupported},
    Foreign{"org.freedesktop.DBus.Error.NotSupported", ErrorCode::unsupported},
    Foreign{"org.freedesktop.DBus.Error.InvalidArgs", ErrorCode::invalid_argument},
    Foreign{"org.freedesktop.DBus.Error.InvalidSignature", ErrorCode::invalid_argument},
    Foreign{"org.freedesktop.DBus.Error.LimitsExceeded", ErrorCode::limit},
    Foreign{"org.freedesktop.DBus.Error.NoMemory", ErrorCode::limit},
    Foreign{"org.freedesktop.DBus.Error.ObjectPathInUse", ErrorCode::exists},
    Foreign{"org.freedesktop.systemd1.NoSuchUnit", ErrorCode::not_found},
    Foreign{"org.freedesktop.systemd1.UnitExists", ErrorCode::exists},
};

ErrorCode code_of(std::string_view name) {
    for (const auto& row : kForeign) {
        if (row.name == name) {
            return row.code;
        }
    }
    return error_code_from_dbus(name);
}

} // namespace

Error error_from_name(std::string_view name, std::string_view text) {
    const std::string full_name(name);
    const sd_bus_error raw{full_name.c_str(), "", 0};
    const bool ours = name.starts_with("dev.workdir1.Error.");
    std::string message(text.empty() ? name : text);
    if (!ours && !text.empty()) {
        message += " (" + full_name + ")";
    }
    return Error{code_of(name), ours ? 0 : sd_bus_error_get_errno(&raw), std::move(message)};
}

} // namespace wd::bus
