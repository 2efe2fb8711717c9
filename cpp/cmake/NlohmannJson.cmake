# Finds nlohmann/json (headers only) and defines nlohmann_json::nlohmann_json.
#
# Searched in this order: its CMake package; nlohmann/json.hpp in NLOHMANN_JSON_INCLUDE_DIR, the
# compiler's search paths and CPATH; the PyPI package nlohmann_json of the interpreter with torch.

include_guard(GLOBAL)
find_package(nlohmann_json 3.9 CONFIG QUIET)
if(TARGET nlohmann_json::nlohmann_json)
  return()
endif()

string(REPLACE ":" ";" _cpath "$ENV{CPATH}")
exporter_find_python_package(nlohmann_json _nlohmann_package)
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp
  HINTS ${_cpath} "${_nlohmann_package}/include")
if(NOT NLOHMANN_JSON_INCLUDE_DIR)
  message(FATAL_ERROR
    "nlohmann/json.hpp was not found. Install it (pip install nlohmann-json, or your system's "
    "package nlohmann-json3-dev), or pass -DNLOHMANN_JSON_INCLUDE_DIR=DIR.")
endif()
add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
target_include_directories(nlohmann_json::nlohmann_json SYSTEM INTERFACE
  "${NLOHMANN_JSON_INCLUDE_DIR}")
