#pragma once

namespace exporter {

/// This library's version, such as "0.1.0".
const char* version();

/// The version of the LibTorch that this library was built with, such as "2.14.1".
const char* torch_version();

}  // namespace exporter
