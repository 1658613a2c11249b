#include "cli/verbs.hpp"
namespace wd::cli {
Result<int> run_logs(const Words&) {
    return 0;
}
} // namespace wd::cli
