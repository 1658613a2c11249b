#include "daemon/service/job_object.hpp"

#include "daemon/service/service.hpp"

namespace wd::daemon {
namespace {

// A property of the job, or a default while it is being forgotten.
template <class T, class Read>
T job_property(Service& service, std::uint32_t number, Read read) {
    const sandbox::ImageJob* const job = service.image_jobs().find(number);
    return job != nullptr ? T(read(*job)) : T{};
}

} // namespace

JobObject::JobObject(Service& service, std::uint32_t number)
    : AdaptorInterfaces(service.bus().get(), bus::make_path(job_path(number))),
      service_(service),
      number_(number) {
    registerAdaptor();
}

JobObject::~JobObject() {
    unregisterAdaptor();
}

void JobObject::changed() {
    (void)bus::attempt([&] {
        bus::emit_changed(getObject(), INTERFACE_NAME, {"State", "Percent", "Status"});
    });
}

void JobObject::Cancel(sdbus::Result<>&& result) {
    const Reply<> reply(std::move(result));
    service_.admit(getObject(), INTERFACE_NAME, "Cancel", reply, [this, reply](const bus::Sender&) {
        const auto done = service_.image_jobs().cancel(number_);
        done ? reply() : reply.fail(done.error());
    });
}

std::string JobObject::Description() {
    return job_property<std::string>(
        service_, number_, [](const sandbox::ImageJob& job) { return "image-build " + job.name; });
}

std::string JobObject::Unit() {
    return job_property<std::string>(service_, number_,
                                     [](const sandbox::ImageJob& job) { return job.unit; });
}

std::string JobObject::State() {
    return job_property<std::string>(
        service_, number_, [](const sandbox::ImageJob& job) { return to_string(job.state); });
}

std::uint32_t JobObject::Percent() {
    return job_property<std::uint32_t>(service_, number_,
                                       [](const sandbox::ImageJob& job) { return job.percent; });
}

std::string JobObject::Status() {
    return job_property<std::string>(service_, number_,
                                     [](const sandbox::ImageJob& job) { return job.status; });
}

} // namespace wd::daemon
