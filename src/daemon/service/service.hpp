#pragma once
// Service: the D-Bus face of the manager. It owns the exported objects and the gate that every
// method passes.

#include "bus/connection.hpp"
#include "daemon/authz.hpp"
#include "daemon/service/reply.hpp"
#include "sandbox/image_jobs.hpp"
#include "sandbox/manager.hpp"

#include <map>
#include <memory>
#include <string>

namespace wd::daemon {

class JobObject;
class ManagerObject;
class SandboxObject;

inline constexpr const char* kBusName = "dev.workdir1";
inline constexpr const char* kRootPath = "/dev/workdir1";

class Service {
public:
    // The objects of what is there already appear now; the bus name is taken with publish().
    static Result<std::unique_ptr<Service>> create(bus::Connection& bus, sandbox::Context context);
    ~Service();

    // Adopts and cleans up, then takes the bus name. `done` comes once.
    void start(std::function<void(Result<void>)> done);

    // ---- for the objects

    using Admitted = std::function<void(const bus::Sender&)>;
    // Runs `admitted` if the caller of the method being handled may call it; else answers the
    // error.
    template <class... Values>
    void admit(sdbus::IObject& object, const char* interface, const char* method,
               Reply<Values...> reply, Admitted admitted) {
        ask(
            object, interface, method, [reply](const Error& error) { reply.fail(error); },
            std::move(admitted));
    }
    // As admit, and the sandbox must be the caller's own, or the caller may manage all.
    using AdmittedTo = std::function<void(const bus::Sender&, sandbox::Sandbox&)>;
    template <class... Values>
    void admit_to(sdbus::IObject& object, const char* interface, const char* method,
                  const std::string& id_or_name, Reply<Values...> reply, AdmittedTo admitted) {
        const auto refuse = [reply](const Error& error) { reply.fail(error); };
        ask(object, interface, method, refuse,
            [this, id_or_name, refuse, admitted = std::move(admitted)](const bus::Sender& sender) {
                ask_owner(sender, id_or_name, refuse, admitted);
            });
    }
    // Needs manage-all.
    void require_all(const bus::Sender& sender, Authorizer::Callback callback);

    sandbox::Manager& manager() noexcept { return *manager_; }
    sandbox::ImageJobs& image_jobs() noexcept { return *image_jobs_; }
    sandbox::Context& context() noexcept { return context_; }
    bus::Connection& bus() noexcept { return bus_; }

private:
    using Refuse = std::function<void(const Error&)>;
    Service(bus::Connection& bus, sandbox::Context context);
    void ask(sdbus::IObject& object, const char* interface, const char* method, Refuse refuse,
             Admitted admitted);
    void ask_owner(const bus::Sender& sender, const std::string& id_or_name, const Refuse& refuse,
                   const AdmittedTo& admitted);

    bus::Connection& bus_;
    sandbox::Context context_;
    std::unique_ptr<Authorizer> authorizer_;
    std::unique_ptr<sandbox::Manager> manager_;
    std::unique_ptr<sandbox::ImageJobs> image_jobs_;
    std::unique_ptr<ManagerObject> manager_object_;
    std::map<std::string, std::unique_ptr<SandboxObject>> sandbox_objects_;
    std::map<std::uint32_t, std::unique_ptr<JobObject>> job_objects_;
};

// /dev/workdir1/sandbox/sb_2d…, sd_bus_path_encode(3)
std::string sandbox_path(const std::string& id);
std::string job_path(std::uint32_t number);

} // namespace wd::daemon
