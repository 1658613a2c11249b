#pragma once
// Reply: the answer to one asynchronous D-Bus method, copyable so that callbacks can carry it. The
// first answer counts. A reply that is dropped without an answer would leave the caller waiting, so
// the last copy answers with an internal error then.

#include "bus/error.hpp"
#include "util/result.hpp"

#include <memory>
#include <utility>

namespace wd::daemon {

template <class... Values>
class Reply {
public:
    explicit Reply(sdbus::Result<Values...>&& result)
        : state_(std::make_shared<State>(std::move(result))) {}

    void operator()(const Values&... values) const {
        state_->answer([&] { state_->result.returnResults(values...); });
    }
    void fail(const Error& error) const {
        state_->answer([&] { state_->result.returnError(bus::to_sdbus(error)); });
    }

private:
    struct State {
        sdbus::Result<Values...> result;
        bool answered = false;

        explicit State(sdbus::Result<Values...>&& r) : result(std::move(r)) {}
        ~State() {
            answer([&] {
                result.returnError(
                    bus::to_sdbus(Error{ErrorCode::internal, 0, "the request was dropped"}));
            });
        }
        template <class Send>
        void answer(Send send) {
            if (!std::exchange(answered, true)) {
                (void)bus::attempt(send); // a caller that has gone is no error of ours
            }
        }
    };
    std::shared_ptr<State> state_;
};

} // namespace wd::daemon
