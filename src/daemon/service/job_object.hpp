#pragma once
// dev.workdir1.Job of one image build.

#include "job_adaptor.hpp"

#include <cstdint>
#include <string>

namespace wd::daemon {

class Service;

class JobObject final : public sdbus::AdaptorInterfaces<dev::workdir1::Job_adaptor> {
public:
    JobObject(Service& service, std::uint32_t number);
    ~JobObject();
    void changed();

private:
    void Cancel(sdbus::Result<>&& result) override;
    std::string Description() override;
    std::string Unit() override;
    std::string State() override;
    std::uint32_t Percent() override;
    std::string Status() override;

    Service& service_;
    std::uint32_t number_;
};

} // namespace wd::daemon
