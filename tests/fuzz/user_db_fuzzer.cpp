// The guest's /etc/passwd and /etc/group, which anyone in the guest may have written: the wanted
// user, the first and the second file, divided by NUL bytes.

#include "agent/environment.hpp"
#include "agent/identity.hpp"
#include "agent/user_db.hpp"

#include <cstdlib>

using namespace wd::agent;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::string_view rest(reinterpret_cast<const char*>(data), size);
    const auto part = [&rest] {
        const std::size_t end = std::min(rest.find('\0'), rest.size());
        const std::string_view text = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        return text;
    };
    const std::string_view wanted = part();
    const std::string_view passwd = part();
    const std::string_view group = part();
    if (const auto user = find_user(wanted, passwd, group)) {
        if (user->uid == UINT32_MAX || user->gid == UINT32_MAX || user->groups.empty() ||
            merge_environment(*user, {}, {}).size() < 4) {
            std::abort();
        }
    } else if (user.error().message.size() > 1000) {
        std::abort();
    }
    const std::string once = hosts_with(passwd, "box");
    if (hosts_with(once, "box") != once) {
        std::abort();
    }
    static_cast<void>(program_candidates(wanted, passwd));
    return 0;
}
