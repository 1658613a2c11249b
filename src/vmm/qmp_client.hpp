#pragma once
// QmpClient: one QMP connection over a connected stream socket, in an event loop. Never blocks, and
// holds a bounded amount whatever the other end does.
//
// The handler's calls come from the loop, never from inside a call of the client. It may destroy
// the client in any of them. After on_lost nothing more comes.

#include "event/sources.hpp"
#include "util/fd.hpp"
#include "vmm/line_reader.hpp"
#include "vmm/qmp_message.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace wd::vmm {

class QmpClient {
public:
    using Reply = std::function<void(Result<void>)>;
    struct Handler {
        std::function<void(const QmpGreeting&)> on_greeting; // commands may be sent from here on
        std::function<void(const QmpEvent&)> on_event;
        std::function<void(Error)> on_lost; // end of file, or the peer broke the protocol
    };

    // Owns `socket`, which must be non-blocking.
    static Result<std::unique_ptr<QmpClient>> create(const event::Loop& loop, Fd socket,
                                                     Handler handler);
    QmpClient(const QmpClient&) = delete;
    QmpClient& operator=(const QmpClient&) = delete;
    ~QmpClient() { *alive_ = false; }

    // Commands are answered in order. `reply` may be empty; it is not called when the connection is
    // lost first. Error: limit when too many are unanswered.
    // `arguments`: a JSON object of ours, or empty.
    Result<void> execute(std::string_view command, Reply reply = {},
                         std::string_view arguments = {});

    // Reads what is there without waiting for the loop: for the last events of a QEMU that has
    // ended. The handler is called from inside.
    void drain();

private:
    struct Pending {
        std::uint64_t id;
        Reply reply;
    };
    QmpClient(Fd socket, Handler handler)
        : socket_(std::move(socket)), handler_(std::move(handler)) {}
    void on_io(std::uint32_t events);
    Result<void> read_some();
    Result<void> dispatch(std::string_view line);
    Result<void> flush();

    Fd socket_;
    Handler handler_;
    event::Io io_;
    LineReader lines_{kMaxQmpLine, LineReader::Overlong::fail};
    std::string out_;
    std::deque<Pending> pending_;
    std::uint64_t last_id_ = 0;
    bool greeted_ = false;
    bool lost_ = false;
    // Tells a running callback that the handler has destroyed the client.
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace wd::vmm
