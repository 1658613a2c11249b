#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "daemon/authz.hpp"
#include "util/file.hpp"

#include <doctest/doctest.h>

#include <regex>
#include <string>

using namespace wd;
using namespace wd::daemon;

// WORKDIR_XML is src/daemon/service, from meson.
TEST_CASE("every method of the D-Bus contract has its entry in the authorisation table") {
    int methods = 0;
    for (const char* name : {"Manager", "Sandbox", "Job"}) {
        const std::string interface = std::string("dev.workdir1.") + name;
        const auto xml =
            read_file(std::string(WORKDIR_XML) + "/" + interface + ".xml", 1 << 20).value();
        const std::regex method("<method name=\"([A-Za-z]+)\"");
        for (std::sregex_iterator at(xml.begin(), xml.end(), method), end; at != end; ++at) {
            INFO(interface << "." << (*at)[1].str());
            CHECK(action_of(interface, (*at)[1].str()).has_value());
            ++methods;
        }
        CHECK(xml.find("access=\"readwrite\"") == std::string::npos);
        CHECK(xml.find("access=\"write\"") == std::string::npos);
    }
    CHECK(methods == 16);
}

TEST_CASE("what is not in the table is open to nobody") {
    CHECK_FALSE(action_of("dev.workdir1.Manager", "NoSuchMethod"));
    CHECK_FALSE(action_of("dev.workdir1.Sandbox", "Create"));
    CHECK_FALSE(action_of("org.freedesktop.DBus.Properties", "Set"));
    CHECK(action_of("dev.workdir1.Manager", "BuildImage") == Action::images);
}

TEST_CASE("every action is one of the policy file's") {
    const auto policy = read_file(WORKDIR_POLICY, 1 << 20).value();
    for (const Action action :
         {Action::manage_own, Action::manage_all, Action::images, Action::configure}) {
        const std::string wanted = "<action id=\"" + std::string(polkit_id(action)) + "\">";
        INFO(wanted);
        CHECK(policy.find(wanted) != std::string::npos);
    }
}
