#pragma once
// Logging: to stderr, with the level in front where that is the journal; what belongs to a sandbox
// goes to the journal with a field WORKDIR_SANDBOX.
// Never blocks for long and never fails visibly.

#include <string>
#include <string_view>

namespace wd::log {

// Syslog priorities, syslog(3).
enum class Level { error = 3, warning = 4, notice = 5, info = 6, debug = 7 };

// Messages above this level are dropped. Default: info, or debug with WORKDIR_DEBUG=1.
void set_max_level(Level level);

void write(Level level, std::string_view message, std::string_view sandbox_id = {});

inline void error(std::string_view message, std::string_view sandbox_id = {}) {
    write(Level::error, message, sandbox_id);
}
inline void warning(std::string_view message, std::string_view sandbox_id = {}) {
    write(Level::warning, message, sandbox_id);
}
inline void notice(std::string_view message, std::string_view sandbox_id = {}) {
    write(Level::notice, message, sandbox_id);
}
inline void info(std::string_view message, std::string_view sandbox_id = {}) {
    write(Level::info, message, sandbox_id);
}
inline void debug(std::string_view message, std::string_view sandbox_id = {}) {
    write(Level::debug, message, sandbox_id);
}

} // namespace wd::log
