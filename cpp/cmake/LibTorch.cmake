# Finds LibTorch and defines the target LibTorch::LibTorch.
#
# Searched in this order:
#   1. -DLIBTORCH_ROOT=DIR, an unpacked LibTorch or the torch folder of a wheel
#   2. CMAKE_PREFIX_PATH, and the usual system prefixes
#   3. the wheel of -DPython3_EXECUTABLE
#   4. in an installed package, the LibTorch that it was built for
#   5. the wheel of ../.venv, else of the interpreter on PATH
#
# find_package(Torch) is not used, because with a CUDA wheel it fails if no CUDA toolkit is installed.
# Only libtorch_cpu and libc10 are linked. The CUDA symbols that they need stay unresolved
# (--allow-shlib-undefined); libtorch_cuda is loaded at run time, when a GPU is requested.

include_guard(GLOBAL)

# Sets OUTPUT to the directory of the Python package NAME, without importing it, or to "".
function(exporter_find_python_package NAME OUTPUT)
  if(NOT Python3_EXECUTABLE)
    set(venv "${CMAKE_CURRENT_SOURCE_DIR}/../.venv/bin/python")
    if(EXISTS "${venv}")
      set(Python3_EXECUTABLE "${venv}" CACHE FILEPATH "Python whose torch wheel is used")
    else()
      find_package(Python3 COMPONENTS Interpreter QUIET)
    endif()
  endif()
  set(found "")
  if(Python3_EXECUTABLE)
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" -c
        "import importlib.util as u; s = u.find_spec('${NAME}'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${OUTPUT} "${found}" PARENT_SCOPE)
endfunction()

set(LIBTORCH_ROOT "" CACHE PATH "An unpacked LibTorch, or the torch folder of a wheel")

function(_exporter_find_libtorch)
  set(search)
  if(LIBTORCH_ROOT)
    set(search HINTS "${LIBTORCH_ROOT}" NO_DEFAULT_PATH)
  endif()
  find_library(LIBTORCH_CPU_LIBRARY torch_cpu PATH_SUFFIXES lib ${search})
  set(wheel "")
  if(NOT LIBTORCH_CPU_LIBRARY AND NOT LIBTORCH_ROOT AND Python3_EXECUTABLE)
    exporter_find_python_package(torch wheel)
  endif()
  foreach(root IN ITEMS "${wheel}" "${_exporter_built_for}")
    if(root AND NOT LIBTORCH_ROOT)
      find_library(LIBTORCH_CPU_LIBRARY torch_cpu HINTS "${root}/lib" NO_DEFAULT_PATH)
    endif()
  endforeach()
  if(NOT LIBTORCH_CPU_LIBRARY AND NOT LIBTORCH_ROOT)
    exporter_find_python_package(torch wheel)
    if(wheel)
      find_library(LIBTORCH_CPU_LIBRARY torch_cpu HINTS "${wheel}/lib" NO_DEFAULT_PATH)
    endif()
  endif()
  if(NOT LIBTORCH_CPU_LIBRARY)
    message(FATAL_ERROR
      "LibTorch was not found (interpreter: ${Python3_EXECUTABLE}). Install torch there "
      "(pip install torch), or pass -DPython3_EXECUTABLE=PATH or -DLIBTORCH_ROOT=DIR.")
  endif()
endfunction()

_exporter_find_libtorch()

get_filename_component(_libtorch_lib "${LIBTORCH_CPU_LIBRARY}" DIRECTORY)
get_filename_component(_libtorch_root "${_libtorch_lib}" DIRECTORY)
set(_libtorch_include "${_libtorch_root}/include")
if(NOT EXISTS "${_libtorch_include}/torch/script.h")
  message(FATAL_ERROR "the headers for ${LIBTORCH_CPU_LIBRARY} are missing in ${_libtorch_include}")
endif()

# The location of the header depends on the LibTorch version.
set(LibTorch_VERSION "unknown")
foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(EXISTS "${_libtorch_include}/${_header}")
    file(STRINGS "${_libtorch_include}/${_header}" _lines
      REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    if(_lines)
      string(REGEX REPLACE "[^0-9;]" "" _lines "${_lines}")
      string(REPLACE ";" "." LibTorch_VERSION "${_lines}")
      break()
    endif()
  endif()
endforeach()
set(LibTorch_ROOT "${_libtorch_root}")

# The same with the local part, such as 2.14.1+cu130: a wheel has version.py, an unpacked LibTorch build-version.
set(LibTorch_RELEASE "${LibTorch_VERSION}")
foreach(_file version.py build-version)
  if(EXISTS "${_libtorch_root}/${_file}")
    file(STRINGS "${_libtorch_root}/${_file}" _lines REGEX "^(__version__ = '[^']+'|[0-9][^ ']*)$")
    if(_lines)
      string(REGEX REPLACE "^__version__ = |'" "" LibTorch_RELEASE "${_lines}")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_libtorch_root}/${_file}")
      break()
    endif()
  endif()
endforeach()
message(STATUS "LibTorch ${LibTorch_RELEASE}: ${_libtorch_root}")

# The CUDA headers of the toolkit or of the wheels beside torch's. Empty if there are none or if this
# LibTorch has no CUDA.
set(LibTorch_CUDA_INCLUDE "")
if(EXISTS "${_libtorch_lib}/libtorch_cuda.so")
  file(GLOB _cuda_wheels "${_libtorch_root}/../nvidia/cu*/include"
    "${_libtorch_root}/../nvidia/cuda_runtime/include")
  find_path(_cuda_include crt/host_config.h
    HINTS ${_cuda_wheels} ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES include NO_CACHE)
  if(_cuda_include)
    set(LibTorch_CUDA_INCLUDE "${_cuda_include}")
  endif()
endif()
message(STATUS "CUDA headers: ${LibTorch_CUDA_INCLUDE}")

if(NOT TARGET LibTorch::LibTorch)
  find_package(Threads REQUIRED)
  add_library(LibTorch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${_libtorch_lib}/libc10.so")
  add_library(LibTorch::torch_cpu SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::torch_cpu PROPERTIES IMPORTED_LOCATION "${LIBTORCH_CPU_LIBRARY}")

  foreach(_name torch_cuda c10_cuda)
    if(EXISTS "${_libtorch_lib}/lib${_name}.so")
      add_library(LibTorch::${_name} SHARED IMPORTED GLOBAL)
      set_target_properties(LibTorch::${_name} PROPERTIES
        IMPORTED_LOCATION "${_libtorch_lib}/lib${_name}.so")
    endif()
  endforeach()

  add_library(LibTorch::LibTorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    "${_libtorch_include}" "${_libtorch_include}/torch/csrc/api/include")
  target_compile_features(LibTorch::LibTorch INTERFACE cxx_std_20)
  target_compile_definitions(LibTorch::LibTorch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  # A compiled package resolves its symbols in the program that loads it, so the program must link
  # libtorch_cpu and libc10 even if it calls neither itself.
  target_link_options(LibTorch::LibTorch INTERFACE
    LINKER:--no-as-needed LINKER:--allow-shlib-undefined)
  target_link_libraries(LibTorch::LibTorch INTERFACE
    LibTorch::torch_cpu LibTorch::c10 Threads::Threads ${CMAKE_DL_LIBS})
endif()
