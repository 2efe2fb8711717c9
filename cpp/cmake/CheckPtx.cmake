# Compiles a kernel and compares the PTX with the file that is checked in:
#   cmake -DNVCC=PROGRAM -DSOURCE=FILE.cu -DPTX=FILE.ptx -DWORK=DIR [-DUPDATE=ON] -P CheckPtx.cmake
# UPDATE writes the file instead. The comparison ignores comments, which name nvcc's release, blank lines and the
# PTX version, which is lowered to the first one that supports all of the code.

set(VERSION 6.3)

if(NOT NVCC)
  message("skipped: nvcc was not found (pip install nvidia-cuda-nvcc, or -DEXPORTER_NVCC=PATH)")
  return()
endif()

function(read_ptx FILE OUTPUT)
  file(READ "${FILE}" text)
  string(REGEX REPLACE "[ \t]*//[^\n]*" "" text "${text}")
  string(REGEX REPLACE "\\.version [0-9.]+" ".version ${VERSION}" text "${text}")
  string(REGEX REPLACE "[ \t]+\n" "\n" text "${text}")
  string(REGEX REPLACE "\n\n+" "\n\n" text "${text}")
  string(STRIP "${text}" text)
  set(${OUTPUT} "${text}\n" PARENT_SCOPE)
endfunction()

file(MAKE_DIRECTORY "${WORK}")
get_filename_component(name "${PTX}" NAME)
execute_process(COMMAND "${NVCC}" -ptx -arch=compute_75 "${SOURCE}" -o "${WORK}/${name}"
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${NVCC} failed (${result}): ${output}")
endif()
read_ptx("${WORK}/${name}" made)
if(UPDATE)
  file(WRITE "${PTX}" "${made}")
  message("wrote ${PTX}")
  return()
endif()
read_ptx("${PTX}" kept)
if(NOT made STREQUAL kept)
  message(FATAL_ERROR "${PTX} differs from ${WORK}/${name}, the output of ${NVCC} for ${SOURCE}. "
    "If you changed the kernel or want the output of this nvcc, build the target update_ptx.")
endif()
message("${PTX} matches the output of ${NVCC} for ${SOURCE}")
