#pragma once

namespace spillway {

/// Where a process computes. Fixed for the life of the process.
enum class Device { kCpu, kCuda };

constexpr const char* device_name(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

}  // namespace spillway
