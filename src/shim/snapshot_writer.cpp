#include "shim/snapshot_writer.hpp"

#include "util/file.hpp"
#include "vmm/memory_image.hpp"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace wd::shim {
namespace {

// A microvm's is 5 to 17 KiB. QEMU may be in a guest's hands: no more is taken of it.
constexpr off_t kMaxState = 16u << 20;

} // namespace

Result<std::unique_ptr<SnapshotWriter>> SnapshotWriter::create(const event::Loop& loop, Fd snapshot,
                                                               std::uint64_t bytes) {
    std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(loop, bytes));
    writer->shared_ = !snapshot;
    writer->memory_ = std::move(snapshot);
    if (writer->shared_) {
        writer->memory_ = Fd(::memfd_create("workdir-memory", MFD_CLOEXEC));
        if (!writer->memory_ || ::ftruncate(writer->memory_.get(), static_cast<off_t>(bytes)) < 0) {
            return fail_errno(errno, "make the guest's memory");
        }
    }
    writer->state_ = Fd(::memfd_create("workdir-state", MFD_CLOEXEC));
    if (!writer->state_) {
        return fail_errno(errno, "create a memfd");
    }
    auto write_only =
        open_file(fmt::format("/proc/self/fd/{}", writer->state_.get()), O_WRONLY | O_CLOEXEC);
    if (!write_only) {
        return fail(std::move(write_only).error());
    }
    writer->state_in_ = std::move(*write_only);
    return writer;
}

Result<void> SnapshotWriter::rewind_state() {
    return ::lseek(state_in_.get(), 0, SEEK_SET) == 0 ? Result<void>()
                                                      : fail_errno(errno, "lseek of the state");
}

Result<std::string> SnapshotWriter::read_state() const {
    struct stat info {};
    if (::fstat(state_.get(), &info) < 0) {
        return fail_errno(errno, "fstat of the state");
    }
    if (info.st_size <= 0 || info.st_size > kMaxState) {
        return fail(ErrorCode::internal,
                    fmt::format("QEMU has written {} bytes of state", info.st_size));
    }
    std::string text(static_cast<std::size_t>(info.st_size), '\0');
    const ssize_t n = ::pread(state_.get(), text.data(), text.size(), 0);
    if (n != info.st_size) {
        return fail_errno(n < 0 ? errno : EIO, "read the state");
    }
    return text;
}

void SnapshotWriter::write(pid_t qemu, Fd memory, Fd state,
                           std::function<void(Result<Written>)> done) {
    auto device_state = read_state();
    if (!device_state) {
        done(fail(std::move(device_state).error()));
        return;
    }
    if (!worker_) {
        auto worker = event::Worker::create(loop_);
        if (!worker) {
            done(fail(std::move(worker).error()));
            return;
        }
        worker_ = std::move(*worker);
    }
    struct Files {
        Fd memory;
        Fd state;
        Written written;
    };
    auto files = std::make_shared<Files>(Files{std::move(memory), std::move(state), {}});
    const vmm::MemoryFile source{
        .fd = memory_.get(), .shared = shared_, .qemu = qemu, .bytes = bytes_};
    worker_->run(
        [files, source, device_state = std::move(*device_state)]() -> Result<void> {
            if (auto ok = write_all(files->state.get(), device_state); !ok) {
                return ok;
            }
            auto stats = vmm::write_memory_image(source, files->memory.get());
            if (!stats) {
                return fail(std::move(stats).error());
            }
            files->written.dirty_bytes = source.shared ? stats->base_bytes : stats->dirty_bytes;
            for (const Fd* fd : {&files->memory, &files->state}) {
                if (::fsync(fd->get()) < 0) {
                    return fail_errno(errno, "fsync of the snapshot");
                }
            }
            return {};
        },
        [files, done = std::move(done)](const Result<void>& result) {
            done(result ? Result<Written>(files->written) : fail(result.error()));
        });
}

} // namespace wd::shim
