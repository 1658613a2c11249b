#pragma once
// The properties of the units that workdird starts: pure functions, golden-tested.

#include "model/spec.hpp"
#include "pid1/property.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace wd::sandbox {

// The confinement and the limits of a unit with a VMM in it. `control_socket` becomes fd 0 of the
// shim and is borrowed until the call to PID 1 has been made.
struct VmmUnit {
    std::string id; // or "probe"
    std::string description;
    std::string shim = "/usr/lib/workdir/workdir-shim";
    model::Accel accel = model::Accel::tcg;
    std::uint32_t cpus = 1;
    std::uint64_t memory_bytes = 0; // of the guest
    std::uint64_t disk_bytes = 0;
    std::uint32_t tasks_max = 0;
    int control_socket = -1;
};
std::vector<pid1::Property> vmm_unit_properties(const VmmUnit& unit);

// The build of an image version by workdir-image-build, as root, confined to the images folder.
struct ImageBuildUnit {
    std::string description;
    std::string builder = "/usr/lib/workdir/workdir-image-build";
    std::string recipe; // folder of the recipe
    std::string images_dir;
    std::string name;
    std::string version;
    std::string staging; // removed when the unit ends, however it ends
};
std::vector<pid1::Property> image_build_properties(const ImageBuildUnit& unit);

} // namespace wd::sandbox
