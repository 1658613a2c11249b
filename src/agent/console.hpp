#pragma once
// Lines on the guest's console, which `wd logs` shows. Never blocks: a line that the console does
// not take is lost.

namespace wd::agent {

// Takes fd 2 (the kernel opens the console as 0, 1 and 2 of pid 1).
void console_init();
[[gnu::format(printf, 1, 2)]] void console(const char* format, ...);

} // namespace wd::agent
