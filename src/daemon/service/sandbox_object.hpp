#pragma once
// dev.workdir1.Sandbox of one sandbox. Methods only: check, read the options, call the sandbox.

#include "bus/dict.hpp"
#include "sandbox_adaptor.hpp"

#include <string>

namespace wd::daemon {

class Service;

class SandboxObject final : public sdbus::AdaptorInterfaces<dev::workdir1::Sandbox_adaptor> {
public:
    SandboxObject(Service& service, std::string id);
    ~SandboxObject();
    void state_changed();

private:
    void Exec(sdbus::Result<sdbus::UnixFd>&& result, std::vector<std::string> argv,
              bus::Dict options) override;
    void Stop(sdbus::Result<>&& result, bus::Dict options) override;
    void Standby(sdbus::Result<>&& result, bus::Dict options) override;
    void Start(sdbus::Result<bus::Dict>&& result, bus::Dict options) override;
    void Remove(sdbus::Result<>&& result, bus::Dict options) override;
    void Inspect(sdbus::Result<bus::Dict>&& result) override;
    void OpenConsole(sdbus::Result<sdbus::UnixFd>&& result) override;
    std::string Id() override;
    std::string Unit() override;
    std::string State() override;

    Service& service_;
    std::string id_;
};

} // namespace wd::daemon
