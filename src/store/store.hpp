#pragma once
// The state database, /var/lib/workdir/state.db: SQLite in WAL mode, readable by root alone (it
// holds the environment of sandboxes). One writer, this process. A write is on disk when the call
// returns (synchronous=FULL), which takes the time of an fsync.

#include "model/spec.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct sqlite3;

namespace wd::store {

// Everything workdird must remember of a sandbox; what can be asked of PID 1 or the shim is not
// here.
struct SandboxRow {
    std::string id;
    model::SandboxSpec spec;
    std::uint32_t owner_uid = 0;
    model::State state = model::State::creating;
    model::Accel accel = model::Accel::tcg;                 // of the last boot
    model::BootPath boot_path = model::BootPath::cold_boot; //
    std::string machine_id;
    std::string invocation_id;    // of the unit, 32 hex digits; empty when not live
    std::uint64_t created_us = 0; // CLOCK_REALTIME
    std::uint64_t started_us = 0;
    std::uint64_t ended_us = 0;
    model::Timings timings; // of the last boot
    std::string agent_version;
    std::string kernel_release;
    model::End end;
};

class Store {
public:
    // Opens or creates it; migrates an older schema. Error: unsupported for a newer schema,
    // internal with SQLite's message for a damaged file.
    static Result<Store> open(const std::filesystem::path& path);

    Result<void> put(const SandboxRow& row); // insert or replace
    Result<void> remove(std::string_view id);
    Result<std::vector<SandboxRow>> load_all();

private:
    struct Close {
        void operator()(sqlite3* db) const noexcept;
    };
    explicit Store(sqlite3* db) noexcept : db_(db) {}
    std::unique_ptr<sqlite3, Close> db_;
};

} // namespace wd::store
