#pragma once
// Port: the guest's end of the channel to the shim. What is to be sent is put into out() and goes
// with flush(); nothing here blocks.
//
// Facts of Linux's virtio_console (drivers/char/virtio_console.c, port_fops_*) that shape this: one
// write(2) takes at most 32 KiB, whole or not at all; a read returns at most one 4 KiB buffer;
// while nobody is connected on the host, read returns 0, write EAGAIN and poll says POLLHUP.

#include "agent/poller.hpp"
#include "wire/frame.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace wd::agent {

class Port final : public EventHandler {
public:
    // Waits until `deadline` (boot_ns) for the device to appear.
    static Outcome<Fd> open_device(std::uint64_t deadline);

    Port(Poller& poller, Fd fd);

    // Frames to send. Append only; flush() takes them from the front.
    std::vector<std::byte>& out() { return out_; }
    std::size_t queued() const { return out_.size() - sent_; }

    // A data frame without a copy: read(2) up to kDataChunk bytes into data_room(), then
    // put_data(), which sends it after everything in out() so far. There is room for one.
    // (splice(2) into the port was slower: QEMU sends each of its pages by itself.)
    bool has_data_room() const { return data_size_ == 0 && queued() < kMostQueued; }
    std::byte* data_room() { return data_.get() + wire::kHeaderSize; }
    void put_data(std::uint32_t channel, wire::Stream stream, std::uint32_t length);

    // Beyond that, nothing new is taken from the host either.
    static constexpr std::size_t kMostQueued = 64 * 1024;

    // Sends what is queued; false when some had to stay.
    bool flush();

    // Reads a bounded amount; false when there is nothing more for now.
    bool fill();
    std::optional<wire::Frame> next() { return reader_.next(); }
    wire::FrameReader::Violation violation() const { return reader_.violation(); }

    // What changed since the last call.
    enum class Change { none, connected, disconnected };
    Change take_change();
    bool connected() const { return connected_; }
    // After that, nothing is read until the host side was gone and came again.
    void ignore_input() { ignoring_ = true; }

    void on_events(std::uint32_t events) override;

private:
    void set_connected(bool connected);
    bool send_some(const std::byte* data, std::size_t size, std::size_t& sent);

    Watched fd_;
    wire::FrameReader reader_;
    std::vector<std::byte> out_;
    std::size_t sent_ = 0;              // of out_
    std::unique_ptr<std::byte[]> data_; // a frame that goes before out_
    std::size_t data_size_ = 0;
    std::size_t data_sent_ = 0;
    bool readable_ = false;
    bool writable_ = false;
    bool connected_ = false;
    bool reported_ = false; // what take_change() last said
    bool ignoring_ = false;
    bool dropped_ = false; // gone and back between two calls of take_change()
};

} // namespace wd::agent
