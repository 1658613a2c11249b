#include "cli/verbs.hpp"
namespace wd::cli {
Result<int> run_image(const Words&) {
    return 0;
}
} // namespace wd::cli
