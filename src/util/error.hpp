#pragma once
// Errors of the whole program: one code, an errno where there was one, and a message for a person.
//
// A message says what failed, the value, the limit and the remedy. It never repeats arguments or
// environment of a user's command (they may hold secrets); text from outside goes through quote().

#include <string>
#include <string_view>

namespace wd {

// The order is the order of the table in error.cpp; a test checks that the table is total.
enum class ErrorCode {
    invalid_argument, // bad value from a caller
    not_found,        // no such sandbox, image, job
    exists,           // name taken
    wrong_state,      // the object cannot do that now
    not_authorised,   // polkit or ownership said no
    limit,            // a configured limit or the machine's own
    disk_full,        // free space would fall below the reserve
    timeout,          // a deadline passed
    start_failed,     // unit, VMM, kernel or agent did not come up
    unreachable,      // the guest or its shim does not answer
    unsupported,      // this host or build cannot do that
    cancelled,        // the caller went away or asked for it
    internal,         // a bug or an unexpected failure of the host
};
inline constexpr int kErrorCodeCount = static_cast<int>(ErrorCode::internal) + 1;

struct ErrorCodeInfo {
    ErrorCode code;
    std::string_view name;      // stable, for --json
    std::string_view dbus_name; // dev.workdir1.Error.*
    int errno_value;
    int exit_status; // of wd, except `wd exec`, which uses 125 for all of them
};

// Never fails: the table is total.
const ErrorCodeInfo& error_code_info(ErrorCode code);

// The code of a D-Bus error name; `internal` for a name that is not ours.
ErrorCode error_code_from_dbus(std::string_view dbus_name);

struct Error {
    ErrorCode code = ErrorCode::internal;
    int errnum = 0; // errno of the failing call, 0 where there was none
    std::string message;

    // Puts "what: " in front of the message: context is added on the way up.
    Error&& context(std::string_view what) &&;
};

// Error with ": strerror(errnum)" appended to what.
Error errno_error(int errnum, std::string_view what, ErrorCode code = ErrorCode::internal);

} // namespace wd
