#include "store/store.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sqlite3.h>

namespace wd::store {
namespace {

using Json = nlohmann::json;

// user_version counts the steps taken; a step is never changed once released.
constexpr const char* kSchemaSteps[] = {
    R"sql(
    CREATE TABLE sandboxes (
        id              TEXT PRIMARY KEY,
        name            TEXT UNIQUE,           -- NULL: none
        owner_uid       INTEGER NOT NULL,
        image           TEXT NOT NULL,
        image_version   TEXT NOT NULL,
        cpus            INTEGER NOT NULL,
        memory_bytes    INTEGER NOT NULL,
        disk_bytes      INTEGER NOT NULL,
        labels          TEXT NOT NULL,         -- JSON object
        env             BLOB NOT NULL,         -- NAME=VALUE, each ended by a zero byte
        state           TEXT NOT NULL,
        accel           TEXT NOT NULL,
        machine_id      TEXT NOT NULL,
        invocation_id   TEXT NOT NULL,
        created_us      INTEGER NOT NULL,
        started_us      INTEGER NOT NULL,
        ended_us        INTEGER NOT NULL,
        timings         TEXT NOT NULL,         -- JSON object, milliseconds
        agent_version   TEXT NOT NULL,
        kernel_release  TEXT NOT NULL,
        end_reason      TEXT NOT NULL,
        end_detail      TEXT NOT NULL,
        end_limit       INTEGER NOT NULL,
        end_peak        INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    )sql",
    // Sandboxes from before have no idle timeout: their guests cannot be parked.
    "ALTER TABLE sandboxes ADD COLUMN boot_path TEXT NOT NULL DEFAULT 'cold_boot';"
    "ALTER TABLE sandboxes ADD COLUMN idle_timeout_ms INTEGER NOT NULL DEFAULT 0;",
};
constexpr int kSchemaVersion = static_cast<int>(std::size(kSchemaSteps));

constexpr const char* kColumns =
    "id, name, owner_uid, image, image_version, cpus, memory_bytes, disk_bytes, labels, env, "
    "state, "
    "accel, machine_id, invocation_id, created_us, started_us, ended_us, timings, agent_version, "
    "kernel_release, end_reason, end_detail, end_limit, end_peak, boot_path, idle_timeout_ms";

tl::unexpected<Error> fail_sqlite(sqlite3* db, std::string_view what) {
    const int code = sqlite3_errcode(db) & 0xff;
    const ErrorCode mapped = code == SQLITE_FULL         ? ErrorCode::disk_full
                             : code == SQLITE_CONSTRAINT ? ErrorCode::exists
                                                         : ErrorCode::internal;
    return fail(mapped, fmt::format("state database: {}: {}", what, sqlite3_errmsg(db)));
}

Result<void> execute(sqlite3* db, const std::string& sql) {
    if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
        return fail_sqlite(db, "schema");
    }
    return {};
}

class Statement {
public:
    static Result<Statement> prepare(sqlite3* db, const std::string& sql) {
        sqlite3_stmt* raw = nullptr;
        if (sqlite3_prepare_v2(db, sql.c_str(), static_cast<int>(sql.size()), &raw, nullptr) !=
            SQLITE_OK) {
            return fail_sqlite(db, "prepare");
        }
        return Statement(db, raw);
    }

    void bind(std::string_view text) {
        sqlite3_bind_text64(get(), ++parameter_, text.data(), text.size(), SQLITE_TRANSIENT,
                            SQLITE_UTF8);
    }
    void bind_blob(std::string_view bytes) {
        sqlite3_bind_blob64(get(), ++parameter_, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
    }
    void bind(std::uint64_t number) {
        sqlite3_bind_int64(get(), ++parameter_, static_cast<sqlite3_int64>(number));
    }
    void bind_null() { sqlite3_bind_null(get(), ++parameter_); }

    // True: a row; false: done.
    Result<bool> step(std::string_view what) {
        column_ = 0;
        const int r = sqlite3_step(get());
        if (r != SQLITE_ROW && r != SQLITE_DONE) {
            return fail_sqlite(db_, what);
        }
        return r == SQLITE_ROW;
    }
    std::string text() {
        const auto* data = static_cast<const char*>(sqlite3_column_blob(get(), column_));
        const auto size = static_cast<std::size_t>(sqlite3_column_bytes(get(), column_++));
        return data == nullptr ? std::string() : std::string(data, size);
    }
    std::uint64_t number() {
        return static_cast<std::uint64_t>(sqlite3_column_int64(get(), column_++));
    }

private:
    struct Finalize {
        void operator()(sqlite3_stmt* s) const noexcept { sqlite3_finalize(s); }
    };
    Statement(sqlite3* db, sqlite3_stmt* raw) : db_(db), statement_(raw) {}
    sqlite3_stmt* get() const { return statement_.get(); }
    sqlite3* db_;
    std::unique_ptr<sqlite3_stmt, Finalize> statement_;
    int parameter_ = 0;
    int column_ = 0;
};

std::string join_env(const std::vector<std::string>& env) {
    std::string out;
    for (const std::string& assignment : env) {
        out += assignment;
        out += '\0';
    }
    return out;
}

std::vector<std::string> split_env(std::string_view blob) {
    std::vector<std::string> out;
    while (!blob.empty()) {
        const auto end = blob.find('\0');
        out.emplace_back(blob.substr(0, end));
        blob.remove_prefix(end == std::string_view::npos ? blob.size() : end + 1);
    }
    return out;
}

std::string timings_to_text(const model::Timings& t) {
    return Json{{"queue", t.queue},   {"assign", t.assign}, {"unit", t.unit},  {"vmm", t.vmm},
                {"kernel", t.kernel}, {"agent", t.agent},   {"ready", t.ready}}
        .dump();
}

model::Timings timings_from_text(const std::string& text) {
    const Json json = Json::parse(text, nullptr, false);
    const auto part = [&](const char* key) {
        return json.is_object() && json.contains(key) && json[key].is_number()
                   ? json[key].get<double>()
                   : 0.0;
    };
    return {.queue = part("queue"),
            .assign = part("assign"),
            .unit = part("unit"),
            .vmm = part("vmm"),
            .kernel = part("kernel"),
            .agent = part("agent"),
            .ready = part("ready")};
}

std::map<std::string, std::string> labels_from_text(const std::string& text) {
    std::map<std::string, std::string> labels;
    const Json json = Json::parse(text, nullptr, false);
    if (json.is_object()) {
        for (const auto& [key, value] : json.items()) {
            if (value.is_string()) {
                labels[key] = value.get<std::string>();
            }
        }
    }
    return labels;
}

template <class Enum>
Enum word(const std::string& text, Enum fallback) {
    return model::from_string<Enum>(text).value_or(fallback);
}

SandboxRow read_row(Statement& s) {
    SandboxRow row;
    row.id = s.text();
    row.spec.name = s.text();
    row.owner_uid = static_cast<std::uint32_t>(s.number());
    row.spec.image = s.text();
    row.spec.image_version = s.text();
    row.spec.cpus = static_cast<std::uint32_t>(s.number());
    row.spec.memory_bytes = s.number();
    row.spec.disk_bytes = s.number();
    row.spec.labels = labels_from_text(s.text());
    row.spec.env = split_env(s.text());
    row.state = word(s.text(), model::State::failed);
    row.accel = word(s.text(), model::Accel::tcg);
    row.machine_id = s.text();
    row.invocation_id = s.text();
    row.created_us = s.number();
    row.started_us = s.number();
    row.ended_us = s.number();
    row.timings = timings_from_text(s.text());
    row.agent_version = s.text();
    row.kernel_release = s.text();
    row.end.reason = word(s.text(), model::EndReason::none);
    row.end.detail = s.text();
    row.end.limit = s.number();
    row.end.peak = s.number();
    row.boot_path = word(s.text(), model::BootPath::cold_boot);
    row.spec.idle_timeout = std::chrono::milliseconds(s.number());
    return row;
}

Result<void> migrate(sqlite3* db) {
    auto query = Statement::prepare(db, "PRAGMA user_version");
    if (!query) {
        return fail(std::move(query).error());
    }
    if (auto row = query->step("read the schema version"); !row) {
        return fail(std::move(row).error());
    }
    const int version = static_cast<int>(query->number());
    if (version > kSchemaVersion) {
        return fail(ErrorCode::unsupported,
                    fmt::format("state database: its schema is of version {}, this workdird knows "
                                "up to {}; install the newer package again",
                                version, kSchemaVersion));
    }
    query = fail(Error{}); // ends the read before the schema changes
    for (int step = version; step < kSchemaVersion; ++step) {
        auto done = execute(db, fmt::format("BEGIN IMMEDIATE; {} PRAGMA user_version = {}; COMMIT;",
                                            kSchemaSteps[step], step + 1));
        if (!done) {
            return done;
        }
    }
    return {};
}

} // namespace

void Store::Close::operator()(sqlite3* db) const noexcept {
    sqlite3_close_v2(db);
}

Result<Store> Store::open(const std::filesystem::path& path) {
    sqlite3* raw = nullptr;
    const int r =
        sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
    Store store(raw);
    if (r != SQLITE_OK) {
        return fail(ErrorCode::internal,
                    fmt::format("state database {}: {}", path.string(), sqlite3_errstr(r)));
    }
    // One writer at a time: a second workdird would fail here instead of mixing its state with
    // ours.
    auto ready = execute(raw, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; "
                              "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;");
    if (ready) {
        ready = migrate(raw);
    }
    if (!ready) {
        return fail(std::move(ready.error()).context(path.string()));
    }
    return store;
}

Result<void> Store::put(const SandboxRow& row) {
    auto s = Statement::prepare(
        db_.get(), fmt::format("INSERT INTO sandboxes ({}) VALUES (?,?,?,?,?,?,?,?,?,?,"
                               "?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO UPDATE "
                               "SET name=excluded.name, image_version="
                               "excluded.image_version, state=excluded.state, "
                               "accel=excluded.accel, invocation_id="
                               "excluded.invocation_id, started_us="
                               "excluded.started_us, ended_us=excluded.ended_us, "
                               "timings=excluded.timings, agent_version="
                               "excluded.agent_version, kernel_release="
                               "excluded.kernel_release, end_reason="
                               "excluded.end_reason, end_detail=excluded.end_detail, "
                               "end_limit=excluded.end_limit, end_peak="
                               "excluded.end_peak, boot_path="
                               "excluded.boot_path",
                               kColumns));
    if (!s) {
        return fail(std::move(s).error());
    }
    s->bind(row.id);
    if (row.spec.name.empty()) {
        s->bind_null();
    } else {
        s->bind(row.spec.name);
    }
    s->bind(row.owner_uid);
    s->bind(row.spec.image);
    s->bind(row.spec.image_version);
    s->bind(row.spec.cpus);
    s->bind(row.spec.memory_bytes);
    s->bind(row.spec.disk_bytes);
    s->bind(Json(row.spec.labels).dump(-1, ' ', false, Json::error_handler_t::replace));
    s->bind_blob(join_env(row.spec.env));
    s->bind(model::to_string(row.state));
    s->bind(model::to_string(row.accel));
    s->bind(row.machine_id);
    s->bind(row.invocation_id);
    s->bind(row.created_us);
    s->bind(row.started_us);
    s->bind(row.ended_us);
    s->bind(timings_to_text(row.timings));
    s->bind(row.agent_version);
    s->bind(row.kernel_release);
    s->bind(model::to_string(row.end.reason));
    s->bind(row.end.detail);
    s->bind(row.end.limit);
    s->bind(row.end.peak);
    s->bind(model::to_string(row.boot_path));
    s->bind(static_cast<std::uint64_t>(row.spec.idle_timeout.count()));
    if (auto done = s->step(fmt::format("save {}", row.id)); !done) {
        return fail(std::move(done).error());
    }
    return {};
}

Result<void> Store::remove(std::string_view id) {
    auto s = Statement::prepare(db_.get(), "DELETE FROM sandboxes WHERE id = ?");
    if (!s) {
        return fail(std::move(s).error());
    }
    s->bind(id);
    if (auto done = s->step(fmt::format("remove {}", id)); !done) {
        return fail(std::move(done).error());
    }
    return {};
}

Result<std::vector<SandboxRow>> Store::load_all() {
    auto s = Statement::prepare(
        db_.get(), fmt::format("SELECT {} FROM sandboxes ORDER BY created_us, id", kColumns));
    if (!s) {
        return fail(std::move(s).error());
    }
    std::vector<SandboxRow> rows;
    for (;;) {
        auto row = s->step("load");
        if (!row) {
            return fail(std::move(row).error());
        }
        if (!*row) {
            return rows;
        }
        rows.push_back(read_row(*s));
    }
}

} // namespace wd::store
