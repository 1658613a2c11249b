#pragma once
// dev.workdir1.Manager. Methods only: check, read the options, call the manager.

#include "bus/dict.hpp"
#include "daemon/service/reply.hpp"
#include "daemon/service/views.hpp"
#include "manager_adaptor.hpp"

#include <memory>
#include <string>
#include <vector>

namespace wd::daemon {

class Service;

class ManagerObject final : public sdbus::AdaptorInterfaces<dev::workdir1::Manager_adaptor> {
public:
    explicit ManagerObject(Service& service);
    ~ManagerObject();

private:
    using CreateReply = Reply<sdbus::ObjectPath, bus::Dict>;

    void Create(sdbus::Result<sdbus::ObjectPath, bus::Dict>&& result, bus::Dict options) override;
    void Get(sdbus::Result<sdbus::ObjectPath, std::string>&& result,
             std::string id_or_name) override;
    void List(sdbus::Result<std::vector<bus::Dict>>&& result, bus::Dict options) override;
    void ListImages(sdbus::Result<std::vector<bus::Dict>>&& result) override;
    void InspectImage(sdbus::Result<bus::Dict>&& result, std::string name) override;
    void BuildImage(sdbus::Result<sdbus::ObjectPath, std::string>&& result, std::string name,
                    bus::Dict options) override;
    void RemoveImage(sdbus::Result<std::vector<std::string>>&& result, std::string name,
                     bus::Dict options) override;
    void Doctor(sdbus::Result<std::vector<bus::Dict>>&& result) override;
    std::string Version() override;

    struct Caller;
    void watch_callers();
    void on_departure(const std::string& name);
    void abandon(const std::string& id);
    void create(const bus::Sender& sender, CreateOptions options,
                const std::shared_ptr<Caller>& caller, const CreateReply& reply);
    std::vector<bus::Dict> list(const ListOptions& options, std::uint32_t uid);
    Result<std::vector<std::string>> remove_image(const std::string& name,
                                                  const std::string& version);
    std::vector<bus::Dict> list_images();

    Service& service_;
    std::vector<std::weak_ptr<Caller>> callers_; // of creates that are not done, and some that are
    sdbus::Slot departures_;
};

} // namespace wd::daemon
