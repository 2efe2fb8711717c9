# Installs exporter, then configures, builds and runs an example with the installed package.
# Variables: BUILD (of exporter), SOURCE (of the example, whose program is named like its folder), WORK, ARTIFACT,
# PYTHON, LIBTORCH, NINJA, COMPILER, FLAGS.

function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result}): ${ARGV}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
step(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix")
# Without any option, and with no Python on PATH that has torch, the package finds the LibTorch that it was built for.
step(${CMAKE_COMMAND} -E env "PATH=/usr/bin:/bin" ${CMAKE_COMMAND} -S "${SOURCE}" -B "${WORK}/default" -G Ninja
  "-DCMAKE_MAKE_PROGRAM=${NINJA}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${WORK}/prefix")
step(${CMAKE_COMMAND} -S "${SOURCE}" -B "${WORK}/build" -G Ninja
  "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DPython3_EXECUTABLE=${PYTHON}" "-DLIBTORCH_ROOT=${LIBTORCH}"
  "-DCMAKE_CXX_FLAGS=${FLAGS}" -DCMAKE_BUILD_TYPE=Debug)
step(${CMAKE_COMMAND} --build "${WORK}/build")
get_filename_component(program "${SOURCE}" NAME)
step("${WORK}/build/${program}" "${ARTIFACT}")
step("${WORK}/prefix/bin/exporter-run" info "${ARTIFACT}")
