// What the C++ runtime would pull in for exceptions (unwinder, demangler, message catalogues), in
// a program that has none: out of memory or a broken precondition ends pid 1, so the kernel panics
// and the machine stops. Only the executable links this, not the library that tests use.

#include "agent/console.hpp"

#include <cstdlib>
#include <new>

namespace {
[[noreturn]] void die(const char* why) {
    wd::agent::console("%s, the machine stops", why);
    std::abort();
}

void* allocate(std::size_t size) {
    void* const memory = std::malloc(size == 0 ? 1 : size);
    if (memory == nullptr) {
        die("out of memory");
    }
    return memory;
}
} // namespace

void* operator new(std::size_t size) {
    return allocate(size);
}
void* operator new[](std::size_t size) {
    return allocate(size);
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete[](void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
    std::free(memory);
}

// libstdc++'s containers call these (bits/functexcept.h).
namespace std {
void __throw_length_error(const char* what) {
    die(what);
}
void __throw_logic_error(const char* what) {
    die(what);
}
void __throw_out_of_range_fmt(const char* what, ...) {
    die(what);
}
void __throw_bad_alloc() {
    die("out of memory");
}
void __throw_bad_array_new_length() {
    die("an array too large");
}
void __throw_bad_function_call() {
    die("an empty function called");
}
} // namespace std

extern "C" void __cxa_pure_virtual() {
    die("a pure virtual function called");
}
