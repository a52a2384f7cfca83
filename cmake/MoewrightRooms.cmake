# One folder of src/ is one static library. Optional parts are chosen by file name, never by #ifdef:
#   *_onednn.cpp / *_no_onednn.cpp, *_mpi.cpp / *_no_mpi.cpp, *_gpu.cpp / *_no_gpu.cpp,
#   *_nccl.cpp / *_no_nccl.cpp, *_pcre.cpp / *_no_pcre.cpp, *_utf8proc.cpp / *_no_utf8proc.cpp,
#   *_sentencepiece.cpp / *_no_sentencepiece.cpp, *_zstd.cpp / *_no_zstd.cpp             with / without the feature
#   *_full.cpp / *_plan_only.cpp                                                         full / plan-only build
set(MOEWRIGHT_ROOM_TARGETS "")

# Sets <result> to the .cpp files of the given folders that this build compiles.
function(moewright_sources result)
  list(TRANSFORM ARGN REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/\\1/*.cpp" OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  foreach(feature ONEDNN MPI GPU NCCL PCRE UTF8PROC SENTENCEPIECE ZSTD)
    string(TOLOWER ${feature} name)
    set(without ${sources})
    list(FILTER without INCLUDE REGEX "_no_${name}\\.cpp$")
    if(MOEWRIGHT_HAS_${feature})
      list(REMOVE_ITEM sources ${without})
    else()
      list(FILTER sources EXCLUDE REGEX "_${name}\\.cpp$")
      list(APPEND sources ${without})
    endif()
  endforeach()
  if(MOEWRIGHT_PLAN_ONLY)
    list(FILTER sources EXCLUDE REGEX "_full\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_plan_only\\.cpp$")
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# moewright_room(<name> [DEPENDS rooms...] [LINKS targets...] [SOURCES sub-folders...])
function(moewright_room name)
  cmake_parse_arguments(arg "" "" "DEPENDS;LINKS;SOURCES" ${ARGN})
  list(TRANSFORM arg_DEPENDS PREPEND mw_)
  list(TRANSFORM arg_SOURCES PREPEND src/${name}/)
  moewright_sources(sources src/${name} ${arg_SOURCES})
  if(sources)
    add_library(mw_${name} STATIC ${sources})
    target_link_libraries(mw_${name} PUBLIC moewright_flags ${arg_DEPENDS} ${arg_LINKS})
  else()  # a room of headers alone, or one that is yet to be furnished
    add_library(mw_${name} INTERFACE)
    target_link_libraries(mw_${name} INTERFACE moewright_flags ${arg_DEPENDS} ${arg_LINKS})
  endif()
  set(MOEWRIGHT_ROOM_TARGETS ${MOEWRIGHT_ROOM_TARGETS} mw_${name} PARENT_SCOPE)
endfunction()
