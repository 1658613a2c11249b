#include "cli/verbs.hpp"

#include "cli/streams.hpp"

int main(int argc, char** argv) {
    wd::cli::fill_standard_fds();
    return wd::cli::run(wd::cli::Words(argv + (argc > 0 ? 1 : 0), argv + argc));
}
