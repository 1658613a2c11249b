#pragma once
// What the D-Bus methods take and give, as dictionaries: the one place that knows their keys
// (dev.workdir1(5), and the comments of the XML).

#include "bus/dict.hpp"
#include "config/config.hpp"
#include "daemon/doctor.hpp"
#include "sandbox/manager.hpp"
#include "wire/message.hpp"

namespace wd::daemon {

struct CreateOptions {
    model::SandboxSpec spec;
    std::string token;
};
Result<CreateOptions> read_create_options(const bus::Dict& dict, const config::Defaults& defaults);

struct ListOptions {
    bool all = false;
    std::map<std::string, std::string> labels;
};
Result<ListOptions> read_list_options(const bus::Dict& dict);

// Checks everything that the guest's exec(2) would refuse, with the limit in the message.
Result<wire::ExecRequest> read_exec_request(std::vector<std::string> argv, const bus::Dict& dict);

Result<std::chrono::milliseconds> read_stop_options(const bus::Dict& dict);
Result<std::string> read_version_option(const bus::Dict& dict);
Result<void> read_no_options(const bus::Dict& dict);

bus::Dict view_of_sandbox(const sandbox::Sandbox& sandbox, const sandbox::Paths& paths);
bus::Dict report_of(const sandbox::Sandbox& sandbox);
bus::Dict view_of_image(const image::Image& image, std::size_t users, bool latest);
bus::Dict view_of_finding(const Finding& finding);

} // namespace wd::daemon
