#pragma once
// Outcome<T>: the value, or the wire::Failure that is told to the host. The agent links neither
// fmt nor wd-util, so it has no use for util/result.hpp's Error.
//
// A message never repeats arguments or environment of a command: they may hold secrets. Names from
// outside (a user, a folder, a program) go through quote().

#include "wire/message.hpp"

#include <tl/expected.hpp>

#include <string>
#include <string_view>

namespace wd::agent {

template <class T>
using Outcome = tl::expected<T, wire::Failure>;
using FailureKind = wire::Failure::Kind;

tl::unexpected<wire::Failure> failure(FailureKind kind, int errnum, std::string message);
// "what: strerror(errnum)", kind other.
tl::unexpected<wire::Failure> failure_errno(int errnum, std::string_view what);

std::string errno_text(int errnum);
// In double quotes, control characters as \xNN, cut to 80 bytes.
std::string quote(std::string_view text);

} // namespace wd::agent
