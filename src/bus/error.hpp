#pragma once
// wd::Error <-> sdbus::Error, by the table of util/error.hpp, and the guards that keep exceptions
// on their side: in our code there is Result, in a handler of sdbus-c++ there is sdbus::Error and
// nothing else (on sdbus-c++ before 1.5 another exception would unwind through libsystemd).

#include "bus/compat.hpp"
#include "util/result.hpp"

#include <exception>
#include <type_traits>
#include <utility>

namespace wd::bus {

sdbus::Error to_sdbus(const Error& error);

// See error_from_name().
Error from_sdbus(const sdbus::Error& error);

// Calls into sdbus-c++: what it throws comes back as an Error.
template <class Function>
Result<std::invoke_result_t<Function>> attempt(Function&& function) {
    try {
        if constexpr (std::is_void_v<std::invoke_result_t<Function>>) {
            std::forward<Function>(function)();
            return {};
        } else {
            return std::forward<Function>(function)();
        }
    } catch (const sdbus::Error& error) {
        return fail(from_sdbus(error));
    } catch (const std::exception& error) {
        return fail(ErrorCode::internal, error.what());
    }
}

// Around every handler that sdbus-c++ calls: only sdbus::Error leaves it.
template <class Function>
std::invoke_result_t<Function> guarded(Function&& function) {
    try {
        return std::forward<Function>(function)();
    } catch (const sdbus::Error&) {
        throw;
    } catch (const std::exception& error) {
        throw to_sdbus(Error{ErrorCode::internal, 0, error.what()});
    } catch (...) {
        throw to_sdbus(Error{ErrorCode::internal, 0, "unexpected exception"});
    }
}

// In a handler: the value, or the error as the reply.
template <class T>
T value_or_throw(Result<T>&& result) {
    if (!result) {
        throw to_sdbus(result.error());
    }
    if constexpr (!std::is_void_v<T>) {
        return std::move(*result);
    }
}

} // namespace wd::bus
