#pragma once
// a{sv}: reading options strictly, and building dictionaries.

#include "bus/compat.hpp"
#include "bus/error.hpp"
#include "util/result.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace wd::bus {

using Dict = std::map<std::string, sdbus::Variant>;

// Reads options without a test after each: the first thing wrong is kept, and finish() tells it.
//
//     DictReader options(dict);
//     spec.image = options.take<std::string>("image").value_or("base");
//     spec.cpus = options.take<std::uint32_t>("cpus").value_or(1);
//     if (auto done = options.finish(); !done) { ... }   // before using any of the values
//
// Types are exact: a `u` is not a `t`. The dictionary must outlive the reader.
class DictReader {
public:
    // `what` is the word for a key in messages.
    explicit DictReader(const Dict& dict, std::string_view what = "option")
        : dict_(dict), what_(what) {}

    // nullopt: absent, or of another type (which finish() reports).
    template <class T>
    std::optional<T> take(const std::string& key) {
        known_.insert(key);
        const auto found = dict_.find(key);
        if (found == dict_.end()) {
            return std::nullopt;
        }
        const std::string wanted = signature<T>();
        auto value = attempt([&]() -> std::optional<T> {
            if (value_type(found->second) != wanted) {
                wrong_type(key, wanted, value_type(found->second));
                return std::nullopt;
            }
            return found->second.template get<T>();
        });
        if (!value) {
            wrong_type(key, wanted, value.error().message);
            return std::nullopt;
        }
        return std::move(*value);
    }

    // As take(), and its absence is an error too.
    template <class T>
    T require(const std::string& key) {
        auto value = take<T>(key);
        if (!value && !dict_.contains(key)) {
            missing(key);
        }
        return std::move(value).value_or(T{});
    }

    // invalid_argument: the first wrong type, missing key, or key that nobody took.
    Result<void> finish() const;

private:
    void wrong_type(const std::string& key, std::string_view wanted, std::string_view got);
    void missing(const std::string& key);

    const Dict& dict_;
    std::string what_;
    std::set<std::string> known_;
    std::optional<Error> first_error_;
};

// Dict report = DictBuilder().add("id", id).add("cpus", 2u).take();
class DictBuilder {
public:
    template <class T>
    DictBuilder& add(std::string key, const T& value) & {
        if constexpr (std::is_convertible_v<const T&, std::string_view> &&
                      !std::is_base_of_v<std::string, T>) {
            dict_.insert_or_assign(std::move(key),
                                   sdbus::Variant(std::string(std::string_view(value))));
        } else {
            dict_.insert_or_assign(std::move(key), sdbus::Variant(value));
        }
        return *this;
    }
    template <class T>
    DictBuilder&& add(std::string key, const T& value) && {
        return std::move(add(std::move(key), value));
    }
    Dict take() { return std::move(dict_); }

private:
    Dict dict_;
};

// "a string", "an unsigned 32-bit number": a D-Bus signature in words, the signature itself where
// there are none.
std::string type_in_words(std::string_view signature);

} // namespace wd::bus
