# Options and the flags that every room is compiled with.
include(CMakeDependentOption)
set(MOEWRIGHT_ONEDNN AUTO CACHE STRING "oneDNN matrix products: AUTO (when found), ON (required) or OFF")
set(MOEWRIGHT_MPI AUTO CACHE STRING "MPI: AUTO (when found), ON (required) or OFF")
set_property(CACHE MOEWRIGHT_ONEDNN MOEWRIGHT_MPI PROPERTY STRINGS AUTO ON OFF)
option(MOEWRIGHT_PLAN_ONLY "Build only plan, schedule, init, completion and manual: no MPI, oneDNN or OpenMP" OFF)
option(MOEWRIGHT_NATIVE "Compile for this machine's CPU (-march=native)" OFF)
set(MOEWRIGHT_CPU_LEVELS "" CACHE STRING "Compile CPU operators also for these levels (GCC's -march), and choose at start: a list")
option(MOEWRIGHT_WERROR "Warnings are errors" OFF)
get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
cmake_dependent_option(MOEWRIGHT_PCH "Precompile the headers that most files include" ON "NOT multi_config" OFF)
option(MOEWRIGHT_FUZZ "Build the libFuzzer targets of tests/fuzz (needs clang)" OFF)
option(MOEWRIGHT_CUDA "Compile src/ops/gpu with nvcc" OFF)
option(MOEWRIGHT_HIP "Compile src/ops/gpu with hipcc" OFF)
set(MOEWRIGHT_HIP_ARCHITECTURES gfx90a CACHE STRING "AMD GPU architectures, a list")
set(MOEWRIGHT_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=: for example address,undefined")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Paths below this folder are hashed as relative ones, so that every clone on a machine finds what another has compiled.
  # Without CCACHE_SLOPPINESS, ccache caches no file that reads a precompiled header.
  set(MOEWRIGHT_CCACHE /usr/bin/env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE_PROGRAM}")
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER "${MOEWRIGHT_CCACHE}" CACHE STRING "Compiler launcher")
  endforeach()
endif()

if(MOEWRIGHT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "MOEWRIGHT_FUZZ needs clang; use the preset: cmake --preset fuzz")
  endif()
  set(sanitizers fuzzer-no-link,address,undefined)
else()
  set(sanitizers ${MOEWRIGHT_SANITIZE})
endif()

add_library(moewright_flags INTERFACE)
target_include_directories(moewright_flags INTERFACE "${PROJECT_SOURCE_DIR}/src")
# Not -ffast-math: results must not depend on how the compiler reorders sums, and NaN checks must hold.
set(flags -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -fno-math-errno -fno-trapping-math)
if(MOEWRIGHT_WERROR)
  list(APPEND flags -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND flags -Wno-restrict)  # GCC 12 reports it falsely for std::string + "literal" (GCC bug 105651)
endif()
if(MOEWRIGHT_NATIVE)
  # GCC keeps to half of AVX-512's width unless told; the rates of examples/demo.toml say otherwise.
  list(APPEND flags -march=native $<$<CXX_COMPILER_ID:GNU>:-mprefer-vector-width=512>)
endif()
if(sanitizers)
  list(APPEND flags -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer
    -D_GLIBCXX_ASSERTIONS)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    list(APPEND flags -Wno-maybe-uninitialized)  # instrumented code confuses this analysis
  else()
    list(APPEND flags -Wno-pass-failed)  # and it is not vectorised, whatever `omp simd` asks for
  endif()
  target_link_options(moewright_flags INTERFACE -fsanitize=${sanitizers})
endif()
target_compile_options(moewright_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>")

# -O1 for code whose speed does not matter, because it compiles in less time. -fexpensive-optimizations lets the compiler
# fuse products and sums as it does at -O3, so that results stay equal.
add_library(moewright_light INTERFACE)
target_compile_options(moewright_light INTERFACE
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-O1;$<$<CXX_COMPILER_ID:GNU>:-fexpensive-optimizations>>")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # And at -O1 these too (GCC bug 105651).
  target_compile_options(moewright_light INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>")
endif()

# clang-tidy reads compile_commands.json and fails if an option names GCC's precompiled file by its path. With the name
# alone GCC finds that file through the include path, and clang-tidy finds the header.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(CMAKE_CXX_COMPILE_OPTIONS_USE_PCH -include cmake_pch.hxx)
endif()

# moewright_precompile_as(<target> <owner> [header]): the C++ files of the target read the header (base/precompiled.h)
# that is precompiled once, for the target <owner>, whose flags must be the same. Every file includes what it needs all
# the same.
function(moewright_precompile_as target owner)
  if(NOT MOEWRIGHT_PCH)
    return()
  endif()
  if(NOT target STREQUAL owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  elseif(ARGN)
    target_precompile_headers(${target} PRIVATE "<${ARGN}>")
  else()
    target_precompile_headers(${target} PRIVATE <base/precompiled.h>)
  endif()
  get_target_property(folder ${owner} BINARY_DIR)
  target_include_directories(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${folder}/CMakeFiles/${owner}.dir>")
  # So that ccache can tell from preprocessed text what was precompiled, and finds what another clone has compiled.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>
    "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endfunction()

# Sets <result> to what `git describe` says now; the build re-configures after each commit.
function(moewright_commit result)
  set(commit "")
  find_package(Git QUIET)
  if(Git_FOUND)
    execute_process(COMMAND "${GIT_EXECUTABLE}" describe --always --dirty WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT commit)
    set(commit unknown)
  endif()
  if(EXISTS "${PROJECT_SOURCE_DIR}/.git/logs/HEAD")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/.git/logs/HEAD")
  endif()
  set(${result} ${commit} PARENT_SCOPE)
endfunction()
