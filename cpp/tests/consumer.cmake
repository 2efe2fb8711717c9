# Installs exporter, then configures, builds and runs examples/consumer with the installed package.
# Variables: BUILD (of exporter), SOURCE (of the consumer), WORK, ARTIFACT, PYTHON, LIBTORCH, FLAGS.

function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result}): ${ARGV}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
step(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix")
step(${CMAKE_COMMAND} -S "${SOURCE}" -B "${WORK}/build" -G Ninja
  "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DPython3_EXECUTABLE=${PYTHON}" "-DLIBTORCH_ROOT=${LIBTORCH}"
  "-DCMAKE_CXX_FLAGS=${FLAGS}" -DCMAKE_BUILD_TYPE=Debug)
step(${CMAKE_COMMAND} --build "${WORK}/build")
step("${WORK}/build/consumer" "${ARTIFACT}")
step("${WORK}/prefix/bin/exporter-run" info "${ARTIFACT}")
