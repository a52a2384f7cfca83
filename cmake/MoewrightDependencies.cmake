# Libraries, found under any prefix (CMAKE_PREFIX_PATH), without root. An optional one that is absent leaves its
# MOEWRIGHT_HAS_<feature> off, and moewright_sources() then picks the *_no_<feature>.cpp files.
set(CMAKE_THREAD_PREFER_PTHREAD ON)

# moewright_link_library(<target> <paths...>): links them, and notes them for users of the installed library.
function(moewright_link_library target)
  target_link_libraries(${target} INTERFACE ${ARGN})
  set_property(GLOBAL APPEND PROPERTY MOEWRIGHT_LINKED_LIBRARIES ${ARGN})
endfunction()

# moewright_header_library(<target> HEADER <header> [LIBRARY <name>] HINT <debian package>): header, and library if named.
function(moewright_header_library target)
  cmake_parse_arguments(arg "" "HEADER;LIBRARY;HINT" "" ${ARGN})
  find_path(${target}_INCLUDE ${arg_HEADER})
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE "${${target}_INCLUDE}")
  if(arg_LIBRARY)
    find_library(${target}_LIBRARY ${arg_LIBRARY})
    moewright_link_library(${target} "${${target}_LIBRARY}")
  endif()
  if(NOT ${target}_INCLUDE OR (arg_LIBRARY AND NOT ${target}_LIBRARY))
    message(FATAL_ERROR "${arg_HEADER} not found. hint: install ${arg_HINT} (tools/setup.sh does on Debian), "
      "or name its prefix in CMAKE_PREFIX_PATH")
  endif()
endfunction()

# moewright_optional_library(<FEATURE> HEADER <header> LIBRARY <name> LACKS <what a build without it cannot do>): the
# target moewright_<feature> and MOEWRIGHT_HAS_<FEATURE>, both only where the library is found.
function(moewright_optional_library feature)
  cmake_parse_arguments(arg "" "HEADER;LIBRARY;LACKS" "" ${ARGN})
  string(TOLOWER moewright_${feature} target)
  find_path(${target}_INCLUDE ${arg_HEADER})
  find_library(${target}_LIBRARY ${arg_LIBRARY})
  if(${target}_INCLUDE AND ${target}_LIBRARY)
    moewright_header_library(${target} HEADER ${arg_HEADER} LIBRARY ${arg_LIBRARY} HINT ${arg_LIBRARY})
    set(MOEWRIGHT_HAS_${feature} ON PARENT_SCOPE)
  else()
    message(STATUS "${arg_LIBRARY} not found: no ${arg_LACKS}")
    set(MOEWRIGHT_HAS_${feature} OFF PARENT_SCOPE)
  endif()
endfunction()

find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
target_link_libraries(moewright_flags INTERFACE fmt::fmt nlohmann_json::nlohmann_json)  # headers of base include both
moewright_header_library(moewright_toml HEADER toml++/toml.h HINT libtomlplusplus-dev)
moewright_header_library(moewright_cli11 HEADER CLI/CLI.hpp HINT libcli11-dev)

set(MOEWRIGHT_HAS_ONEDNN OFF)
set(MOEWRIGHT_HAS_AMX OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(MOEWRIGHT_HAS_AMX ON)  # in the program; whether the CPU has it is asked at run time
endif()
set(MOEWRIGHT_HAS_MPI OFF)
set(MOEWRIGHT_HAS_GPU OFF)
set(MOEWRIGHT_HAS_NCCL OFF)
if(NOT MOEWRIGHT_PLAN_ONLY)
  moewright_header_library(moewright_xxhash HEADER xxhash.h LIBRARY xxhash HINT libxxhash-dev)
  moewright_header_library(moewright_sodium HEADER sodium.h LIBRARY sodium HINT libsodium-dev)
  moewright_optional_library(PCRE HEADER pcre2.h LIBRARY pcre2-8 LACKS "tokenizer.json files")
  moewright_optional_library(UTF8PROC HEADER utf8proc.h LIBRARY utf8proc LACKS "tokenizers that normalize text")
  moewright_optional_library(SENTENCEPIECE HEADER sentencepiece_processor.h LIBRARY sentencepiece
    LACKS "SentencePiece tokenizers")
  moewright_optional_library(ZSTD HEADER zstd.h LIBRARY zstd LACKS "text in .zst files")
  moewright_optional_library(ZLIB HEADER zlib.h LIBRARY z LACKS "text in .gz files")

  find_package(OpenMP COMPONENTS CXX)
  if(OpenMP_CXX_FOUND)
    set(MOEWRIGHT_OPENMP OpenMP::OpenMP_CXX)
  else()
    message(WARNING "no OpenMP: operators run on one thread")
    target_compile_options(moewright_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas>)
  endif()

  if(MOEWRIGHT_ONEDNN)  # AUTO or ON; not find_package(dnnl), because Debian's also demands OpenCL
    find_path(moewright_onednn_INCLUDE dnnl.hpp)
    find_library(moewright_onednn_LIBRARY dnnl)
    if(MOEWRIGHT_ONEDNN STREQUAL AUTO AND NOT (moewright_onednn_INCLUDE AND moewright_onednn_LIBRARY))
      message(STATUS "oneDNN not found: plain OpenMP matrix products")
    else()
      moewright_header_library(moewright_onednn HEADER dnnl.hpp LIBRARY dnnl HINT libdnnl-dev)
      set(MOEWRIGHT_HAS_ONEDNN ON)
      set(MOEWRIGHT_ONEDNN_TARGET moewright_onednn)
    endif()
  endif()

  if(MOEWRIGHT_MPI)  # AUTO or ON; the C bindings only
    find_package(MPI COMPONENTS C)
    if(MPI_C_FOUND)
      set(MOEWRIGHT_HAS_MPI ON)
      set(MOEWRIGHT_MPI_TARGET moewright_mpi)
      # Not MPI::MPI_C itself: MPICH's wrapper adds Debian's own optimisation and hardening flags to it.
      add_library(moewright_mpi INTERFACE)
      target_include_directories(moewright_mpi SYSTEM INTERFACE ${MPI_C_INCLUDE_DIRS})
      target_compile_definitions(moewright_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
      moewright_link_library(moewright_mpi ${MPI_C_LIBRARIES})
    elseif(MOEWRIGHT_MPI STREQUAL AUTO)
      message(STATUS "MPI not found: one rank only")
    else()
      message(FATAL_ERROR "MPI not found. hint: install libopenmpi-dev, or set MPI_C_COMPILER to your mpicc")
    endif()
  endif()
endif()
