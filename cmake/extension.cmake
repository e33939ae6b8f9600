# The Python extension: the core with its bindings. Installed as cellerate/kernels/_core.
set(modules Development.Module)
if(SKBUILD_SABI_COMPONENT)
  # The interface that stays the same from Python 3.12 on: one wheel for all later versions.
  list(APPEND modules ${SKBUILD_SABI_COMPONENT})
endif()
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter ${modules})
execute_process(
  COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_ROOT
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
# Where it was last time may be an environment that is gone.
unset(nanobind_DIR CACHE)
find_package(nanobind CONFIG REQUIRED)

# Apart from the core, so that what nanobind asks of the compiler stays out of the kernels.
nanobind_add_module(_core NB_STATIC STABLE_ABI NB_SUPPRESS_WARNINGS NB_DOMAIN cellerate
                    ${PROJECT_SOURCE_DIR}/csrc/bindings/bindings.cpp ${PROJECT_SOURCE_DIR}/csrc/bindings/text_bindings.cpp
                    ${PROJECT_SOURCE_DIR}/csrc/bindings/program_bindings.cpp
                    ${PROJECT_SOURCE_DIR}/csrc/bindings/training_bindings.cpp)
# What is called once a model or once a training step is small rather than quick.
set_source_files_properties(${PROJECT_SOURCE_DIR}/csrc/bindings/training_bindings.cpp
                            ${PROJECT_SOURCE_DIR}/csrc/bindings/bindings.cpp PROPERTIES COMPILE_OPTIONS -Os)
target_link_libraries(_core PRIVATE cellerate_core)
install(TARGETS _core LIBRARY DESTINATION cellerate/kernels)

# Its licence asks to be kept with what contains it.
file(GLOB nanobind_license ${nanobind_ROOT}/../../nanobind-*.dist-info/licenses/LICENSE)
if(nanobind_license AND SKBUILD_METADATA_DIR)
  install(FILES ${nanobind_license} DESTINATION ${SKBUILD_METADATA_DIR}/licenses/third_party/nanobind)
endif()
