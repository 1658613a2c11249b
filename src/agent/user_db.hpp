#pragma once
// Users and groups of the guest, from the texts of /etc/passwd and /etc/group (passwd(5),
// group(5)). Own parser: a static binary has no NSS. Pure.

#include "agent/outcome.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace wd::agent {

struct User {
    uid_t uid = 0;
    gid_t gid = 0;
    std::vector<gid_t> groups; // supplementary, gid among them
    std::string name;          // empty: a number without an entry
    std::string home = "/";
    std::string shell = "/bin/sh";
};

// `wanted`: empty (root), a name or number, and optionally ":" and a group's name or number. A
// number need have no entry; then its group is 0, as other runners have it, unless given.
Outcome<User> find_user(std::string_view wanted, std::string_view passwd, std::string_view group);

} // namespace wd::agent
