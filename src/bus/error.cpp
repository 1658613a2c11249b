#include "bus/error.hpp"

#include "bus/error_name.hpp"

namespace wd::bus {

sdbus::Error to_sdbus(const Error& error) {
    return make_error(std::string(error_code_info(error.code).dbus_name), error.message);
}

Error from_sdbus(const sdbus::Error& error) {
    return error_from_name(error.getName(), error.getMessage());
}

} // namespace wd::bus
