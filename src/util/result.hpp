#pragma once
// Result<T>: the value or an Error. `[[nodiscard]]` comes with tl::expected.
// std::expected is not in the compilers of Debian 12, hence the alias.

#include "util/error.hpp"

#include <tl/expected.hpp>

#include <utility>

namespace wd {

template <class T>
using Result = tl::expected<T, Error>;

// return fail(ErrorCode::limit, "...");
inline tl::unexpected<Error> fail(ErrorCode code, std::string message, int errnum = 0) {
    return tl::unexpected<Error>(Error{code, errnum, std::move(message)});
}

inline tl::unexpected<Error> fail(Error error) {
    return tl::unexpected<Error>(std::move(error));
}

// return fail_errno(errno, "open foo");
inline tl::unexpected<Error> fail_errno(int errnum, std::string_view what,
                                        ErrorCode code = ErrorCode::internal) {
    return tl::unexpected<Error>(errno_error(errnum, what, code));
}

} // namespace wd
