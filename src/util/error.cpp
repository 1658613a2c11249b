#include "util/error.hpp"

#include <array>
#include <cerrno>
#include <cstring>

namespace wd {
namespace {

constexpr std::array<ErrorCodeInfo, kErrorCodeCount> kTable{{
    {ErrorCode::invalid_argument, "invalid_argument", "dev.workdir1.Error.InvalidArgument", EINVAL,
     2},
    {ErrorCode::not_found, "not_found", "dev.workdir1.Error.NotFound", ENOENT, 3},
    {ErrorCode::exists, "exists", "dev.workdir1.Error.Exists", EEXIST, 4},
    {ErrorCode::wrong_state, "wrong_state", "dev.workdir1.Error.WrongState", EBUSY, 5},
    {ErrorCode::not_authorised, "not_authorised", "dev.workdir1.Error.NotAuthorised", EACCES, 6},
    {ErrorCode::limit, "limit", "dev.workdir1.Error.Limit", EDQUOT, 7},
    {ErrorCode::disk_full, "disk_full", "dev.workdir1.Error.DiskFull", ENOSPC, 8},
    {ErrorCode::timeout, "timeout", "dev.workdir1.Error.Timeout", ETIMEDOUT, 9},
    {ErrorCode::start_failed, "start_failed", "dev.workdir1.Error.StartFailed", ECHILD, 10},
    {ErrorCode::unreachable, "unreachable", "dev.workdir1.Error.Unreachable", EHOSTUNREACH, 11},
    {ErrorCode::unsupported, "unsupported", "dev.workdir1.Error.Unsupported", EOPNOTSUPP, 12},
    {ErrorCode::cancelled, "cancelled", "dev.workdir1.Error.Cancelled", ECANCELED, 13},
    {ErrorCode::internal, "internal", "dev.workdir1.Error.Internal", EIO, 70},
}};

} // namespace

const ErrorCodeInfo& error_code_info(ErrorCode code) {
    return kTable[static_cast<std::size_t>(code)];
}

ErrorCode error_code_from_dbus(std::string_view dbus_name) {
    for (const auto& row : kTable) {
        if (row.dbus_name == dbus_name) {
            return row.code;
        }
    }
    return ErrorCode::internal;
}

Error&& Error::context(std::string_view what) && {
    message.insert(0, ": ");
    message.insert(0, what);
    return std::move(*this);
}

Error errno_error(int errnum, std::string_view what, ErrorCode code) {
    std::string message(what);
    message += ": ";
    message += std::strerror(errnum);
    return Error{code, errnum, std::move(message)};
}

} // namespace wd
